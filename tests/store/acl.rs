//! Redis users with the permissions that docs/redis.md lists, and no others, are enough.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::grpc::pb::DecidedBy;
use tollgate::key::Key;
use tollgate::plan::Plan;
use tollgate::store::{RedisStore, Store, StoreDeadline, Subject};

use crate::support::cluster::{Cluster, MASTERS};
use crate::support::plans::{FIXED, LOG, ask, limit, plan};
use crate::support::redis::Redis;
use crate::support::sentinel::Watched;
use crate::support::server::{PATIENCE, Server, request};

const PLANS: &str = "
workers: 1
store: { deadline: 10s }
deny_cache: { entries: 0 }
plans:
  logs: { limits: [ { quota: 3, window: 1d, algorithm: sliding_log }, { quota: 4, window: 7d, algorithm: sliding_log } ] }
  packed: { limits: [ { quota: 3, window: 1d }, { quota: 5, window: 1d, algorithm: token_bucket } ] }
  short: { limits: [ { quota: 3, window: 5ms, algorithm: sliding_log } ] }
";

/// The rules that docs/redis.md gives, in its order: for Redis, for a Cluster beside, for Sentinels.
fn rules() -> [Vec<String>; 3] {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/redis.md")).unwrap();
    let lines = page
        .lines()
        .filter_map(|line| line.strip_prefix("ACL SETUSER tollgate "));
    let rules = lines.map(|line| {
        line.replace(">password", ">canary")
            .split(' ')
            .map(str::to_owned)
            .collect()
    });
    rules.collect::<Vec<_>>().try_into().unwrap()
}

fn allow(cli: impl Fn(&[&str]) -> String, rules: &[String]) {
    let command = ["ACL", "SETUSER", "tollgate"]
        .into_iter()
        .chain(rules.iter().map(String::as_str));
    assert_eq!(cli(&command.collect::<Vec<_>>()), "OK", "{rules:?}");
}

fn with_user(url: &str) -> String {
    url.replacen("://", "://tollgate:canary@", 1)
}

/// Requests that make the script use all its commands: new keys, charges, denials, logs that are cut.
async fn assert_everything_is_decided(server: &Server) {
    let mut client = server.client().await;
    let started = Instant::now();
    for round in 0..60 {
        for plan in ["logs", "packed", "short"] {
            let answer = client
                .should_allow(request(&(round % 6).to_string(), plan, None))
                .await
                .unwrap()
                .into_inner();
            assert_eq!(
                answer.decided_by(),
                DecidedBy::Store,
                "{plan}: {}",
                server.log()
            );
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(started.elapsed() < PATIENCE);
    assert!(!server.log().contains("canary"), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_acl_is_enough_for_redis_also_after_scripts_are_lost() {
    let redis = Redis::start();
    allow(|arguments| redis.cli(arguments), &rules()[0]);
    let server = Server::start(PLANS, &["--store", &(with_user(&redis.url()) + "/1")]);
    redis.cli(&["SCRIPT", "FLUSH"]);
    assert_everything_is_decided(&server).await;
    assert_replicas_are_counted(&server, |arguments| {
        redis.cli(&[&["-n", "1"], arguments].concat())
    });
    // The list of heaviest keys is published about a second after the start.
    let started = Instant::now();
    while redis.cli(&["-n", "1", "EXISTS", "{:replicas}top"]) != "1" {
        assert!(started.elapsed() < PATIENCE, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_key_is_reset(&(with_user(&redis.url()) + "/1"), "another").await;
}

/// With its log of an uncommon window; and a key of the server's, whose slot may be on its way.
async fn assert_key_is_reset(url: &str, key: &str) {
    let store = RedisStore::connect(url, PATIENCE).unwrap();
    assert!(store.connected(PATIENCE).await);
    let logs = plan(vec![
        limit(5, PATIENCE, FIXED),
        limit(5, Duration::from_secs(5_000), LOG),
    ]);
    let logs = Arc::new(Plan {
        counts_as: "odd".into(),
        ..(*logs).clone()
    });
    assert!(
        store
            .decide_one(&ask(&logs, key, 1), StoreDeadline(PATIENCE))
            .await
            .unwrap()
            .fits
    );
    for (group, existed) in [("odd", true), ("odd", false), ("packed", key == "0")] {
        let subject = Subject {
            key: Key::new(key).unwrap(),
            counts_as: group.into(),
            log_windows_us: Vec::new(),
        };
        assert_eq!(
            store.reset(&subject, StoreDeadline(PATIENCE)).await,
            Ok(existed),
            "{group}"
        );
    }
}

/// What an older list of commands lacks. Nothing but the count of replicas suffers, and the log says so once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_count_replicas_decisions_go_on_and_the_log_says_so() {
    let redis = Redis::start();
    let rules: Vec<String> = rules()[0]
        .iter()
        .filter(|rule| !rule.starts_with("+z"))
        .cloned()
        .collect();
    allow(|arguments| redis.cli(arguments), &rules);
    let server = Server::start(PLANS, &["--store", &with_user(&redis.url())]);
    assert_everything_is_decided(&server).await;
    let warning = "replicas cannot count each other";
    let line = server.wait_for_line(warning).await;
    assert!(line.contains("docs/redis.md"), "{line}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(server.log().matches(warning).count(), 1, "{}", server.log());
}

/// The set of replicas exists, and the server logs no warning.
fn assert_replicas_are_counted(server: &Server, cli: impl Fn(&[&str]) -> String) {
    assert_eq!(cli(&["ZCARD", "{:replicas}"]), "1", "{}", server.log());
    assert!(
        !server.log().contains("cannot count each other"),
        "{}",
        server.log()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_acl_is_enough_for_a_cluster_whose_slots_move() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    for node in &cluster.nodes {
        rules()[..2]
            .iter()
            .for_each(|rules| allow(|arguments| node.cli(arguments), rules));
    }
    let server = Server::start(PLANS, &["--store", &with_user(&cluster.url())]);
    assert_everything_is_decided(&server).await;
    let slot = cluster.slot("packed", "0");
    let from = cluster.owner(slot);
    cluster.open(slot, from, (from + 1) % MASTERS);
    assert_key_is_reset(&with_user(&cluster.url()), "0").await;
    assert_everything_is_decided(&server).await;
    cluster.migrate(slot, from, (from + 1) % MASTERS);
    assert_everything_is_decided(&server).await;
    cluster.close(slot, (from + 1) % MASTERS);
    assert_everything_is_decided(&server).await;
    assert!(cluster.errors("ASK") > 0 && cluster.errors("NOPERM") == 0);
    let holder = &cluster.nodes[cluster.owner(cluster.slot("", "replicas"))];
    assert_replicas_are_counted(&server, |arguments| holder.cli(arguments));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_acl_is_enough_for_sentinels_and_their_servers() {
    let watched = Watched::start();
    watched
        .servers
        .iter()
        .for_each(|server| allow(|arguments| server.cli(arguments), &rules()[0]));
    watched
        .sentinels
        .iter()
        .for_each(|sentinel| allow(|arguments| sentinel.cli(arguments), &rules()[2]));
    let url = with_user(&watched.url()) + "&sentinelUsername=tollgate&sentinelPassword=canary";
    let server = Server::start(PLANS, &["--store", &url]);
    assert_everything_is_decided(&server).await;
    assert!(
        !server.log().contains("names no master"),
        "{}",
        server.log()
    );
    assert_replicas_are_counted(&server, |arguments| watched.servers[0].cli(arguments));
}
