//! A call to a node of a Cluster carries names of many slots. Names that the node refuses are sent again by slot.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tollgate::plan::Plan;
use tollgate::store::{RedisStore, Store, StoreDeadline};

use crate::support::cluster::{Cluster, MASTERS};
use crate::support::plans::{BUCKET, FIXED, LOG, ask, limit, plan};
use crate::support::server::PATIENCE;

const TIME_LIMIT: StoreDeadline = StoreDeadline(Duration::from_secs(10));
/// Nearly all of them are of different slots.
const KEYS: usize = 96;
const QUOTA: usize = 6;

async fn connected(cluster: &Cluster) -> RedisStore {
    let store = RedisStore::connect(&cluster.url(), TIME_LIMIT.0).unwrap();
    assert!(store.connected(PATIENCE).await);
    store
}

/// A log of its own key beside a packed state, so that a name is read in both ways.
fn two_limits() -> Arc<Plan> {
    let day = Duration::from_secs(86_400);
    plan(vec![
        limit(QUOTA as u64, day, FIXED),
        limit(1_000, day, LOG),
    ])
}

fn key(number: usize) -> String {
    format!("key {number}")
}

/// Asks once for every key. How many requests pass.
async fn ask_for_all(store: &RedisStore, plan: &Arc<Plan>) -> usize {
    let asks: Vec<_> = (0..KEYS).map(|number| ask(plan, &key(number), 1)).collect();
    let answers = store.decide_batch(&asks, TIME_LIMIT).await;
    answers
        .into_iter()
        .filter(|answer| answer.as_ref().expect("every key is decided").fits)
        .count()
}

/// Script calls that the nodes ran.
fn calls(cluster: &Cluster) -> usize {
    cluster
        .nodes
        .iter()
        .map(|node| usize::try_from(node.ran("evalsha")).unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_carries_names_of_many_slots_of_a_node() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let store = connected(&cluster).await;
    for plan in [
        two_limits(),
        plan(vec![limit(
            QUOTA as u64,
            Duration::from_secs(86_400),
            BUCKET,
        )]),
    ] {
        let before = calls(&cluster);
        let capacity = plan.limits()[0].capacity() as usize;
        for round in 0..2 * QUOTA {
            assert_eq!(
                ask_for_all(&store, &plan).await,
                if round < capacity { KEYS } else { 0 },
                "round {round}"
            );
        }
        let calls = calls(&cluster) - before;
        let names = 2 * QUOTA * KEYS;
        println!("{names} names in {calls} calls");
        assert!(names >= 8 * calls, "{names} names in {calls} calls");
    }
}

/// Some slots are gone to another node, and some are on their way, which the store does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_names_that_a_node_refuses_go_by_slot_and_the_others_stay_together() {
    const MOVED: usize = 8;
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let store = connected(&cluster).await;
    let plan = two_limits();
    assert_eq!(ask_for_all(&store, &plan).await, KEYS);
    let mut last_moves = Vec::new();
    for number in 0..MOVED {
        let slot = cluster.slot("group", &key(number));
        let from = cluster.owner(slot);
        let to = (from + 1) % MASTERS;
        cluster.open(slot, from, to);
        cluster.migrate(slot, from, to);
        if number < MOVED / 2 {
            cluster.close(slot, to);
        } else {
            last_moves.push((slot, to));
        }
    }
    let before = calls(&cluster);
    assert_eq!(ask_for_all(&store, &plan).await, KEYS);
    let calls = calls(&cluster) - before;
    println!("{calls} calls");
    // At worst three nodes answer one call in full, refuse two each, and send each name that moved on once.
    assert!(
        calls > MASTERS && calls <= 4 * MASTERS + 4 * MOVED,
        "{calls} calls"
    );
    for round in 2..QUOTA + 2 {
        assert_eq!(
            ask_for_all(&store, &plan).await,
            if round < QUOTA { KEYS } else { 0 },
            "round {round}"
        );
    }
    last_moves
        .into_iter()
        .for_each(|(slot, to)| cluster.close(slot, to));
    assert_eq!(ask_for_all(&store, &plan).await, 0);
}

/// Some servers want every name to be a key. These take a name by the commands of such calls only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_wants_keys_is_found_out_and_asked_by_slot() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    cluster
        .nodes
        .iter()
        .for_each(|node| assert_eq!(node.cli(&["ACL", "SETUSER", "default", "-get"]), "OK"));
    let store = connected(&cluster).await;
    let plan = two_limits();
    let slots: HashSet<u16> = (0..KEYS)
        .map(|number| cluster.slot("group", &key(number)))
        .collect();
    for round in 0..2 * QUOTA {
        let before = calls(&cluster);
        assert_eq!(
            ask_for_all(&store, &plan).await,
            if round < QUOTA { KEYS } else { 0 },
            "round {round}"
        );
        let calls = calls(&cluster) - before;
        if round == 0 {
            assert!(calls > slots.len(), "no call was by names: {calls} calls");
        } else {
            assert_eq!(calls, slots.len(), "round {round}");
        }
    }
}
