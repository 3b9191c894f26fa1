//! The house's rules, as tests: what may depend on what, what the algorithms may not know, how long things may be.

mod algorithms;
mod corpora;
mod edge;
mod lengths;
mod lists;
mod lua;
mod names;
mod tables;

use std::path::{Path, PathBuf};

pub struct Source {
    /// Below the repository, such as `src/store/redis.rs`.
    pub path: String,
    pub text: String,
}

impl Source {
    /// The code without comments and without what only tests see.
    fn code(&self) -> String {
        let body = self.text.split("#[cfg(test)]\nmod tests").next().unwrap();
        body.lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Whether only tests see this file of `src`.
fn is_of_tests(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/") || path.ends_with("/fuzz.rs")
}

pub fn sources(folder: &str, endings: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if endings
                .iter()
                .any(|ending| path.extension().is_some_and(|found| found == *ending))
            {
                let relative = path
                    .strip_prefix(root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                found.push(Source {
                    path: relative,
                    text: std::fs::read_to_string(path).unwrap(),
                });
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no source");
    found
}

fn only(word: &str, allowed: &[&str]) {
    for source in sources("src", &["rs"]) {
        let allowed = allowed.iter().any(|prefix| source.path.starts_with(prefix));
        assert!(
            allowed || !source.code().contains(word),
            "{} names {word}",
            source.path
        );
    }
}

/// What is decided follows from what is given: no file, thread, clock, log or lock.
#[test]
fn the_core_and_the_simulation_are_pure() {
    let of_simulation = sources("src/tools", &["rs"])
        .into_iter()
        .filter(|source| source.path.starts_with("src/tools/simulate"));
    for source in sources("src/core", &["rs"])
        .into_iter()
        .chain(of_simulation)
    {
        let code = source.code();
        for word in [
            "std::fs",
            "std::io",
            "std::net",
            "thread",
            "async",
            ".await",
            "Instant",
            "SystemTime",
            "println",
            "Mutex",
            "Atomic",
            "tokio",
            "tollgate_core::decision",
            "tollgate_store",
            "tollgate_server",
            "crate::cli",
        ] {
            assert!(!code.contains(word), "{} names {word}", source.path);
        }
        for word in ["f32", "f64"] {
            assert!(
                !source.path.starts_with("src/core/algorithm") || !code.contains(word),
                "{} names {word}",
                source.path
            );
        }
    }
}

/// Of packages that are for a part of a crate. The manifests hold which crate has which package.
#[test]
fn each_package_has_its_one_place() {
    only("tonic::", &["src/server/grpc"]);
    only(
        "prost::",
        &["src/server/grpc", "src/tools/simulate/replay/packed.rs"],
    );
    only("prost_types", &["src/server/grpc"]);
    only("pb::", &["src/server/grpc"]);
    only("axum", &["src/server/http"]);
    only("h2::", &["src/server/transport", "src/server/grpc"]);
    only(
        "hyper",
        &[
            "src/server/transport",
            "src/server/grpc",
            "src/server/http",
            "src/server/trace.rs",
        ],
    );
    only(
        "serde_json",
        &[
            "src/server/http/convert",
            "src/server/http/parameters",
            "src/server/http/status",
            "src/server/grpc/client",
            "src/server/limiter/overrides/codec.rs",
            "src/tools/cli/check.rs",
            "src/tools/simulate/fields/json.rs",
            "src/tools/simulate/report/json.rs",
        ],
    );
    only(
        "serde::",
        &[
            "src/server/http/parameters",
            "src/server/http/status/explain.rs",
            "src/server/limiter/overrides/codec.rs",
            "src/tools/simulate/fields/json.rs",
        ],
    );
    only("ring::digest", &["src/server/http/status/page.rs"]);
    only("base64::", &["src/server/http/status/page.rs"]);
    only(
        "rustls",
        &["src/server/tls", "src/store/redis/connection/tls.rs"],
    );
    only("x509_cert", &["src/server/tls"]);
    only("config::Value", &["src/server/config"]);
    only("sd_notify::", &["src/server/service_manager.rs"]);
    only("opentelemetry", &["src/server/trace.rs"]);
    only("ring::rand", &["src/store/random.rs"]);
    only("Instant::now", &["src/store/clock.rs"]);
    only("SystemTime::now", &["src/store/clock.rs"]);
}

/// Within a crate. Which crate may use which, the manifests hold.
#[test]
fn modules_depend_one_way() {
    let rows: [(&str, &[&str]); 8] = [
        ("core/key", &["decision", "plan", "headers", "algorithm"]),
        ("core/decision", &["plan", "headers", "algorithm"]),
        ("core/plan", &["headers", "algorithm"]),
        ("core/headers", &["algorithm"]),
        (
            "server/transport",
            &["limiter", "grpc", "http", "config", "serve"],
        ),
        ("server/limiter", &["grpc", "http"]),
        ("server/grpc", &["http"]),
        ("server/http", &[]),
    ];
    let rim = [
        "config",
        "serve",
        "service_manager",
        "shutdown",
        "telemetry",
    ];
    for (module, later) in rows {
        let folder = format!("src/{module}/");
        let file = format!("src/{module}.rs");
        let (of_crate, _) = module.split_once('/').unwrap();
        let of_module = sources(&format!("src/{of_crate}"), &["rs"])
            .into_iter()
            .filter(|source| source.path == file || source.path.starts_with(&folder));
        for source in of_module {
            let code = source.code();
            for other in later.iter().chain(&rim) {
                assert!(
                    !code.contains(&format!("crate::{other}")),
                    "{} uses {other}, which comes after it",
                    source.path
                );
            }
        }
    }
}

/// It serves what it is given, so it names nothing that knows of limits.
#[test]
fn the_transport_knows_no_limits() {
    for source in sources("src/server", &["rs"])
        .into_iter()
        .filter(|source| source.path.starts_with("src/server/transport"))
    {
        let other = source
            .code()
            .replace("tollgate_store::clock", "")
            .replace("tollgate_store::random", "");
        for of_crate in ["tollgate_core", "tollgate_store"] {
            assert!(!other.contains(of_crate), "{} uses {of_crate}", source.path);
        }
    }
}

#[test]
fn files_begin_by_saying_what_they_are_for() {
    for source in ["src", "tests", "benches", "proto"]
        .into_iter()
        .flat_map(|folder| sources(folder, &["rs"]))
    {
        assert!(
            source.text.starts_with("//!"),
            "{} does not begin with //!",
            source.path
        );
        assert!(
            !source.path.ends_with("/mod.rs"),
            "{}: foo.rs and foo/, never mod.rs",
            source.path
        );
    }
    for source in sources("src", &["lua"]) {
        assert!(
            source.text.starts_with("--"),
            "{} does not begin with a comment",
            source.path
        );
    }
}

/// Metaphors that once stood for a thing which has a usual name.
const METAPHORS: &str = "aging ailments council crew desk dice edition errand fleet gathering greeted guide \
    ingredients keeper knowledge lane ledger loan look looks manners mate mates mistake \
    mistakes patience promises recipe recipes roster seat standing tally trouble wrongs";

/// The words of a name: of `SlotQueues` and `slot_queues` these are `slot` and `queues`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lowercase = false;
    for letter in name.chars() {
        if letter == '_' || (letter.is_uppercase() && after_lowercase) {
            words.push(String::new());
        }
        words
            .last_mut()
            .unwrap()
            .extend(letter.to_lowercase().filter(|letter| *letter != '_'));
        after_lowercase = letter.is_lowercase();
    }
    words
}

/// Comments are left out, also at the end of a line, and so are quoted texts: the odd parts between quotes.
fn names(line: &str) -> Vec<String> {
    let quoted = line.replace("\\\"", "");
    let unquoted: Vec<&str> = quoted.split('"').step_by(2).collect();
    let line = unquoted.join(" ");
    let code = line.split("//").next().unwrap().split("--").next().unwrap();
    code.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .map(str::to_owned)
        .collect()
}

#[test]
fn names_use_the_usual_word_for_a_thing_and_no_metaphor() {
    for source in ["src", "proto"]
        .into_iter()
        .flat_map(|folder| sources(folder, &["rs", "lua", "proto"]))
    {
        for name in source.text.lines().flat_map(names) {
            let metaphor = words(&name)
                .into_iter()
                .find(|word| METAPHORS.split(' ').any(|metaphor| metaphor == word));
            assert_eq!(metaphor, None, "{} has the name {name}", source.path);
        }
    }
}

#[test]
fn no_code_unwraps_and_every_lint_exception_has_a_reason() {
    for source in sources("src", &["rs"])
        .iter()
        .filter(|source| !is_of_tests(&source.path))
    {
        let code = source.code();
        if source.path == "src/core/algorithm/cases.rs" {
            continue;
        }
        assert!(!code.contains(".unwrap()"), "{} unwraps", source.path);
        let mut lines = code.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            let line = line.trim_start();
            if !line.starts_with("#[allow(") && !line.starts_with("#[expect(") {
                continue;
            }
            // It ends in this line or a later one.
            let mut attribute = line.to_owned();
            while !attribute.ends_with(")]") {
                attribute += lines.next().expect("an attribute has an end").1;
            }
            assert!(
                attribute.contains("reason = "),
                "{}:{index}: an exception without a reason",
                source.path
            );
        }
    }
}

/// A mutant that changes nothing any more shows nothing. They are built and run by hand.
#[test]
fn every_mutant_of_the_checker_still_changes_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = tempfile::tempdir().unwrap();
    let mut mutants = std::process::Command::new(root.join("tests/mutants"));
    let output = mutants
        .env("MUTANTS_CHECK", "yes")
        .env("MUTANTS_DIR", copy.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(told.matches(": changes ").count(), 40, "{told}");
}

/// A line is in the log some time after it was written, on a busy machine long after: `wait_for_line` waits for it. After a
/// server's end, and to look for what must not be there (`end_and_log`), the log is whole.
#[test]
fn no_test_reads_a_log_before_its_line_may_be_there() {
    for suite in sources("tests", &["rs"]) {
        for (index, line) in suite.text.lines().enumerate() {
            let line = line.trim_start();
            let early = line.starts_with("assert!(")
                && !line.starts_with("assert!(!")
                && line.contains(".log().contains(");
            assert!(!early, "{}:{}: wait for the line", suite.path, index + 1);
        }
    }
}

/// protoc and its kin bring google.protobuf along, and nothing else; Go takes a path whose first element has no dot for its own.
#[test]
fn a_downloaded_proto_file_compiles_with_nothing_but_its_neighbours() {
    for source in sources("proto", &["proto"]) {
        for import in source
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("import \""))
        {
            let known = ["google/protobuf/", "tollgate/v1/", "envoy/"]
                .iter()
                .any(|begin| import.starts_with(begin));
            assert!(known, "{} imports {import}", source.path);
        }
        let package = source
            .text
            .lines()
            .find_map(|line| line.strip_prefix("option go_package = \""))
            .unwrap();
        assert!(
            package.split('/').next().unwrap().contains('.'),
            "{}: {package}",
            source.path
        );
    }
}
