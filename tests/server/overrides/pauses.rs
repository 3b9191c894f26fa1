//! What it costs a thread that decides when all overrides are read anew: to take up a table that another thread made.
//!
//! By processor time, not by a clock: a machine that stops for 10 ms makes every pause as long, whatever tollgate does.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tollgate::grpc::pb;
use tollgate::grpc::pb::admin_service_client::AdminServiceClient;
use tonic::transport::Channel;

use super::{CONFIG, FILL, NAME};
use crate::support::admin::admin_at;
use crate::support::redis::Redis;
use crate::support::server::{PATIENCE, Server, decide};

/// Changes of each kind.
const CHANGES: u64 = 5;
/// About as long as a change takes to be in force.
const CHANGE: Duration = Duration::from_millis(400);
/// The most that a change may take of a worker, beyond what it takes of itself. To read 10,000 overrides takes tens of times as much.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// The plans, with so many overrides in the file.
fn config(overrides: u64) -> String {
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

async fn wait_for_version(admin: &mut AdminServiceClient<Channel>, version: u64) {
    let request = pb::ListOverridesRequest {
        page_size: 1,
        ..pb::ListOverridesRequest::default()
    };
    let began = Instant::now();
    loop {
        let list = admin.list_overrides(request.clone()).await.unwrap();
        if list.into_inner().version == version {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "version {version} did not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn wait_for_reloads(server: &Server, count: usize) {
    let began = Instant::now();
    while server.log().matches("config reloaded").count() < count {
        assert!(
            began.elapsed() < PATIENCE,
            "reload {count}: {}",
            server.log()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn no_worker_reads_ten_thousand_overrides_that_change() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().unwrap());
    redis.cli(&["eval", FILL, "1", NAME]);
    let file = folder.path().join("config.yaml");
    let socket = folder.path().join("admin.sock");
    std::fs::write(&file, config(0)).unwrap();
    let listen = format!("listen.admin=unix:{}", socket.display());
    let flags = ["--store", &redis.url(), "--set", &listen];
    let server = Server::start_on(&file, &[&flags[..], &["--set", "workers=1"]].concat());
    server
        .wait_until_decided_by(pb::DecidedBy::Store, "free")
        .await;
    let (mut client, mut admin) = (server.client().await, admin_at(&socket).await);
    wait_for_version(&mut admin, 9).await;
    decide(&mut client, "k", "free").await;
    let (mut idle, mut of_redis, mut of_file) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 1..=CHANGES {
        let before = server.thread_time("worker 0");
        tokio::time::sleep(CHANGE).await;
        decide(&mut client, "k", "free").await;
        idle.push(server.thread_time("worker 0") - before);
    }
    for change in 1..=CHANGES {
        let before = server.thread_time("worker 0");
        let version = 9 + change;
        redis.cli(&["hset", NAME, "", &format!("{version} 1")]);
        wait_for_version(&mut admin, version).await;
        decide(&mut client, "k", "free").await;
        of_redis.push(server.thread_time("worker 0") - before);
    }
    for change in 1..=CHANGES {
        let before = server.thread_time("worker 0");
        // One is there already.
        std::fs::write(&file, config(9_999 - change % 2)).unwrap();
        server.signal("HUP");
        wait_for_reloads(&server, usize::try_from(change).unwrap()).await;
        decide(&mut client, "k", "free").await;
        of_file.push(server.thread_time("worker 0") - before);
    }
    println!(
        "a worker's time: {idle:?}, at a change in Redis {of_redis:?}, in the file {of_file:?}"
    );
    idle.sort_unstable();
    let bound = idle[idle.len() / 2] + PAUSE_MAX;
    for took in [of_redis, of_file].concat() {
        assert!(
            took <= bound,
            "{took:?} of a worker's time, bound {bound:?}"
        );
    }
}
