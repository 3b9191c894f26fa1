//! Holds on slots that move and on a shard that dies: no id is lost, and what is counted at the end is what was used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::algorithm::holds::{HoldCall, HoldVerdict, SettleOutcome};
use tollgate::plan::{Algorithm, Limit, Plan, Rule};
use tollgate::store::{RedisStore, Store, StoreDeadline, StoreError};

use super::super::holds_redis::{PATIENCE, is_held, plan, settlement, used};
use super::lost_node::wait_for_heir;
use crate::support::cluster::{Cluster, MASTERS};
use crate::support::history::Random;
use crate::support::holds::{ask, reserve, settle};
use crate::support::plans::{ANCHORED, LOG};

const KEYS: u64 = 8;
/// How long each step of a slot's move takes.
const STEP: Duration = Duration::from_millis(50);

/// Limits of an hour from the first request on, so that no window ends while a test runs.
fn hourly(algorithms: &[Algorithm]) -> Arc<Plan> {
    let hour = Duration::from_secs(3_600);
    let limit = |algorithm: &Algorithm| {
        Limit::new(format!("{algorithm:?}"), 100_000, hour, *algorithm).unwrap()
    };
    Arc::new(Plan {
        rule: Rule::limits(algorithms.iter().map(limit)),
        ..(*plan(&[], None, 64)).clone()
    })
}

async fn connected(cluster: &Cluster) -> RedisStore {
    let store = RedisStore::connect(&cluster.url(), PATIENCE.0).unwrap();
    assert!(store.connected(PATIENCE.0).await);
    store
}

/// Sends a call, and returns what Redis answered.
async fn send(
    (store, plan): (&RedisStore, &Arc<Plan>),
    key: u64,
    id_and_call: (&str, HoldCall),
    deadline: StoreDeadline,
) -> Result<HoldVerdict, StoreError> {
    let check = ask(plan, &name(key), id_and_call);
    store.decide_hold(&check, deadline).await
}

fn name(key: u64) -> String {
    format!("held {key}")
}

/// Reserves and settles until it is over, each call once to three times, as one does whose answers are lost. Returns what it used of
/// each key.
async fn reserve_and_settle(
    store: RedisStore,
    plan: Arc<Plan>,
    number: u64,
    (over, calls): (Arc<AtomicBool>, Arc<AtomicU64>),
) -> Vec<u64> {
    let mut random = Random(number);
    let mut sums = vec![0; KEYS as usize];
    let mut index = 0;
    while !over.load(Ordering::SeqCst) {
        let key = random.below(KEYS);
        let id = format!("{number} {index}");
        let actual = random.below(5);
        let mut times = 0;
        let mut settled = 0;
        let mut events = Vec::new();
        for _ in 0..=random.below(3) {
            let answer = send((&store, &plan), key, (&id, reserve(3, 60)), PATIENCE)
                .await
                .unwrap();
            assert!(
                answer.view.verdict.fits,
                "{key}: the quota is never used up"
            );
            times += u64::from(is_held(&answer));
            events.push(answer.event);
        }
        assert_eq!(
            times, 1,
            "{id} is held once, and known from then on: {events:?}"
        );
        for _ in 0..=random.below(3) {
            let answer = send((&store, &plan), key, (&id, settle(actual)), PATIENCE)
                .await
                .unwrap();
            let outcome = settlement(answer).outcome;
            settled += u64::from(outcome == SettleOutcome::Settled);
            assert_ne!(outcome, SettleOutcome::Unknown, "{id}");
        }
        assert_eq!(settled, 1, "{id}");
        sums[usize::try_from(key).unwrap()] += actual;
        index += 1;
        calls.fetch_add(1, Ordering::SeqCst);
    }
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_holds_of_slots_that_move_are_all_known_and_counted_once() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let replicas = [connected(&cluster).await, connected(&cluster).await];
    let plan = hourly(&[ANCHORED, LOG]);
    let over = Arc::<AtomicBool>::default();
    let calls = Arc::<AtomicU64>::default();
    let callers: Vec<_> = (0..8)
        .map(|number| {
            let store = replicas[usize::from(number % 2 == 1)].clone();
            let until = (over.clone(), calls.clone());
            tokio::spawn(reserve_and_settle(store, plan.clone(), number, until))
        })
        .collect();
    let pass = async |more: u64| {
        let enough = calls.load(Ordering::SeqCst) + more;
        while calls.load(Ordering::SeqCst) < enough {
            assert!(!callers.iter().any(|caller| caller.is_finished()));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    pass(50).await;
    for key in 0..KEYS {
        let slot = cluster.slot("group", &name(key));
        let from = cluster.owner(slot);
        let to = (from + 1) % MASTERS;
        // A name that is not there is looked for on the other node, so a call about several names may wait until all have moved.
        cluster.open(slot, from, to);
        tokio::time::sleep(STEP).await;
        cluster.nodes[to].cli(&["SCRIPT", "FLUSH"]);
        tokio::time::sleep(STEP).await;
        cluster.migrate(slot, from, to);
        tokio::time::sleep(STEP).await;
        cluster.close(slot, to);
        pass(20).await;
    }
    pass(50).await;
    over.store(true, Ordering::SeqCst);
    let mut sums = vec![0; KEYS as usize];
    for caller in callers {
        let used = caller.await.unwrap();
        sums.iter_mut().zip(used).for_each(|(sum, one)| *sum += one);
    }
    let words = ["ASK", "NOSCRIPT"].map(|word| cluster.errors(word));
    println!(
        "{} calls, {words:?} sent on; used {sums:?}",
        calls.load(Ordering::SeqCst)
    );
    assert!(words.iter().all(|times| *times > 0), "{words:?}");
    for (key, sum) in (0..KEYS).zip(&sums) {
        assert_eq!(used(&replicas[0], &plan, &name(key)).await, *sum, "{key}");
    }
}

/// What had reached the replica is known on it: Redis replicates behind its answers, so the test waits for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_holds_of_a_shard_that_dies_are_settled_on_its_heir() {
    let mut cluster = Cluster::start();
    let store = connected(&cluster).await;
    let plan = hourly(&[ANCHORED]);
    for key in 0..KEYS {
        for id in ["a", "b"] {
            let answer = send((&store, &plan), key, (id, reserve(30, 600)), PATIENCE)
                .await
                .unwrap();
            assert!(is_held(&answer));
        }
        let settled = send((&store, &plan), key, ("a", settle(7)), PATIENCE)
            .await
            .unwrap();
        assert_eq!(settlement(settled).outcome, SettleOutcome::Settled);
    }
    for node in &cluster.nodes[..MASTERS] {
        assert_eq!(node.cli(&["WAIT", "1", "10000"]), "1");
    }
    let dead: Vec<u64> = (0..KEYS)
        .filter(|key| cluster.owner(cluster.slot("group", &name(*key))) == 0)
        .collect();
    assert!(!dead.is_empty());
    cluster.nodes[0].kill();
    let short = StoreDeadline(Duration::from_millis(300));
    for key in &dead {
        let away = send((&store, &plan), *key, ("b", settle(9)), short).await;
        assert!(away.is_err(), "{key}");
    }
    wait_for_heir(&cluster).await;
    for key in 0..KEYS {
        let check = ask(&plan, &name(key), ("b", settle(9)));
        let mut first = store.decide_hold(&check, short).await;
        let began = Instant::now();
        while first.is_err() {
            assert!(began.elapsed() < PATIENCE.0);
            first = store.decide_hold(&check, short).await;
        }
        let again = store.decide_hold(&check, PATIENCE).await.unwrap();
        // An answer may have been lost, and the call sent again.
        let outcome = settlement(first.unwrap()).outcome;
        assert!(
            [SettleOutcome::Settled, SettleOutcome::Repeated].contains(&outcome),
            "{outcome:?}"
        );
        assert_eq!(settlement(again).outcome, SettleOutcome::Repeated);
        let before = send((&store, &plan), key, ("a", settle(7)), PATIENCE)
            .await
            .unwrap();
        assert_eq!(settlement(before).outcome, SettleOutcome::Repeated);
        assert_eq!(used(&store, &plan, &name(key)).await, 7 + 9, "{key}");
    }
}
