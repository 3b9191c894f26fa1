//! Callers whose own deadline is shorter than the store's: what they are told is never the policy for a store that failed.

use std::time::{Duration, Instant};

use tokio_stream::StreamExt;
use tollgate::grpc::pb::{self, DecidedBy};
use tonic::Code;
use tonic::codec::CompressionEncoding;

use crate::support::http::Scrape;
use crate::support::redis::Redis;
use crate::support::server::{PATIENCE, Server, decide, request};
use crate::support::untimed::{timed, untimed};

/// A quota that is used up at once, by each of the policies. A deadline that a busy machine keeps: what Redis does not answer
/// in it is a failure, and a stalled machine would make it one.
const PLANS: &str = "
workers: 1
store: { deadline: 1s }
deny_cache: { entries: 0 }
listen: { http: '127.0.0.1:0' }
plans:
  allow: { limits: [ { quota: 5, window: 1d, algorithm: fixed_window } ], on_store_failure: allow }
  deny: { limits: [ { quota: 5, window: 1d, algorithm: fixed_window } ], on_store_failure: deny }
  local: { limits: [ { quota: 5, window: 1d, algorithm: fixed_window } ] }
";
const NAMES: [&str; 3] = ["allow", "deny", "local"];
const QUOTA: usize = 5;

/// What a call came to: whether Redis allowed it, or `None` at the caller's deadline. Everything else is wrong.
fn outcome(
    answer: Result<tonic::Response<pb::ShouldAllowResponse>, tonic::Status>,
    of: &str,
) -> Option<bool> {
    match answer {
        Ok(answer) => {
            let answer = answer.into_inner();
            assert_eq!(answer.decided_by(), DecidedBy::Store, "{of}");
            Some(answer.allowed)
        }
        Err(status) => {
            assert_eq!(status.code(), Code::DeadlineExceeded, "{of}: {status}");
            None
        }
    }
}

/// A number below a bound, of a sequence that a seed decides.
fn next_below(state: &mut u64, bound: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// Nanoseconds, microseconds or milliseconds below the store's deadline.
fn short(state: &mut u64) -> String {
    match next_below(state, 4) {
        0 => format!("{}n", next_below(state, 2_000)),
        1 => format!("{}u", next_below(state, 1_000)),
        2 => format!("{}u", next_below(state, 10_000)),
        _ => format!("{}m", next_below(state, 1_000)),
    }
}

/// One caller's calls, one after the other. Returns how many Redis decided, and for how many that was too late.
async fn ask_with_short_deadlines(address: String, caller: usize, calls: usize) -> (usize, usize) {
    let mut client = untimed(&address).await;
    let mut state = caller as u64;
    let mut decided = 0;
    let mut late = 0;
    let mut granted = 0;
    for call in 0..calls {
        let plan = NAMES[call % 3];
        let timeout = short(&mut state);
        let answer = client
            .should_allow(timed(
                request(&format!("key {caller}"), plan, None),
                &timeout,
            ))
            .await;
        match outcome(answer, &timeout) {
            Some(allowed) => (decided, granted) = (decided + 1, granted + usize::from(allowed)),
            None => late += 1,
        }
    }
    assert!(
        granted <= QUOTA * NAMES.len(),
        "{granted} granted to one caller's keys"
    );
    (decided, late)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_50_ten_thousand_short_deadlines_at_a_healthy_redis_get_no_answer_by_policy() {
    const CALLERS: usize = 8;
    let redis = Redis::start();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    server.wait_until_decided_by(DecidedBy::Store, "deny").await;
    let callers = (0..CALLERS).map(|caller| {
        let address = server.address.clone();
        tokio::spawn(ask_with_short_deadlines(address, caller, 10_000 / CALLERS))
    });
    let callers: Vec<_> = callers.collect();
    let mut decided = 0;
    let mut late = 0;
    for caller in callers {
        let (more, later): (usize, usize) = caller.await.unwrap();
        (decided, late) = (decided + more, late + later);
    }
    println!("{decided} decided, {late} too late");
    assert!(
        decided > 1_000 && late > 100,
        "{decided} decided, {late} too late: both must be tried"
    );
    let metrics = Scrape::of(&server.http());
    assert_eq!(
        metrics.value("tollgate_caller_deadlines_total"),
        late as f64
    );
    for kind in ["deadline", "unreachable"] {
        assert_eq!(
            metrics.value(&format!("tollgate_store_errors_total{{kind=\"{kind}\"}}")),
            0.0
        );
    }
    assert_eq!(metrics.value("tollgate_degraded"), 0.0);
    let log = server.log();
    assert!(
        !log.contains("could not decide") && !log.contains("out of reach"),
        "Redis is blamed: {log}"
    );
}

#[tokio::test]
async fn batches_peeks_and_streams_exceed_their_deadline_as_a_whole() {
    let redis = Redis::start();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    server.wait_until_decided_by(DecidedBy::Store, "deny").await;
    let mut client = untimed(&server.address).await;
    // Redis keeps silent, for less than its deadline.
    for timeout in ["0n", "1n", "10m"] {
        redis.cli(&["CLIENT", "PAUSE", "300", "ALL"]);
        let requests = NAMES.iter().map(|plan| request("k", plan, None)).collect();
        let batch = client
            .should_allow_batch(timed(pb::ShouldAllowBatchRequest { requests }, timeout))
            .await;
        assert_eq!(
            batch.unwrap_err().code(),
            Code::DeadlineExceeded,
            "{timeout}"
        );
        let peek = pb::PeekRequest {
            key: "k".to_owned(),
            plan: "allow".to_owned(),
            cost: None,
            ..Default::default()
        };
        assert_eq!(
            client.peek(timed(peek, timeout)).await.unwrap_err().code(),
            Code::DeadlineExceeded,
            "{timeout}"
        );
        let asked = pb::ShouldAllowStreamRequest {
            id: 1,
            request: Some(request("k", "allow", None)),
        };
        let stream = tokio_stream::iter([asked]).chain(tokio_stream::pending());
        let mut answers = client
            .should_allow_stream(timed(stream, timeout))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(
            answers.next().await.unwrap().unwrap_err().code(),
            Code::DeadlineExceeded,
            "{timeout}"
        );
        server.wait_until_decided_by(DecidedBy::Store, "deny").await;
    }
    assert!(
        !server.log().contains("could not decide"),
        "{}",
        server.log()
    );
}

/// A caller that waits as long as the store may take learns what the plan says of a store that fails.
#[tokio::test]
async fn a_dead_redis_is_found_out_by_callers_with_short_deadlines_and_then_policy_answers_them_at_once()
 {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.deadline=200ms"],
    );
    server.wait_until_decided_by(DecidedBy::Store, "deny").await;
    let mut client = untimed(&server.address).await;
    redis.signal("STOP");
    let began = Instant::now();
    let mut late = 0;
    let mut key = 0;
    let by = loop {
        key += 1;
        match client
            .should_allow(timed(request(&key.to_string(), "allow", None), "40m"))
            .await
        {
            Ok(answer) => break answer.into_inner().decided_by(),
            Err(status) => assert_eq!(status.code(), Code::DeadlineExceeded),
        }
        late += 1;
        assert!(began.elapsed() < PATIENCE, "the breaker does not open");
    };
    println!(
        "by policy after {late} that were too late, {:?} after Redis stopped",
        began.elapsed()
    );
    assert_eq!(by, DecidedBy::FailOpen);
    for timeout in ["1n", "1u", "40m", "10S"] {
        let answer = client
            .should_allow(timed(request("k", "allow", None), timeout))
            .await;
        assert_eq!(
            answer.unwrap().into_inner().decided_by(),
            DecidedBy::FailOpen,
            "{timeout}"
        );
    }
    let none = client
        .should_allow(timed(request("k", "allow", None), "0n"))
        .await;
    assert_eq!(none.unwrap_err().code(), Code::DeadlineExceeded);
    redis.signal("CONT");
}

/// envoyproxy/ratelimit waits 13 s for a Redis that is paused, whatever its caller's deadline.
#[tokio::test]
async fn a_callers_deadline_below_the_store_s_is_kept() {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.deadline=10s"],
    );
    let mut client = server.client().await;
    server.wait_until_decided_by(DecidedBy::Store, "deny").await;
    redis.signal("STOP");
    let mut timed = tonic::Request::new(request("k", "allow", None));
    timed.set_timeout(Duration::from_secs(2));
    let answer = client.should_allow(timed).await;
    redis.signal("CONT");
    // The server's own word, and not that of the client, which would call it cancelled.
    assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn the_deny_cache_and_the_embedded_store_never_answer_by_policy() {
    let redis = Redis::start();
    for flags in [
        vec![],
        vec!["--store", &redis.url(), "--set", "deny_cache.entries=1000"],
    ] {
        let server = Server::start(PLANS, &flags.iter().map(|flag| &**flag).collect::<Vec<_>>());
        server.wait_until_decided_by(DecidedBy::Store, "deny").await;
        let mut client = untimed(&server.address).await;
        for timeout in ["0n", "1n", "1u", "999m", "0n", "1n"].repeat(4) {
            for plan in NAMES {
                let answer = client
                    .should_allow(timed(request("k", plan, None), timeout))
                    .await;
                let answer = answer.map(tonic::Response::into_inner);
                let by = answer
                    .as_ref()
                    .map(pb::ShouldAllowResponse::decided_by)
                    .map_err(tonic::Status::code);
                let fine = [
                    Ok(DecidedBy::Store),
                    Ok(DecidedBy::DenyCache),
                    Err(Code::DeadlineExceeded),
                ];
                assert!(
                    fine.contains(&by),
                    "{plan}, {timeout}, {flags:?}: {answer:?}"
                );
            }
        }
    }
}

/// A caller that sends one believes in a deadline. Both ways that answer unary calls refuse it, with nothing charged.
#[tokio::test]
async fn a_malformed_deadline_is_the_callers_error() {
    let server = Server::start(
        "plans: { p: { limits: [ { name: day, quota: 10, window: 1d } ] } }\n",
        &[],
    );
    let plain = untimed(&server.address).await;
    for mut client in [
        plain.clone(),
        plain.send_compressed(CompressionEncoding::Gzip),
    ] {
        for malformed in ["", "10", "10x", "+10S", "123456789m", "1.5S"] {
            let asked = || request("k", "p", None);
            let peek = pb::PeekRequest {
                key: "k".to_owned(),
                plan: "p".to_owned(),
                ..Default::default()
            };
            let batch = pb::ShouldAllowBatchRequest {
                requests: vec![asked()],
            };
            let stream = tokio_stream::iter([pb::ShouldAllowStreamRequest {
                id: 1,
                request: Some(asked()),
            }]);
            for refused in [
                client
                    .should_allow(timed(asked(), malformed))
                    .await
                    .unwrap_err(),
                client
                    .should_allow_batch(timed(batch, malformed))
                    .await
                    .unwrap_err(),
                client.peek(timed(peek, malformed)).await.unwrap_err(),
                client
                    .should_allow_stream(timed(stream, malformed))
                    .await
                    .unwrap_err(),
            ] {
                assert_eq!(
                    refused.code(),
                    Code::InvalidArgument,
                    "{malformed:?}: {refused:?}"
                );
                assert!(
                    refused.message().starts_with("grpc-timeout is malformed: "),
                    "{refused:?}"
                );
            }
        }
        assert!(
            client
                .should_allow(timed(request("k", "p", None), "10S"))
                .await
                .unwrap()
                .into_inner()
                .allowed
        );
    }
    let mut client = server.client().await;
    assert_eq!(decide(&mut client, "k", "p").await.remaining, Some(7));
}
