//! The embedded store of a running server under a flood of ten million random keys, one request for each.

use tokio::task::JoinSet;
use tollgate::grpc::pb::{self, DecidedBy};

use crate::support::history::Random;
use crate::support::server::{Client, Server, channel_to, decide, request};

const KEYS: u64 = 10_000_000;
const CONNECTIONS: u64 = 4;
const BATCH: u64 = 1_000;
/// The window outlasts the test, so that no key expires and only the bound of the store keeps memory flat.
const PLANS: &str = "
store: { url: 'memory:?capacity=64MiB' }
plans:
  day: { limits: [ { quota: 1, window: 300d, algorithm: token_bucket } ] }
";
/// The store's 64 MiB, and several times the memory of a server without them.
const RESIDENT_MAX_KIB: u64 = 100 << 10;

/// Requests one part of the keys. Returns how many were allowed by policy because the store was full.
async fn flood(address: String, seed: u64) -> u64 {
    let mut client = Client::new(channel_to(&address).await);
    let mut random = Random(seed);
    let mut open = 0;
    for _ in 0..KEYS / CONNECTIONS / BATCH {
        let requests = (0..BATCH)
            .map(|_| request(&format!("{:016x}", random.next()), "day", None))
            .collect();
        let answers = client
            .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
            .await
            .unwrap()
            .into_inner();
        open += answers
            .results
            .iter()
            .filter(|answer| is_open(answer))
            .count() as u64;
    }
    open
}

fn is_open(result: &pb::ShouldAllowResult) -> bool {
    match result.result.as_ref().unwrap() {
        pb::should_allow_result::Result::Response(response) => {
            response.decided_by() == DecidedBy::FailOpen
        }
        pb::should_allow_result::Result::Error(error) => panic!("{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_29_ten_million_random_keys_leave_memory_flat_and_a_blocked_key_blocked() {
    let server = Server::start(PLANS, &[]);
    let mut client = server.client().await;
    assert!(decide(&mut client, "blocked", "day").await.allowed);
    let mut floods: JoinSet<u64> = (0..CONNECTIONS)
        .map(|seed| flood(server.address.clone(), seed))
        .collect();
    let mut resident = Vec::new();
    let mut open = 0;
    let mut checks = 0;
    while !floods.is_empty() {
        tokio::select! {
            Some(done) = floods.join_next() => open += done.unwrap(),
            () = tokio::time::sleep(std::time::Duration::from_millis(100)) => {
                checks += 1;
                assert!(!decide(&mut client, "blocked", "day").await.allowed, "a denied key was freed at check {checks}");
                resident.push(server.memory_kb("VmRSS"));
            }
        }
    }
    let half = resident[resident.len() / 2];
    let most = *resident.iter().max().unwrap();
    println!(
        "{KEYS} keys: {open} found it full; resident {} KiB halfway, {most} at most, {checks} checks",
        half
    );
    assert!(open > KEYS / 2, "{open}: the store was never full");
    assert!(most < RESIDENT_MAX_KIB, "{most} KiB");
    assert!(
        most <= half * 11 / 10,
        "{half} KiB halfway, {most} KiB at most"
    );
    assert!(!decide(&mut client, "blocked", "day").await.allowed);
}
