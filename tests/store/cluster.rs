//! Redis Cluster: keys are decided on their node, also while they move, and the failure of a node affects only its own keys.

mod holds;
mod lost_node;
mod moved_slots;

use std::time::{Duration, Instant};

use tollgate::grpc::pb::DecidedBy;

use crate::support::cluster::Cluster;
use crate::support::server::{PATIENCE, Server, request};

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
async fn wait_until_all_nodes_decide(server: &Server) {
    let mut client = server.client().await;
    let started = Instant::now();
    let mut in_a_row = 0;
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

/// A node that another one points to is asked for something that it has itself, before it is asked for decisions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_met_by_a_redirection_proves_itself_by_a_decision() {
    let cluster = Cluster::start();
    let server = Server::start(PLANS, &["--store", &cluster.url()]);
    wait_until_all_nodes_decide(&server).await;
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
