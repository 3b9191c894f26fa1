//! The command line and the process: exit codes, what is printed, how it starts and stops.

mod check;
mod log;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::time::Duration;

use clap::CommandFactory;
use tollgate::cli::Arguments;

use crate::support::Guarded;
use crate::support::manifests::tool;
use crate::support::server::{Server, decide, field, tollgate};

const PLANS: &str = "plans: { p: { limits: [ { name: day, quota: 2, window: 1d } ] } }\n";

fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    file.write_all(content).unwrap();
    file
}

fn run(arguments: &[&str]) -> Output {
    tollgate().args(arguments).output().unwrap()
}

fn assert_fails(arguments: &[&str], code: i32, sentence: &str) {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.contains(sentence), "{arguments:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_config_that_is_named_and_wrong_ends_the_start_with_2() {
    assert_fails(
        &["--config", "/nowhere.yaml"],
        2,
        "/nowhere.yaml: 1 error\n  cannot be read: No such file",
    );
    for (content, sentence) in [
        (b"".as_slice(), "is empty"),
        (b"plans: [", "is not valid YAML"),
        (b"\xff", "is not UTF-8"),
        (
            b"plans: { p: { limits: [ { quota: 0, window: 1m } ] } }",
            "plans.p.limits[0].quota is 0; a quota is at least 1",
        ),
    ] {
        let file = file(content);
        assert_fails(&["--config", file.path().to_str().unwrap()], 2, sentence);
    }
}

#[test]
fn nonsense_on_the_command_line_ends_with_2_and_a_sentence() {
    assert_fails(&["--store", "nonsense"], 2, "store.url is not a URL");
    assert_fails(&["--store", "redis://"], 2, "names no host");
    assert_fails(
        &["--store", "http://localhost"],
        2,
        "has a scheme that is not a store's; write memory:, ",
    );
    assert_fails(
        &["--store", "redis-sentinel://localhost"],
        2,
        "sentinelServiceName",
    );
    assert_fails(
        &["--listen", "50051"],
        2,
        "is not an address; write host:port",
    );
    assert_fails(
        &["--log-level", "loud"],
        2,
        "must be error, warn, info, debug, trace or off",
    );
    assert_fails(
        &["--set", "workers=1025"],
        2,
        "workers is 1025; it is 0 to 1024",
    );
    assert_fails(
        &["--set", "store.deadline"],
        2,
        "store.deadline has no value; write --set store.deadline=VALUE",
    );
    assert_fails(
        &["--set", "store.deadline=soon"],
        2,
        "store.deadline is wrong; it must be a duration",
    );
    assert_fails(&["frobnicate"], 2, "frobnicate");
    // Flags before the command would be lost on it.
    assert_fails(
        &["--store", "redis://localhost", "serve"],
        2,
        "cannot be used with",
    );
}

#[test]
fn plaintext_to_other_hosts_must_be_asked_for() {
    assert_fails(
        &["--listen", "0.0.0.0:0"],
        2,
        "listen.grpc[0] is 0.0.0.0:0, which other hosts can reach, and nothing encrypts it",
    );
    assert_fails(
        &["--set", "listen.http=[::]:0"],
        2,
        "listen.http is [::]:0, which other hosts can reach",
    );
    let open = ["--listen", "0.0.0.0:0", "--set", "listen.http=0.0.0.0:0"];
    let server = Server::start(PLANS, &[&open[..], &["--plaintext"]].concat());
    assert!(
        field(&server.log(), "grpc").contains("0.0.0.0:"),
        "{}",
        server.log()
    );
    let server = Server::start(PLANS, &["--listen", "plaintext:0.0.0.0:0"]);
    assert!(
        field(&server.log(), "grpc").contains(",0.0.0.0:"),
        "{}",
        server.log()
    );
}

#[test]
fn a_port_in_use_ends_with_1_and_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_fails(
        &["--listen", &address],
        1,
        &format!("cannot listen at {address}"),
    );
    assert_fails(&["--listen", &address], 1, "another process listens there");
}

#[test]
fn the_version_may_name_a_commit() {
    let printed = String::from_utf8(run(&["--version"]).stdout).unwrap();
    let version = printed
        .strip_prefix(concat!("tollgate ", env!("CARGO_PKG_VERSION")))
        .unwrap();
    let (version, zones) = version.split_once(", time zones of ").unwrap();
    assert_eq!(zones.trim_end(), tollgate::plan::ZONE_DATABASE);
    let commit = version
        .strip_prefix(" (")
        .and_then(|rest| rest.strip_suffix(')'));
    assert!(
        version.is_empty() || commit.is_some_and(|commit| commit.len() >= 7),
        "{printed}"
    );
}

#[tokio::test]
async fn without_a_config_the_example_plans_are_served_and_said_to_be() {
    let server = Server::start(tollgate::config::EXAMPLE, &[]);
    let mut client = server.client().await;
    assert!(decide(&mut client, "alice", "free").await.allowed);
    let folder = tempfile::tempdir().unwrap();
    for listen in [
        "127.0.0.1:0".to_owned(),
        format!("unix:{}", folder.path().join("grpc.sock").display()),
    ] {
        let mut bare = Guarded(
            tollgate()
                .args(["--listen", &listen])
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut lines =
            std::io::BufRead::lines(std::io::BufReader::new(bare.0.stdout.take().unwrap()))
                .map_while(Result::ok);
        let said: Vec<String> = lines.by_ref().take(2).collect();
        assert!(
            said[0].contains("config=the embedded example plans")
                && said[0].contains("store=memory:"),
            "{said:?}"
        );
        let (_, command) = said[1].split_once("; try: grpcurl ").unwrap();
        let asked = std::process::Command::new("sh")
            .args(["-c", &format!("{} {command}", tool("grpcurl").display())])
            .output()
            .unwrap();
        let answer = String::from_utf8_lossy(&asked.stdout);
        assert!(answer.contains("\"allowed\": true"), "{said:?}: {asked:?}");
    }
}

fn assert_stops_at_once(signal: &str) {
    let mut server = Server::start(PLANS, &[]);
    // Connections that never speak: a port scan, a health check of a load balancer.
    let silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(&server.address).unwrap())
        .collect();
    server.signal(signal);
    let (status, took) = server.wait();
    assert!(status.success(), "{status}");
    println!(
        "{signal}: ended after {took:?} with {} silent connections",
        silent.len()
    );
    // Well below the 8 s of a drain that waits for something, and room for a machine that is busy with other tests.
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    let log = server.log();
    assert!(log.contains("stopped: every call was answered"), "{log}");
}

#[test]
fn sigterm_ends_it_at_once_in_spite_of_silent_connections() {
    assert_stops_at_once("TERM");
}

#[test]
fn sigint_ends_it_at_once_in_spite_of_silent_connections() {
    assert_stops_at_once("INT");
}

#[tokio::test]
async fn environment_sets_what_the_file_does_not() {
    let config = file(PLANS.as_bytes());
    let output = tollgate()
        .args(["--config", config.path().to_str().unwrap()])
        .env("TOLLGATE_STORE__URL", "redis-sentinel://h")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("sentinelServiceName=NAME"));
}

#[test]
fn completions_are_scripts_that_their_shells_accept() {
    for (shell, words) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef tollgate"),
        ("fish", "complete -c tollgate"),
    ] {
        let output = run(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && script.contains(words),
            "{shell}: {script}"
        );
        assert!(
            script.contains("simulate") && script.contains("log-format"),
            "{shell}: {script}"
        );
    }
    let mut bash = std::process::Command::new("bash")
        .arg("-n")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    bash.stdin
        .take()
        .unwrap()
        .write_all(&run(&["completions", "bash"]).stdout)
        .unwrap();
    assert!(bash.wait().unwrap().success());
    assert_fails(&["completions", "cmd"], 2, "possible values: bash");
}

#[test]
fn every_command_has_a_manual_page() {
    let page = |arguments: &[&str]| {
        let output = run(&[&["man"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let whole = page(&[]);
    assert!(
        whole.contains(".TH tollgate 1") && whole.contains("log\\-format"),
        "{whole}"
    );
    let mut command = Arguments::command();
    command.build();
    for command in command.get_subcommands().map(clap::Command::get_name) {
        let page = page(&[command]);
        assert!(
            page.contains(&format!(".TH tollgate\\-{command} 1"))
                || page.contains(&format!(".TH tollgate-{command} 1")),
            "{page}"
        );
        assert!(
            whole.contains(&format!("tollgate\\-{command}(1)")),
            "{command}: {whole}"
        );
    }
    for row in super::docs::table("docs/cli.md", "command")
        .into_iter()
        .skip(1)
    {
        let words = row[0].trim_matches('`').split(' ').skip(1);
        let is_name = |word: &&str| word.chars().all(|letter| letter.is_ascii_lowercase());
        let name: Vec<&str> = words.filter(is_name).collect();
        let section = page(&name)
            .split(".SH \"EXIT STATUS\"\n")
            .nth(1)
            .unwrap()
            .trim_end()
            .to_owned();
        let codes = row[2].split("; ").map(|code| code.split_once(' ').unwrap());
        let expected: Vec<String> = codes
            .map(|(code, when)| format!(".TP\n\\fB{code}\\fR\n{when}"))
            .collect();
        assert_eq!(section, expected.join("\n"), "{name:?}");
    }
    assert_fails(&["man", "frobnicate"], 2, "there is no command frobnicate");
}
