//! Faults of Redis: every call is answered, by the plan's policy if Redis cannot decide, and Redis is used again once it is back.
//! Also lost scripts, values of other programs, and another server at the address of Redis.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use tollgate::grpc::pb::{self, DecidedBy, Outcome};
use tollgate::store::{RedisStore, Store, StoreDeadline};

use crate::support::plans::{BUCKET, COUNTER, FIXED, WINDOW, ask, limit, plan};
use crate::support::redis::{Redis, free_port};
use crate::support::server::{Client, Server, decide};

const HOUR: Duration = Duration::from_secs(3600);
/// No window of a year ends while a test runs, nor an eighth of one, to which expiries are rounded.
const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// Longest wait. Only a call that hangs takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

const PLANS: &str = "
store: { expected_replicas: 4 }
plans:
  local: { limits: [ { name: day, quota: 10, window: 1d } ] }
  allow: { limits: [ { name: day, quota: 10, window: 1d } ], on_store_failure: allow }
  deny: { limits: [ { name: day, quota: 10, window: 1d } ], on_store_failure: deny }
  log: { limits: [ { name: day, quota: 1000000, window: 1d, algorithm: fixed_window } ] }
";

/// The outcome of one request, and its decider.
async fn outcome_and_decider(client: &mut Client, key: &str, plan: &str) -> (Outcome, DecidedBy) {
    let answer = decide(client, key, plan).await;
    (answer.outcome(), answer.decided_by())
}

/// Longest time until the store decides again. The promise is one second; a machine that is busy with other tests takes longer.
const BACK_WITHIN: Duration = Duration::from_secs(10);

/// Asks until the store decides. Returns how long that took.
async fn wait_for_the_store(client: &mut Client) -> Duration {
    let started = Instant::now();
    while outcome_and_decider(client, "probe", "log").await.1 != DecidedBy::Store {
        assert!(started.elapsed() < BACK_WITHIN, "the store does not decide");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    started.elapsed()
}

async fn assert_answers_by_policy(client: &mut Client, key: &str) {
    assert_eq!(
        outcome_and_decider(client, key, "allow").await,
        (Outcome::Allowed, DecidedBy::FailOpen)
    );
    assert_eq!(
        outcome_and_decider(client, key, "deny").await,
        (Outcome::Denied, DecidedBy::FailClosed)
    );
    // A share of 10 among 4 replicas, rounded up.
    for _ in 0..3 {
        assert_eq!(
            outcome_and_decider(client, key, "local").await,
            (Outcome::Allowed, DecidedBy::LocalFallback)
        );
    }
    assert_eq!(
        outcome_and_decider(client, key, "local").await,
        (Outcome::Denied, DecidedBy::LocalFallback)
    );
}

#[tokio::test]
async fn redis_absent_at_the_start_is_survived_and_used_when_it_comes() {
    let mut redis = Redis::start();
    redis.kill();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    let mut client = server.client().await;
    assert_answers_by_policy(&mut client, "k").await;
    redis.restart();
    println!(
        "on Redis {:?} after it came up",
        wait_for_the_store(&mut client).await
    );
    assert_eq!(
        outcome_and_decider(&mut client, "k", "local").await,
        (Outcome::Allowed, DecidedBy::Store)
    );
    server.wait_for_line("store connected").await;
}

#[tokio::test]
async fn fault_01_redis_killed_is_answered_for_and_used_again_after_its_return() {
    let mut redis = Redis::start();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    let mut client = server.client().await;
    wait_for_the_store(&mut client).await;
    redis.kill();
    assert_answers_by_policy(&mut client, "k").await;
    redis.restart();
    println!(
        "on Redis {:?} after its return",
        wait_for_the_store(&mut client).await
    );
}

#[tokio::test]
async fn fault_02_redis_stopped_costs_a_deadline_and_no_more() {
    let redis = Redis::start();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    let mut client = server.client().await;
    wait_for_the_store(&mut client).await;
    redis.signal("STOP");
    let mut slowest = Duration::ZERO;
    for call in 0..20 {
        let started = Instant::now();
        assert_eq!(
            outcome_and_decider(&mut client, &call.to_string(), "allow")
                .await
                .1,
            DecidedBy::FailOpen
        );
        slowest = slowest.max(started.elapsed());
    }
    redis.signal("CONT");
    println!(
        "slowest answer {slowest:?}; on Redis {:?} after SIGCONT",
        wait_for_the_store(&mut client).await
    );
    // The deadline is 25 ms; a machine that is busy with other tests may add a great deal.
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
}

#[tokio::test]
async fn fault_05_a_lost_script_fails_no_call() {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.deadline=10s"],
    );
    wait_for_the_store(&mut server.client().await).await;
    let callers = (0..8).map(|caller| {
        let address = server.address.clone();
        tokio::spawn(async move {
            let mut client = Client::new(crate::support::server::channel_to(&address).await);
            for _ in 0..200 {
                assert_eq!(
                    outcome_and_decider(&mut client, &caller.to_string(), "log").await,
                    (Outcome::Allowed, DecidedBy::Store)
                );
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for _ in 0..20 {
        redis.cli(&["SCRIPT", "FLUSH"]);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
}

#[tokio::test]
async fn a_value_that_is_not_ours_is_an_error_of_its_key_alone() {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.deadline=10s"],
    );
    let mut client = server.client().await;
    wait_for_the_store(&mut client).await;
    redis.cli(&["SET", "{deny:text}", "hello", "EX", "1000"]);
    redis.cli(&["RPUSH", "{deny:list}", "1"]);
    redis.cli(&["EXPIRE", "{deny:list}", "1000"]);
    // All at once, so that they share calls to Redis with the good ones.
    let calls: Vec<_> = (0..200)
        .map(|call| {
            let mut client = client.clone();
            let key = match call % 4 {
                0 => "text".to_owned(),
                1 => "list".to_owned(),
                _ => format!("good {call}"),
            };
            tokio::spawn(
                async move { (call, outcome_and_decider(&mut client, &key, "deny").await) },
            )
        })
        .collect();
    for call in calls {
        let (call, answer) = call.await.unwrap();
        let expected = if call % 4 < 2 {
            (Outcome::Denied, DecidedBy::FailClosed)
        } else {
            (Outcome::Allowed, DecidedBy::Store)
        };
        assert_eq!(answer, expected, "call {call}");
    }
    server.wait_for_line("the store refused").await;
}

/// A state of one or two records is cut to every length.
#[tokio::test]
async fn fault_81_a_state_of_any_length_is_an_error_of_its_key_alone() {
    let redis = Redis::start();
    let store = RedisStore::connect(&redis.url(), PATIENCE).unwrap();
    assert!(store.connected(PATIENCE).await);
    for algorithm in [FIXED, COUNTER, WINDOW, BUCKET] {
        for limits in [
            vec![limit(9, HOUR, algorithm)],
            vec![limit(9, HOUR, algorithm), limit(9, HOUR * 2, algorithm)],
        ] {
            let plan = plan(limits);
            let name = format!("{{{}:whole}}", plan.counts_as);
            redis.cli(&["DEL", &name]);
            assert!(
                store
                    .decide_one(&ask(&plan, "whole", 1), StoreDeadline(PATIENCE))
                    .await
                    .unwrap()
                    .fits
            );
            let length: usize = redis.cli(&["STRLEN", &name]).trim().parse().unwrap();
            for bytes in 1..length {
                let cut = name.replace("whole", &format!("cut {bytes}"));
                let script = "redis.call('SET', KEYS[2], string.sub(redis.call('GET', KEYS[1]), 1, ARGV[1]), 'EX', 1000)";
                redis.cli(&["EVAL", script, "2", &name, &cut, &bytes.to_string()]);
                let asks = [
                    ask(&plan, &format!("cut {bytes}"), 1),
                    ask(&plan, "whole", 20),
                    ask(&plan, &format!("good {bytes}"), 1),
                ];
                let answers = store.decide_batch(&asks, StoreDeadline(PATIENCE)).await;
                // A cut between two records leaves a valid state with fewer records.
                let whole_records = (bytes * plan.limits().len()).is_multiple_of(length);
                assert_eq!(
                    answers[0].is_err(),
                    !whole_records,
                    "{bytes} bytes of {plan:?}: {:?}",
                    answers[0]
                );
                assert!(
                    answers[1].as_ref().is_ok_and(|verdict| !verdict.fits),
                    "{bytes} bytes of {plan:?}: {:?}",
                    answers[1]
                );
                assert!(
                    answers[2].as_ref().is_ok_and(|verdict| verdict.fits),
                    "{bytes} bytes of {plan:?}: {:?}",
                    answers[2]
                );
                redis.cli(&[
                    "DEL",
                    &cut,
                    &name.replace("whole", &format!("good {bytes}")),
                ]);
            }
        }
    }
}

/// Most charges overwrite the state with SETRANGE, which costs Redis least. If Redis refuses that command, they are not granted.
#[tokio::test]
async fn a_charge_that_redis_does_not_write_is_an_error_of_its_key_alone() {
    let redis = Redis::start();
    let store = RedisStore::connect(&redis.url(), PATIENCE).unwrap();
    assert!(store.connected(PATIENCE).await);
    // Each lets five pass at once. A unit of the bucket takes half a minute: far less than an eighth of the window, and far more
    // than this test.
    for (quota, algorithm) in [(5, FIXED), (5, COUNTER), (1_000_000, BUCKET)] {
        let whole = limit(quota, YEAR, algorithm);
        let half = limit(quota, YEAR / 2, algorithm);
        for plan in [plan(vec![whole.clone()]), plan(vec![whole, half])] {
            let before = redis.ran("setrange");
            redis.cli(&["FLUSHALL"]);
            for _ in 0..4 {
                assert!(
                    store
                        .decide_one(&ask(&plan, "k", 1), StoreDeadline(PATIENCE))
                        .await
                        .unwrap()
                        .fits
                );
            }
            assert_eq!(redis.ran("setrange") - before, 3, "{plan:?}");
            redis.cli(&["ACL", "SETUSER", "default", "-setrange"]);
            // The script decides two requests for one name in a call by other code than one.
            let asks = [ask(&plan, "k", 1), ask(&plan, "new", 1), ask(&plan, "k", 1)];
            for asks in [&asks[..2], &asks] {
                let answers = store.decide_batch(asks, StoreDeadline(PATIENCE)).await;
                let allowed: Vec<_> = answers
                    .iter()
                    .map(|answer| answer.as_ref().ok().map(|verdict| verdict.fits))
                    .collect();
                assert_eq!(allowed, [None, Some(true), None][..asks.len()], "{plan:?}");
                redis.cli(&["DEL", &format!("{{{}:new}}", plan.counts_as)]);
            }
            redis.cli(&["ACL", "SETUSER", "default", "+setrange"]);
            let rest = [ask(&plan, "k", 2), ask(&plan, "k", 1), ask(&plan, "k", 1)];
            let answers = store.decide_batch(&rest, StoreDeadline(PATIENCE)).await;
            let fit: Vec<_> = answers
                .iter()
                .map(|answer| answer.as_ref().unwrap().fits)
                .collect();
            assert_eq!(fit, [false, true, false], "{plan:?}");
        }
    }
}

/// Requests beyond what the store can decide in time are refused as overload. They are not answered by `on_store_failure`, which
/// would let them pass.
#[tokio::test]
async fn a_flood_of_batches_on_a_healthy_redis_opens_no_limit() {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.deadline=10s"],
    );
    let mut client = server.client().await;
    wait_for_the_store(&mut client).await;
    let batches: Vec<_> = (0..24)
        .map(|_| {
            let mut client = client.clone();
            let requests = vec![crate::support::server::request("flooded", "allow", None); 1000];
            tokio::spawn(async move {
                client
                    .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
                    .await
            })
        })
        .collect();
    assert_eq!(
        outcome_and_decider(&mut client, "beside", "allow").await,
        (Outcome::Allowed, DecidedBy::Store)
    );
    let mut allowed = 0;
    let mut refused = 0;
    for batch in batches {
        for result in batch.await.unwrap().unwrap().into_inner().results {
            match result.result.unwrap() {
                pb::should_allow_result::Result::Response(response) => {
                    assert_eq!(response.decided_by(), DecidedBy::Store);
                    allowed += u32::from(response.allowed);
                }
                pb::should_allow_result::Result::Error(error) => {
                    assert_eq!(
                        error.code,
                        tonic::Code::ResourceExhausted as i32,
                        "{}",
                        error.message
                    );
                    refused += 1;
                }
            }
        }
    }
    println!("{allowed} of 24,000 allowed, {refused} shed");
    assert_eq!(allowed, 10);
}

#[tokio::test]
async fn a_web_server_at_redis_s_address_is_survived() {
    let listener = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut server = Server::start(PLANS, &["--store", &url]);
    let mut client = server.client().await;
    assert_answers_by_policy(&mut client, "k").await;
    server.wait_for_line("store out of reach").await;
    server.signal("TERM");
    assert!(server.wait().0.success());
}

#[tokio::test]
async fn a_wrong_password_is_survived_and_never_logged() {
    let redis = Redis::start_with(&["--requirepass", "right"]);
    let url = format!("redis://:wrong-canary@127.0.0.1:{}", redis.port);
    let server = Server::start(PLANS, &["--store", &url]);
    assert_answers_by_policy(&mut server.client().await, "k").await;
    assert!(!server.end_and_log().contains("wrong-canary"));
    redis.cli(&["-a", "right", "CONFIG", "SET", "requirepass", ""]);
}

#[tokio::test]
async fn fault_10_redis_out_of_memory_is_a_failure_and_not_a_denial() {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.deadline=10s"],
    );
    let mut client = server.client().await;
    wait_for_the_store(&mut client).await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(
        outcome_and_decider(&mut client, "k", "allow").await,
        (Outcome::Allowed, DecidedBy::FailOpen)
    );
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(
        outcome_and_decider(&mut client, "k", "allow").await,
        (Outcome::Allowed, DecidedBy::Store)
    );
}
