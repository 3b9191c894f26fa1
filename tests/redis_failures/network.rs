//! Faults of the network itself, on a network of the test's own: needs root, and fails without. `tests/run --no-root` leaves
//! these out and says so.

use std::time::{Duration, Instant};

use tollgate::grpc::pb::{DecidedBy, Outcome};

use crate::support::http::Scrape;
use crate::support::netns::Island;
use crate::support::outage::{Load, PLANS, healthy, judge, pass};
use crate::support::redis::Redis;
use crate::support::server::{Client, Server, request};

/// Runs a load through three seconds of what `break_it` does to the island that Redis is on, and `mend` undoes.
async fn assert_outage_costs_no_call(
    row: &str,
    break_it: impl Fn(&Island, &str),
    mend: impl Fn(&Island, &str),
) {
    let island = Island::make();
    let redis = Redis::start_on(&island);
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    healthy(&server).await;
    let load = Load::start(&server).await;
    pass(Duration::from_millis(500)).await;
    let began = Instant::now();
    break_it(&island, &island.addresses[0]);
    pass(Duration::from_secs(3)).await;
    let ended = Instant::now();
    mend(&island, &island.addresses[0]);
    pass(Duration::from_secs(5)).await;
    judge(row, &load.stop().await, began, ended);
}

/// Linux would retransmit for a quarter of an hour before it reported an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_14_a_network_that_swallows_everything_costs_no_call() {
    assert_outage_costs_no_call("Redis partitioned", Island::cut, Island::heal).await;
}

/// Redis receives all calls and charges them, but its replies are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_15_a_redis_that_hears_and_is_not_heard_costs_no_call() {
    assert_outage_costs_no_call("Redis not heard", Island::silence, Island::unsilence).await;
}

const QUOTA: u64 = 60;
const REPLICAS: usize = 4;

/// Two of four replicas lose Redis, each under its share: together they grant what the documents say at most, and at least
/// what Redis alone grants. Those that are cut off stay ready, since they answer, and tell it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_33_half_of_the_replicas_without_redis_pass_no_more_than_their_shares() {
    let island = Island::make();
    let plans = shared_plan();
    let redis = Redis::start_on(&island);
    let urls = [redis.url_at(&island.addresses[1]), redis.url()];
    let replicas: Vec<Server> = (0..REPLICAS)
        .map(|index| Server::start(&plans, &["--store", &urls[index % 2]]))
        .collect();
    for replica in &replicas {
        replica.wait_until_decided_by(DecidedBy::Store, "day").await;
    }
    island.cut(&island.addresses[0]);
    for (index, replica) in replicas.iter().enumerate() {
        let by = if index % 2 == 0 {
            DecidedBy::Store
        } else {
            DecidedBy::LocalFallback
        };
        replica.wait_until_decided_by(by, "day").await;
    }
    let mut granted = Vec::new();
    for replica in &replicas {
        let mut client = replica.client().await;
        granted.push(take_all(&mut client).await);
    }
    println!("granted by each of {REPLICAS} replicas, of a quota of {QUOTA}: {granted:?}");
    let share = QUOTA.div_ceil(REPLICAS as u64);
    assert_eq!(granted, [QUOTA, share, 0, share]);
    for (index, replica) in replicas.iter().enumerate() {
        assert_eq!(
            crate::support::http::get(&replica.http(), "/readyz").status,
            200
        );
        let local = Scrape::of(&replica.http())
            .decisions()
            .get("day allowed local_fallback")
            .copied()
            .unwrap_or_default();
        assert_eq!(
            local > 0.0,
            index % 2 == 1,
            "{local} decided locally by replica {index}"
        );
    }
    island.heal(&island.addresses[0]);
    for replica in &replicas {
        replica.wait_until_decided_by(DecidedBy::Store, "day").await;
        assert_eq!(
            take_all(&mut replica.client().await).await,
            0,
            "what Redis counted is not forgotten"
        );
    }
}

fn shared_plan() -> String {
    format!(
        "listen: {{ http: '127.0.0.1:0' }}\nstore: {{ deadline: 1s, expected_replicas: {REPLICAS} }}\nplans:\n  \
         day: {{ limits: [ {{ quota: {QUOTA}, window: 300d, algorithm: fixed_window }} ] }}\n"
    )
}

/// Asks for one key until it is denied; how often it was granted.
async fn take_all(client: &mut Client) -> u64 {
    let mut granted = 0;
    while client
        .should_allow(request("k", "day", None))
        .await
        .unwrap()
        .into_inner()
        .outcome()
        == Outcome::Allowed
    {
        granted += 1;
    }
    granted
}
