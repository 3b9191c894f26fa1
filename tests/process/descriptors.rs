//! File descriptors: the limit is raised, and peers leave some to the process.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use tollgate::grpc::pb::DecidedBy;

use crate::support::frames::half_a_call;
use crate::support::redis::Redis;
use crate::support::server::{PATIENCE, Server, decide, tollgate};

const PLANS: &str = "plans: { p: { limits: [ { name: day, quota: 1000, window: 1d } ] } }\n";

/// A server under this limit, as `ulimit` takes it.
fn limited(limit: &str, flags: &[&str]) -> Server {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")])
        .arg(tollgate().get_program());
    Server::start_as(command, PLANS, flags)
}

#[test]
fn the_soft_limit_of_open_files_is_raised_to_the_hard_one() {
    let server = limited("-Sn 64", &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let files: Vec<&str> = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(files[3], files[4], "{files:?}");
    assert_ne!(files[3], "64");
}

fn connect(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // One that is too many may be closed by now.
    let _ = stream.write_all(&half_a_call());
    stream
}

#[tokio::test]
async fn fault_39_peers_that_take_all_descriptors_leave_redis_its_own() {
    let mut redis = Redis::start();
    let server = limited("-n 200", &["--store", &redis.url(), "--set", "workers=1"]);
    server.wait_for_line("raise it (ulimit -Hn").await;
    let mut client = server.client().await;
    assert_eq!(
        decide(&mut client, "k", "p").await.decided_by(),
        DecidedBy::Store
    );
    // They speak HTTP/2, so that they are not closed for their silence.
    let held: Vec<TcpStream> = (0..400).map(|_| connect(&server.address)).collect();
    redis.kill();
    redis.restart();
    let started = Instant::now();
    while decide(&mut client, "k", "p").await.decided_by() != DecidedBy::Store {
        assert!(
            started.elapsed() < PATIENCE,
            "Redis is back and not connected to: {}",
            server.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        !server.log().contains("cannot accept a connection"),
        "{}",
        server.log()
    );
    drop(held);
}
