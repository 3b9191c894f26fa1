//! The house's rules, as tests: what may depend on what, what the algorithms may not know, how long things may be.

use std::path::{Path, PathBuf};

/// Longest function and file in code lines, without comments and blanks.
const FUNCTION_LINES_MAX: usize = 60;
const FILE_LINES_MAX: usize = 400;

struct Source {
    /// Below the repository, such as `src/store/redis.rs`.
    path: String,
    text: String,
}

impl Source {
    /// The code without comments and without what only tests see.
    fn code(&self) -> String {
        let body = self.text.split("#[cfg(test)]\nmod tests").next().unwrap();
        body.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
    }
}

fn sources(folder: &str, endings: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if endings.iter().any(|ending| path.extension().is_some_and(|found| found == *ending)) {
                let relative = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.push(Source { path: relative, text: std::fs::read_to_string(path).unwrap() });
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no source");
    found
}

fn only(word: &str, allowed: &[&str]) {
    for source in sources("src", &["rs"]) {
        let allowed = allowed.iter().any(|prefix| source.path.starts_with(prefix));
        assert!(allowed || !source.code().contains(word), "{} names {word}", source.path);
    }
}

#[test]
fn algorithms_are_pure() {
    for source in sources("src", &["rs"]).iter().filter(|source| source.path.starts_with("src/algorithm")) {
        let code = source.code();
        for word in
            ["async", ".await", "Instant", "SystemTime", "clock", "tracing", "println", "Mutex", "Atomic", "f32", "f64", "tokio"]
        {
            assert!(!code.contains(word), "{} names {word}", source.path);
        }
    }
}

#[test]
fn each_package_has_its_one_place() {
    only("fred::", &["src/store/redis"]);
    only("tonic::", &["src/grpc"]);
    only("prost::", &["src/grpc"]);
    only("axum", &["src/http"]);
    only("hyper", &["src/grpc", "src/http"]);
    only("serde_json", &["src/http/convert.rs"]);
    only("prost_types", &["src/grpc"]);
    only("rustls", &["src/tls", "src/store/redis/tls.rs"]);
    only("x509_cert", &["src/tls"]);
    only("config::Value", &["src/config"]);
    only("clap::", &["src/cli", "src/main.rs", "src/telemetry.rs"]);
    only("Instant::now", &["src/clock.rs"]);
    only("SystemTime::now", &["src/clock.rs"]);
    only("opentelemetry", &["src/trace.rs"]);
    only("pb::", &["src/grpc"]);
}

#[test]
fn modules_depend_one_way() {
    let order = ["key", "plan", "decision", "algorithm", "store", "limiter", "grpc", "http", "cli"];
    let beside = ["clock", "config", "shutdown", "telemetry"];
    for source in sources("src", &["rs"]) {
        let module = source.path["src/".len()..].split(['/', '.']).next().unwrap().to_owned();
        let Some(rank) = order.iter().position(|other| *other == module) else { continue };
        for later in &order[rank + 1..] {
            assert!(!source.code().contains(&format!("crate::{later}")), "{} uses {later}, which comes after it", source.path);
        }
        if module != "cli" {
            for rim in beside.iter().filter(|rim| **rim != "clock") {
                assert!(!source.code().contains(&format!("crate::{rim}::")), "{} uses {rim}", source.path);
            }
        }
    }
}

#[test]
fn files_begin_by_saying_what_they_are_for() {
    for source in ["src", "tests", "benches", "proto"].into_iter().flat_map(|folder| sources(folder, &["rs"])) {
        assert!(source.text.starts_with("//!"), "{} does not begin with //!", source.path);
        assert!(!source.path.ends_with("/mod.rs"), "{}: foo.rs and foo/, never mod.rs", source.path);
    }
    for source in sources("src", &["lua"]) {
        assert!(source.text.starts_with("--"), "{} does not begin with a comment", source.path);
    }
}

#[test]
fn files_and_functions_stay_short() {
    for source in sources("src", &["rs"]) {
        let code = source.code();
        let lines: Vec<&str> = code.lines().filter(|line| !line.trim().is_empty()).collect();
        assert!(lines.len() <= FILE_LINES_MAX, "{} has {} code lines", source.path, lines.len());
        for (start, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let signature =
                line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(super) ").trim_start_matches("async ");
            if !signature.starts_with("fn ") {
                continue;
            }
            let end = lines[start..].iter().position(|line| *line == format!("{}}}", " ".repeat(indent))).unwrap_or(0);
            assert!(end <= FUNCTION_LINES_MAX, "{}: {} has {end} lines", source.path, line.trim());
        }
    }
}

#[test]
fn nothing_unwraps_and_every_exception_has_a_reason() {
    for source in
        sources("src", &["rs"]).iter().filter(|source| !source.path.ends_with("/tests.rs") && !source.path.ends_with("/fuzz.rs"))
    {
        let code = source.code();
        if source.path == "src/algorithm/cases.rs" {
            continue;
        }
        assert!(!code.contains(".unwrap()"), "{} unwraps", source.path);
        for (index, line) in code.lines().enumerate() {
            let exception = line.trim_start().starts_with("#[allow(") || line.trim_start().starts_with("#[expect(");
            assert!(!exception || line.contains("reason = "), "{}:{index}: an exception without a reason", source.path);
        }
    }
}

#[test]
fn every_algorithm_has_its_twin_and_its_row_in_the_parity_test() {
    let parity = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity.rs")).unwrap();
    for name in ["fixed_window", "sliding_log", "sliding_window", "sliding_counter"] {
        assert!(sources("src", &["rs"]).iter().any(|source| source.path == format!("src/algorithm/{name}.rs")), "{name}");
        assert!(sources("src", &["lua"]).iter().any(|source| source.path.ends_with(&format!("/{name}.lua"))), "{name}");
        assert!(parity.contains(&format!("{name}_")), "{name} has no row in the parity test");
    }
    assert!(parity.contains("token_bucket_"));
}

#[test]
fn the_documents_name_no_file_that_is_not_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    for link in readme.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).filter(|link| !link.contains("://")) {
        let path = link.split('#').next().unwrap();
        assert!(path.is_empty() || root.join(path).exists(), "README.md links to {link}");
    }
}

/// A mutant that changes nothing any more shows nothing. They are built and run by hand.
#[test]
fn every_mutant_of_the_checker_still_changes_the_sources() {
    let (root, copy) = (Path::new(env!("CARGO_MANIFEST_DIR")), tempfile::tempdir().unwrap());
    let mut mutants = std::process::Command::new(root.join("tests/checker/mutants"));
    let output = mutants.env("MUTANTS_CHECK", "yes").env("MUTANTS_DIR", copy.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(told.matches(": changes ").count(), 17, "{told}");
}

/// The table of faults has 33 rows; what each promises is in the README.
#[test]
fn every_fault_has_a_test_that_bears_its_number() {
    let suites = sources("tests", &["rs"]);
    for row in 1..=33 {
        let name = format!("fn fault_{row:02}_");
        assert!(suites.iter().any(|suite| suite.text.contains(&name)), "no test is called fault_{row:02}_…");
    }
}
