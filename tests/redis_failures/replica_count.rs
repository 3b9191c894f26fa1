//! Replicas count each other through Redis. When Redis cannot decide, each grants its share of a quota, rounded up. So together
//! they exceed the quota by less than one unit each, unless the number of replicas changes just then.

use std::time::{Duration, Instant};

use tollgate::grpc::pb::{DecidedBy, Outcome};
use tollgate::store::{ANNOUNCED_EVERY, REPLICA_LIFETIME};

use crate::support::cluster::Cluster;
use crate::support::http::Scrape;
use crate::support::proxy::Proxy;
use crate::support::redis::Redis;
use crate::support::sentinel::Watched;
use crate::support::server::{PATIENCE, Server, decide};

/// The quota of the plan. Its window does not end during a test, and its deadline is long enough for a healthy Redis on a busy
/// machine.
const QUOTA: u64 = 100;
const PLANS: &str = "
listen: { http: '127.0.0.1:0' }
workers: 2
store: { deadline: 1s }
plans:
  day: { limits: [ { quota: 100, window: 300d, algorithm: fixed_window } ] }
";
/// Name in Redis of the set of replicas.
const SET: &str = "{:replicas}";

fn start_replicas(count: usize, url: &str) -> Vec<Server> {
    (0..count)
        .map(|_| Server::start(PLANS, &["--store", url]))
        .collect()
}

/// The number of replicas that this server counts.
fn replicas_seen(server: &Server) -> u64 {
    let seen = Scrape::of(&server.http()).value("tollgate_replicas_seen");
    assert!(seen >= 1.0, "{seen} replicas");
    seen as u64
}

/// Waits until each server counts so many replicas.
async fn wait_until_all_see(servers: &[Server], count: u64) {
    let started = Instant::now();
    while servers.iter().any(|server| replicas_seen(server) != count) {
        let all: Vec<u64> = servers.iter().map(replicas_seen).collect();
        assert!(
            started.elapsed() < PATIENCE,
            "{all:?} see another number than {count}: {}",
            servers[0].log()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Asks each server for one key until it denies. Returns how many requests each allowed without the store.
async fn granted_locally(servers: &[Server], key: &str) -> Vec<u64> {
    let mut granted = Vec::new();
    for server in servers {
        let mut client = server.client().await;
        granted.push(0);
        loop {
            let answer = decide(&mut client, key, "day").await;
            assert_eq!(answer.decided_by(), DecidedBy::LocalFallback);
            if answer.outcome() != Outcome::Allowed {
                break;
            }
            *granted.last_mut().unwrap() += 1;
        }
    }
    granted
}

fn shares(replicas: usize) -> Vec<u64> {
    vec![QUOTA.div_ceil(replicas as u64); replicas]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_60_replicas_that_lose_redis_grant_the_quota_together_and_share_it_alike() {
    for count in [2, 3] {
        let mut redis = Redis::start();
        let replicas = start_replicas(count, &redis.url());
        wait_until_all_see(&replicas, count as u64).await;
        redis.kill();
        for replica in &replicas {
            replica
                .wait_until_decided_by(DecidedBy::LocalFallback, "day")
                .await;
        }
        let granted = granted_locally(&replicas, "k").await;
        println!(
            "granted by each of {count} replicas without Redis, of a quota of {QUOTA}: {granted:?}"
        );
        assert_eq!(granted, shares(count));
        // The number stays as long as Redis is away, also beyond the lifetime of every announcement.
        tokio::time::sleep(REPLICA_LIFETIME + ANNOUNCED_EVERY).await;
        assert_eq!(
            replicas.iter().map(replicas_seen).collect::<Vec<_>>(),
            vec![count as u64; count]
        );
        redis.restart();
        for replica in &replicas {
            replica.wait_until_decided_by(DecidedBy::Store, "day").await;
        }
        wait_until_all_see(&replicas, count as u64).await;
    }
}

/// Redis and the announcements of replicas work. Only the answers to decisions come after the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_60_answers_that_come_late_are_shared_as_in_an_outage() {
    const COUNT: usize = 2;
    let redis = Redis::start();
    let proxy = Proxy::before(redis.port);
    let replicas = start_replicas(COUNT, &proxy.url());
    wait_until_all_see(&replicas, COUNT as u64).await;
    proxy.delay(Duration::from_millis(700));
    let calls = replicas
        .iter()
        .flat_map(|replica| std::iter::repeat_n(replica, 150));
    let calls: Vec<_> = calls
        .map(|replica| {
            let address = replica.address.clone();
            tokio::spawn(async move {
                let mut client = crate::support::server::Client::new(
                    crate::support::server::channel_to(&address).await,
                );
                let answer = decide(&mut client, "k", "day").await;
                (answer.decided_by(), answer.outcome() == Outcome::Allowed)
            })
        })
        .collect();
    let mut local = 0;
    let mut others = 0;
    for call in calls {
        match call.await.unwrap() {
            (DecidedBy::LocalFallback, true) => local += 1,
            (DecidedBy::LocalFallback, false) => {}
            _ => others += 1,
        }
    }
    assert_eq!(
        (local, others),
        (QUOTA, 0),
        "granted to late answers, and decided otherwise"
    );
    assert_eq!(
        replicas.iter().map(replicas_seen).collect::<Vec<_>>(),
        [COUNT as u64; COUNT]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_stops_leaves_at_once_and_one_that_is_killed_within_seconds() {
    let redis = Redis::start();
    let mut replicas = start_replicas(4, &redis.url());
    wait_until_all_see(&replicas, 4).await;
    let mut stopped = replicas.pop().unwrap();
    stopped.signal("TERM");
    stopped.wait();
    assert_eq!(redis.cli(&["ZCARD", SET]), "3", "{}", stopped.log());
    wait_until_all_see(&replicas, 3).await;
    let mut killed = replicas.pop().unwrap();
    killed.child.kill().unwrap();
    killed.wait();
    wait_until_all_see(&replicas, 2).await;
    // A replica that starts again counts as a new one, and the killed one no longer counts.
    replicas.push(killed.again(&["--store", &redis.url()]));
    wait_until_all_see(&replicas, 3).await;
}

/// Each of three events makes Redis forget all replicas for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgets_the_replicas_makes_no_share_larger() {
    let mut redis = Redis::start();
    let replicas = start_replicas(3, &redis.url());
    wait_until_all_see(&replicas, 3).await;
    let watch = async |redis: &mut Redis, forget: fn(&mut Redis)| {
        forget(redis);
        let started = Instant::now();
        while started.elapsed() < 2 * REPLICA_LIFETIME {
            assert_eq!(
                replicas.iter().map(replicas_seen).collect::<Vec<_>>(),
                [3, 3, 3]
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(redis.cli(&["ZCARD", SET]), "3");
    };
    watch(&mut redis, |redis| drop(redis.cli(&["FLUSHALL"]))).await;
    watch(&mut redis, |redis| {
        redis.kill();
        redis.restart();
    })
    .await;
    watch(&mut redis, |redis| {
        redis.signal("STOP");
        std::thread::sleep(REPLICA_LIFETIME + ANNOUNCED_EVERY);
        redis.signal("CONT");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configured_number_of_replicas_replaces_counting() {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &[
            "--store",
            &redis.url(),
            "--set",
            "store.expected_replicas=7",
        ],
    );
    server.wait_until_decided_by(DecidedBy::Store, "day").await;
    assert_eq!(
        (replicas_seen(&server), redis.cli(&["EXISTS", SET]).as_str()),
        (7, "0")
    );
    let embedded = Server::start(PLANS, &[]);
    assert_eq!(replicas_seen(&embedded), 1);
    let log = embedded.end_and_log();
    assert!(!log.contains("replicas"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_cost_redis_about_a_command_a_second_each() {
    let redis = Redis::start();
    let replicas = start_replicas(3, &redis.url());
    wait_until_all_see(&replicas, 3).await;
    let started = Instant::now();
    let before = redis.ran("zadd");
    tokio::time::sleep(5 * ANNOUNCED_EVERY).await;
    let announced = redis.ran("zadd") - before;
    let seconds = started.elapsed().as_secs_f64();
    println!("3 replicas announced themselves {announced} times in {seconds:.1} s");
    // The first announcements come faster, and every pause may be a tenth shorter.
    assert!(
        announced as f64 <= 3.0 * (seconds * 1.2 + 6.0),
        "{announced} times in {seconds} s"
    );
    // The set, and beside it what replicas tell each other of the heaviest keys: a directory, a secret, and a list of each replica.
    let names = redis.cli(&["KEYS", "*"]);
    assert!(
        names.lines().all(|name| name.starts_with(SET))
            && names.lines().count() <= 3 + replicas.len(),
        "{names}"
    );
}

/// An old entry is of a replica whose lifetime is over. An entry in the future was written before the clock stepped back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_are_old_or_in_the_future_are_not_counted() {
    let redis = Redis::start();
    redis.cli(&["ZADD", SET, "1", "old", "9999999999999", "to come"]);
    let replicas = start_replicas(1, &redis.url());
    wait_until_all_see(&replicas, 1).await;
    assert_eq!(redis.cli(&["ZCARD", SET]), "1");
    assert!(redis.cli(&["PTTL", SET]).parse::<u128>().unwrap() <= REPLICA_LIFETIME.as_millis());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_a_cluster_see_each_other_also_while_their_slot_moves() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let mut replicas = start_replicas(2, &cluster.url());
    wait_until_all_see(&replicas, 2).await;
    let slot = cluster.slot("", "replicas");
    let from = cluster.owner(slot);
    let to = (from + 1) % cluster.nodes.len();
    cluster.open(slot, from, to);
    cluster.migrate(slot, from, to);
    replicas.extend(start_replicas(1, &cluster.url()));
    wait_until_all_see(&replicas, 3).await;
    cluster.close(slot, to);
    replicas.extend(start_replicas(1, &cluster.url()));
    wait_until_all_see(&replicas, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_behind_sentinels_see_each_other() {
    let watched = Watched::start();
    wait_until_all_see(&start_replicas(2, &watched.url()), 2).await;
}
