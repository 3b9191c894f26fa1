//! Mixes of requests made up at random: plans, limits, what a key has behind it, and what is asked at once. No script call takes Redis
//! long, whatever the mix is.
//!
//! The seed of each mix is printed. `TOLLGATE_MIX_SEEDS=7-40` runs those mixes.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::grpc::pb::hold_service_client::HoldServiceClient;
use tollgate::grpc::pb::{self, DecidedBy};
use tollgate::plan::{Algorithm, SHARED_WINDOWS_MAX};
use tonic::transport::Channel;

use super::heavy_batches::MACHINE;
use crate::support::history::Random;
use crate::support::plans::{FIXED, algorithm_fields};
use crate::support::preload::by_processor_time;
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, channel_to, request};
use crate::support::slow_calls::SlowCalls;

/// The mixes in all tests.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;
/// How long keys are filled with charges, holds and ids, and how long everything is then asked at once.
const FILL: Duration = Duration::from_secs(2);
const ASK: Duration = Duration::from_secs(2);

/// What is asked: plans of a few counts, keys and ids, and how likely each kind of call is.
#[derive(Clone)]
struct Mix {
    random: Random,
    plans: Vec<String>,
    keys: u64,
    ids: u64,
    /// Of batches, joint decisions and calls about holds.
    weights: [u64; 3],
    batch: u64,
}

/// The algorithm of a limit. Plans of one count may have so many sliding windows more; what goes beyond them is a fixed window.
fn pick_algorithm(
    random: &mut Random,
    only: Option<Algorithm>,
    windows_left: &mut u16,
) -> Algorithm {
    let picked = only.unwrap_or_else(|| *random.pick(&Algorithm::EVERY));
    if !matches!(picked, Algorithm::SlidingWindow { .. }) {
        return picked;
    }
    let Some(left) = windows_left.checked_sub(1) else {
        return FIXED;
    };
    *windows_left = left;
    picked
}

impl Mix {
    /// The mix of a seed, and its config.
    fn new(seed: u64) -> (Self, String) {
        let mut random = Random(seed);
        let mut config =
            "plans:\n  light: { limits: [ { quota: 1000000000, window: 1d } ] }\n".to_owned();
        let mut plans = Vec::new();
        for group in 0..=random.below(3) {
            let count = *random.pick(&[1, 4, 16, 60]);
            let limits = *random.pick(&[1, 2, 4, 8]);
            let only = (random.below(2) == 0).then(|| *random.pick(&Algorithm::EVERY));
            let block = *random.pick(&["", "", "", ", block: 1m"]);
            let holds = format!(
                "{{ ttl: 1s, max_open: {}, max_ids: {}, on_expiry: {} }}",
                random.pick(&[5, 256, 1_000]),
                random.pick(&[1, 100, 1_000, 100_000]),
                random.pick(&["charge", "release"])
            );
            let mut windows_left = SHARED_WINDOWS_MAX;
            for plan in 0..count {
                let limits: Vec<String> = (0..limits)
                    .map(|limit| {
                        let algorithm = pick_algorithm(&mut random, only, &mut windows_left);
                        let algorithm = algorithm_fields(algorithm);
                        let quota = random.pick(&[10, 1_000, 10_000, 60_000]);
                        let window = 60 + plan * 8 + limit;
                        format!("{{ name: l{limit}, quota: {quota}, window: {window}s, {algorithm}{block} }}")
                    })
                    .collect();
                let name = format!("g{group}p{plan}");
                let limits = limits.join(", ");
                writeln!(
                    config,
                    "  {name}: {{ counts_as: g{group}, holds: {holds}, limits: [ {limits} ] }}"
                )
                .unwrap();
                plans.push(name);
            }
        }
        let mix = Self {
            plans,
            keys: *random.pick(&[1, 4, 20]),
            ids: *random.pick(&[100, 1_000, 10_000]),
            weights: [0, 1, 2].map(|_| random.below(4)),
            batch: *random.pick(&[10, 250, 1_000]),
            random,
        };
        (mix, config)
    }

    fn key(&mut self) -> String {
        format!("k{}", self.random.below(self.keys))
    }

    fn plan(&mut self) -> String {
        self.random.pick(&self.plans).clone()
    }

    fn id(&mut self) -> String {
        format!("{:016}", self.random.below(self.ids))
    }

    fn cost(&mut self) -> u64 {
        *self.random.pick(&[1, 1, 1, 1, 7, 100])
    }

    fn decision(&mut self) -> pb::ShouldAllowRequest {
        let cost = self.cost();
        let mut asked = request(&self.key(), &self.plan(), Some(cost));
        if self.random.below(16) == 0 {
            asked.request_id = self.id();
        }
        asked
    }

    /// Asks once. What is refused or denied is no matter here.
    async fn ask(&mut self, client: &mut Client) {
        let all: u64 = self.weights.iter().map(|weight| weight + 1).sum();
        let kind = self.random.below(all);
        if kind <= self.weights[0] {
            let requests = (0..self.batch).map(|_| self.decision()).collect();
            let batch = pb::ShouldAllowBatchRequest { requests };
            let _ = client.should_allow_batch(batch).await;
        } else if kind <= self.weights[0] + self.weights[1] + 1 {
            let asked = (0..40).map(|_| {
                let requests = (0..=self.random.below(8)).map(|_| self.decision());
                let mut requests: Vec<_> = requests.collect();
                for request in &mut requests {
                    request.request_id.clear();
                }
                let mut client = client.clone();
                let joint = pb::ShouldAllowJointRequest {
                    requests,
                    ..Default::default()
                };
                tokio::spawn(async move { client.should_allow_joint(joint).await.is_ok() })
            });
            wait_for(asked.collect()).await;
        }
    }

    /// Asks once about holds.
    async fn ask_holds(&mut self, client: &HoldServiceClient<Channel>) {
        let asked = (0..60).map(|_| {
            let key = self.key();
            let plan = self.plan();
            let request_id = self.id();
            let call = self.random.below(8);
            let units = self.cost();
            let client = client.clone();
            tokio::spawn(hold_call(client, call, (key, plan, request_id), units))
        });
        wait_for(asked.collect()).await;
    }
}

async fn wait_for(asked: Vec<tokio::task::JoinHandle<bool>>) {
    for answered in asked {
        answered.await.unwrap();
    }
}

async fn hold_call(
    mut client: HoldServiceClient<Channel>,
    call: u64,
    (key, plan, request_id): (String, String, String),
    units: u64,
) -> bool {
    if call < 4 {
        let reserve = pb::ReserveRequest {
            key,
            plan,
            request_id,
            cost: Some(units),
            ..Default::default()
        };
        return client.reserve(reserve).await.is_ok();
    } else if call == 4 {
        let extend = pb::ExtendRequest {
            key,
            plan,
            request_id,
            ..Default::default()
        };
        return client.extend(extend).await.is_ok();
    }
    let settle = pb::SettleRequest {
        key,
        plan,
        request_id,
        actual: Some(units - 1),
        ..Default::default()
    };
    client.settle(settle).await.is_ok()
}

/// Asks by four callers for so long.
async fn ask_for(mix: &Mix, address: &str, time: Duration) {
    let stop = Arc::<AtomicBool>::default();
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let mut mix = mix.clone();
            let address = address.to_owned();
            let stop = stop.clone();
            mix.random = Random(mix.random.next() ^ caller);
            tokio::spawn(async move {
                let channel = channel_to(&address).await;
                let mut client = Client::new(channel.clone());
                let holds = HoldServiceClient::new(channel);
                while !stop.load(Ordering::SeqCst) {
                    let weight = mix.weights[2];
                    if mix.random.below(weight + 2) > 0 {
                        mix.ask_holds(&holds).await;
                    } else {
                        mix.ask(&mut client).await;
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::SeqCst);
    for caller in callers {
        tokio::time::timeout(PATIENCE, caller)
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_mix_keeps_redis_busy_for_long() {
    let _machine = MACHINE.lock().await;
    let seeds = std::env::var("TOLLGATE_MIX_SEEDS");
    let seeds = seeds.map_or(SEEDS, |text| {
        let (first, last) = text.split_once('-').unwrap();
        first.parse().unwrap()..=last.parse().unwrap()
    });
    for seed in seeds {
        let (mix, config) = Mix::new(seed);
        let program = by_processor_time("redis-server");
        let redis = Redis::start_by("127.0.0.1", &program.each_ref().map(String::as_str), &[]);
        let slow_calls = SlowCalls::of(&redis);
        let url = redis.url();
        let flags = ["--store", &url, "--set", "workers=1"];
        let more = [
            "--set",
            "store.deadline=100ms",
            "--set",
            "deny_cache.entries=0",
        ];
        let server = Server::start(&config, &[flags, more].concat());
        server
            .wait_until_decided_by(DecidedBy::Store, "light")
            .await;
        slow_calls.forget();
        ask_for(&mix, &server.address, FILL).await;
        // Leases have ended.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        ask_for(&mix, &server.address, ASK).await;
        slow_calls.assert_short(&format!("mix {seed}"));
    }
}
