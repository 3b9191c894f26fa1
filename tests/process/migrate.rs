//! Configs of other rate limiters: what is converted passes `check`, and what the manual maps behaves alike.

use std::io::Write;
use std::process::{Output, Stdio};

mod ratelimit_answers;
mod ratelimit_examples;
mod ratelimit_model;

use ratelimit_examples::EXAMPLES;

use crate::support::http::get;
use crate::support::nginx::Nginx;
use crate::support::server::{Server, tollgate};

fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = tollgate();
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

fn convert(text: &str) -> (Option<i32>, String, String) {
    let output = run(&["convert", "ratelimit", "-"], text);
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn every_example_of_ratelimit_is_converted_to_a_valid_config() {
    for (name, rules, text) in EXAMPLES {
        let (code, yaml, said) = convert(text);
        assert_eq!(code, Some(0), "{name}: {said}");
        assert_eq!(yaml.matches("- { descriptor: [").count(), rules, "{yaml}");
        let warned = ["replaces", "detailed", "value_to_metric"]
            .iter()
            .any(|lost| text.contains(lost));
        assert_eq!(!said.is_empty(), warned, "{said}");
        assert!(
            !warned || said.contains("is left out") && said.contains("(line "),
            "{said}"
        );
        let checked = run(&["check", "-"], &yaml);
        assert!(
            checked.status.success(),
            "{yaml}{}",
            String::from_utf8_lossy(&checked.stderr)
        );
    }
}

#[test]
fn a_file_with_errors_is_not_converted() {
    let (code, yaml, said) = convert(
        "domain: a\ndescriptors:\n  - key: b\n    rate_limit: { unit: age, requests_per_unit: 1 }\n",
    );
    assert_eq!((code, yaml.as_str()), (Some(1), ""));
    assert!(
        said.contains("descriptors[0].rate_limit.unit is not a unit") && said.contains("(line 4)"),
        "{said}"
    );
    let (code, yaml, said) =
        convert("domain: ''\ndescriptors: [ { key: b, rate_limit: { unlimited: true } } ]\n");
    assert_eq!(
        (code, yaml.as_str()),
        (Some(1), ""),
        "`check` would refuse it: {said}"
    );
    assert!(
        said.contains("domain is empty") && said.contains("(line 1)"),
        "{said}"
    );
    assert_eq!(
        run(&["convert", "ratelimit", "/nowhere.yaml"], "")
            .status
            .code(),
        Some(1)
    );
    assert_eq!(run(&["convert", "another", "-"], "").status.code(), Some(2));
}

/// As ratelimit's runtime folder, and as a ConfigMap that is mounted: its files are links into a folder with a dot.
#[test]
fn a_folder_of_files_becomes_one_config() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, domain: &str| {
        let text = format!(
            "domain: {domain}\ndescriptors: [ {{ key: a, value: '*x', quota_mode: true, rate_limit: {{ unlimited: true }} }} ]\n"
        );
        std::fs::write(folder.path().join(name), text).unwrap();
    };
    std::fs::create_dir(folder.path().join("..data")).unwrap();
    file("..data/edge.yaml", "edge");
    std::os::unix::fs::symlink("..data/edge.yaml", folder.path().join("edge.yaml")).unwrap();
    file("inner.yml", "inner");
    file("notes.txt", "notes");
    file(".hidden.yaml", "hidden");
    let convert = || {
        run(
            &["convert", "ratelimit", folder.path().to_str().unwrap()],
            "",
        )
    };
    let converted = convert();
    let yaml = String::from_utf8(converted.stdout).unwrap();
    let said = String::from_utf8(converted.stderr).unwrap();
    assert!(
        converted.status.success() && run(&["check", "-"], &yaml).status.success(),
        "{said}{yaml}"
    );
    assert_eq!(
        yaml.matches("      rules:\n        - { descriptor: [\"a=*x\"]")
            .count(),
        2,
        "{yaml}"
    );
    assert!(
        said.contains("edge.yaml: descriptors[0].quota_mode becomes shadow")
            && said.contains("inner.yml: "),
        "{said}"
    );
    file("more.yaml", "inner");
    let refused = convert();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        refused.status.code() == Some(1)
            && said.contains("more.yaml: 1 error\n  domain is that of "),
        "{said}"
    );
    let empty = tempfile::tempdir().unwrap();
    let refused = run(
        &["convert", "ratelimit", empty.path().to_str().unwrap()],
        "",
    );
    assert!(
        refused.status.code() == Some(1)
            && String::from_utf8(refused.stderr)
                .unwrap()
                .contains("has no file whose name ends in")
    );
}

/// What docs/migrate/nginx-limit-req.md maps: `burst=3 nodelay` is a burst of 4.
#[test]
fn nginx_and_a_token_bucket_let_as_many_requests_pass() {
    for (nginx, burst) in [("", 1), ("burst=3 nodelay", 4)] {
        let limited = Nginx::limiting("1r/m", nginx);
        let passed = (0..8)
            .filter(|_| get(&limited.address, "/").status == 200)
            .count();
        let plan = format!(
            "plans: {{ p: {{ limits: [ {{ quota: 1, window: 1m, algorithm: token_bucket, burst: {burst} }} ] }} }}\n"
        );
        let server = Server::start(&plan, &[]);
        let asked = run(
            &[
                "try",
                "--address",
                &server.address,
                "--key",
                "k",
                "--plan",
                "p",
                "--repeat",
                "8",
            ],
            "",
        );
        let told = String::from_utf8(asked.stdout).unwrap();
        assert!(
            passed == burst && told.contains(&format!("allowed: {passed}\n")),
            "{passed} of 8 passed nginx: {told}"
        );
    }
}
