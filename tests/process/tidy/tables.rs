//! Tables of the documents: faults have tests, and budgets are the constants.

use super::*;

/// The rows of a document's table, each as its cells without the spaces around them.
fn table(text: &str, section: &str) -> Vec<Vec<String>> {
    let text = text
        .split(&format!("\n## {section}\n"))
        .nth(1)
        .expect(section)
        .split("\n## ")
        .next()
        .unwrap();
    let cells = |line: &str| {
        line.trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    let rows: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(cells)
        .collect();
    assert!(!rows.is_empty(), "{section} has no table");
    rows
}

fn document(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The numbers that a test's name bears: `fault_05_and_09_…` has two.
fn faults_of(test: &str) -> Vec<u32> {
    let words: Vec<&str> = test.split('_').skip(1).collect();
    let others = words[1..]
        .chunks(2)
        .take_while(|pair| pair[0] == "and")
        .filter_map(|pair| pair.get(1));
    std::iter::once(&words[0])
        .chain(others)
        .map_while(|word| word.parse().ok())
        .collect()
}

/// Numbers may have gaps, so that several people may add rows at once.
#[test]
fn every_fault_has_a_test_with_its_number_and_every_such_test_a_row() {
    let suites = sources("tests", &["rs"]);
    let names = suites
        .iter()
        .flat_map(|suite| suite.text.split("fn ").skip(1))
        .filter_map(|rest| rest.split('(').next());
    let tests: Vec<&str> = names.filter(|name| name.starts_with("fault_")).collect();
    let mut rows = Vec::new();
    for row in table(&document("docs/failures.md"), "Faults") {
        let number: u32 = row[0].parse().unwrap();
        assert!(
            rows.last().is_none_or(|last| *last < number),
            "row {number} of docs/failures.md is not in order"
        );
        let shown = tests.iter().any(|test| faults_of(test).contains(&number));
        assert!(
            shown,
            "docs/failures.md, row {number}: no test bears this number"
        );
        rows.push(number);
    }
    for (test, number) in tests.iter().flat_map(|test| {
        faults_of(test)
            .into_iter()
            .map(move |number| (test, number))
    }) {
        assert!(
            rows.contains(&number),
            "{test} has no row {number} in docs/failures.md"
        );
    }
}

#[test]
fn every_budget_is_the_constant_that_the_documents_name() {
    for row in table(&document("docs/budgets.md"), "Budgets") {
        let cell = row
            .get(2)
            .unwrap_or_else(|| panic!("docs/budgets.md: {row:?} names no constant"));
        let (constant, rest) = cell.trim_start_matches('`').split_once('`').unwrap();
        let (name, value) = constant
            .split_once(" = ")
            .unwrap_or_else(|| panic!("docs/budgets.md: {constant} has no value"));
        let path = rest
            .trim()
            .split("](../")
            .nth(1)
            .unwrap_or_else(|| panic!("docs/budgets.md: {constant} has no file"));
        let source = std::fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR")).join(path.trim_end_matches(')')),
        )
        .unwrap();
        let declared = source
            .split(&format!("const {name}: "))
            .nth(1)
            .and_then(|rest| rest.split(';').next());
        let found = declared
            .and_then(|declared| declared.split_once(" = "))
            .map(|(_, value)| value);
        assert_eq!(found, Some(value), "docs/budgets.md: {constant} in {path}");
    }
}
