//! A node that is lost affects the decisions on its own keys alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::grpc::pb::DecidedBy;
use tollgate::store::{BreakerState, RedisStore, Store, StoreDeadline, StoreError};

use super::{PLANS, wait_until_all_nodes_decide};
use crate::support::cluster::{Cluster, MASTERS};
use crate::support::plans::{FIXED, ask, limit, plan};
use crate::support::server::{Client, PATIENCE, Server, channel_to, request};

struct Answer {
    at: Instant,
    took: Duration,
    by: DecidedBy,
    key: usize,
}

const KEYS: usize = 30;

/// Asks for the keys, each by a caller of its own, 125 times a second.
async fn watch_keys(
    server: &Server,
    over: Arc<AtomicBool>,
) -> Vec<tokio::task::JoinHandle<Vec<Answer>>> {
    let mut callers = Vec::new();
    for key in 0..KEYS {
        let mut client = Client::new(channel_to(&server.address).await);
        let over = over.clone();
        callers.push(tokio::spawn(async move {
            let mut answers = Vec::new();
            let mut ticks = tokio::time::interval(Duration::from_millis(8));
            while !over.load(Ordering::SeqCst) {
                ticks.tick().await;
                let at = Instant::now();
                let answer = client
                    .should_allow(request(&key.to_string(), "open", None))
                    .await
                    .expect("no call fails")
                    .into_inner();
                answers.push(Answer {
                    at,
                    took: at.elapsed(),
                    by: answer.decided_by(),
                    key,
                });
            }
            answers
        }));
    }
    callers
}

fn percentiles<'a>(answers: impl Iterator<Item = &'a Answer>) -> (Duration, Duration, Duration) {
    let mut took: Vec<Duration> = answers.map(|answer| answer.took).collect();
    assert!(took.len() > 100, "{} answers tell nothing", took.len());
    took.sort();
    (
        took[took.len() / 2],
        took[took.len() * 99 / 100],
        took[took.len() - 1],
    )
}

async fn assert_loss_of_a_shard_is_bounded(signal: &str, deadline: Duration) {
    let cluster = Cluster::start();
    let setting = format!("store.deadline={}ms", deadline.as_millis());
    let server = Server::start(PLANS, &["--store", &cluster.url(), "--set", &setting]);
    wait_until_all_nodes_decide(&server).await;
    let owners: Vec<usize> = (0..KEYS)
        .map(|key| cluster.owner(cluster.slot("open", &key.to_string())))
        .collect();
    let over = Arc::new(AtomicBool::new(false));
    let callers = watch_keys(&server, over.clone()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    cluster.nodes[0].signal(signal);
    wait_for_heir(&cluster).await;
    let ended = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    // What the lost node had not replicated is forgotten.
    server
        .wait_for_line("another Redis process than before")
        .await;
    over.store(true, Ordering::SeqCst);
    let mut answers = Vec::new();
    for caller in callers {
        answers.extend(caller.await.unwrap());
    }
    let loss = Loss {
        answers,
        owners,
        began,
        ended,
    };
    loss.print(signal);
    if signal == "STOP" {
        cluster.nodes[0].signal("CONT");
    }
    let others = loss.answers_of_others().count();
    let by_policy = loss.others_by_policy();
    assert!(
        others > 1_000 && by_policy * 100 <= others,
        "{by_policy} of {others}"
    );
    let during = percentiles(loss.answers_of_others());
    assert!(
        during.1 < deadline.max(Duration::from_millis(100)),
        "others were slowed down: {during:?}"
    );
    let back = loss.back_after();
    assert!(back < Duration::from_secs(4), "{back:?}");
}

/// Waits until a replica has the slots of the lost node.
pub(super) async fn wait_for_heir(cluster: &Cluster) {
    let began = Instant::now();
    let heir = || {
        cluster.nodes[MASTERS..]
            .iter()
            .any(|node| node.cli(&["ROLE"]).starts_with("master"))
    };
    while !heir() {
        assert!(began.elapsed() < PATIENCE, "no replica takes over");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The answers around the loss of the first node.
struct Loss {
    answers: Vec<Answer>,
    /// The node of each key.
    owners: Vec<usize>,
    began: Instant,
    /// When a replica had taken over.
    ended: Instant,
}

impl Loss {
    fn is_of_lost_node(&self, answer: &Answer) -> bool {
        self.owners[answer.key] == 0
    }

    /// Answers on keys of the lost node later than `after` from its loss on.
    fn answers_of_lost_node(&self, after: Duration) -> impl Iterator<Item = &Answer> {
        self.answers
            .iter()
            .filter(move |answer| self.is_of_lost_node(answer) && answer.at > self.began + after)
    }

    /// Answers on keys of other nodes since the loss.
    fn answers_of_others(&self) -> impl Iterator<Item = &Answer> {
        self.answers
            .iter()
            .filter(|answer| !self.is_of_lost_node(answer) && answer.at >= self.began)
    }

    fn others_by_policy(&self) -> usize {
        self.answers_of_others()
            .filter(|answer| answer.by != DecidedBy::Store)
            .count()
    }

    /// How long after a replica took over the store decided again on a key of the lost node.
    fn back_after(&self) -> Duration {
        self.answers_of_lost_node(Duration::from_millis(100))
            .filter(|answer| answer.by == DecidedBy::Store)
            .map(|answer| answer.at + answer.took)
            .min()
            .unwrap()
            .saturating_duration_since(self.ended)
    }

    fn print(&self, signal: &str) {
        let before = self.answers.iter().filter(|it| it.at < self.began);
        let while_out = self
            .answers_of_lost_node(Duration::from_millis(300))
            .filter(|answer| answer.at < self.ended);
        let worst = self.answers.iter().map(|answer| answer.took).max();
        println!(
            "{signal}: keys of other nodes: p50, p99, max {:?} ({:?} before), {} by policy; its own: {:?} while \
             it is known to be out, {:?} at worst, on the heir {:?} after it took over, {:?} after the {signal}",
            percentiles(self.answers_of_others()),
            percentiles(before),
            self.others_by_policy(),
            percentiles(while_out),
            worst.unwrap(),
            self.back_after(),
            self.ended - self.began
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_a_shard_that_is_killed_is_the_trouble_of_its_own_keys() {
    assert_loss_of_a_shard_is_bounded("KILL", Duration::from_millis(500)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_a_shard_that_is_stopped_is_the_trouble_of_its_own_keys() {
    assert_loss_of_a_shard_is_bounded("STOP", Duration::from_millis(100)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_has_a_breaker_of_its_own() {
    let mut cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let store = RedisStore::connect(&cluster.url(), Duration::from_secs(10)).unwrap();
    assert!(store.connected(PATIENCE).await);
    assert_eq!(store.nodes().len(), MASTERS);
    assert_eq!(
        (store.status().breaker, store.status().opened),
        (BreakerState::Closed, 0)
    );
    cluster.nodes[0].kill();
    let dead = format!("127.0.0.1:{}", cluster.nodes[0].port);
    let state = |store: &RedisStore, address: &str| {
        store
            .nodes()
            .into_iter()
            .find(|node| node.0 == address)
            .unwrap()
            .1
    };
    let started = Instant::now();
    while state(&store, &dead).breaker == BreakerState::Closed {
        assert!(started.elapsed() < PATIENCE, "the loss is not noticed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(
        store
            .nodes()
            .iter()
            .all(|node| (node.1.breaker == BreakerState::Closed) == (node.0 != dead))
    );
    assert_ne!(store.status().breaker, BreakerState::Closed);
    // One batch, in which some requests are decided and some are not.
    let plan = plan(vec![limit(5, Duration::from_secs(3600), FIXED)]);
    let asks: Vec<_> = (0..60).map(|key| ask(&plan, &key.to_string(), 1)).collect();
    let answers = store
        .decide_batch(&asks, StoreDeadline(Duration::from_secs(10)))
        .await;
    let decided = answers
        .iter()
        .filter(|answer| answer.as_ref().is_ok_and(|verdict| verdict.fits))
        .count();
    let refused = answers
        .iter()
        .filter(|answer| {
            matches!(
                answer,
                Err(StoreError::Unreachable(_) | StoreError::NotSent(_))
            )
        })
        .count();
    assert!(
        decided > 10 && refused > 5 && decided + refused == 60,
        "{decided}, {refused}"
    );
    assert_eq!(store.status().undecided, refused as u64);
}
