//! Redis Cluster: keys are decided on their node, also while they move, and the failure of a node affects only its own keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::grpc::pb::{self, DecidedBy, should_allow_result};
use tollgate::key::Key;
use tollgate::store::{BreakerState, RedisStore, Store, StoreDeadline, StoreError, Subject};

use crate::support::cluster::{Cluster, MASTERS};
use crate::support::plans::{FIXED, LOG, ask, limit, plan};
use crate::support::server::{Client, PATIENCE, Server, channel_to, request};

/// Plans without a deny cache, so that every call goes to Redis.
const PLANS: &str = "
workers: 1
store: { deadline: 10s }
deny_cache: { entries: 0 }
plans:
  window: { limits: [ { quota: 300, window: 1d, algorithm: fixed_window } ], on_store_failure: allow }
  bucket: { limits: [ { quota: 300, window: 366d, algorithm: token_bucket } ], on_store_failure: allow }
  log: { limits: [ { quota: 300, window: 1d, algorithm: sliding_log } ], on_store_failure: allow }
  both: { limits: [ { quota: 300, window: 1d, algorithm: sliding_log }, { quota: 400, window: 7d } ], on_store_failure: allow }
  open: { limits: [ { quota: 1000000000, window: 1d, algorithm: fixed_window } ], on_store_failure: allow }
";
const NAMES: [&str; 4] = ["window", "bucket", "log", "both"];

/// Waits until all nodes decide.
async fn decided(server: &Server) {
    let (mut client, started, mut in_a_row) = (server.client().await, Instant::now(), 0);
    while in_a_row < 50 {
        let answer = client
            .should_allow(request(&format!("warm {in_a_row}"), "open", None))
            .await
            .unwrap()
            .into_inner();
        in_a_row = if answer.decided_by() == DecidedBy::Store {
            in_a_row + 1
        } else {
            0
        };
        assert!(
            started.elapsed() < PATIENCE,
            "the store does not decide: {}",
            server.log()
        );
    }
}

/// Callers that ask for these keys, one after another, until each was allowed as often as it may be, and for a while after.
struct Demand {
    over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    callers: Vec<tokio::task::JoinHandle<Vec<u64>>>,
}

impl Demand {
    async fn start(server: &Server, keys: Arc<Vec<(String, &'static str)>>) -> Self {
        let (over, asked) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut callers = Vec::new();
        for caller in 0..8 {
            let client = Client::new(channel_to(&server.address).await);
            callers.push(tokio::spawn(ask_until(
                client,
                caller,
                keys.clone(),
                over.clone(),
                asked.clone(),
            )));
        }
        Self {
            over,
            asked,
            callers,
        }
    }

    /// Lets so many more calls pass.
    async fn pass(&self, calls: u64) {
        let enough = self.asked.load(Ordering::SeqCst) + calls;
        while self.asked.load(Ordering::SeqCst) < enough {
            assert!(
                !self.callers.iter().any(|caller| caller.is_finished()),
                "a caller has failed"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// How often each key was allowed.
    async fn stop(self) -> Vec<u64> {
        self.over.store(true, Ordering::SeqCst);
        let mut allowed = Vec::new();
        for caller in self.callers {
            let of_caller = caller.await.unwrap();
            allowed.resize(of_caller.len(), 0);
            allowed
                .iter_mut()
                .zip(of_caller)
                .for_each(|(all, one)| *all += one);
        }
        allowed
    }
}

/// Alternates between single calls and batches, in which a key stands several times.
async fn ask_until(
    mut client: Client,
    caller: usize,
    keys: Arc<Vec<(String, &'static str)>>,
    over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
) -> Vec<u64> {
    let mut allowed = vec![0; keys.len()];
    for round in caller.. {
        if over.load(Ordering::SeqCst) {
            break;
        }
        let key_index = |index: usize| (round * 5 + index) % keys.len();
        let one = |index: usize| request(&keys[key_index(index)].0, keys[key_index(index)].1, None);
        if round % 4 == 0 {
            let requests: Vec<_> = (0..12).map(|index| one(index / 2)).collect();
            let batch = client
                .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
                .await
                .expect("no call fails");
            for (index, result) in batch.into_inner().results.into_iter().enumerate() {
                let Some(should_allow_result::Result::Response(answer)) = result.result else {
                    panic!("an error: {result:?}")
                };
                assert_eq!(
                    answer.decided_by(),
                    DecidedBy::Store,
                    "{:?}",
                    keys[key_index(index / 2)]
                );
                allowed[key_index(index / 2)] += u64::from(answer.allowed);
            }
            asked.fetch_add(12, Ordering::SeqCst);
        } else {
            let answer = client
                .should_allow(one(0))
                .await
                .expect("no call fails")
                .into_inner();
            assert_eq!(
                answer.decided_by(),
                DecidedBy::Store,
                "{:?}",
                keys[key_index(0)]
            );
            allowed[key_index(0)] += u64::from(answer.allowed);
            asked.fetch_add(1, Ordering::SeqCst);
        }
    }
    allowed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_slots_that_move_under_load_fail_no_call_and_keep_every_limit_exact() {
    let cluster = Cluster::start();
    let server = Server::start(PLANS, &["--store", &cluster.url()]);
    decided(&server).await;
    let keys: Vec<_> = (0..16)
        .map(|key| (format!("moved {key}"), NAMES[key % NAMES.len()]))
        .collect();
    let slots: Vec<u16> = keys
        .iter()
        .map(|(key, plan)| cluster.slot(plan, key))
        .collect();
    let (keys, mut moves) = (Arc::new(keys), 0);
    let demand = Demand::start(&server, keys.clone()).await;
    demand.pass(200).await;
    for round in 0..2 {
        for slot in &slots {
            let from = cluster.owner(*slot);
            let to = (from + 1 + round) % MASTERS;
            cluster.open(*slot, from, to);
            demand.pass(20).await;
            cluster.migrate(*slot, from, to);
            demand.pass(20).await;
            cluster.close(*slot, to);
            moves += 1;
        }
    }
    // More than all quotas together, evenly.
    demand.pass(16 * 300 * 2).await;
    let allowed = demand.stop().await;
    let words = ["MOVED", "ASK", "TRYAGAIN"].map(|word| (word, cluster.errors(word)));
    println!("{moves} slots moved under load, {words:?}; allowed {allowed:?}");
    assert!(
        words[0].1 > 0 && words[1].1 > 0,
        "nothing was sent on: {words:?}"
    );
    assert_eq!(allowed, vec![300; keys.len()], "{keys:?}");
}

/// New keys of a slot that is on its way belong to where it goes, which may have lost its scripts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_05_and_09_a_new_node_without_scripts_is_asked_and_decides() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let server = Server::start(PLANS, &["--store", &cluster.url()]);
    decided(&server).await;
    let mut client = server.client().await;
    let slot = cluster.slot("window", "new");
    let from = cluster.owner(slot);
    let to = (from + 1) % MASTERS;
    cluster.open(slot, from, to);
    let mut allowed = 0;
    for call in 0..400 {
        if call % 100 == 0 {
            cluster.nodes[to].cli(&["SCRIPT", "FLUSH"]);
        }
        if call == 350 {
            cluster.migrate(slot, from, to);
            cluster.close(slot, to);
        }
        let answer = client
            .should_allow(request("new", "window", None))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.decided_by(), DecidedBy::Store, "call {call}");
        allowed += u64::from(answer.allowed);
    }
    let (asks, noscripts) = (cluster.errors("ASK"), cluster.errors("NOSCRIPT"));
    println!(
        "{allowed} of 400 allowed; {asks} sent on for once, {noscripts} times without its script"
    );
    assert!(asks >= 350 && noscripts >= 4, "{asks}, {noscripts}");
    assert_eq!(allowed, 300);
    assert_eq!(
        cluster.nodes[from]
            .cli(&["EXISTS", "{window:new}"])
            .split(' ')
            .next(),
        Some("MOVED")
    );
}

struct Answer {
    at: Instant,
    took: Duration,
    by: DecidedBy,
    key: usize,
}

const KEYS: usize = 30;

/// Asks for the keys, each by a caller of its own, 125 times a second.
async fn watch_keys(
    server: &Server,
    over: Arc<AtomicBool>,
) -> Vec<tokio::task::JoinHandle<Vec<Answer>>> {
    let mut callers = Vec::new();
    for key in 0..KEYS {
        let (mut client, over) = (Client::new(channel_to(&server.address).await), over.clone());
        callers.push(tokio::spawn(async move {
            let (mut answers, mut ticks) =
                (Vec::new(), tokio::time::interval(Duration::from_millis(8)));
            while !over.load(Ordering::SeqCst) {
                ticks.tick().await;
                let at = Instant::now();
                let answer = client
                    .should_allow(request(&key.to_string(), "open", None))
                    .await
                    .expect("no call fails")
                    .into_inner();
                answers.push(Answer {
                    at,
                    took: at.elapsed(),
                    by: answer.decided_by(),
                    key,
                });
            }
            answers
        }));
    }
    callers
}

fn percentiles<'a>(answers: impl Iterator<Item = &'a Answer>) -> (Duration, Duration, Duration) {
    let mut took: Vec<Duration> = answers.map(|answer| answer.took).collect();
    assert!(took.len() > 100, "{} answers tell nothing", took.len());
    took.sort();
    (
        took[took.len() / 2],
        took[took.len() * 99 / 100],
        took[took.len() - 1],
    )
}

#[expect(
    clippy::too_many_lines,
    reason = "laid out by rustfmt's defaults and not yet split"
)]
async fn loses_a_shard(signal: &str, deadline: Duration) {
    let cluster = Cluster::start();
    let setting = format!("store.deadline={}ms", deadline.as_millis());
    let server = Server::start(PLANS, &["--store", &cluster.url(), "--set", &setting]);
    decided(&server).await;
    let owners: Vec<usize> = (0..KEYS)
        .map(|key| cluster.owner(cluster.slot("open", &key.to_string())))
        .collect();
    let lost = |answer: &&Answer| owners[answer.key] == 0;
    let over = Arc::new(AtomicBool::new(false));
    let callers = watch_keys(&server, over.clone()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    cluster.nodes[0].signal(signal);
    // Until the replica has the slots, and for a while after.
    let heir = || {
        cluster.nodes[MASTERS..]
            .iter()
            .any(|node| node.cli(&["ROLE"]).starts_with("master"))
    };
    while !heir() {
        assert!(began.elapsed() < PATIENCE, "no replica takes over");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let ended = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    over.store(true, Ordering::SeqCst);
    let mut answers = Vec::new();
    for caller in callers {
        answers.extend(caller.await.unwrap());
    }
    let before = percentiles(answers.iter().filter(|answer| answer.at < began));
    let others = || {
        answers
            .iter()
            .filter(|answer| answer.at >= began && !lost(answer))
    };
    let during = percentiles(others());
    let by_policy = others()
        .filter(|answer| answer.by != DecidedBy::Store)
        .count();
    let dead = answers
        .iter()
        .filter(|answer| answer.at > began + Duration::from_millis(300) && answer.at < ended)
        .filter(lost);
    let (fast, worst) = (
        percentiles(dead),
        answers.iter().map(|answer| answer.took).max().unwrap(),
    );
    let back = answers
        .iter()
        .filter(lost)
        .filter(|it| it.at > began + Duration::from_millis(100) && it.by == DecidedBy::Store);
    let back = back
        .map(|answer| answer.at + answer.took)
        .min()
        .unwrap()
        .saturating_duration_since(ended);
    println!(
        "{signal}: keys of other nodes: p50, p99, max {during:?} ({before:?} before), {by_policy} by policy; its own: {fast:?} while \
         it is known to be out, {worst:?} at worst, on the heir {back:?} after it took over, {:?} after the {signal}",
        ended - began
    );
    if signal == "STOP" {
        cluster.nodes[0].signal("CONT");
    }
    assert!(
        others().count() > 1_000 && by_policy * 100 <= others().count(),
        "{by_policy} of {}",
        others().count()
    );
    assert!(
        during.1 < deadline.max(Duration::from_millis(100)),
        "others were slowed down: {during:?}"
    );
    assert!(back < Duration::from_secs(4), "{back:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_a_shard_that_is_killed_is_the_trouble_of_its_own_keys() {
    loses_a_shard("KILL", Duration::from_millis(500)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_a_shard_that_is_stopped_is_the_trouble_of_its_own_keys() {
    loses_a_shard("STOP", Duration::from_millis(100)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_has_a_breaker_of_its_own() {
    let mut cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let store = RedisStore::connect(&cluster.url(), Duration::from_secs(10)).unwrap();
    assert!(store.connected(PATIENCE).await);
    assert_eq!(store.nodes().len(), MASTERS);
    assert_eq!(
        (store.status().breaker, store.status().opened),
        (BreakerState::Closed, 0)
    );
    cluster.nodes[0].kill();
    let dead = format!("127.0.0.1:{}", cluster.nodes[0].port);
    let state = |store: &RedisStore, address: &str| {
        store
            .nodes()
            .into_iter()
            .find(|node| node.0 == address)
            .unwrap()
            .1
    };
    let started = Instant::now();
    while state(&store, &dead).breaker == BreakerState::Closed {
        assert!(started.elapsed() < PATIENCE, "the loss is not noticed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(
        store
            .nodes()
            .iter()
            .all(|node| (node.1.breaker == BreakerState::Closed) == (node.0 != dead))
    );
    assert_ne!(store.status().breaker, BreakerState::Closed);
    // One batch, in which some requests are decided and some are not.
    let plan = plan(vec![limit(5, Duration::from_secs(3600), FIXED)]);
    let asks: Vec<_> = (0..60).map(|key| ask(&plan, &key.to_string(), 1)).collect();
    let answers = store
        .decide_batch(&asks, StoreDeadline(Duration::from_secs(10)))
        .await;
    let decided = answers
        .iter()
        .filter(|answer| answer.as_ref().is_ok_and(|verdict| verdict.fits))
        .count();
    let refused = answers
        .iter()
        .filter(|answer| matches!(answer, Err(StoreError::Unreachable(_))))
        .count();
    assert!(
        decided > 10 && refused > 5 && decided + refused == 60,
        "{decided}, {refused}"
    );
    assert_eq!(store.status().undecided, refused as u64);
}

/// Before any key has gone, while some have, when all have, and of a key that was never seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::too_many_lines,
    reason = "laid out by rustfmt's defaults and not yet split"
)]
async fn fault_09_a_key_of_a_slot_that_moves_is_reset_whole() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let store = RedisStore::connect(&cluster.url(), Duration::from_secs(10)).unwrap();
    assert!(store.connected(PATIENCE).await);
    let time_limit = StoreDeadline(Duration::from_secs(10));
    let (hour, odd) = (Duration::from_secs(3600), Duration::from_secs(5_000));
    let four = plan(vec![
        limit(5, hour, FIXED),
        limit(5, hour, LOG),
        limit(5, odd, LOG),
        limit(5, 2 * odd, LOG),
    ]);
    for (key, moved) in [("none", 0), ("one", 1), ("two", 2), ("four", 4), ("all", 5)] {
        let (slot, group) = (cluster.slot("group", key), format!("{{group:{key}}}"));
        let from = cluster.owner(slot);
        let to = (from + 1) % MASTERS;
        assert!(
            store
                .decide_one(&ask(&four, key, 3), time_limit)
                .await
                .unwrap()
                .fits
        );
        cluster.open(slot, from, to);
        let names = [
            "log:5000000000",
            "logs",
            "",
            "log:3600000000",
            "log:10000000000",
        ]
        .map(|name| format!("{group}{name}"));
        for name in &names[..moved] {
            let port = cluster.nodes[to].port.to_string();
            assert_eq!(
                cluster.nodes[from].cli(&["MIGRATE", "127.0.0.1", &port, name, "0", "5000"]),
                "OK",
                "{name}"
            );
        }
        let subject = || Subject {
            key: Key::new(key).unwrap(),
            counts_as: "group".into(),
            log_windows_us: Vec::new(),
        };
        assert_eq!(
            store.reset(&subject(), time_limit).await,
            Ok(true),
            "{moved} moved"
        );
        for node in &cluster.nodes[..MASTERS] {
            assert_eq!(
                node.cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]),
                "0",
                "{moved} moved"
            );
        }
        assert_eq!(
            store.reset(&subject(), time_limit).await,
            Ok(false),
            "{moved} moved"
        );
        cluster.close(slot, to);
        assert!(
            store
                .decide_one(&ask(&four, key, 5), time_limit)
                .await
                .unwrap()
                .fits
        );
        assert_eq!(
            store.reset(&subject(), time_limit).await,
            Ok(true),
            "{moved} moved"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_node_configured_as_a_single_redis_is_reported() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    // A node tells so where it has not got what a connection is proven by.
    let servers: Vec<Server> = cluster
        .nodes
        .iter()
        .map(|node| Server::start(PLANS, &["--store", &node.url()]))
        .collect();
    let started = Instant::now();
    while !servers
        .iter()
        .any(|server| server.log().contains("write redis-cluster:// in store.url"))
    {
        assert!(started.elapsed() < PATIENCE, "{}", servers[0].log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let alone = crate::support::redis::Redis::start();
    let server = Server::start(
        PLANS,
        &[
            "--store",
            &format!("redis-cluster://127.0.0.1:{}", alone.port),
        ],
    );
    server.wait_for_line("store out of reach").await;
}

/// Redis refuses a call for several keys of a slot on its way when some of them have moved and some have not; each alone is
/// decided where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::too_many_lines,
    reason = "laid out by rustfmt's defaults and not yet split"
)]
async fn fault_53_keys_of_a_slot_that_is_half_moved_are_decided_together() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let server = Server::start(PLANS, &["--store", &cluster.url()]);
    decided(&server).await;
    // Three keys of one slot: one that moves, one that stays, and one that is new.
    let mut of_slot: std::collections::HashMap<u16, Vec<String>> = std::collections::HashMap::new();
    let keys = (0..).find_map(|number| {
        let key = format!("key {number}");
        let keys = of_slot
            .entry(fred::util::redis_keyslot(
                format!("window:{key}").as_bytes(),
            ))
            .or_default();
        keys.push(key);
        (keys.len() == 3).then(|| keys.clone())
    });
    let keys = keys.unwrap();
    let slot = cluster.slot("window", &keys[0]);
    assert!(keys.iter().all(|key| cluster.slot("window", key) == slot));
    let mut client = server.client().await;
    for key in &keys[..2] {
        assert_eq!(
            client
                .should_allow(request(key, "window", None))
                .await
                .unwrap()
                .into_inner()
                .remaining,
            Some(299)
        );
    }
    let from = cluster.owner(slot);
    let to = (from + 1) % MASTERS;
    cluster.open(slot, from, to);
    let port = cluster.nodes[to].port.to_string();
    let moved = cluster.nodes[from].cli(&[
        "MIGRATE",
        "127.0.0.1",
        &port,
        &format!("{{window:{}}}", keys[0]),
        "0",
        "5000",
    ]);
    assert_eq!(moved, "OK");
    for round in 1..=20 {
        let requests: Vec<_> = [&keys[..], &keys[..]]
            .concat()
            .iter()
            .map(|key| request(key, "window", None))
            .collect();
        let batch = client
            .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
            .await
            .unwrap()
            .into_inner();
        let answers = batch.results.into_iter().map(|result| match result.result {
            Some(should_allow_result::Result::Response(answer)) => answer,
            other => panic!("{other:?}"),
        });
        let told: Vec<_> = answers
            .map(|answer| (answer.decided_by(), answer.remaining))
            .collect();
        let left = |before: u64, nth: u64| (DecidedBy::Store, Some(before - 2 * (round - 1) - nth));
        let expected = [
            left(299, 1),
            left(299, 1),
            left(300, 1),
            left(299, 2),
            left(299, 2),
            left(300, 2),
        ];
        assert_eq!(told, expected, "round {round}");
    }
    assert!(
        cluster.errors("TRYAGAIN") >= 20,
        "the calls were for several keys: {}",
        cluster.errors("TRYAGAIN")
    );
    cluster.migrate(slot, from, to);
    cluster.close(slot, to);
}

/// A node that another one points to is asked for something that it has itself, before it is asked for decisions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_met_by_a_redirection_proves_itself_by_a_decision() {
    let cluster = Cluster::start();
    let server = Server::start(PLANS, &["--store", &cluster.url()]);
    decided(&server).await;
    // Its master does not have the name that nodes are tried by if nothing better is known.
    let elsewhere = cluster.owner(fred::util::redis_keyslot(b":0"));
    let key = (0..)
        .map(|number| format!("key {number}"))
        .find(|key| cluster.owner(cluster.slot("open", key)) != elsewhere)
        .unwrap();
    let slot = cluster.slot("open", &key);
    let master = cluster.nodes[cluster.owner(slot)].cli(&["CLUSTER", "MYID"]);
    let heir = cluster
        .nodes
        .iter()
        .find(|node| {
            node.cli(&["CLUSTER", "NODES"])
                .contains(&format!("myself,slave {master}"))
        })
        .unwrap();
    assert_eq!(heir.cli(&["CLUSTER", "FAILOVER"]), "OK");
    let started = Instant::now();
    while !heir.cli(&["ROLE"]).starts_with("master") {
        assert!(
            started.elapsed() < PATIENCE,
            "the replica does not take over"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut client = server.client().await;
    for _ in 0..10 {
        let answer = client
            .should_allow(request(&key, "open", None))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.decided_by(), DecidedBy::Store);
    }
    let told = heir.cli(&["INFO", "errorstats"]);
    assert!(
        !told.contains("errorstat_MOVED"),
        "it was tried by what another node has: {told}"
    );
}
