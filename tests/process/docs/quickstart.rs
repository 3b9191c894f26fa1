//! The quickstart as its reader follows it: every command, in order, in one session of bash, with a real Redis and two replicas.
//!
//! Three things differ from what a reader does. The address is one of loopback that no other test has, so that the ports are free.
//! What `cargo build --release` makes is the program under test. And `ghz` loads for one second, not for ten.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tollgate::config::EXAMPLE;

use super::examples::load;
use super::markdown::{console_commands_with_output, page, root};
use crate::support::manifests::tool;
use crate::support::server::without_settings;

/// The address of the text.
const ADDRESS: &str = "127.0.0.1";
/// A package is downloaded, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long the text and the profiles of `ghz` load.
const LOADED_FOR: &str = "10s";

/// What a session printed for each command, and with what it ended.
type Outputs = Vec<(String, String)>;

/// Runs the commands in one bash. A reader goes on when a server in the background is up, so this waits for its port.
fn follow(commands: &[String], folder: &Path, address: &str) -> Outputs {
    let mut script = format!(
        "up() {{ for _ in $(seq 3000); do (exec 3<>/dev/tcp/{address}/$1) 2>/dev/null && return; sleep 0.02; done; false; }}\n"
    );
    for command in commands {
        let ready = if command.trim_end().ends_with('&') {
            format!("up {}\n", port_of(command))
        } else {
            String::new()
        };
        writeln!(script, "{command}\n{ready}printf '\\n@end %s\\n' $?").unwrap();
    }
    let output = folder.with_extension("out");
    let file = std::fs::File::create(&output).unwrap();
    let mut bash = Command::new("bash");
    without_settings(&mut bash);
    // Of cargo's, for the programs that it builds.
    bash.env_remove("LD_LIBRARY_PATH");
    let path = format!(
        "{}:{}:/usr/sbin",
        folder.join("bin").display(),
        std::env::var("PATH").unwrap()
    );
    bash.args(["-c", &script])
        .current_dir(folder)
        .env("PATH", path)
        .env("TOLLGATE_LISTEN__GRPC", format!("{address}:50051"));
    // On a busy machine the policy would decide, by a part of the quota.
    bash.env("TOLLGATE_STORE__DEADLINE", "10s").process_group(0);
    bash.stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file);
    let mut bash = bash
        .spawn()
        .expect("bash is needed by this test: apt-get install bash");
    let started = Instant::now();
    while bash.try_wait().unwrap().is_none() && started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Nothing of the session stays: neither what hangs, nor what the text forgot to stop.
    let _ = rustix::process::kill_process_group(
        rustix::process::Pid::from_child(&bash),
        rustix::process::Signal::KILL,
    );
    let _ = bash.wait();
    let printed = std::fs::read_to_string(&output).unwrap();
    std::fs::remove_file(output).unwrap();
    let mut outputs = Outputs::new();
    let mut rest = printed.as_str();
    while let Some((output, after)) = rest.split_once("\n@end ") {
        let (code, after) = after.split_once('\n').unwrap();
        outputs.push((output.to_owned(), code.to_owned()));
        rest = after;
    }
    assert_eq!(
        outputs.len(),
        commands.len(),
        "the session ended early: {printed}"
    );
    outputs
}

/// Where a server listens.
fn port_of(command: &str) -> &str {
    let default = if command.starts_with("redis-server") {
        "6379"
    } else {
        "50051"
    };
    let listen = command
        .split_once("--listen 127.")
        .and_then(|(_, rest)| rest.split([':', ' ']).nth(1));
    listen.unwrap_or(default)
}

/// The folder of the repository, as far as the text uses it.
fn repository(folder: &Path, address: &str) {
    symlink(root().join("proto"), folder.join("proto")).unwrap();
    let profiles = folder.join("deploy/ghz");
    std::fs::create_dir_all(&profiles).unwrap();
    for entry in std::fs::read_dir(root().join("deploy/ghz")).unwrap() {
        let entry = entry.unwrap();
        let text = std::fs::read_to_string(entry.path()).unwrap();
        std::fs::write(profiles.join(entry.file_name()), here(&text, address)).unwrap();
    }
    let tollgate = env!("CARGO_BIN_EXE_tollgate");
    // The address that it asks by default is not the one of this session.
    let ask = format!(
        "case \"$*\" in try*--address*) ;; try*) set -- \"$@\" --address {address}:50051 ;; esac"
    );
    let program = |path: &str, script: &str| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    program(
        "target/release/tollgate",
        &format!("{ask}\nexec {tollgate} \"$@\""),
    );
    program("bin/cargo", "[ \"$*\" = 'build --release' ]");
    for name in ["grpcurl", "ghz"] {
        symlink(tool(name), folder.join("bin").join(name)).unwrap();
    }
}

/// The text with the address of this session, and with a second of load.
fn here(text: &str, address: &str) -> String {
    text.replace(ADDRESS, address).replace(LOADED_FOR, "1s")
}

/// Whether what a tool printed says that each of its calls was answered.
fn was_answered(command: &str, printed: &str) -> bool {
    match command.split(' ').next() {
        Some("grpcurl") => printed.contains("\"allowed\": true"),
        Some("ghz") => printed.contains("[OK]") && !printed.contains("Error distribution"),
        _ => true,
    }
}

fn json_file(path: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(root().join(path)).unwrap())
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn profile_data(profile: &Value) -> Value {
    profile["data-file"]
        .as_str()
        .map_or_else(|| profile["data"].clone(), json_file)
}

/// The numbers of a text, which stay when its words change.
fn numbers(text: &str) -> Vec<&str> {
    text.split(|letter: char| !letter.is_ascii_digit())
        .filter(|number| !number.is_empty())
        .collect()
}

#[test]
fn the_quickstart_can_be_followed_word_by_word_in_one_session() {
    let quickstart = page("docs/quickstart.md");
    let folder = tempfile::tempdir().unwrap();
    let id = std::process::id();
    let address = format!(
        "127.{}.{}.{}",
        64 + (id >> 16) % 64,
        (id >> 8) % 256,
        id % 256
    );
    repository(folder.path(), &address);
    for (info, name) in [("yaml", "tollgate.yaml"), ("python", "ask.py")] {
        assert!(
            quickstart.text.contains(&format!("this as `{name}`")),
            "{name} is saved"
        );
        std::fs::write(
            folder.path().join(name),
            here(&quickstart.blocks_of(info)[0].text, &address),
        )
        .unwrap();
    }
    let shown = console_commands_with_output("docs/quickstart.md");
    let commands: Vec<String> = shown
        .iter()
        .map(|(command, _)| here(command, &address))
        .collect();
    assert!(commands.len() > 15, "{commands:?}");
    for ((command, shown), (printed, code)) in
        shown.iter().zip(follow(&commands, folder.path(), &address))
    {
        assert_eq!(code, "0", "{command}: {printed}");
        assert!(was_answered(command, &printed), "{command}: {printed}");
        match command.starts_with("tollgate try") {
            true => assert!(
                numbers(&printed).starts_with(&numbers(shown)),
                "{command}: {printed}"
            ),
            false => assert!(
                shown.is_empty() || printed == *shown,
                "{command}: {printed}"
            ),
        }
    }
    let left = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(
        left.collect::<BTreeSet<_>>(),
        ["bin", "deploy", "proto", "target"]
            .map(str::to_owned)
            .into()
    );
}

/// Profiles are run against the plans of the quickstart, and against those that a server has without a config.
#[test]
fn load_profiles_ask_for_plans_that_the_example_and_the_quickstart_have() {
    let quickstart = load(
        &page("docs/quickstart.md").blocks_of("yaml")[0].text,
        Vec::new(),
    )
    .unwrap();
    let example = load(EXAMPLE, Vec::new()).unwrap();
    let mut asked = BTreeSet::new();
    for profile in ["one-key", "many-keys"] {
        let data = profile_data(&json_file(&format!("deploy/ghz/{profile}.json")));
        let questions = data
            .as_array()
            .cloned()
            .unwrap_or_else(|| vec![data.clone()]);
        asked.extend(
            questions
                .iter()
                .map(|question| question["plan"].as_str().unwrap().to_owned()),
        );
    }
    assert!(asked.len() > 1);
    for plan in &asked {
        assert!(
            quickstart.plans.find_if_any(plan).is_some()
                && example.plans.find_if_any(plan).is_some(),
            "{plan}"
        );
    }
}

/// Who meets `free` on one page should not meet another limit of that name on the next.
#[test]
fn the_plan_free_is_the_same_in_the_readme_the_quickstart_and_the_example() {
    let configs = ["README.md", "docs/quickstart.md"]
        .map(|path| page(path).blocks_of("yaml")[0].text.clone());
    let limits = |text: &str| {
        load(text, Vec::new())
            .unwrap()
            .plans
            .find_if_any("free")
            .unwrap()
            .1
            .limits()
            .to_vec()
    };
    for config in &configs {
        assert_eq!(limits(config), limits(EXAMPLE), "{config}");
    }
}
