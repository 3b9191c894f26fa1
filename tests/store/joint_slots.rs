//! Joint decisions of a Cluster whose names lie in several slots: no quota is passed, and of a denied decision nothing is left, while
//! slots move, nodes die, callers go away and replicas are killed.

mod load;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tollgate::algorithm::Reading;
use tollgate::grpc::pb;
use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Plan, Rule};
use tollgate::store::{
    Check, JointUndos, Mode, RedisStore, SharedStore, Store, StoreDeadline, StoreError, all_fit,
};

use crate::support::cluster::{Cluster, MASTERS};
use crate::support::history::Random;
use crate::support::http::Scrape;
use crate::support::plans::{
    ANCHORED, COARSE, FIXED, LOG, WINDOW, ask, every_but_the_bucket, limit, peek, plan,
};
use crate::support::server::{Client, PATIENCE, Server, channel_to, request};
use load::Load;

const WAIT: StoreDeadline = StoreDeadline(Duration::from_secs(60));
/// Decisions of the load, unless `TOLLGATE_JOINT_DECISIONS` says otherwise.
const DECISIONS: usize = 3_000;
const AT_ONCE: usize = 50;
const QUOTA: u64 = 100;
const COST_MAX: u64 = 2;
/// Nothing comes back while a test runs.
const MONTH: Duration = Duration::from_secs(30 * 86_400);

async fn store_on(cluster: &Cluster, deadline: Duration) -> RedisStore {
    let store = RedisStore::connect(&cluster.url(), deadline).unwrap();
    assert!(store.connected(WAIT.0).await);
    store
}

/// One of the subjects of a load: the index of its plan, and its number.
type Subject = (usize, usize);

/// Units that a subject has used. A bucket may owe a part of a unit more or less: what came back, and the rest of undone calls.
async fn used_by(store: &RedisStore, check: &Check) -> u64 {
    let peek = Check {
        mode: Mode::Peek,
        ..check.clone()
    };
    let verdict = store.decide_one(&peek, WAIT).await.unwrap();
    match verdict.readings[0] {
        Reading::Bucket {
            backlog_us,
            emission_us,
        } => (backlog_us + emission_us / 2) / emission_us,
        other => other.used(&check.plan.limits()[0]),
    }
}

/// Waits until this is so.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_all_slots_no_unit_is_too_many_and_none_is_left_over() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let stores = [
        store_on(&cluster, WAIT.0).await,
        store_on(&cluster, WAIT.0).await,
    ];
    let load = Arc::new(Load::new());
    load.close_gates(&stores[0]).await;
    let found = load.run(&stores, WAIT.0).await;
    let [denied, allowed] = found.decided;
    assert_eq!((denied + allowed, found.failed), (load.decisions, 0));
    assert!(
        denied > load.decisions / 3 && allowed > load.decisions / 3,
        "one-sided"
    );
    load.assert_exact(&stores[0], &found, 0, |_| true).await;
    for store in &stores {
        let JointUndos { done, unknown } = store.joint_undos();
        assert!(
            done as usize > load.decisions / 10 && unknown == 0,
            "{done}, {unknown}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_93_slots_that_move_meanwhile_lose_no_decision_and_no_unit() {
    let cluster = Arc::new(Cluster::start_with(0, &["redis-server"], &[]));
    let stores = [
        store_on(&cluster, WAIT.0).await,
        store_on(&cluster, WAIT.0).await,
    ];
    let enough = Load::new().decisions;
    // Until it is told that it is over.
    let load = Arc::new(Load {
        decisions: usize::MAX,
        ..Load::new()
    });
    load.close_gates(&stores[0]).await;
    let moving = cluster.clone();
    let running = load.clone();
    let mover = std::thread::spawn(move || {
        let mut moves = 0;
        while moves < 20 || running.next.load(Ordering::Relaxed) < enough {
            for customer in 0..5 {
                let slot = fred::util::redis_keyslot(format!("{{customer {customer}}}").as_bytes());
                let from = moving.owner(slot);
                let to = (from + 1) % MASTERS;
                moving.open(slot, from, to);
                moving.migrate(slot, from, to);
                moving.close(slot, to);
                moves += 1;
            }
        }
        running.over.store(true, Ordering::Relaxed);
        moves
    });
    let found = load.run(&stores, WAIT.0).await;
    let moves = mover.join().unwrap();
    println!("{moves} moves, {} TRYAGAIN", cluster.errors("TRYAGAIN"));
    assert_eq!(found.failed, 0);
    load.assert_exact(&stores[0], &found, 0, |_| true).await;
}

/// Begins to move the slot of the customer `acme`, and moves this name. Returns the slot, and from where to where.
fn move_one(cluster: &Cluster, name: &str) -> (u16, usize, usize) {
    let slot = fred::util::redis_keyslot(b"{acme}");
    let from = cluster.owner(slot);
    let to = (from + 1) % MASTERS;
    cluster.open(slot, from, to);
    let port = cluster.nodes[to].port.to_string();
    let moved = cluster.nodes[from].cli(&["MIGRATE", "127.0.0.1", &port, name, "0", "5000"]);
    assert_eq!(moved, "OK");
    (slot, from, to)
}

/// No node decides for both of its names, so each is charged by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_of_which_one_name_has_moved_is_decided_jointly() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let store = store_on(&cluster, WAIT.0).await;
    let ten = plan(vec![limit(10, MONTH, WINDOW)]);
    let two = plan(vec![limit(2, MONTH, FIXED)]);
    let of = |plan: &Arc<Plan>, key: &str| Check {
        key: Key::new(key).unwrap().in_shard("acme").unwrap(),
        ..ask(plan, key, 1)
    };
    let pair = [of(&ten, "stays"), of(&two, "moves")];
    let decide = async |checks: &[Check]| store.decide_joint(checks, WAIT).await.unwrap();
    assert!(all_fit(&pair, &decide(&pair).await));
    let (slot, from, to) = move_one(&cluster, "{acme}{group:moves}");
    let peeks = pair.clone().map(|check| Check {
        mode: Mode::Peek,
        ..check
    });
    let left = async || {
        let verdicts = decide(&peeks).await;
        [(0, &ten), (1, &two)]
            .map(|(index, plan)| verdicts[index].readings[0].remaining(&plan.limits()[0]))
    };
    assert_eq!(left().await, [9, 1]);
    // A name that is new is the other node's.
    let with_new = [of(&ten, "new"), of(&ten, "stays"), of(&two, "moves")];
    assert!(all_fit(&with_new, &decide(&with_new).await));
    for _ in 0..2 {
        let denied = decide(&with_new).await;
        let fits: Vec<bool> = denied.iter().map(|verdict| verdict.fits).collect();
        assert_eq!(fits, [true, true, false]);
        assert_eq!(denied[0].readings[0].remaining(&ten.limits()[0]), 9);
        assert_eq!(left().await, [8, 0]);
    }
    assert!(cluster.errors("TRYAGAIN") > 0, "no call was for both nodes");
    cluster.migrate(slot, from, to);
    cluster.close(slot, to);
    assert_eq!(left().await, [8, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_91_a_node_that_dies_meanwhile_leaves_the_others_exact() {
    let mut cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let deadline = Duration::from_millis(300);
    let stores = [
        store_on(&cluster, deadline).await,
        store_on(&cluster, deadline).await,
    ];
    let load = Arc::new(Load::new());
    load.close_gates(&stores[0]).await;
    let running = {
        let load = load.clone();
        let stores = stores.clone();
        tokio::spawn(async move { load.run(&stores, deadline).await })
    };
    while load.next.load(Ordering::Relaxed) < load.decisions / 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    cluster.nodes[0].kill();
    let found = running.await.unwrap();
    assert!(
        found.failed > 0 && found.decided[1] > 0,
        "{} failed",
        found.failed
    );
    let lost = cluster.nodes[0].port;
    let of_name = |check: &Check| {
        let name = stores[0].names(&check.key, &check.plan).remove(0);
        let slot = cluster.nodes[1].cli(&["CLUSTER", "KEYSLOT", &name]);
        slot.parse::<u16>().unwrap()
    };
    let lives = |check: &Check| cluster.nodes[cluster.owner(of_name(check))].port != lost;
    // What failed midway is undone behind its caller's back.
    tokio::time::sleep(3 * deadline).await;
    // On a busy machine, nodes that live are late too.
    let unknown: u64 = stores.iter().map(|store| store.joint_undos().unknown).sum();
    let may_stay = found.unanswered + COST_MAX * unknown;
    load.assert_exact(&stores[1], &found, may_stay, lives).await;
}

/// Callers that go away before they have an answer. On a fast machine few do.
const GONE: u64 = 60;

/// The gate is charged last, so no decision may leave a unit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_92_what_was_charged_is_undone_also_when_the_caller_goes_away() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let store = store_on(&cluster, WAIT.0).await;
    let named = |name: &str, quota| {
        Arc::new(Plan {
            counts_as: name.into(),
            ..Plan::new("plan", Rule::limits([limit(quota, MONTH, LOG)]))
        })
    };
    let first = named("a", 1_000);
    let last = named("z", 1);
    let gate = ask(&last, "gate", 1);
    assert!(store.decide_one(&gate, WAIT).await.unwrap().fits);
    let mut random = Random(7);
    let mut gone = 0;
    let mut calls = 0;
    while gone < GONE && calls < 30 * GONE {
        calls += 1;
        let keys = (0..4).map(|number| ask(&first, &format!("key {number}"), 1));
        let checks: Vec<Check> = keys.chain([gate.clone()]).collect();
        let patience = Duration::from_micros(random.below(2_500));
        let asked = store.decide_joint(&checks, WAIT);
        gone += u64::from(tokio::time::timeout(patience, asked).await.is_err());
    }
    println!("{gone} of {calls} callers went away");
    assert_eq!(gone, GONE, "{calls} calls");
    eventually("units are left", async || {
        let mut used = 0;
        for number in 0..4 {
            used += used_by(&store, &peek(&first, &format!("key {number}"), 1)).await;
        }
        used == 0
    })
    .await;
    assert_eq!(store.joint_undos().unknown, 0);
}

/// Decisions that could not be begun are refused, and all others are decided.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_decisions_at_once_than_are_held_are_refused() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let store = store_on(&cluster, WAIT.0).await;
    let many = plan(vec![limit(100_000, MONTH, ANCHORED)]);
    // A node that does not answer holds them up.
    for node in &cluster.nodes {
        node.signal("STOP");
    }
    let asked = (0..1_200).map(|number| {
        let store = store.clone();
        let many = many.clone();
        tokio::spawn(async move {
            let pair = ["a", "b"].map(|name| ask(&many, &format!("{name} {}", number % 7), 1));
            store.decide_joint(&pair, WAIT).await
        })
    });
    let asked: Vec<_> = asked.collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    for node in &cluster.nodes {
        node.signal("CONT");
    }
    let mut refused = 0;
    for task in asked {
        if let Err(failure) = task.await.unwrap() {
            assert_eq!(failure.error, StoreError::Overloaded(1_024));
            refused += 1;
        }
    }
    // Some may have had both names in one slot.
    assert_eq!(refused, 1_200 - 1_024);
    let again = ["a", "b"].map(|name| ask(&many, &format!("{name} 0"), 1));
    let verdicts = store.decide_joint(&again, WAIT).await.unwrap();
    assert!(all_fit(&again, &verdicts));
}

const PLANS: &str = "
workers: 2
deny_cache: { entries: 0 }
plans:
  org: { limits: [ { quota: 100000, window: 3s, algorithm: sliding_log } ], counts_as: a }
  full: { limits: [ { quota: 1, window: 1d, anchor: first_request, algorithm: fixed_window } ], counts_as: z }
";

/// Asks until the server is gone for a unit of the organisation of this number, and for one of what is full. Returns how often that
/// was denied.
async fn ask_until_killed(address: String, number: usize) -> usize {
    let mut client = Client::new(channel_to(&address).await);
    let asked = pb::ShouldAllowJointRequest {
        requests: vec![
            request(&format!("org {number}"), "org", None),
            request("gate", "full", None),
        ],
        ..Default::default()
    };
    let mut denied = 0;
    while let Ok(answer) = client.should_allow_joint(asked.clone()).await {
        let answer = answer.into_inner();
        assert_eq!((answer.allowed, answer.binding), (false, 1), "{answer:?}");
        denied += 1;
    }
    denied
}

/// All decisions are denied by their last request. What was charged before it is the replica's to undo.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_90_a_killed_replica_leaves_the_units_of_its_calls_until_their_windows_end() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let flags = [
        "--set",
        "store.deadline=5s",
        "--set",
        "listen.http=127.0.0.1:0",
    ];
    let server = Server::start(PLANS, &[&["--store", &cluster.url()], &flags[..]].concat());
    let mut client = server.client().await;
    let first = client.should_allow(request("gate", "full", None)).await;
    assert!(first.unwrap().into_inner().allowed);
    let callers = (0..AT_ONCE).map(|number| ask_until_killed(server.address.clone(), number));
    let callers: Vec<_> = callers.map(tokio::spawn).collect();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let metrics = Scrape::of(&server.http());
    server.signal("KILL");
    let killed = Instant::now();
    let mut denied = 0;
    for caller in callers {
        denied += caller.await.unwrap();
    }
    assert!(denied > 200, "{denied} decisions tell nothing");
    let undone = metrics.value("tollgate_joint_undos_total{result=\"done\"}");
    assert!(undone > 100.0, "{undone}");
    let store = store_on(&cluster, WAIT.0).await;
    let limits = vec![limit(100_000, Duration::from_secs(3), LOG)];
    let org = Arc::new(Plan {
        counts_as: "a".into(),
        ..Plan::new("org", Rule::limits(limits))
    });
    let used = async || {
        let mut used = 0;
        for number in 0..AT_ONCE {
            used += used_by(&store, &peek(&org, &format!("org {number}"), 1)).await;
        }
        used
    };
    let left = used().await;
    println!(
        "{denied} denied; {left} units are left {:?} after the kill",
        killed.elapsed()
    );
    assert!(left <= AT_ONCE as u64, "{left} units are left");
    eventually("their windows have ended", async || used().await == 0).await;
}
