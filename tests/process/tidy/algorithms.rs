//! What each algorithm must have, where neither the compiler nor a test of it would miss it.

use std::path::Path;

use super::sources;
use tollgate::plan::Algorithm;

#[test]
fn every_algorithm_has_its_files() {
    for name in crate::process::docs::algorithms() {
        // Its file has the name of the algorithm in the literature.
        let file = if name == "token_bucket" {
            "gcra"
        } else {
            name.as_str()
        };
        assert!(
            sources("src", &["rs"])
                .iter()
                .any(|source| source.path == format!("src/core/algorithm/{file}.rs")),
            "{name}"
        );
        assert!(
            sources("src", &["lua"])
                .iter()
                .any(|source| source.path.ends_with(&format!("/{file}.lua"))),
            "{name}"
        );
    }
}

/// The list that tests go through, so that a new algorithm meets them.
#[test]
fn every_algorithm_is_in_the_list_of_all() {
    let limit = sources("src/core/plan", &["rs"])
        .into_iter()
        .find(|source| source.path == "src/core/plan/limit.rs")
        .unwrap();
    let body = limit
        .text
        .split("pub enum Algorithm {")
        .nth(1)
        .unwrap()
        .split("\n}")
        .next()
        .unwrap();
    let word = |text: &str| {
        text.split(|letter: char| !letter.is_alphanumeric())
            .next()
            .unwrap()
            .to_owned()
    };
    let is_variant =
        |line: &&str| line.starts_with("    ") && line[4..].starts_with(char::is_uppercase);
    let variants: std::collections::BTreeSet<String> = body
        .lines()
        .filter(is_variant)
        .map(|line| word(&line[4..]))
        .collect();
    let listed = Algorithm::EVERY.map(|algorithm| word(&format!("{algorithm:?}")));
    assert!(variants.len() >= 5);
    assert_eq!(
        listed
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>(),
        variants
    );
}

/// Pages, and tables in comments, that say something of each algorithm.
const TABLES: [&str; 4] = [
    "docs/algorithms.md",
    "docs/holds.md",
    "docs/simulate.md",
    "src/core/algorithm/undo.rs",
];

#[test]
fn every_algorithm_stands_in_each_table_of_them() {
    for path in TABLES {
        let text = text(path);
        for name in Algorithm::EVERY.map(Algorithm::name) {
            assert!(text.contains(&format!("`{name}`")), "{path}: {name}");
        }
    }
}

/// `cargo bench --bench matrix -- --algorithms` has a row for each.
#[test]
fn every_algorithm_has_a_plan_to_measure_it_by() {
    let plans = text("benches/harness.rs");
    for name in Algorithm::EVERY.map(Algorithm::name) {
        assert!(plans.contains(&format!("\n  {name}: {{")), "{name}");
    }
}

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}
