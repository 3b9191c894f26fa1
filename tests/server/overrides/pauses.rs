//! What it costs a thread that decides when all overrides are read anew: to take up a table that another thread made.
//!
//! By processor time, not by a clock: a machine that stops for 10 ms makes every pause as long, whatever tollgate does. A machine that others
//! share takes such time too, in which nothing happens: of 360 spans without a change one took 6 ms and one 24, where half took 0.9.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tollgate::grpc::pb;
use tollgate::grpc::pb::admin_service_client::AdminServiceClient;
use tonic::transport::Channel;

use super::{CONFIG, FILL, NAME};
use crate::support::admin::admin_at;
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, decide};

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

async fn wait_for_reloads(server: &Server, count: u64) {
    let began = Instant::now();
    while (server.log().matches("config reloaded").count() as u64) < count {
        assert!(
            began.elapsed() < PATIENCE,
            "reload {count}: {}",
            server.log()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What happens in the time that is measured.
#[derive(Debug, Clone, Copy)]
enum Change {
    None,
    InRedis,
    InFile,
}

/// A server with one worker and ten thousand overrides in Redis, and what changes them.
struct PausesFixture {
    redis: Redis,
    file: PathBuf,
    server: Server,
    client: Client,
    admin: AdminServiceClient<Channel>,
    /// Of the overrides in Redis.
    version: u64,
    reloads: u64,
}

impl PausesFixture {
    /// A worker's processor time in which this happens, and comes into force.
    async fn time_of(&mut self, change: Change) -> Duration {
        let before = self.server.thread_time("worker 0");
        match change {
            Change::None => tokio::time::sleep(CHANGE).await,
            Change::InRedis => {
                self.version += 1;
                let version = format!("{} 1", self.version);
                self.redis.cli(&["hset", NAME, "", &version]);
                wait_for_version(&mut self.admin, self.version).await;
            }
            Change::InFile => {
                self.reloads += 1;
                // One is there already.
                let overrides = 9_999 - self.reloads % 2;
                std::fs::write(&self.file, config(overrides)).unwrap();
                self.server.signal("HUP");
                wait_for_reloads(&self.server, self.reloads).await;
            }
        }
        decide(&mut self.client, "k", "free").await;
        self.server.thread_time("worker 0") - before
    }
}

#[tokio::test]
async fn no_worker_reads_ten_thousand_overrides_that_change() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
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
    let client = server.client().await;
    let admin = admin_at(&socket).await;
    let mut fixture = PausesFixture {
        redis,
        file,
        server,
        client,
        admin,
        version: 9,
        reloads: 0,
    };
    wait_for_version(&mut fixture.admin, fixture.version).await;
    fixture.time_of(Change::None).await;
    let mut idle = Vec::new();
    for _ in 0..CHANGES {
        idle.push(fixture.time_of(Change::None).await);
    }
    idle.sort_unstable();
    let bound = idle[idle.len() / 2] + PAUSE_MAX;
    println!("a worker's time without a change: {idle:?}");
    for change in [Change::InRedis, Change::InFile] {
        for _ in 0..CHANGES {
            let mut took = fixture.time_of(change).await;
            println!("{change:?}: {took:?}");
            if took > bound {
                // What a change takes it takes each time, what the machine takes it does not.
                took = fixture.time_of(change).await;
                println!("{change:?}, once more: {took:?}");
            }
            assert!(took <= bound, "{change:?}: {took:?}, bound {bound:?}");
        }
    }
}
