//! Batches that are heavy for Redis: many plans of one count, many limits, all algorithms. No script call takes long, and others
//! are decided by Redis beside them.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::grpc::pb::hold_service_client::HoldServiceClient;
use tollgate::grpc::pb::{self, DecidedBy};
use tollgate::plan::Algorithm;
use tonic::transport::Channel;

use crate::support::cluster::Cluster;
use crate::support::preload::by_processor_time;
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, channel_to, request};
use crate::support::slow_calls::SlowCalls;

/// How long each lot is sent, unless `TOLLGATE_FLOOD_SECONDS` says otherwise.
const FLOOD_SECONDS: u64 = 3;
/// Share of others' decisions, in percent, that Redis makes on a machine that is busy with other tests.
const BY_STORE_MIN: usize = 90;
/// Their store's deadline: many times what they take.
const DEADLINE: &str = "store.deadline=1s";
/// How many times longer a batch of a flood takes than a decision of others, on average. In one line with the floods, both took alike.
const BATCH_TIMES_MIN: u32 = 3;

fn limit(window: usize, algorithm: &str) -> String {
    let burst = if algorithm == "token_bucket" {
        ", burst: 9"
    } else {
        ""
    };
    format!("{{ name: l{window}, quota: 10000, window: {window}s, algorithm: {algorithm}{burst} }}")
}

/// 250 plans of one limit, 16 plans of 8 limits, plans of all algorithms, and 16 plans of 8 limits that block, each lot with one
/// count; and a plan with a thousand holds.
fn config() -> String {
    let mut text =
        "plans:\n  light: { limits: [ { quota: 1000000000, window: 1d } ] }\n".to_owned();
    text.push_str(HELD);
    for plan in 0..250 {
        writeln!(
            text,
            "  many{plan}: {{ counts_as: many, limits: [ {} ] }}",
            limit(plan + 1, "fixed_window")
        )
        .unwrap();
    }
    for plan in 0..16 {
        let limits: Vec<String> = (0..8)
            .map(|index| limit(1 + plan * 8 + index, "token_bucket"))
            .collect();
        writeln!(
            text,
            "  wide{plan}: {{ counts_as: wide, limits: [ {} ] }}",
            limits.join(", ")
        )
        .unwrap();
    }
    for plan in 0..16 {
        let limits: Vec<String> = (0..8)
            .map(|index| {
                let window = 1 + plan * 8 + index;
                format!("{{ name: l{window}, quota: 10, window: {window}s, algorithm: token_bucket, block: 1m }}")
            })
            .collect();
        writeln!(
            text,
            "  blocked{plan}: {{ counts_as: blocked, limits: [ {} ] }}",
            limits.join(", ")
        )
        .unwrap();
    }
    let mut algorithms = Algorithm::EVERY.map(Algorithm::name).to_vec();
    algorithms.dedup();
    for plan in 0..20 {
        let limits: Vec<String> = (0..4)
            .map(|index| {
                limit(
                    1 + plan * 4 + index,
                    algorithms[(plan + index) % algorithms.len()],
                )
            })
            .collect();
        writeln!(
            text,
            "  mixed{plan}: {{ counts_as: mixed, limits: [ {} ] }}",
            limits.join(", ")
        )
        .unwrap();
    }
    text
}

/// Each lot and how many plans it has; none for that of holds.
const LOTS: [(&str, usize); 5] = [
    ("many", 250),
    ("wide", 16),
    ("mixed", 20),
    ("blocked", 16),
    ("held", 0),
];

/// A key of this plan may have a thousand open holds, of which some expire and some are settled.
const HELD: &str = "  held: { limits: [ { quota: 1000000000, window: 1h } ], holds: { ttl: 2s, max_open: 1000 } }\n";

/// The same request in the shard that all floods are of, and so in their slot of a Cluster.
fn in_shard(request: pb::ShouldAllowRequest) -> pb::ShouldAllowRequest {
    pb::ShouldAllowRequest {
        shard: "flooded".to_owned(),
        ..request
    }
}

/// Sends batches of 1,000 for one key until it is told to stop. Returns how long one took, on average.
async fn flood(
    address: String,
    lot: &'static str,
    plans: usize,
    stop: Arc<AtomicBool>,
) -> Option<Duration> {
    let mut client = Client::new(channel_to(&address).await);
    let began = Instant::now();
    let mut batches = 0;
    while !stop.load(Ordering::SeqCst) {
        let requests = (0..1_000)
            .map(|index| in_shard(request("k", &format!("{lot}{}", index % plans), None)))
            .collect();
        let answers = client
            .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answers.results.len(), 1_000);
        batches += 1;
    }
    began.elapsed().checked_div(batches)
}

/// Reserves a hold, and settles it or leaves it to expire.
async fn hold_one(mut client: HoldServiceClient<Channel>, key: String, id: String, settles: bool) {
    let reserve = pb::ReserveRequest {
        key: key.clone(),
        plan: "held".to_owned(),
        request_id: id.clone(),
        shard: "flooded".to_owned(),
        ..Default::default()
    };
    client.reserve(reserve).await.unwrap();
    let settle = pb::SettleRequest {
        key,
        plan: "held".to_owned(),
        request_id: id,
        shard: "flooded".to_owned(),
        ..Default::default()
    };
    if settles {
        // It may be UNAVAILABLE, where Redis was too slow.
        let _ = client.settle(settle).await;
    }
}

/// Reserves holds of a few keys and settles two of three, until it is told to stop: so hundreds are open, and some expire. These are no
/// batches, so it returns no time of one.
async fn hold_and_settle(
    address: String,
    caller: usize,
    stop: Arc<AtomicBool>,
) -> Option<Duration> {
    let client = HoldServiceClient::new(channel_to(&address).await);
    let mut first = 0;
    while !stop.load(Ordering::SeqCst) {
        let asked = (first..first + 60).map(|number| {
            let id = format!("{caller} {number}");
            tokio::spawn(hold_one(
                client.clone(),
                format!("k{}", number % 4),
                id,
                number % 3 > 0,
            ))
        });
        for answered in asked.collect::<Vec<_>>() {
            answered.await.unwrap();
        }
        first += 60;
    }
    None
}

/// These tests keep the whole machine busy, so only one of them runs at a time.
pub(super) static MACHINE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_batch_keeps_redis_busy_for_long_or_others_from_it() {
    let _machine = MACHINE.lock().await;
    let program = by_processor_time("redis-server");
    let redis = Redis::start_by("127.0.0.1", &program.each_ref().map(String::as_str), &[]);
    flood_all(&redis.url(), &[&redis]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_batch_keeps_a_cluster_busy_for_long_or_others_from_it() {
    let _machine = MACHINE.lock().await;
    let program = by_processor_time("redis-server");
    let cluster = Cluster::start_with(0, &program.each_ref().map(String::as_str), &[]);
    let nodes: Vec<&Redis> = cluster.nodes.iter().collect();
    flood_all(&cluster.url(), &nodes).await;
}

/// Sends all lots, one after another, to a server on this store.
async fn flood_all(url: &str, nodes: &[&Redis]) {
    let slow_calls: Vec<_> = nodes.iter().map(|redis| SlowCalls::of(redis)).collect();
    let flags = [
        "--store",
        url,
        "--set",
        DEADLINE,
        "--set",
        "workers=1",
        "--set",
        "deny_cache.entries=0",
    ];
    let server = Server::start(&config(), &flags);
    let mut client = server.client().await;
    server
        .wait_until_decided_by(DecidedBy::Store, "light")
        .await;
    let seconds = std::env::var("TOLLGATE_FLOOD_SECONDS");
    let time = Duration::from_secs(seconds.map_or(FLOOD_SECONDS, |text| text.parse().unwrap()));
    for (lot, plans) in LOTS {
        slow_calls.iter().for_each(SlowCalls::forget);
        let stop = Arc::<AtomicBool>::default();
        let floods: Vec<_> = (0..4)
            .map(|caller| {
                let address = server.address.clone();
                let stop = stop.clone();
                match plans {
                    0 => tokio::spawn(hold_and_settle(address, caller, stop)),
                    _ => tokio::spawn(flood(address, lot, plans, stop)),
                }
            })
            .collect();
        let others = ask_beside(&mut client, time).await;
        stop.store(true, Ordering::SeqCst);
        let mut batches = Vec::new();
        for flood in floods {
            let batch = tokio::time::timeout(PATIENCE, flood).await.unwrap();
            batches.extend(batch.unwrap());
        }
        for (index, slow_calls) in slow_calls.iter().enumerate() {
            slow_calls.assert_short(&format!("{lot}, node {index}"));
        }
        let seen = format!("{lot}: {others:?}, batches in {batches:?}");
        println!("{seen}");
        assert!(others.by_store * 100 >= others.all * BY_STORE_MIN, "{seen}");
        let is_in_line = |batch| others.each * BATCH_TIMES_MIN > batch;
        assert!(!batches.into_iter().any(is_in_line), "{seen}");
    }
}

/// Decisions beside a flood: how many there were, how many of them Redis made, and how long one took on average.
#[derive(Debug)]
struct Others {
    all: usize,
    by_store: usize,
    each: Duration,
}

/// Asks for single decisions of other keys, half of them in the slot of the floods.
async fn ask_beside(client: &mut Client, time: Duration) -> Others {
    let began = Instant::now();
    let mut by_store = 0;
    let mut all = 0;
    let mut waited = Duration::ZERO;
    while began.elapsed() < time {
        all += 1;
        let key = format!("beside{}", all % 50);
        let mut asked = request(&key, "light", None);
        if all % 2 == 0 {
            asked = in_shard(asked);
        }
        let asked_at = Instant::now();
        let answer = client.should_allow(asked).await.unwrap().into_inner();
        waited += asked_at.elapsed();
        let decided_by = answer.decided_by();
        by_store += usize::from(decided_by == DecidedBy::Store);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let each = waited / u32::try_from(all).unwrap();
    Others {
        all,
        by_store,
        each,
    }
}
