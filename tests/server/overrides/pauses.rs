//! How long a decision waits while all overrides are read, by a clock. By hand, since a busy machine makes every pause longer.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tollgate::grpc::pb;

use super::{CONFIG, FILL, NAME};
use crate::support::redis::Redis;
use crate::support::server::{Client, Server, decide};

const PHASE: Duration = Duration::from_secs(10);

/// The plans, with so many overrides in the file.
fn config(overrides: u32) -> String {
    let mut text = CONFIG.to_owned();
    for index in 0..overrides {
        writeln!(
            text,
            "  - {{ plan: free, key: of-file-{index}, quotas: [ {{ quota: {} }} ] }}",
            index + 1
        )
        .unwrap();
    }
    text
}

/// Decides one after another for as long as a phase lasts, and prints how long the slowest took.
async fn watch(client: &mut Client, what: &str, mut disturb: impl FnMut()) -> Duration {
    let (began, mut took, mut next) = (Instant::now(), Vec::new(), Instant::now());
    while began.elapsed() < PHASE {
        if Instant::now() >= next {
            disturb();
            next = Instant::now() + Duration::from_millis(700);
        }
        let asked = Instant::now();
        let answer = decide(client, "k", "free").await;
        assert_ne!(answer.outcome(), pb::Outcome::Unspecified);
        took.push(asked.elapsed());
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    took.sort_unstable();
    let at = |of_thousand: usize| took[(took.len() - 1) * of_thousand / 1_000];
    let slow = took
        .iter()
        .filter(|took| **took > Duration::from_millis(1))
        .count();
    println!(
        "{what}: {} decisions, p50 {:?}, p99 {:?}, p99.9 {:?}, slowest {:?}; {slow} above 1 ms",
        took.len(),
        at(500),
        at(990),
        at(999),
        at(1_000)
    );
    at(1_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "by hand: a busy machine pauses whatever tollgate does"]
async fn no_decision_waits_for_ten_thousand_overrides_that_are_read() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().unwrap());
    redis.cli(&["eval", FILL, "1", NAME]);
    let (file, socket) = (
        folder.path().join("config.yaml"),
        folder.path().join("admin.sock"),
    );
    std::fs::write(&file, config(0)).unwrap();
    let listen = format!("listen.admin=unix:{}", socket.display());
    let flags = [
        "--store",
        &redis.url(),
        "--set",
        &listen,
        "--set",
        "workers=1",
    ];
    let server = Server::start_on(&file, &flags);
    server
        .wait_until_decided_by(pb::DecidedBy::Store, "free")
        .await;
    let mut client = server.client().await;
    watch(&mut client, "nothing changes", || {}).await;
    let mut version = 9;
    watch(&mut client, "10,000 in Redis are read anew", || {
        version += 1;
        redis.cli(&["hset", NAME, "", &format!("{version} 1")]);
    })
    .await;
    let mut count = 9_999;
    watch(&mut client, "10,000 in the file are read anew", || {
        count = 19_998 - count + 1;
        std::fs::write(&file, config(count.min(9_999))).unwrap();
        server.signal("HUP");
    })
    .await;
    println!("{} reloads", server.log().matches("reload").count());
}
