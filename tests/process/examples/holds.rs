//! The commands that charge for a streaming answer: what they hold comes back, also when they are killed.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{GO, PYTHON, TURN, assert_tools, clean_copy, installed, shell};
use crate::support::server::{PATIENCE, Server, tollgate};

const PLANS: &str = "
plans:
  tokens: { limits: [ { quota: 80, window: 1h } ], holds: { on_expiry: release } }
";

/// What remains for this customer.
fn remaining(server: &Server, customer: &str) -> u64 {
    let words = [
        "try", "--key", customer, "--plan", "tokens", "--peek", "--output", "json",
    ];
    let mut command = tollgate();
    let output = command
        .args(words)
        .args(["--address", &server.address])
        .output();
    let answer: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    answer["remaining"].as_u64().unwrap()
}

fn wait_for(server: &Server, customer: &str, expected: u64, patience: Duration) {
    let started = Instant::now();
    while remaining(server, customer) != expected {
        assert!(started.elapsed() < patience, "{expected} never remain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Three words are asked and nine answered, of 50 at most. So the fourth answer is denied.
fn assert_charges_for_what_was_used(command: &str, folder: &Path) {
    let server = Server::start(PLANS, &[]);
    let run = || {
        let mut shell = shell(command, folder);
        let output = shell
            .env("TOLLGATE_ADDRESS", &server.address)
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), printed)
    };
    for left in [68, 56, 44] {
        let (code, printed) = run();
        let told = format!("held 53, used 12, 41 came back, {left} remain");
        assert!(
            code == Some(0) && printed.contains("I say hello") && printed.contains(&told),
            "{printed}"
        );
    }
    let (code, printed) = run();
    assert!(
        code == Some(1) && printed.contains("denied, come back in "),
        "{printed}"
    );
    let mut killed = shell(command, folder)
        .env("TOLLGATE_ADDRESS", &server.address)
        .env("CUSTOMER", "killed")
        .env("WORD_SECONDS", "60")
        .spawn()
        .unwrap();
    wait_for(&server, "killed", 27, PATIENCE);
    let group = rustix::process::Pid::from_child(&killed);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    wait_for(&server, "killed", 80, Duration::from_secs(2));
    killed.wait().unwrap();
}

fn follow(language: &str, tools: &[(&str, &str)]) {
    assert_tools(tools);
    let folder = clean_copy(language);
    let commands = installed(language, &folder);
    let turn = TURN.lock();
    let _turn = turn.unwrap_or_else(std::sync::PoisonError::into_inner);
    for command in commands {
        assert_charges_for_what_was_used(&command, &folder);
    }
}

#[test]
fn the_go_command_charges_for_what_was_used() {
    follow("go-holds", &GO);
}

#[test]
fn the_python_command_charges_for_what_was_used() {
    follow("python-holds", &PYTHON);
}
