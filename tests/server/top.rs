//! `AdminService.Top`, black box: the heaviest keys over three replicas, what it answers without Redis, and what nobody is told.

mod counts;
mod hashes;

use std::time::{Duration, Instant};

use tollgate::grpc::pb::hold_service_client::HoldServiceClient;
use tollgate::grpc::pb::{self, TopBy, should_allow_result};
use tonic::Code;

use crate::support::admin::AdminFixture;
use crate::support::cluster::Cluster;
use crate::support::redis::Redis;
use crate::support::server::{PATIENCE, channel_to, decide, request, tollgate};

const PLANS: &str = "
workers: 2
store: { deadline: 10s }
plans:
  one: { limits: [ { name: day, quota: 1, window: 300d, algorithm: fixed_window } ] }
  two: { limits: [ { name: day, quota: 2, window: 300d, algorithm: fixed_window } ] }
  internal: { unlimited: true }
";

impl AdminFixture {
    async fn top(&mut self, plan: &str, by: TopBy, limit: u32) -> pb::TopResponse {
        let request = pb::TopRequest {
            plan: plan.to_owned(),
            by: by.into(),
            limit,
        };
        self.admin.top(request).await.unwrap().into_inner()
    }

    /// The answer once it is right; replicas publish once a second.
    async fn top_when(
        &mut self,
        plan: &str,
        by: TopBy,
        limit: u32,
        right: impl Fn(&pb::TopResponse) -> bool,
    ) -> pb::TopResponse {
        let started = Instant::now();
        loop {
            let answer = self.top(plan, by, limit).await;
            if right(&answer) {
                return answer;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "{answer:?}: {}",
                self.server.log()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks for these keys together. Returns which were denied.
    async fn denied(&mut self, keys: &[usize]) -> Vec<usize> {
        let requests = keys
            .iter()
            .map(|key| request(&format!("key-{key}"), "one", None))
            .collect();
        let answers = self
            .client
            .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
            .await
            .unwrap()
            .into_inner();
        let is_denied = |result: &pb::ShouldAllowResult| match result.result.as_ref().unwrap() {
            should_allow_result::Result::Response(answer) => !answer.allowed,
            should_allow_result::Result::Error(error) => panic!("{error:?}"),
        };
        keys.iter()
            .zip(&answers.results)
            .filter(|(_, result)| is_denied(result))
            .map(|(key, _)| *key)
            .collect()
    }
}

/// A reserve counts as a ShouldAllow, and a record by its cost. What is sent again counts once, and a settle does not count.
#[tokio::test]
async fn reserves_and_records_count_by_their_cost() {
    let plans = "plans: { tokens: { limits: [ { quota: 10, window: 1d } ] } }";
    let mut server = AdminFixture::start(plans, &["--set", "status.keys=clear"]).await;
    let channel = channel_to(&server.server.address).await;
    let mut holds = HoldServiceClient::new(channel);
    for (id, cost) in [("a", 7), ("a", 7), ("b", 7)] {
        let reserve = pb::ReserveRequest {
            key: "acme".to_owned(),
            plan: "tokens".to_owned(),
            cost: Some(cost),
            request_id: id.to_owned(),
            ..Default::default()
        };
        holds.reserve(reserve).await.unwrap();
    }
    let settle = pb::SettleRequest {
        key: "acme".to_owned(),
        plan: "tokens".to_owned(),
        request_id: "a".to_owned(),
        actual: Some(3),
        ..Default::default()
    };
    holds.settle(settle).await.unwrap();
    for _ in 0..2 {
        let record = pb::RecordRequest {
            key: "acme".to_owned(),
            plan: "tokens".to_owned(),
            cost: Some(100),
            request_id: "r".to_owned(),
            ..Default::default()
        };
        server.client.record(record).await.unwrap();
    }
    for (by, count) in [(TopBy::Cost, 107), (TopBy::Denials, 1)] {
        let right = |answer: &pb::TopResponse| answer.keys.len() == 1;
        let answer = server.top_when("tokens", by, 5, right).await;
        assert_eq!(
            (&*answer.keys[0].key, answer.keys[0].count),
            ("acme", count)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_a_replica_answers_for_itself_and_says_so() {
    let mut redis = Redis::start();
    let mut replica = AdminFixture::start(
        PLANS,
        &["--store", &redis.url(), "--set", "status.keys=clear"],
    )
    .await;
    replica
        .top_when("", TopBy::Denials, 1, |answer| {
            answer.replicas == 1 && !answer.this_replica_alone
        })
        .await;
    for _ in 0..4 {
        decide(&mut replica.client, "alice", "one").await;
    }
    redis.kill();
    let alone = replica
        .top_when("one", TopBy::Denials, 5, |answer| answer.this_replica_alone)
        .await;
    let rows: Vec<_> = alone
        .keys
        .iter()
        .map(|key| (key.key.as_str(), key.count, key.error))
        .collect();
    assert_eq!(
        (rows, alone.replicas, alone.total),
        (vec![("alice", 3, 0)], 1, 3)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_a_cluster_with_a_prefix_are_added_up() {
    let cluster = Cluster::start();
    let flags = [
        "--store",
        &cluster.url(),
        "--set",
        "store.key_prefix=shop:",
        "--set",
        "store.expected_replicas=2",
    ];
    let mut one = AdminFixture::start(PLANS, &flags).await;
    let mut other = AdminFixture::start(PLANS, &flags).await;
    other
        .top_when("", TopBy::Cost, 1, |answer| answer.replicas == 2)
        .await;
    one.top_when("", TopBy::Cost, 1, |answer| answer.replicas == 2)
        .await;
    for replica in [&mut one, &mut other] {
        decide(&mut replica.client, "alice", "two").await;
    }
    for replica in [&mut one, &mut other] {
        let answer = replica
            .top_when("two", TopBy::Cost, 1, |answer| answer.total == 2)
            .await;
        assert_eq!((answer.keys.len(), answer.keys[0].count), (1, 2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_prints_a_table_once_in_a_pipe_and_json_when_asked() {
    let mut replica = AdminFixture::start(PLANS, &["--set", "status.keys=clear"]).await;
    for _ in 0..3 {
        decide(&mut replica.client, "alice\u{1b}[2J", "one").await;
    }
    let run = |flags: &[&str]| {
        let output = tollgate()
            .args(["top", "--admin", &replica.address()])
            .args(flags)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = run(&[]);
    assert!(
        table.starts_with("The embedded store decides: ")
            && table.contains("\n2 denials in ")
            && table.contains(", all plans, 1 replica; "),
        "{table}"
    );
    assert!(
        table.ends_with("2        0            100%   one   alice\\u{1b}[2J\n"),
        "{table}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&run(&["--by", "cost", "--plan", "one", "--output", "json"])).unwrap();
    assert_eq!(
        (&json["keys"][0]["key"], &json["keys"][0]["count"]),
        (&"alice\u{1b}[2J".into(), &1.into()),
        "{json}"
    );
    assert_eq!(
        (
            &json["total"],
            &json["replicas"],
            &json["this_replica_alone"]
        ),
        (&1.into(), &1.into(), &false.into())
    );
}

#[tokio::test]
async fn the_embedded_store_has_no_other_replicas_and_off_counts_nothing() {
    let mut replica = AdminFixture::start(PLANS, &[]).await;
    decide(&mut replica.client, "alice", "two").await;
    let answer = replica.top("", TopBy::Cost, 0).await;
    assert_eq!(
        (
            answer.total,
            answer.replicas,
            answer.this_replica_alone,
            answer.keys[0].key.as_str()
        ),
        (1, 1, false, "")
    );
    for (plan, by, limit, code) in [
        ("tow", 1, 1, Code::NotFound),
        ("two", 9, 1, Code::InvalidArgument),
        ("two", 1, 501, Code::InvalidArgument),
    ] {
        let status = replica
            .admin
            .top(pb::TopRequest {
                plan: plan.to_owned(),
                by,
                limit,
            })
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
    }
    let mut off = AdminFixture::start(PLANS, &["--set", "status.keys=off"]).await;
    assert_eq!(
        off.admin
            .top(pb::TopRequest::default())
            .await
            .unwrap_err()
            .code(),
        Code::FailedPrecondition
    );
}
