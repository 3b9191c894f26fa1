//! The package of Debian, which deploy/release builds from `[package.metadata.deb]` in Cargo.toml: what is listed there is there,
//! and its unit finds the program, the config and the user that the package installs.

use std::path::PathBuf;
use std::process::Command;

use crate::support::manifests::{read, root};

/// What is installed: the path in the tree, or its pattern, and the place on the host.
fn assets() -> Vec<(String, String)> {
    let manifest = read("Cargo.toml");
    let list = manifest
        .split_once("\nassets = [\n")
        .unwrap()
        .1
        .split_once("\n]\n")
        .unwrap()
        .0;
    let asset = |line: &str| {
        let [source, place, mode]: [String; 3] =
            serde_json::from_str(line.trim().trim_end_matches(',')).unwrap();
        assert_eq!(mode == "755", source == "target/release/tollgate", "{line}");
        let name = source.rsplit('/').next().unwrap();
        let place = if place.ends_with('/') && name != "*" {
            format!("{place}{name}")
        } else {
            place
        };
        (source, place)
    };
    list.lines().map(asset).collect()
}

/// The value of a field of `[package.metadata.deb]`.
fn field(name: &str) -> String {
    let manifest = read("Cargo.toml");
    let table = manifest.split_once("\n[package.metadata.deb]\n").unwrap().1;
    table
        .split_once(&format!("\n{name} = \""))
        .unwrap()
        .1
        .split('"')
        .next()
        .unwrap()
        .to_owned()
}

#[test]
fn all_that_the_package_lists_is_in_the_tree_or_written_by_the_program() {
    let written = tempfile::tempdir().unwrap();
    let mut pages = Command::new(root().join("deploy/pages"));
    let pages = pages
        .args([env!("CARGO_BIN_EXE_tollgate").as_ref(), written.path()])
        .output()
        .unwrap();
    assert!(
        pages.status.success() && pages.stderr.is_empty(),
        "{pages:?}"
    );
    // The list of what is linked takes a tool of the release.
    assert!(read("deploy/release").contains("cp \"$sbom\" \"$share/sbom.cdx.json\""));
    std::fs::write(written.path().join("sbom.cdx.json"), "{}").unwrap();
    let mut notices = Command::new(root().join("deploy/notices"));
    let notices = notices
        .arg(written.path().join("notices.txt"))
        .output()
        .unwrap();
    assert!(notices.status.success(), "{notices:?}");
    for (source, place) in assets() {
        assert!(
            place.starts_with("usr/") || place.starts_with("etc/tollgate/"),
            "{place}"
        );
        if source == "target/release/tollgate" {
            continue;
        }
        let path = match source.strip_prefix("target/dist/share/") {
            Some(name) => written.path().join(name),
            None => root().join(&source),
        };
        let file = match path.to_str().unwrap().strip_suffix("/*") {
            Some(folder) => std::fs::read_dir(folder)
                .unwrap()
                .next()
                .unwrap()
                .unwrap()
                .path(),
            None => path,
        };
        assert!(
            std::fs::metadata(&file).is_ok_and(|file| file.len() > 0),
            "{source} is not there"
        );
    }
    assert!(root().join(field("license-file")).is_file());
    let manuals = std::fs::read_dir(written.path().join("man"))
        .unwrap()
        .count();
    let commands = read("docs/cli.md").matches("\n## `tollgate ").count();
    assert!(
        manuals > commands,
        "{manuals} pages, {commands} commands and the page of all"
    );
}

#[test]
fn the_unit_of_the_package_finds_its_program_config_and_user() {
    // cargo-deb takes files of the package's name.
    let folder = PathBuf::from(field("maintainer-scripts"));
    let unit = read(folder.join("tollgate.service").to_str().unwrap());
    let places: Vec<String> = assets().into_iter().map(|(_, place)| place).collect();
    assert!(
        places.contains(&"usr/bin/tollgate".to_owned())
            && unit.contains("\nExecStart=tollgate --config ")
    );
    let config = unit
        .split_once("\nExecStart=tollgate --config /")
        .unwrap()
        .1
        .lines()
        .next()
        .unwrap();
    assert!(
        places.iter().any(|place| place == config),
        "{config} is not in {places:?}"
    );
    assert!(unit.contains(&format!("\nExecStartPre=tollgate check /{config}\n")));
    let user = unit
        .split_once("\nUser=")
        .unwrap()
        .1
        .lines()
        .next()
        .unwrap();
    let host = tempfile::tempdir().unwrap();
    for folder in ["etc", "usr/lib/sysusers.d"] {
        std::fs::create_dir_all(host.path().join(folder)).unwrap();
    }
    std::fs::copy(
        root().join(folder).join("tollgate.sysusers"),
        host.path().join("usr/lib/sysusers.d/tollgate.conf"),
    )
    .unwrap();
    let mut sysusers = Command::new("systemd-sysusers");
    sysusers.arg("--root").arg(host.path()).arg("tollgate.conf");
    let output = sysusers
        .output()
        .expect("systemd-sysusers is needed by this test; tests/run installs systemd");
    assert!(output.status.success(), "{output:?}");
    for file in ["passwd", "group"] {
        let names = std::fs::read_to_string(host.path().join("etc").join(file)).unwrap();
        assert!(
            names
                .lines()
                .any(|line| line.starts_with(&format!("{user}:"))),
            "{file}: {names}"
        );
    }
}
