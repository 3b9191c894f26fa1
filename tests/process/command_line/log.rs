//! The log of a server: its levels, its start line, and that no caller can forge a line.

use std::net::TcpStream;
use std::time::Duration;

use super::{PLANS, file};
use crate::support::Guarded;
use crate::support::redis::Redis;
use crate::support::server::{Server, decide, field, tollgate};

/// A key that would write lines of its own to the log, in colour, if it were written as it is.
const FORGED: &str = "k\nINFO forged-canary\x1b[31m\r\n{\"level\":\"forged-canary\"}";

/// Asserts that the log has no escape sequence and no line that a caller began.
fn assert_no_forged_line(format: &str, log: &str) {
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
        assert_no_forged_line(format, &log);
    }
}

#[tokio::test]
async fn the_start_line_tells_all_but_the_password() {
    let redis = Redis::start_with(&["--requirepass", "canary-password"]);
    let url = format!("redis://:canary-password@127.0.0.1:{}/0", redis.port);
    let server = Server::start(PLANS, &["--store", &url, "--log-level", "trace,fred=trace"]);
    let mut client = server.client().await;
    assert!(decide(&mut client, "k", "p").await.allowed);
    let start = server.start_line();
    assert_eq!(field(&start, "version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(
        field(&start, "store"),
        format!("redis://127.0.0.1:{}/0", redis.port)
    );
    assert_eq!(field(&start, "config_hash").len(), 16);
    remove_password(&redis);
    assert!(
        !server.end_and_log().contains("canary-password"),
        "the password is in the log"
    );
}

/// So that the check for expiries at the end can log in.
fn remove_password(redis: &Redis) {
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
