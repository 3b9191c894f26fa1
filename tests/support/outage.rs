//! Load through an outage of the store, compared with the promises: an answer takes 30 ms, with an open breaker 1 ms, and Redis
//! decides again within a second of its return. The tests print the figures to compare. They assert wider bounds, for busy
//! machines. A client without a breaker would be far beyond these.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::grpc::pb::DecidedBy;

use super::server::{Client, Server, channel_to, request};

/// The window is so long that only the outage changes an answer.
pub const PLANS: &str = "
workers: 1
plans:
  open: { limits: [ { quota: 1000000000, window: 1d, algorithm: fixed_window } ], on_store_failure: allow }
  local: { limits: [ { quota: 1000000000, window: 1d, algorithm: fixed_window } ], on_store_failure: local }
";
pub const DEADLINE: Duration = Duration::from_millis(25);
/// Bound that is asserted: four times the promise.
const BACK_WITHIN: Duration = Duration::from_secs(4);
/// By this time after the begin of an outage the breaker is open: twice the time that it takes to open when calls that miss
/// their deadline follow one another.
pub const OPEN_AFTER: Duration = Duration::from_millis(500);

/// One call: when it was made, how long it took, who decided.
#[derive(Clone, Copy)]
pub struct Answer {
    pub at: Instant,
    pub took: Duration,
    pub by: DecidedBy,
}

/// A load of about 2,000 calls a second on 4 connections, with changing keys, until it is stopped.
pub struct Load {
    over: Arc<AtomicBool>,
    callers: Vec<tokio::task::JoinHandle<Vec<Answer>>>,
}

const CALLERS: u32 = 16;
const EVERY: Duration = Duration::from_millis(8);

impl Load {
    pub async fn start(server: &Server) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut channels = Vec::new();
        for _ in 0..4 {
            channels.push(channel_to(&server.address).await);
        }
        let callers = (0..CALLERS).map(|caller| {
            let client = Client::new(channels[caller as usize % channels.len()].clone());
            tokio::spawn(call_until(over.clone(), client, caller))
        });
        Self {
            callers: callers.collect(),
            over,
        }
    }

    /// Every answer, in the order of the calls; a call that failed fails the test here.
    pub async fn stop(self) -> Vec<Answer> {
        self.over.store(true, Ordering::SeqCst);
        let mut answers = Vec::new();
        for caller in self.callers {
            answers.extend(caller.await.unwrap());
        }
        answers.sort_by_key(|answer| answer.at);
        answers
    }
}

async fn call_until(over: Arc<AtomicBool>, mut client: Client, caller: u32) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut ticks = tokio::time::interval(EVERY);
    while !over.load(Ordering::SeqCst) {
        ticks.tick().await;
        let at = Instant::now();
        let key = format!("{caller} {}", answers.len());
        // Half of the callers by each of the policies that let them go on.
        let plan = ["open", "local"][caller as usize % 2];
        let answer = client
            .should_allow(request(&key, plan, None))
            .await
            .expect("no call fails")
            .into_inner();
        assert!(answer.allowed);
        let policy = if plan == "open" {
            DecidedBy::FailOpen
        } else {
            DecidedBy::LocalFallback
        };
        assert!(
            [DecidedBy::Store, policy].contains(&answer.decided_by()),
            "{plan} was decided by {:?}",
            answer.decided_by()
        );
        answers.push(Answer {
            at,
            took: at.elapsed(),
            by: answer.decided_by(),
        });
    }
    answers
}

/// Prints what callers saw of an outage between these instants, and asserts the bounds.
pub fn judge(row: &str, answers: &[Answer], began: Instant, ended: Instant) {
    let during = |from: Instant| {
        answers
            .iter()
            .filter(move |answer| answer.at >= from && answer.at < ended)
    };
    let mut open: Vec<Duration> = during(began + OPEN_AFTER)
        .map(|answer| answer.took)
        .collect();
    assert!(open.len() > 100, "{row}: {} calls tell nothing", open.len());
    assert!(
        during(began + OPEN_AFTER).all(|answer| answer.by != DecidedBy::Store),
        "{row}: decided by a store that is out"
    );
    for policy in [DecidedBy::FailOpen, DecidedBy::LocalFallback] {
        assert!(
            during(began + OPEN_AFTER).any(|answer| answer.by == policy),
            "{row}: no call was answered by {policy:?}"
        );
    }
    open.sort();
    let rank = |share: f64| open[((open.len() - 1) as f64 * share) as usize];
    let mut before: Vec<Duration> = answers
        .iter()
        .filter(|it| it.at < began)
        .map(|answer| answer.took)
        .collect();
    before.sort();
    let mut whole: Vec<Duration> = during(began).map(|answer| answer.took).collect();
    whole.sort();
    let p99 = whole[(whole.len() - 1) * 99 / 100];
    let worst = whole[whole.len() - 1];
    let back = answers
        .iter()
        .find(|answer| answer.at >= ended && answer.by == DecidedBy::Store);
    let back = back
        .map(|answer| answer.at + answer.took - ended)
        .expect("the store decides again");
    println!(
        "{row}: {} answers of an open breaker: p50 {:?}, p99 {:?}, max {:?} (p50 {:?} before); of the whole outage p99 {p99:?}, \
         slowest {worst:?}; on Redis {back:?} after its return",
        open.len(),
        rank(0.5),
        rank(0.99),
        open[open.len() - 1],
        before.get(before.len() / 2),
    );
    assert!(
        rank(0.5) < DEADLINE / 2,
        "{row}: p50 {:?}: callers wait for a store that is out",
        rank(0.5)
    );
    assert!(worst < Duration::from_secs(2), "{row}: {worst:?}");
    assert!(back < BACK_WITHIN, "{row}: back after {back:?}");
}

/// Waits, under load, until the store has decided for a while, so that every outage begins with a healthy store.
pub async fn healthy(server: &Server) {
    let mut client = server.client().await;
    let started = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < 20 {
        let answer = client
            .should_allow(request("healthy", "open", None))
            .await
            .unwrap()
            .into_inner();
        in_a_row = if answer.decided_by() == DecidedBy::Store {
            in_a_row + 1
        } else {
            0
        };
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "the store does not decide"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub async fn pass(duration: Duration) -> Instant {
    tokio::time::sleep(duration).await;
    Instant::now()
}
