//! What the Dockerfile copies is all that the program is built from.

use std::path::{Component, Path, PathBuf};

use super::tidy::sources;
use crate::support::manifests::root;

/// Paths in the repository that `COPY` of the first stage names.
fn copied() -> Vec<PathBuf> {
    let dockerfile = std::fs::read_to_string(root().join("Dockerfile")).unwrap();
    let lines = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|line| !line.starts_with("--from"));
    lines
        .flat_map(|line| {
            line.split(' ')
                .rev()
                .skip(1)
                .map(PathBuf::from)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Paths in the repository that are sent to the builder at all. All others are shut out by the first line.
fn sent() -> Vec<PathBuf> {
    let ignored = std::fs::read_to_string(root().join(".dockerignore")).unwrap();
    let mut lines = ignored.lines();
    assert_eq!(lines.next(), Some("*"));
    lines
        .map(|line| PathBuf::from(line.strip_prefix('!').unwrap()))
        .collect()
}

/// A path without "..".
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => assert!(plain.pop(), "{}", path.display()),
            other => plain.push(other),
        }
    }
    plain
}

#[test]
fn all_that_the_program_includes_is_copied() {
    let copied = copied();
    let sent = sent();
    assert!(
        copied
            .iter()
            .all(|path| sent.iter().any(|sent| path.starts_with(sent))),
        "{copied:?} is not in .dockerignore"
    );
    let mut included = vec![PathBuf::from("Cargo.toml"), PathBuf::from("Cargo.lock")];
    included.extend(
        sources("src", &["toml"])
            .into_iter()
            .map(|source| source.path.into()),
    );
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    included.extend(manifest.lines().filter_map(|line| {
        Some(PathBuf::from(
            line.strip_prefix("path = \"")?.strip_suffix('"')?,
        ))
    }));
    for source in sources("src", &["rs"]) {
        for macro_name in ["include_str!(\"", "include_bytes!(\"", "include!(\""] {
            let names = source
                .text
                .split(macro_name)
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap());
            included.extend(
                names.map(|name| plain(&Path::new(&source.path).parent().unwrap().join(name))),
            );
        }
    }
    assert!(included.contains(&PathBuf::from("src/server/Cargo.toml")));
    assert!(included.len() > 20, "{included:?}");
    for path in included {
        assert!(
            root().join(&path).is_file(),
            "{} is not there",
            path.display()
        );
        assert!(
            copied.iter().any(|copied| path.starts_with(copied)),
            "the Dockerfile does not copy {}",
            path.display()
        );
    }
}
