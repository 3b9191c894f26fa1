//! `tollgate check`: what it says of a config, and of all settings in force.

use std::net::TcpListener;
use std::process::Output;

use super::{PLANS, assert_fails, file, run};
use crate::support::server::tollgate;

#[test]
fn check_says_valid_or_every_error() {
    let good = file(PLANS.as_bytes());
    let output = run(&["check", good.path().to_str().unwrap()]);
    assert_eq!(
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).contains("valid, 1 plan\n")
        ),
        (Some(0), true)
    );
    let bad = file(b"plans: { a: {}, b: {} }\nstore: { urll: x }\n");
    assert_fails(&["check", bad.path().to_str().unwrap()], 1, "3 errors");
    assert_fails(
        &["check", bad.path().to_str().unwrap()],
        1,
        "store.urll is not a field; did you mean url?",
    );
    assert_fails(&["check", "/nowhere.yaml"], 1, "cannot be read");
}

/// What `check` says of this command line, with two settings in the environment.
fn check_with_variables(arguments: &[&str]) -> Output {
    tollgate()
        .arg("check")
        .args(arguments)
        .env("TOLLGATE_LOG_FORMAT", "json")
        .env("TOLLGATE_STORE__KEY_PREFIX", "shop:")
        .output()
        .unwrap()
}

/// Asserts that so many settings were printed, among them one of a flag and one that has no value.
fn assert_settings_in_json(json: &[u8], count: usize) {
    let settings: Vec<serde_json::Value> = serde_json::from_slice(json).unwrap();
    let of = |path: &str| {
        settings
            .iter()
            .find(|setting| setting["path"] == path)
            .unwrap()
    };
    assert_eq!(
        (&of("workers")["value"], &of("workers")["origin"]),
        (&"2".into(), &"flag --set workers".into())
    );
    assert_eq!(of("store.username")["value"], serde_json::Value::Null);
    assert_eq!(settings.len(), count);
}

/// A unit's command line is tried before a restart: `check` in the place of `serve`.
#[test]
fn check_takes_what_serving_takes_and_prints_the_settings_in_force() {
    let file = file(format!("{PLANS}store: {{ deadline: 9ms }}\n").as_bytes());
    let path = file.path().to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let command_line = [
        "--config",
        path,
        "--listen",
        &address,
        "--store",
        "redis://u:canary@h",
        "--set",
        "workers=2",
        "--set",
        "listen.http=[::]:1",
        "--log-level",
        "debug",
    ];
    let check = |more: &[&str]| check_with_variables(&[&command_line[..], more].concat());
    let refused = String::from_utf8(check(&[]).stderr).unwrap();
    assert!(
        refused.contains(
            "flags and environment: 1 error\n  listen.http is [::]:1, which other hosts can reach"
        ),
        "{refused}"
    );
    let printed = check(&["--plaintext", "--print"]);
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(
        printed.status.success() && text.starts_with(&format!("{path}: valid, 1 plan\n")),
        "{text}"
    );
    for line in [
        format!("listen.grpc = {address}  (flag --listen)"),
        "listen.plaintext = true  (flag --plaintext)".to_owned(),
        "listen.metrics = \"\"  (default)".to_owned(),
        "store.url = redis://u:***@h  (flag --store)".to_owned(),
        "store.key_prefix = shop:  (variable TOLLGATE_STORE__KEY_PREFIX)".to_owned(),
        format!("store.deadline = 9ms  ({path}, line 2)"),
        "store.username = none  (default)".to_owned(),
        "workers = 2  (flag --set workers)".to_owned(),
        "--log-level = debug  (flag --log-level)".to_owned(),
        "--log-format = json  (variable TOLLGATE_LOG_FORMAT)".to_owned(),
        format!("plans.p.limits[0].quota = 2  ({path}, line 1)"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let json = check(&["--plaintext", "--print", "--output", "json"]).stdout;
    assert_settings_in_json(&json, text.lines().count() - 1);
}

/// By its index. A variable beats the file, and a flag beats both.
#[test]
fn a_flag_or_a_variable_sets_a_field_of_a_limit() {
    let file = file(PLANS.as_bytes());
    let variable = "TOLLGATE_PLANS__P__LIMITS[0]__QUOTA";
    for (flags, line) in [
        (
            &["--print"][..],
            "plans.p.limits[0].quota = 6  (variable \"TOLLGATE_PLANS__P__LIMITS[0]__QUOTA\")",
        ),
        (
            &["--print", "--set", "plans.p.limits[0].quota=5"][..],
            "plans.p.limits[0].quota = 5  (flag --set plans.p.limits[0].quota)",
        ),
    ] {
        let mut command = tollgate();
        command.arg("check").arg(file.path());
        let output = command.args(flags).env(variable, "6").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn an_output_that_cannot_be_written_is_an_error_and_no_panic() {
    let config = file(PLANS.as_bytes());
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = tollgate()
        .arg("check")
        .arg(config.path())
        .stdout(full)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("standard output cannot be written to") && !said.contains("panicked"),
        "{said}"
    );
}

#[test]
fn the_example_config_that_ships_is_valid() {
    assert_fails(&["check"], 0, "the embedded example plans: valid, 7 plans");
    assert!(
        run(&[
            "check",
            concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/src/server/config/example.yaml"
            )
        ])
        .status
        .success()
    );
}
