//! How exact the counts are: three replicas list the heaviest of a million keys.

use std::collections::HashMap;
use std::time::Instant;

use tollgate::grpc::pb::{self, TopBy};

use super::PLANS;
use crate::support::admin::AdminFixture;
use crate::support::redis::Redis;

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
    let redis = Redis::start();
    let mut zipf = Zipf::new();
    let mut truth = HashMap::<usize, u64>::new();
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
