//! Lists of all values of an enum, which code and tests go through. The compiler finds no value that a list lacks.

use std::collections::{BTreeMap, BTreeSet};

use super::{is_of_tests, sources};

/// The first word of a text that is one of Rust.
fn word(text: &str) -> String {
    let is_word = |letter: &char| letter.is_alphanumeric() || *letter == '_';
    text.chars().take_while(is_word).collect()
}

/// The enums of a file, each with its values.
fn enums(code: &str) -> BTreeMap<String, BTreeSet<String>> {
    let values = |body: &str| {
        let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
        let lines = lines.filter(|line| line.starts_with(char::is_uppercase));
        lines.map(word).collect()
    };
    let bodies = code.split("enum ").skip(1).filter_map(|text| {
        let (head, rest) = text.split_once(" {\n")?;
        let (body, _) = rest.split_once("\n}")?;
        Some((word(head), values(body)))
    });
    bodies.collect()
}

/// Names of a constant that has all values of its type.
const LISTS: [&str; 3] = ["ALL: [", "EVERY: [", "NAMES: ["];

/// The lists that a file has: the type that each belongs to, and the values in it. A list is a constant of the type's own whose
/// items have the type `Self`, alone or with a name.
fn lists(code: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut found = Vec::new();
    for implementation in code.split("\nimpl ").skip(1) {
        let body = implementation.split("\n}").next().unwrap();
        for constant in body.split("const ").skip(1) {
            let Some((head, rest)) = constant.split_once('=') else {
                continue;
            };
            let is_list = LISTS.iter().any(|list| head.starts_with(list));
            if is_list && head.contains("Self") {
                let items = rest.split(';').next().unwrap();
                let values = items.split("Self::").skip(1).map(word).collect();
                found.push((word(implementation), values));
            }
        }
    }
    found
}

#[test]
fn a_list_of_all_values_lacks_none() {
    let sources = sources("src", &["rs"]).into_iter();
    let codes: Vec<String> = sources
        .filter(|source| !is_of_tests(&source.path))
        .map(|source| source.code())
        .collect();
    let enums: BTreeMap<_, _> = codes.iter().flat_map(|code| enums(code)).collect();
    let lists: Vec<_> = codes.iter().flat_map(|code| lists(code)).collect();
    for name in ["Algorithm", "OnStoreFailure", "Outcome", "DecidedBy"] {
        assert!(lists.iter().any(|(of, _)| of == name), "no list of {name}");
    }
    for (name, listed) in lists {
        // A list of a struct has no end.
        let Some(values) = enums.get(&name) else {
            continue;
        };
        let missing: Vec<_> = values.difference(&listed).collect();
        assert!(missing.is_empty(), "a list of {name} lacks {missing:?}");
    }
}
