//! `AdminService.Top`, black box: the heaviest keys over three replicas, what it answers without Redis, and what nobody is told.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tollgate::grpc::pb::{self, TopBy, should_allow_result};
use tonic::Code;

use crate::support::admin::AdminFixture;
use crate::support::cluster::Cluster;
use crate::support::http::{get, post};
use crate::support::redis::Redis;
use crate::support::server::{PATIENCE, decide, field, request, tollgate};

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

/// Numbers from 1 to a million, the `n`-th with a share like `n` to the power of -1.1, the same in each run.
struct Zipf {
    sums: Vec<f64>,
    state: u64,
}

impl Zipf {
    fn new() -> Self {
        let mut sum = 0.0;
        let sums = (1..=1_000_000).map(|rank| {
            sum += f64::from(rank).powf(-1.1);
            sum
        });
        Self {
            sums: sums.collect(),
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    fn next(&mut self) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let share = (self.state >> 11) as f64 / (1u64 << 53) as f64 * self.sums.last().unwrap();
        self.sums.partition_point(|sum| *sum < share) + 1
    }
}

/// Asserts that three replicas list these heaviest keys, and every count with an error of `bound` at most. Returns the largest
/// error.
fn assert_lists(
    answer: &pb::TopResponse,
    truth: &HashMap<usize, u64>,
    heaviest: &[(u64, usize)],
    bound: u64,
) -> u64 {
    assert!(
        (
            answer.replicas,
            answer.replicas_missing,
            answer.this_replica_alone
        ) == (3, 0, false),
        "{answer:?}"
    );
    assert!(
        answer.unlisted_max <= bound,
        "{} of {bound}",
        answer.unlisted_max
    );
    let listed: HashMap<&str, &pb::TopKey> = answer
        .keys
        .iter()
        .map(|key| (key.key.as_str(), key))
        .collect();
    for (_, key) in heaviest {
        assert!(
            listed.contains_key(format!("key-{key}").as_str()),
            "{key} is not listed"
        );
    }
    let mut worst = 0;
    for (key, count) in truth {
        match listed.get(format!("key-{key}").as_str()) {
            Some(shown) => {
                assert!(
                    *count <= shown.count && shown.count <= count + bound && shown.error <= bound,
                    "{count}: {shown:?}"
                );
                assert!(shown.count - shown.error <= *count, "{count}: {shown:?}");
                worst = worst.max(shown.count - count);
            }
            // Not listed, or without a name.
            None => assert!(
                *count <= answer.unlisted_max || answer.keys.iter().any(|key| key.key.is_empty()),
                "{key}"
            ),
        }
    }
    worst
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_million_keys_by_zipf_each_of_three_replicas_lists_the_true_top_twenty() {
    let (redis, mut zipf, mut truth) = (Redis::start(), Zipf::new(), HashMap::<usize, u64>::new());
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(
            AdminFixture::start(
                PLANS,
                &["--store", &redis.url(), "--set", "status.keys=clear"],
            )
            .await,
        );
    }
    // They share a secret from their first exchange on, and count anew then.
    for replica in &mut replicas {
        replica
            .top_when("", TopBy::Denials, 1, |answer| answer.replicas == 3)
            .await;
    }
    for batch in 0..90 {
        let keys: Vec<usize> = (0..1_000).map(|_| zipf.next()).collect();
        for key in replicas[batch % 3].denied(&keys).await {
            *truth.entry(key).or_default() += 1;
        }
    }
    let total: u64 = truth.values().sum();
    let mut heaviest: Vec<(u64, usize)> = truth.iter().map(|(key, count)| (*count, *key)).collect();
    heaviest.sort_unstable_by(|a, b| b.cmp(a));
    println!(
        "{total} denials of {} keys; the top twenty have {:?}",
        truth.len(),
        &heaviest[..20]
    );
    let bound = total / 1_000;
    for replica in &mut replicas {
        let answer = replica
            .top_when("one", TopBy::Denials, 500, |answer| answer.total == total)
            .await;
        let worst = assert_lists(&answer, &truth, &heaviest[..20], bound);
        let started = Instant::now();
        replica.top("one", TopBy::Cost, 500).await;
        println!(
            "lists of three replicas are added up and answered in {:?}",
            started.elapsed()
        );
        println!(
            "error at most {worst} of {bound}, and {} for keys that are not listed",
            answer.unlisted_max
        );
    }
    assert_eq!(redis.keys_without_expiry(), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_told_by_no_metric_no_log_and_hashed_by_no_answer() {
    let redis = Redis::start();
    let flags = [
        "--store",
        &redis.url(),
        "--set",
        "listen.http=127.0.0.1:0",
        "--log-level",
        "debug",
    ];
    let (mut one, mut other) = (
        AdminFixture::start(PLANS, &flags).await,
        AdminFixture::start(PLANS, &flags).await,
    );
    one.top_when("", TopBy::Denials, 1, |answer| answer.replicas == 2)
        .await;
    for plan in ["one", "two", "one"] {
        for replica in [&mut one, &mut other] {
            decide(&mut replica.client, "canary", plan).await;
        }
    }
    let denials = other
        .top_when("", TopBy::Denials, 0, |answer| answer.total == 3)
        .await;
    let cost = one
        .top_when("", TopBy::Cost, 0, |answer| answer.total == 3)
        .await;
    let rows: Vec<_> = cost
        .keys
        .iter()
        .map(|key| (key.plan.as_str(), key.count, key.error))
        .collect();
    assert_eq!(rows, [("two", 2, 0), ("one", 1, 0)], "{cost:?}");
    // The same key has the same hash under each plan and on each replica.
    assert!(
        denials.keys.len() == 1
            && cost
                .keys
                .iter()
                .all(|key| key.key_hash == denials.keys[0].key_hash)
    );
    for text in [
        format!("{denials:?}{cost:?}"),
        get(&one.server.http(), "/metrics").body,
        one.server.end_and_log(),
    ] {
        assert!(!text.to_lowercase().contains("canary"), "{text}");
    }
}

async fn hash_by_explain(replica: &mut AdminFixture) -> String {
    let request = pb::ExplainRequest {
        key: "alice".to_owned(),
        plan: "one".to_owned(),
    };
    let explained = replica.admin.explain(request).await.unwrap();
    explained.into_inner().key_hash
}

/// A refund and a reset, and a reset that is refused: each is logged with the hash of the key.
async fn make_admin_calls(replica: &mut AdminFixture) {
    let reset = |plan: &str| pb::ResetRequest {
        key: "alice".to_owned(),
        plan: plan.to_owned(),
    };
    let refund = pb::RefundRequest {
        key: "alice".to_owned(),
        plan: "one".to_owned(),
        cost: None,
    };
    replica.admin.refund(refund).await.unwrap();
    replica.admin.reset(reset("one")).await.unwrap();
    replica.admin.reset(reset("internal")).await.unwrap_err();
}

/// The hashes of the key that log, page and command show.
async fn hashes_shown(replica: &AdminFixture) -> Vec<String> {
    let http = replica.server.http();
    let body = r#"{"key":"alice","plan":"one"}"#;
    let page: serde_json::Value =
        serde_json::from_str(&post(&http, "/status/explain", "application/json", body).body)
            .unwrap();
    let command = tollgate()
        .args([
            "explain",
            "--admin",
            &replica.address(),
            "--key",
            "alice",
            "--plan",
            "one",
        ])
        .output();
    let printed = String::from_utf8(command.unwrap().stdout).unwrap();
    let of_command = printed
        .lines()
        .find_map(|line| line.strip_prefix("hash of the key: "))
        .unwrap()
        .to_owned();
    replica.server.wait_for_line("\"plan\":\"internal\"").await;
    let log = replica.server.log();
    let of_log = log
        .lines()
        .filter(|line| line.contains("\"admin call\"") && !line.contains("Top"))
        .map(|line| field(line, "key_hash"));
    of_log
        .chain([page["key_hash"].as_str().unwrap().to_owned(), of_command])
        .collect()
}

/// By the secret of the other replica, and whether keys are counted or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_top_log_and_page_show_the_same_hash_of_a_key() {
    let redis = Redis::start();
    let page = [
        "--set",
        "listen.http=127.0.0.1:0",
        "--set",
        "status.page=true",
    ];
    let url = redis.url();
    let on = [&["--store", &url], &page[..]].concat();
    let (mut one, mut other) = (
        AdminFixture::start(PLANS, &on).await,
        AdminFixture::start(PLANS, &on).await,
    );
    for replica in [&mut one, &mut other] {
        replica
            .top_when("", TopBy::Denials, 1, |answer| answer.replicas == 2)
            .await;
        decide(&mut replica.client, "alice", "one").await;
    }
    let top = one
        .top_when("one", TopBy::Denials, 1, |answer| answer.total == 1)
        .await
        .keys[0]
        .key_hash
        .clone();
    let mut off =
        AdminFixture::start(PLANS, &[&["--set", "status.keys=off"], &page[..]].concat()).await;
    let (mut told, mut shown) = (Vec::new(), Vec::new());
    for replica in [&mut one, &mut other, &mut off] {
        told.push(hash_by_explain(replica).await);
        make_admin_calls(replica).await;
        let hashes = hashes_shown(replica).await;
        shown.extend(hashes.into_iter().map(|hash| (hash, told.len() - 1)));
    }
    assert_eq!((&told[0], &told[1]), (&top, &top));
    assert!(
        shown.len() >= 3 * 5 && shown.iter().all(|(hash, replica)| *hash == told[*replica]),
        "{told:?}: {shown:?}"
    );
    let data: serde_json::Value =
        serde_json::from_str(&get(&other.server.http(), "/status/data").body).unwrap();
    assert_eq!(
        data["top"]["denials"][0]["hash"].as_str(),
        Some(top.as_str()),
        "{data}"
    );
    // Nobody who does not know a secret of the server can try out keys.
    let unkeyed = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(b"alice"));
    assert!(told[2] != top && !told.contains(&unkeyed), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_shows_hashes_shows_no_key_that_another_one_shows_in_clear() {
    let redis = Redis::start();
    let mut clear = AdminFixture::start(
        PLANS,
        &["--store", &redis.url(), "--set", "status.keys=clear"],
    )
    .await;
    let mut hashes = AdminFixture::start(PLANS, &["--store", &redis.url()]).await;
    for replica in [&mut clear, &mut hashes] {
        replica
            .top_when("", TopBy::Cost, 1, |answer| answer.replicas == 2)
            .await;
    }
    decide(&mut clear.client, "alice", "two").await;
    let answer = hashes
        .top_when("two", TopBy::Cost, 1, |answer| answer.total == 1)
        .await;
    assert_eq!(
        (answer.keys[0].key.as_str(), answer.keys[0].count),
        ("", 1),
        "{answer:?}"
    );
    // The other way round there is no key in clear to be shown.
    assert_eq!(clear.top("two", TopBy::Cost, 1).await.keys[0].key, "alice");
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
    let (mut one, mut other) = (
        AdminFixture::start(PLANS, &flags).await,
        AdminFixture::start(PLANS, &flags).await,
    );
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
