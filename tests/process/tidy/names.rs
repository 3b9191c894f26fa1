//! Names of types and functions: each type has one of its own, and that of a function is more than a preposition.

use super::{is_of_tests, sources};
use std::collections::BTreeMap;

/// What a line declares, without who may use it.
fn declaration(line: &str) -> &str {
    let line = line.trim_start();
    let Some(public) = line.strip_prefix("pub") else {
        return line;
    };
    match public.strip_prefix('(') {
        Some(scope) => scope.split_once(") ").map_or(line, |(_, rest)| rest),
        None => public.trim_start(),
    }
}

/// The name of the type that a line declares. An indented `type` is one of a trait.
fn declared_type(line: &str) -> Option<&str> {
    let is_associated = line.starts_with(' ') && declaration(line).starts_with("type ");
    let (word, rest) = declaration(line).split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "union", "type"].contains(&word) && !is_associated;
    let end = |letter: char| !letter.is_alphanumeric() && letter != '_';
    rest.split(end).next().filter(|_| is_type)
}

/// So that a name leads to one place, and one who reads it need not ask which is meant.
#[test]
fn the_name_of_a_type_is_its_own() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for source in sources("src", &["rs"]) {
        if is_of_tests(&source.path) {
            continue;
        }
        for name in source.code().lines().filter_map(declared_type) {
            let place = source.path.clone();
            places.entry(name.to_owned()).or_default().push(place);
        }
    }
    assert!(places.len() > 500, "{} types found", places.len());
    places.retain(|_, places| places.len() > 1);
    assert!(places.is_empty(), "several types of one name: {places:?}");
}

/// Alone, they do not say what a function does or returns. `from` is left out: a trait of the standard library has it.
const PREPOSITIONS: &str = "above after at before below beside between beyond by down for in into of on over past since through to \
    under until up with within without";

/// The name of the function that a line declares.
fn declared_function(line: &str) -> Option<&str> {
    let line = declaration(line);
    let line = line.strip_prefix("const ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    let end = |letter: char| !letter.is_alphanumeric() && letter != '_';
    line.strip_prefix("fn ")?.split(end).next()
}

#[test]
fn no_function_is_a_bare_preposition() {
    let mut functions = 0;
    for source in sources("src", &["rs"]) {
        if is_of_tests(&source.path) {
            continue;
        }
        for name in source.code().lines().filter_map(declared_function) {
            functions += 1;
            let is_bare =
                name.starts_with("of_") || PREPOSITIONS.split(' ').any(|bare| bare == name);
            assert!(!is_bare, "{}: what does {name} do?", source.path);
        }
    }
    assert!(functions > 3_000, "{functions} functions found");
}
