//! Names in the text of the documents: settings, variables, metrics, files and fields of log lines that there are.

use std::collections::BTreeSet;
use std::fs;

use super::markdown::{commands, page, pages, root};
use super::reference::{documented_metrics, known_fields};
use crate::support::server::Server;

/// Variables that are not settings.
const VARIABLES: [&str; 4] = [
    "TOLLGATE_CONFIG",
    "TOLLGATE_CONFIG_YAML",
    "TOLLGATE_LOG_LEVEL",
    "TOLLGATE_LOG_FORMAT",
];

/// Texts between backticks, outside blocks of code, each with its document.
fn spans() -> Vec<(String, String)> {
    let of = |path: &str, line: &str| {
        let spans = line
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect::<Vec<_>>();
        spans
            .into_iter()
            .map(|span| (path.to_owned(), span))
            .collect::<Vec<_>>()
    };
    pages()
        .iter()
        .flat_map(|page| {
            page.plain()
                .into_iter()
                .flat_map(|line| of(&page.path, line))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Words of these letters that begin so.
fn words<'a>(
    text: &'a str,
    begin: &'a str,
    letters: fn(char) -> bool,
) -> impl Iterator<Item = &'a str> {
    text.split(move |c| !letters(c))
        .filter(move |word| word.starts_with(begin) && word.len() > begin.len())
}

#[test]
fn every_setting_that_is_named_is_one() {
    let fields = known_fields();
    let is_known = |path: &str| {
        fields
            .iter()
            .any(|field| field == path || field.starts_with(&format!("{path}.")))
    };
    let mut named = 0;
    for (document, span) in spans() {
        let path = span.split([':', '=']).next().unwrap();
        let is_path = path
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte == b'.');
        if is_path
            && ["listen.", "store.", "deny_cache."]
                .iter()
                .any(|section| path.starts_with(section))
        {
            assert!(is_known(path), "{document}: {path} is not a setting");
            named += 1;
        }
    }
    assert!(named > 60, "only {named} settings are named");
}

#[test]
fn every_variable_that_is_named_is_read() {
    let settings: BTreeSet<String> = known_fields()
        .iter()
        .map(|field| format!("TOLLGATE_{}", field.to_ascii_uppercase().replace('.', "__")))
        .collect();
    let mut named = 0;
    // The checker's variables are the tests' own.
    for document in pages().iter().filter(|page| page.path.starts_with("docs/")) {
        for name in words(&document.text, "TOLLGATE_", |c| {
            c.is_ascii_uppercase() || c == '_'
        }) {
            // A plan may have any name.
            let is_of_plan = name.starts_with("TOLLGATE_PLANS__");
            assert!(
                settings.contains(name) || VARIABLES.contains(&name) || is_of_plan,
                "{}: {name} is not read",
                document.path
            );
            named += 1;
        }
    }
    assert!(named > 5, "only {named} variables are named");
}

#[test]
fn every_metric_that_is_named_is_one() {
    let metrics: BTreeSet<String> = documented_metrics()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    // The crates, by which the parts of the log are named.
    let crates: BTreeSet<String> = fs::read_dir(root().join("src"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|folder| folder.join("Cargo.toml").exists())
        .map(|folder| format!("tollgate_{}", folder.file_name().unwrap().display()))
        .collect();
    for document in pages() {
        for line in document.plain() {
            for name in words(line, "tollgate_", |c| c.is_ascii_lowercase() || c == '_') {
                assert!(
                    metrics.contains(name) || crates.contains(name),
                    "{}: {name} is neither a metric nor a crate",
                    document.path
                );
            }
        }
    }
}

#[test]
fn every_file_that_is_named_is_there() {
    let mut named = 0;
    for (document, span) in spans() {
        let path = span.split(' ').next().unwrap();
        let ours = ["src/", "tests/", "benches/", "docs/", "deploy/", "proto/"]
            .iter()
            .any(|folder| path.starts_with(folder));
        if ours && !path.contains(['*', '{', '<', '…']) {
            assert!(root().join(path).exists(), "{document}: there is no {path}");
            named += 1;
        }
    }
    assert!(named > 5, "only {named} files are named");
}

#[test]
fn the_start_line_has_the_fields_that_are_shown() {
    let operations = page("docs/operations.md");
    let shown = operations
        .text
        .lines()
        .find(|line| line.contains("tollgate is serving"))
        .unwrap();
    let mut shown: BTreeSet<&str> = shown
        .split(' ')
        .filter_map(|word| word.split_once('='))
        .map(|(name, _)| name)
        .collect();
    shown.extend(["timestamp", "level", "message", "target"]);
    let server = Server::start("plans: { any: { unlimited: true } }", &[]);
    let line: serde_json::Value = serde_json::from_str(&server.start_line()).unwrap();
    let found: BTreeSet<&str> = line
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(shown, found);
}

/// Every source below these folders, as one text.
fn sources(folders: &[&str]) -> String {
    let mut folders: Vec<_> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            match path.is_dir() {
                true => folders.push(path),
                false => text += &std::fs::read_to_string(&path).unwrap_or_default(),
            }
        }
    }
    text
}

#[test]
fn every_benchmark_and_test_that_is_to_be_run_is_there() {
    let mut benchmarks = 0;
    let mut tests = 0;
    let bench_sources = sources(&["benches"]);
    let sources = sources(&["src", "tests"]);
    for (words, _) in pages()
        .iter()
        .flat_map(|page| page.blocks_of("console"))
        .flat_map(|block| commands(&block))
    {
        if let Some(index) = words.iter().position(|word| word == "--bench") {
            let name = &words[index + 1];
            assert!(
                root().join(format!("benches/{name}.rs")).exists(),
                "there is no benchmark {name}"
            );
            let flags = words
                .iter()
                .skip_while(|word| *word != "--")
                .skip(1)
                .filter_map(|word| word.strip_prefix("--"));
            flags.for_each(|flag| {
                assert!(
                    bench_sources.contains(flag),
                    "no benchmark knows --{flag}: {words:?}"
                )
            });
            benchmarks += 1;
        }
        let named = words
            .iter()
            .map(|word| word.strip_prefix("BOLERO_TEST_NAME=").unwrap_or(word));
        for name in named.filter(|word| word.contains("::") || word.starts_with("fuzz_")) {
            let (module, function) = name.rsplit_once("::").unwrap_or(("", name));
            let has_module = module
                .split("::")
                .all(|part| part.is_empty() || sources.contains(&format!("mod {part};")));
            assert!(
                has_module && sources.contains(&format!("fn {function}")),
                "there is no test {name}"
            );
            tests += 1;
        }
    }
    assert!(
        benchmarks >= 8 && tests >= 5,
        "only {benchmarks} benchmarks and {tests} tests are named"
    );
}

#[test]
fn the_documents_state_the_number_of_mutants() {
    let mutants = std::fs::read_to_string(root().join("tests/mutants")).unwrap();
    let count = mutants
        .lines()
        .filter(|line| line.starts_with("mutant "))
        .count();
    for (document, words) in [
        ("CONTRIBUTING.md", format!("in {count} ways")),
        ("docs/design.md", format!("{count} mutants")),
    ] {
        assert!(
            page(document).text.contains(&words),
            "{document}: there are {count} mutants"
        );
    }
}
