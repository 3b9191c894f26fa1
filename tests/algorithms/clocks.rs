//! Clocks that are set while the server runs. Decisions follow Redis's clock; a replica's clock has no effect.

use std::time::{Duration, SystemTime};

use tollgate::grpc::pb::{DecidedBy, Outcome};
use tollgate::plan::Algorithm;

use crate::support::plans::{COUNTER, FIXED, algorithm_fields};
use crate::support::preload::Shift;
use crate::support::redis::Redis;
use crate::support::server::{Client, Server, decide, field};

const QUOTA: u64 = 20;
const WINDOW: Duration = Duration::from_secs(600);

/// A plan for each algorithm.
fn plans() -> String {
    let plan = |algorithm| {
        let name = plan_of(algorithm);
        let fields = algorithm_fields(algorithm);
        format!(
            "  {name}: {{ limits: [ {{ quota: {QUOTA}, window: {}s, {fields} }} ] }}\n",
            WINDOW.as_secs()
        )
    };
    format!(
        "deny_cache: {{ entries: 0 }}\nstore: {{ deadline: 10s }}\nplans:\n{}",
        Algorithm::EVERY.map(plan).concat()
    )
}

fn plan_of(algorithm: Algorithm) -> String {
    format!("{algorithm:?}").replace(|letter: char| !letter.is_alphanumeric(), "")
}

/// How long ago the last window began that is aligned to the clock.
fn past_edge() -> Duration {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    Duration::from_secs(now.as_secs() % WINDOW.as_secs())
}

/// Asks until a request is denied. Returns how many were allowed, and the wait of the denial.
async fn take_all(client: &mut Client, key: &str, plan: &str) -> (u64, Duration) {
    let mut granted = 0;
    loop {
        let answer = decide(client, key, plan).await;
        assert_eq!(answer.decided_by(), DecidedBy::Store, "{plan}");
        if answer.outcome() == Outcome::Denied {
            let wait = answer.retry_after.unwrap();
            return (
                granted,
                Duration::new(wait.seconds as u64, wait.nanos as u32),
            );
        }
        granted += 1;
    }
}

/// A clock that is set back lets no request pass early, and blocks a key for at most one window. A clock that is set forward lets
/// at most one more quota pass.
#[tokio::test]
async fn fault_16_the_clock_of_redis_may_be_set_back_and_forward() {
    let shift = Shift::none();
    let redis = Redis::start_shifted(&shift);
    let server = Server::start(&plans(), &["--store", &redis.url()]);
    let mut client = server.client().await;
    // The true time, for Redis: one at which a window that is aligned to the clock has just begun.
    let true_ms = -i64::try_from(past_edge().as_millis()).unwrap();
    // An hour and a week are far longer than the window, so only the stored state can limit the effect of the step.
    for (set_ms, most) in [
        (0, QUOTA),
        (-3_600_000, 0),
        (-604_800_000, 0),
        (0, QUOTA),
        (604_800_000, QUOTA),
        (-1, 0),
    ] {
        shift.by_ms(true_ms + set_ms);
        for algorithm in Algorithm::EVERY {
            let plan = plan_of(algorithm);
            let (granted, wait) = take_all(&mut client, "k", &plan).await;
            // A week later every key is fresh. A full quota then shows that the clock was set.
            let least = if set_ms > 0 { QUOTA } else { 0 };
            assert!(
                (least..=most).contains(&granted),
                "{plan}: {granted} granted once the clock was set {set_ms} ms from the true time"
            );
            // A counter also counts the window before the present one.
            let longest = if algorithm == COUNTER {
                2 * WINDOW
            } else {
                WINDOW
            };
            assert!(
                wait <= longest,
                "{plan}: blocked for {wait:?} once the clock was set {set_ms} ms from the true time"
            );
        }
    }
}

/// One replica's clock is five minutes ahead, another's five behind, and all are set again and again.
#[tokio::test]
async fn fault_17_replicas_whose_clocks_differ_enforce_one_exact_limit() {
    let redis = Redis::start();
    let shifts = [Shift::none(), Shift::none(), Shift::none()];
    shifts[1].by_ms(300_000);
    shifts[2].by_ms(-300_000);
    let mut clients = Vec::new();
    let replica = |shift: &Shift| {
        let variables = shift.environment();
        Server::start_in(
            &plans(),
            &["--store", &redis.url()],
            &variables
                .each_ref()
                .map(|(name, value)| (*name, value.as_str())),
        )
    };
    let replicas: Vec<Server> = shifts.iter().map(replica).collect();
    for replica in &replicas {
        clients.push(replica.client().await);
    }
    let started: Vec<String> = replicas
        .iter()
        .map(|replica| field(&replica.log(), "timestamp")[..16].to_owned())
        .collect();
    assert!(
        started[0] != started[1] && started[1] != started[2] && started[0] != started[2],
        "no clock was set: {started:?}"
    );
    for algorithm in Algorithm::EVERY {
        let plan = plan_of(algorithm);
        let mut granted = 0;
        for round in 0..2 * QUOTA {
            for client in &mut clients {
                granted += u64::from(
                    decide(client, &format!("{} k", redis.port), &plan)
                        .await
                        .allowed,
                );
            }
            shifts[(round % 3) as usize]
                .by_ms([600_000, -600_000, 0][(round % 3) as usize] + round as i64);
        }
        // One clock-aligned window of Redis's clock may end meanwhile. By the replicas' clocks, many would end.
        assert!(
            granted == QUOTA || (granted == 2 * QUOTA && matches!(algorithm, FIXED | COUNTER)),
            "{plan}: {granted}"
        );
    }
}
