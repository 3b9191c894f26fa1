//! The examples are short, are in the table, and depend on no other versions than the server.

use super::*;

/// What is checked of the packages of the server, their licences and sources, is checked of these.
#[test]
fn the_rust_client_is_built_of_packages_that_the_server_has_in_the_same_versions() {
    let locked = |path: &str| {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let packages = text
            .split("[[package]]\n")
            .skip(1)
            .map(|package| package.split("dependencies = [").next().unwrap().trim());
        packages
            .filter(|package| package.contains("\nsource = "))
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    let ours = locked("Cargo.lock");
    let theirs = locked("examples/rust/Cargo.lock");
    assert!(theirs.len() > 50, "{theirs:?}");
    assert_eq!(
        theirs.difference(&ours).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "run cargo update -p NAME --precise VERSION"
    );
}

#[test]
fn every_client_is_short_and_in_the_table() {
    let table = std::fs::read_to_string(root().join("examples/README.md")).unwrap();
    let mut clients = 0;
    for file in table
        .split("](")
        .filter_map(|rest| rest.split(')').next())
        .filter(|file| !file.ends_with(".md"))
    {
        let Ok(text) = std::fs::read_to_string(root().join("examples").join(file)) else {
            continue;
        };
        assert!(
            code_lines(&text) <= CODE_LINES_MAX,
            "examples/{file} has {} code lines",
            code_lines(&text)
        );
        clients += 1;
    }
    assert_eq!(clients, 9);
}

/// Lines that are not an import, a comment or blank.
fn code_lines(text: &str) -> usize {
    let without_go_imports = text
        .split_once("import (\n")
        .map(|(before, rest)| (before, rest.split_once("\n)\n").unwrap().1));
    let (before, rest) = without_go_imports.unwrap_or(("", text));
    let no_code = ["//", "/**", "#", "\"\"\"", "import ", "from ", "use "];
    let is_code = |line: &&str| {
        !line.trim().is_empty()
            && !no_code
                .iter()
                .any(|begin| line.trim_start().starts_with(begin))
    };
    before.lines().chain(rest.lines()).filter(is_code).count()
}
