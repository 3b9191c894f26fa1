//! Files and functions are short, and each statement stands by itself.

use super::{Source, is_of_tests, sources};

/// Lines of any kind in a file, and in all but one in twenty of those that are not tests.
const FILE_LINES_MAX: usize = 500;
const USUAL_FILE_LINES_MAX: usize = 400;
/// Code lines between the braces of a function, and of all but one in twenty.
const BODY_LINES_MAX: usize = 60;
const USUAL_BODY_LINES_MAX: usize = 25;
const LONGER_DIVISOR: usize = 20;

fn all_files() -> impl Iterator<Item = Source> {
    ["src", "tests", "benches"]
        .into_iter()
        .flat_map(|folder| sources(folder, &["rs"]))
}

#[test]
fn files_stay_short() {
    for source in all_files() {
        let lines = source.text.lines().count();
        assert!(
            lines <= FILE_LINES_MAX,
            "{} has {lines} lines, and may have {FILE_LINES_MAX}: move what is about one thing to a file of its own",
            source.path
        );
    }
}

#[test]
fn few_files_are_long() {
    let lengths: Vec<(usize, String)> = sources("src", &["rs"])
        .into_iter()
        .filter(|source| !is_of_tests(&source.path))
        .map(|source| (source.text.lines().count(), source.path))
        .collect();
    let is_long = |(lines, path): &(usize, String)| {
        (*lines > USUAL_FILE_LINES_MAX).then(|| format!("{lines} {path}"))
    };
    assert_few(
        "files",
        USUAL_FILE_LINES_MAX,
        lengths.iter().filter_map(is_long).collect(),
        lengths.len(),
    );
}

/// At most one in [`LONGER_DIVISOR`] of `all` is longer than is usual.
fn assert_few(what: &str, usual_lines: usize, mut longer: Vec<String>, all: usize) {
    longer.sort();
    assert!(
        longer.len() * LONGER_DIVISOR <= all,
        "{} of {all} {what} have more than {usual_lines} lines; split one of these:\n{}",
        longer.len(),
        longer.join("\n")
    );
}

/// Whether a function begins here.
fn begins_function(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let of_signature = |word: &str| {
        word.starts_with("pub")
            || ["in", "const", "async", "unsafe"].contains(&word)
            || word.ends_with(')')
    };
    words.find(|word| !of_signature(word)) == Some("fn")
}

/// Name and number of body lines of each function.
fn functions(code: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = code
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let mut found = Vec::new();
    for (start, line) in lines
        .iter()
        .enumerate()
        .filter(|(_, line)| begins_function(line))
    {
        let indent = line.len() - line.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let opens = |line: &&str| line.ends_with('{');
        let is_end = |line: &&str| {
            **line == end || line.ends_with(';') && line.starts_with(&" ".repeat(indent))
        };
        let Some(open) = lines[start..].iter().position(opens) else {
            continue;
        };
        // A function of a trait without a body ends before any brace.
        if lines[start..start + open].iter().any(is_end) {
            continue;
        }
        let body = lines[start + open..].iter().position(|line| *line == end);
        found.push((line.trim(), body.map_or(0, |lines| lines - 1)));
    }
    found
}

#[test]
fn functions_stay_short() {
    let mut longer = Vec::new();
    let mut all = 0;
    for source in sources("src", &["rs"]) {
        if is_of_tests(&source.path) {
            continue;
        }
        for (name, lines) in functions(&source.code()) {
            assert!(
                lines <= BODY_LINES_MAX,
                "{}: {name} has {lines} lines, and may have {BODY_LINES_MAX}",
                source.path
            );
            all += 1;
            if lines > USUAL_BODY_LINES_MAX {
                longer.push(format!("{lines} {} {name}", source.path));
            }
        }
    }
    assert_few("functions", USUAL_BODY_LINES_MAX, longer, all);
}

/// The place behind the parenthesis that closes the first one of this text. Strings have no lone parentheses where this looks.
fn behind_parentheses(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (place, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' if depth == 1 => return Some(place + 1),
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// `let (a, b) = (one, two);` are two statements.
fn packed_statement(text: &str) -> Option<&str> {
    let pattern = behind_parentheses(text)?;
    let values = text[pattern..].strip_prefix(" = ")?;
    if !values.starts_with('(') {
        return None;
    }
    let end = behind_parentheses(values)?;
    values[end..]
        .starts_with(';')
        .then(|| text.lines().next().unwrap_or(text))
}

#[test]
fn each_statement_stands_by_itself() {
    for source in all_files() {
        let begins_line =
            |place: &usize| source.text[..*place].trim_end_matches(' ').ends_with('\n');
        let places = source.text.match_indices("let (").map(|(place, _)| place);
        for place in places.filter(begins_line) {
            let packed = packed_statement(&source.text[place + "let ".len()..]);
            assert_eq!(packed, None, "{}: write a let for each", source.path);
        }
    }
}
