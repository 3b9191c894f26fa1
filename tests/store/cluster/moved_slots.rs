//! Slots that move from node to node: no call fails, every limit stays exact, and a reset finds all keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::grpc::pb::{self, DecidedBy, should_allow_result};
use tollgate::key::Key;
use tollgate::store::{RedisStore, Store, StoreDeadline, Subject};

use super::{NAMES, PLANS, wait_until_all_nodes_decide};
use crate::support::cluster::{Cluster, MASTERS};
use crate::support::plans::{FIXED, LOG, ask, limit, plan};
use crate::support::server::{Client, PATIENCE, Server, channel_to, request};

/// Callers that ask for these keys, one after another, until each was allowed as often as it may be, and for a while after.
struct Demand {
    over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    callers: Vec<tokio::task::JoinHandle<Vec<u64>>>,
}

impl Demand {
    async fn start(server: &Server, keys: Arc<Vec<(String, &'static str)>>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let asked = Arc::new(AtomicU64::new(0));
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
    wait_until_all_nodes_decide(&server).await;
    let keys: Vec<_> = (0..16)
        .map(|key| (format!("moved {key}"), NAMES[key % NAMES.len()]))
        .collect();
    let slots: Vec<u16> = keys
        .iter()
        .map(|(key, plan)| cluster.slot(plan, key))
        .collect();
    let keys = Arc::new(keys);
    let mut moves = 0;
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
    wait_until_all_nodes_decide(&server).await;
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
    let asks = cluster.errors("ASK");
    let noscripts = cluster.errors("NOSCRIPT");
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

/// Before any key has gone, while some have, when all have, and of a key that was never seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_a_key_of_a_slot_that_moves_is_reset_whole() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let store = RedisStore::connect(&cluster.url(), Duration::from_secs(10)).unwrap();
    assert!(store.connected(PATIENCE).await);
    for (key, moved) in [("none", 0), ("one", 1), ("two", 2), ("four", 4), ("all", 5)] {
        let slot = cluster.slot("group", key);
        let from = cluster.owner(slot);
        let to = (from + 1) % MASTERS;
        assert_charged(&store, key, 3).await;
        cluster.open(slot, from, to);
        for name in &LOG_NAMES[..moved] {
            move_key(&cluster, &format!("{{group:{key}}}{name}"), from, to);
        }
        assert_reset(&store, key, true, moved).await;
        for node in &cluster.nodes[..MASTERS] {
            assert_eq!(
                node.cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]),
                "0",
                "{moved} moved"
            );
        }
        assert_reset(&store, key, false, moved).await;
        cluster.close(slot, to);
        assert_charged(&store, key, 5).await;
        assert_reset(&store, key, true, moved).await;
    }
}

/// What the names of the keys in Redis end with, for the plan of [`assert_charged`].
const LOG_NAMES: [&str; 5] = [
    "log:5000000000",
    "logs",
    "",
    "log:3600000000",
    "log:10000000000",
];
const TIME_LIMIT: StoreDeadline = StoreDeadline(Duration::from_secs(10));

/// Charges a plan of four limits, which takes five keys in Redis, and asserts that it fits.
async fn assert_charged(store: &RedisStore, key: &str, cost: u64) {
    let hour = Duration::from_secs(3600);
    let odd = Duration::from_secs(5_000);
    let four = plan(vec![
        limit(5, hour, FIXED),
        limit(5, hour, LOG),
        limit(5, odd, LOG),
        limit(5, 2 * odd, LOG),
    ]);
    let verdict = store.decide_one(&ask(&four, key, cost), TIME_LIMIT).await;
    assert!(verdict.unwrap().fits);
}

/// Resets the key, and asserts whether it was there.
async fn assert_reset(store: &RedisStore, key: &str, existed: bool, moved: usize) {
    let subject = Subject {
        key: Key::new(key).unwrap(),
        counts_as: "group".into(),
        log_windows_us: Vec::new(),
    };
    assert_eq!(
        store.reset(&subject, TIME_LIMIT).await,
        Ok(existed),
        "{moved} moved"
    );
}

/// Moves one key of a slot that is on its way.
fn move_key(cluster: &Cluster, name: &str, from: usize, to: usize) {
    let port = cluster.nodes[to].port.to_string();
    let moved = cluster.nodes[from].cli(&["MIGRATE", "127.0.0.1", &port, name, "0", "5000"]);
    assert_eq!(moved, "OK", "{name}");
}

/// Redis refuses a call for several keys of a slot on its way when some of them have moved and some have not; each alone is
/// decided where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_53_keys_of_a_slot_that_is_half_moved_are_decided_together() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let server = Server::start(PLANS, &["--store", &cluster.url()]);
    wait_until_all_nodes_decide(&server).await;
    // Three keys of one slot: one that moves, one that stays, and one that is new.
    let keys = three_keys_of_one_slot();
    let slot = cluster.slot("window", &keys[0]);
    assert!(keys.iter().all(|key| cluster.slot("window", key) == slot));
    let mut client = server.client().await;
    for key in &keys[..2] {
        let answer = client.should_allow(request(key, "window", None)).await;
        assert_eq!(answer.unwrap().into_inner().remaining, Some(299));
    }
    let from = cluster.owner(slot);
    let to = (from + 1) % MASTERS;
    cluster.open(slot, from, to);
    move_key(&cluster, &format!("{{window:{}}}", keys[0]), from, to);
    for round in 1..=20 {
        let told = ask_twice_in_a_batch(&mut client, &keys).await;
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

fn three_keys_of_one_slot() -> Vec<String> {
    let mut of_slot: HashMap<u16, Vec<String>> = HashMap::new();
    let keys = (0..).find_map(|number| {
        let key = format!("key {number}");
        let slot = fred::util::redis_keyslot(format!("window:{key}").as_bytes());
        let keys = of_slot.entry(slot).or_default();
        keys.push(key);
        (keys.len() == 3).then(|| keys.clone())
    });
    keys.unwrap()
}

/// Who decided on each request of a batch with these keys, twice in their order, and what remains.
async fn ask_twice_in_a_batch(
    client: &mut Client,
    keys: &[String],
) -> Vec<(DecidedBy, Option<u64>)> {
    let requests: Vec<_> = [keys, keys]
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
    answers
        .map(|answer| (answer.decided_by(), answer.remaining))
        .collect()
}
