//! Corpora of the fuzzers are small, and each has its target.

use super::*;

/// Most files, and bytes, of all corpora: they are read again with each `cargo test`.
const CORPORA_FILES_MAX: usize = 640;
const CORPORA_BYTES_MAX: u64 = 300 << 10;

#[test]
fn every_corpus_belongs_to_a_target_that_can_be_fuzzed_and_all_are_small() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(root.join("tests/fuzz")).unwrap();
    let words = |line: &str| {
        line.strip_prefix("fuzz ")
            .and_then(|rest| rest.split_once(' '))
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
    };
    let mut fuzzed: Vec<(String, String)> = script.lines().filter_map(words).collect();
    let mut targets = Vec::new();
    for source in sources("src", &["rs"]) {
        for (before, after) in source
            .text
            .match_indices("fuzz!(\"")
            .map(|(place, found)| source.text.split_at(place + found.len()))
        {
            // The crate, and the test as it is named: the module of its file, of the module in it, and the function's.
            let path = source.path["src/".len()..].trim_end_matches(".rs");
            let (of_crate, path) = path.split_once('/').unwrap();
            let module = path.replace('/', "::");
            let inner = if source.path.ends_with("/fuzz.rs") || is_of_tests(&source.path) {
                ""
            } else {
                "::tests"
            };
            let test = before
                .rsplit("fn ")
                .next()
                .unwrap()
                .split('(')
                .next()
                .unwrap();
            targets.push((
                after.split('"').next().unwrap().to_owned(),
                format!("{of_crate} {module}{inner}::{test}"),
            ));
        }
    }
    let mut corpora = Vec::new();
    let mut sizes = Vec::new();
    for folder in std::fs::read_dir(root.join("tests/corpora")).unwrap() {
        let folder = folder.unwrap();
        let files = std::fs::read_dir(folder.path().join("corpus")).unwrap();
        sizes.extend(files.map(|file| file.unwrap().metadata().unwrap().len()));
        corpora.push(folder.file_name().into_string().unwrap());
    }
    fuzzed.sort();
    targets.sort();
    corpora.sort();
    assert_eq!(
        fuzzed, targets,
        "tests/fuzz names other targets than there are"
    );
    assert_eq!(
        targets.iter().map(|target| &target.0).collect::<Vec<_>>(),
        corpora.iter().collect::<Vec<_>>()
    );
    assert!(
        sizes.len() <= CORPORA_FILES_MAX && sizes.iter().sum::<u64>() <= CORPORA_BYTES_MAX,
        "{} files",
        sizes.len()
    );
}
