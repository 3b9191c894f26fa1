//! The command line and the process: exit codes, what is printed, how it starts and stops.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::time::Duration;

use clap::CommandFactory;
use tollgate::cli::Arguments;

use crate::support::Guarded;
use crate::support::redis::Redis;
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

fn fails(arguments: &[&str], code: i32, sentence: &str) {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.contains(sentence), "{arguments:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_config_that_is_named_and_wrong_ends_the_start_with_2() {
    fails(
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
        fails(&["--config", file.path().to_str().unwrap()], 2, sentence);
    }
}

#[test]
fn nonsense_on_the_command_line_ends_with_2_and_a_sentence() {
    fails(&["--store", "nonsense"], 2, "store.url is no URL");
    fails(&["--store", "redis://"], 2, "names no host");
    fails(
        &["--store", "http://localhost"],
        2,
        "has a scheme that is no store's; write memory:, redis://",
    );
    fails(
        &["--store", "redis-sentinel://localhost"],
        2,
        "sentinelServiceName",
    );
    fails(&["--listen", "50051"], 2, "is no address; write host:port");
    fails(
        &["--log-level", "loud"],
        2,
        "must be error, warn, info, debug or trace",
    );
    fails(
        &["--set", "workers=1025"],
        2,
        "workers is 1025; it is 0 to 1024",
    );
    fails(
        &["--set", "store.deadline"],
        2,
        "store.deadline has no value; write --set store.deadline=VALUE",
    );
    fails(
        &["--set", "store.deadline=soon"],
        2,
        "store.deadline is wrong; it must be a duration",
    );
    fails(&["frobnicate"], 2, "frobnicate");
    // Flags before the command would be lost on it.
    fails(
        &["--store", "redis://localhost", "serve"],
        2,
        "cannot be used with",
    );
}

#[test]
fn plaintext_to_other_hosts_must_be_asked_for() {
    fails(
        &["--listen", "0.0.0.0:0"],
        2,
        "listen.grpc[0] is 0.0.0.0:0, which other hosts can reach, and nothing encrypts it",
    );
    fails(
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

/// A key that would write lines of its own to the log, in colour, if it were written as it is.
const FORGED: &str = "k\nINFO forged-canary\x1b[31m\r\n{\"level\":\"forged-canary\"}";

/// Asserts that the log has no escape sequence and no line that a caller began.
fn tells_of_no_forged_line(format: &str, log: &str) {
    assert!(
        log.lines().count() > 3 && log.contains("tollgate is serving"),
        "{log}"
    );
    assert!(!log.contains('\x1b'), "{log}");
    let begins = |line: &str| {
        line.trim_start().starts_with("INFO forged") || line.starts_with("{\"level\":\"forged")
    };
    assert!(!log.lines().any(begins), "{log}");
    let canaries = log
        .lines()
        .filter(|line| line.contains("forged-canary"))
        .count();
    println!(
        "{format}: {} lines, {canaries} of which tell of it",
        log.lines().count()
    );
}

/// Row 30: a caller cannot forge a log line, or colours of a terminal, by its choice of key and plan.
#[tokio::test]
async fn fault_30_nothing_that_a_caller_sends_begins_a_line_of_the_log() {
    for format in ["human", "json"] {
        let redis = Redis::start();
        // Everything is logged, and the store is lost on the way, so that there is something to say.
        let flags = [
            "--log-level",
            "trace",
            "--store",
            &redis.url(),
            "--log-format",
            format,
            "--set",
            "listen.http=127.0.0.1:0",
        ];
        let mut command = tollgate();
        let file = file(PLANS.as_bytes());
        let at = format!("127.0.0.1:{}", crate::support::redis::free_port());
        command
            .arg("--config")
            .arg(file.path())
            .args(["--listen", &at])
            .args(flags);
        // Into a file, which takes however much is said.
        let said = tempfile::NamedTempFile::new().unwrap();
        let mut server = Guarded(command.stdout(said.reopen().unwrap()).spawn().unwrap());
        let started = std::time::Instant::now();
        while TcpStream::connect(&at).is_err() {
            assert!(
                started.elapsed() < crate::support::server::PATIENCE,
                "it does not start"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut client =
            crate::support::server::Client::new(crate::support::server::channel_to(&at).await);
        let ask = |key: &str, plan: &str| crate::support::server::request(key, plan, None);
        assert!(client.should_allow(ask(FORGED, "p")).await.is_ok());
        assert!(
            client
                .should_allow(ask("k", "p\nforged-canary"))
                .await
                .is_err()
        );
        redis.cli(&[
            "SET",
            &format!("{{p:{FORGED}}}"),
            "no state of ours",
            "EX",
            "1000",
        ]);
        assert!(client.should_allow(ask(FORGED, "p")).await.is_ok());
        drop(redis);
        assert!(client.should_allow(ask(FORGED, "p")).await.is_ok());
        server.0.kill().unwrap();
        server.0.wait().unwrap();
        let log = std::fs::read_to_string(said.path()).unwrap();
        tells_of_no_forged_line(format, &log);
    }
}

#[test]
fn a_port_in_use_ends_with_1_and_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    fails(
        &["--listen", &address],
        1,
        &format!("cannot listen at {address}"),
    );
    fails(&["--listen", &address], 1, "another process listens there");
}

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
    fails(&["check", bad.path().to_str().unwrap()], 1, "3 errors");
    fails(
        &["check", bad.path().to_str().unwrap()],
        1,
        "store.urll is not a field; did you mean url?",
    );
    fails(&["check", "/nowhere.yaml"], 1, "cannot be read");
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
fn has_settings_in_json(json: &[u8], count: usize) {
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
    has_settings_in_json(&json, text.lines().count() - 1);
}

#[test]
fn the_version_may_name_a_commit() {
    let printed = String::from_utf8(run(&["--version"]).stdout).unwrap();
    let version = printed
        .strip_prefix(concat!("tollgate ", env!("CARGO_PKG_VERSION")))
        .unwrap()
        .trim_end();
    let commit = version
        .strip_prefix(" (")
        .and_then(|rest| rest.strip_suffix(')'));
    assert!(
        version.is_empty() || commit.is_some_and(|commit| commit.len() >= 7),
        "{printed}"
    );
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
    fails(&["check"], 0, "the embedded example plans: valid, 7 plans");
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

#[tokio::test]
async fn without_a_config_the_example_plans_are_served_and_said_to_be() {
    let server = Server::start(tollgate::config::EXAMPLE, &[]);
    let mut client = server.client().await;
    assert!(decide(&mut client, "alice", "free").await.allowed);
    let mut bare = Guarded(
        tollgate()
            .args(["--listen", "127.0.0.1:0"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(bare.0.stdout.take().unwrap()))
        .map_while(Result::ok);
    let said: Vec<String> = lines.by_ref().take(2).collect();
    assert!(
        said[0].contains("config=the embedded example plans") && said[0].contains("store=memory:"),
        "{said:?}"
    );
    assert!(
        said[1]
            .contains("grpcurl -plaintext -d '{\"key\":\"alice\",\"plan\":\"free\"}' 127.0.0.1:"),
        "{said:?}"
    );
}

#[tokio::test]
async fn the_start_line_tells_all_but_the_password() {
    let redis = Redis::start_with(&["--requirepass", "canary-password"]);
    let url = format!("redis://:canary-password@127.0.0.1:{}/0", redis.port);
    let server = Server::start(PLANS, &["--store", &url, "--log-level", "trace,fred=trace"]);
    let mut client = server.client().await;
    assert!(decide(&mut client, "k", "p").await.allowed);
    let log = server.log();
    let start = log
        .lines()
        .find(|line| line.contains("tollgate is serving"))
        .unwrap();
    assert_eq!(field(start, "version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(
        field(start, "store"),
        format!("redis://127.0.0.1:{}/0", redis.port)
    );
    assert_eq!(field(start, "config_hash").len(), 16);
    redis_auth_off(&redis);
    assert!(
        !server.end_and_log().contains("canary-password"),
        "the password is in the log"
    );
}

/// So that the check for expiries at the end can log in.
fn redis_auth_off(redis: &Redis) {
    redis.cli(&["-a", "canary-password", "CONFIG", "SET", "requirepass", ""]);
}

/// A server that says nothing serves as one that does.
#[tokio::test]
async fn every_log_level_serves() {
    for level in ["error", "trace", "off"] {
        let address = format!("127.0.0.1:{}", crate::support::redis::free_port());
        let mut quiet = tollgate();
        quiet
            .args(["--listen", &address, "--log-level", level])
            .stdout(std::process::Stdio::null());
        let _quiet = Guarded(quiet.spawn().unwrap());
        let up = || TcpStream::connect(&address).is_ok();
        let started = std::time::Instant::now();
        while !up() && started.elapsed() < crate::support::server::PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut client =
            crate::support::server::Client::new(crate::support::server::channel_to(&address).await);
        assert!(decide(&mut client, "k", "free").await.allowed, "{level}");
    }
}

fn stops_at_once(signal: &str) {
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
    stops_at_once("TERM");
}

#[test]
fn sigint_ends_it_at_once_in_spite_of_silent_connections() {
    stops_at_once("INT");
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
    fails(&["completions", "cmd"], 2, "possible values: bash");
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
        let name = row[0].trim_matches('`').split(' ').nth(1).unwrap();
        let section = page(&[name])
            .split(".SH \"EXIT STATUS\"\n")
            .nth(1)
            .unwrap()
            .trim_end()
            .to_owned();
        let codes = row[2].split("; ").map(|code| code.split_once(' ').unwrap());
        let expected: Vec<String> = codes
            .map(|(code, when)| format!(".TP\n\\fB{code}\\fR\n{when}"))
            .collect();
        assert_eq!(section, expected.join("\n"), "{name}");
    }
    fails(&["man", "frobnicate"], 2, "there is no command frobnicate");
}
