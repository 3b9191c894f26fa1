//! Two deployments on one Redis with different `store.key_prefix`. They share neither counts nor replicas nor resets.

use tollgate::grpc::pb::{DecidedBy, Outcome, ResetRequest};

use crate::support::admin::admin_at;
use crate::support::cluster::Cluster;
use crate::support::http::Scrape;
use crate::support::redis::Redis;
use crate::support::server::{Server, decide, request};

/// Plans with every kind of key in Redis: packed states, and logs of a common and an uncommon window.
const PLANS: &str = "
listen: { http: '127.0.0.1:0' }
workers: 1
store: { deadline: 10s }
deny_cache: { entries: 0 }
plans:
  packed: { limits: [ { quota: 3, window: 1d } ] }
  log: { limits: [ { quota: 3, window: 1d, algorithm: sliding_log } ] }
  odd: { limits: [ { quota: 3, window: 90s, algorithm: sliding_log }, { quota: 9, window: 91s } ] }
";
const NAMES: [&str; 3] = ["packed", "log", "odd"];

fn start(url: &str, prefix: &str, flags: &[&str]) -> Server {
    let prefix = format!("store.key_prefix={prefix}");
    Server::start(
        PLANS,
        &[&["--store", url, "--set", &prefix], flags].concat(),
    )
}

/// Charges a unit by each plan. Returns how much of each remains.
async fn charge(server: &Server, key: &str) -> Vec<u64> {
    let mut client = server.client().await;
    let mut remaining = Vec::new();
    for plan in NAMES {
        let answer = decide(&mut client, key, plan).await;
        assert_eq!(
            (answer.decided_by(), answer.outcome()),
            (DecidedBy::Store, Outcome::Allowed),
            "{plan}"
        );
        remaining.push(answer.remaining());
    }
    remaining
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployments_of_other_prefixes_share_neither_counts_nor_replicas_nor_resets() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin.sock");
    let admin = format!("listen.admin=unix:{}", socket.display());
    let shop = start(&redis.url(), "shop:", &["--set", &admin]);
    let others = [
        start(&redis.url(), "", &[]),
        start(&redis.url(), "team/eu.", &[]),
    ];
    for left in [[2, 2, 2], [1, 1, 1]] {
        assert_eq!(charge(&shop, "k").await, left);
    }
    for other in &others {
        assert_eq!(charge(other, "k").await, [2, 2, 2]);
    }
    let names = redis.cli(&["KEYS", "shop:*"]);
    println!("{names}");
    assert!(
        [
            "shop:{packed:k}",
            "shop:{log:k}",
            "shop:{odd:k}",
            "shop:{:replicas}"
        ]
        .iter()
        .all(|name| names.contains(name))
    );
    for server in others.iter().chain([&shop]) {
        assert_eq!(
            Scrape::of(&server.http()).value("tollgate_replicas_seen"),
            1.0
        );
    }
    // Nothing of a subject is left, and nothing of the others' is touched.
    let mut admin = admin_at(&socket).await;
    for plan in NAMES {
        let reset = ResetRequest {
            key: "k".to_owned(),
            plan: plan.to_owned(),
            ..Default::default()
        };
        assert!(
            admin.reset(reset).await.unwrap().into_inner().existed,
            "{plan}"
        );
    }
    assert!(
        !redis.cli(&["KEYS", "shop:*"]).contains(":k}"),
        "{}",
        redis.cli(&["KEYS", "shop:*"])
    );
    assert_eq!(charge(&shop, "k").await, [2, 2, 2]);
    for other in &others {
        assert_eq!(charge(other, "k").await, [1, 1, 1]);
    }
}

/// The prefix stands before the braces, which alone say where a key is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_with_a_prefix_are_spread_over_a_cluster_by_what_they_count() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let shop = start(&cluster.url(), "shop:", &[]);
    let plain = start(&cluster.url(), "", &[]);
    for key in 0..60 {
        assert_eq!(charge(&shop, &key.to_string()).await, [2, 2, 2]);
        assert_eq!(charge(&plain, &key.to_string()).await, [2, 2, 2]);
    }
    for node in &cluster.nodes {
        let count = |pattern: &str| node.cli(&["KEYS", pattern]).lines().count();
        let prefixed = count("shop:{packed:*");
        let bare = count("{packed:*");
        assert!(
            prefixed == bare && prefixed > 5,
            "{prefixed} and {bare} keys of one node"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_prefix_needs_a_restart() {
    let redis = Redis::start();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let config = |prefix: &str| {
        PLANS.replace(
            "deadline: 10s",
            &format!("deadline: 10s, key_prefix: '{prefix}'"),
        )
    };
    std::fs::write(file.path(), config("one:")).unwrap();
    let server = Server::start_on(file.path(), &["--store", &redis.url()]);
    std::fs::write(file.path(), config("two:")).unwrap();
    let line = server.wait_for_line("a restart takes them up").await;
    assert!(line.contains("store.key_prefix"), "{line}");
    charge(&server, "k").await;
    assert_eq!(
        redis.cli(&["EXISTS", "one:{packed:k}", "two:{packed:k}"]),
        "1"
    );
}

/// A user whose names begin with the prefix and no others, by the rule of docs/redis.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_of_redis_may_be_bound_to_the_prefix() {
    let redis = Redis::start();
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/redis.md")).unwrap();
    let rule = page
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER tollgate on >password ~{* "))
        .unwrap();
    let head = ["ACL", "SETUSER", "tollgate", "on", ">canary", "~shop:{*"];
    assert_eq!(
        redis.cli(&head.into_iter().chain(rule.split(' ')).collect::<Vec<_>>()),
        "OK"
    );
    let url = redis.url().replacen("://", "://tollgate:canary@", 1);
    let server = start(&url, "shop:", &[]);
    assert_eq!(charge(&server, "k").await, [2, 2, 2]);
    assert_eq!(
        redis.cli(&["EXISTS", "shop:{:replicas}"]),
        "1",
        "{}",
        server.log()
    );
    let elsewhere = start(&url, "house:", &[]);
    let answer = elsewhere
        .client()
        .await
        .should_allow(request("k", "packed", None))
        .await
        .unwrap()
        .into_inner();
    assert_ne!(answer.decided_by(), DecidedBy::Store);
}
