//! `/metrics`: what is counted, and where it is served.

use tollgate::grpc::pb;

use super::*;
use crate::support::redis::Redis;
use crate::support::server::decide;

fn assert_version_and_config(scrape: &Scrape, server: &Server) {
    assert_eq!(
        scrape.value(&format!(
            "tollgate_build_info{{version=\"{}\",tzdb=\"{}\"}}",
            env!("CARGO_PKG_VERSION"),
            tollgate::plan::ZONE_DATABASE
        )),
        1.0
    );
    let hash = field(&server.start_line(), "config_hash");
    assert_eq!(
        scrape.value(&format!("tollgate_config_info{{hash=\"{hash}\"}}")),
        1.0
    );
}

fn assert_none_waited(scrape: &Scrape, decided: f64) {
    assert_eq!(
        scrape.value("tollgate_decision_duration_seconds_count"),
        decided
    );
    // None of them waited: the embedded store is not timed, and has no cache before it.
    assert_eq!(
        scrape.value("tollgate_decision_duration_seconds_bucket{le=\"0.00005\"}"),
        decided
    );
    assert_eq!(scrape.value("tollgate_decision_duration_seconds_sum"), 0.0);
}

#[tokio::test]
async fn decisions_are_counted_exactly_by_plan_outcome_and_decider() {
    let (server, http) = serve(&["--set", "workers=2"]);
    // One connection on each of the two workers.
    let mut clients = [server.client().await, server.client().await];
    for turn in 0..10 {
        decide(&mut clients[turn % 2], "alice@example.com", "two").await;
        decide(&mut clients[turn % 2], "alice@example.com", "free").await;
        decide(&mut clients[turn % 2], "alice@example.com", "banned").await;
        decide(&mut clients[turn % 2], "alice@example.com", "shadow").await;
    }
    let mut batch: Vec<pb::ShouldAllowRequest> = (0..4)
        .map(|_| request("bob@example.com", "both", None))
        .collect();
    batch.push(request("bob@example.com", "both", Some(4)));
    batch.push(request("bob@example.com", "nowhere", None));
    batch.push(request("", "both", None));
    clients[0]
        .should_allow_batch(pb::ShouldAllowBatchRequest { requests: batch })
        .await
        .unwrap();
    let peek = pb::PeekRequest {
        key: "carol@example.com".to_owned(),
        plan: "two".to_owned(),
        cost: None,
        ..Default::default()
    };
    clients[1].peek(peek).await.unwrap();
    let answers: Vec<u16> = (0..3)
        .map(|_| check(&http, "key=dave@example.com&plan=two").status)
        .collect();
    assert_eq!(answers, [200, 200, 429]);
    assert_eq!(
        check(&http, "key=dave@example.com&plan=nowhere").status,
        404
    );

    let scrape = Scrape::of(&http);
    let expected = counts(&[
        ("two allowed store", 4.0),
        ("two denied store", 9.0),
        ("free allowed plan", 10.0),
        ("banned denied plan", 10.0),
        ("shadow allowed store", 1.0),
        ("shadow shadow_denied store", 9.0),
        ("both allowed store", 3.0),
        ("both denied store", 1.0),
        ("both never_fits plan", 1.0),
    ]);
    assert_eq!(scrape.decisions(), expected);
    let decided: f64 = expected.values().sum();
    assert_none_waited(&scrape, decided);
    assert_eq!(scrape.value("tollgate_peeks_total"), 1.0);
    assert_eq!(scrape.value("tollgate_unknown_plans_total"), 2.0);
    assert_eq!(scrape.value("tollgate_connections"), 2.0);
    assert_eq!(scrape.value("tollgate_store_duration_seconds_count"), 0.0);
    assert_eq!(scrape.value("tollgate_deny_cache_hits_total"), 0.0);
    assert_version_and_config(&scrape, &server);
    assert!(
        !scrape.text.contains("example.com"),
        "a key is told: {}",
        scrape.text
    );
}

#[test]
fn decision_counters_of_a_plan_exist_from_the_start() {
    let (_server, http) = serve(&[]);
    let scrape = Scrape::of(&http);
    assert!(scrape.decisions().is_empty());
    for labels in [
        "plan=\"two\",outcome=\"allowed\",decided_by=\"store\"",
        "plan=\"two\",outcome=\"denied\",decided_by=\"local_fallback\"",
        "plan=\"two\",outcome=\"allowed\",decided_by=\"fail_open\"",
        "plan=\"shadow\",outcome=\"shadow_denied\",decided_by=\"deny_cache\"",
        "plan=\"free\",outcome=\"allowed\",decided_by=\"plan\"",
        "plan=\"banned\",outcome=\"denied\",decided_by=\"plan\"",
    ] {
        assert_eq!(
            scrape.value(&format!("tollgate_decisions_total{{{labels}}}")),
            0.0
        );
    }
    let told = |plan: &str| {
        scrape
            .text
            .matches(&format!("tollgate_decisions_total{{plan=\"{plan}\""))
            .count()
    };
    assert_eq!((told("two"), told("free"), told("banned")), (8, 1, 1));
}

/// Asserts what is counted of five decisions on `two`, two of them granted, over calls to Redis of one decision each.
fn assert_calls_to_redis(scrape: &Scrape) {
    let found = scrape.decisions();
    assert_eq!(
        (
            found["two allowed store"],
            found["two denied store"] + found["two denied deny_cache"]
        ),
        (2.0, 3.0),
        "{found:?}"
    );
    // One hit at least: on a busy machine, the remembered denial may have expired before the others.
    let hits = scrape.value("tollgate_deny_cache_hits_total");
    assert!(hits >= 1.0, "{found:?}");
    assert_eq!(scrape.value("tollgate_deny_cache_entries"), 1.0);
    assert_eq!(
        scrape.value("tollgate_store_duration_seconds_count"),
        5.0 - hits
    );
    assert_eq!(
        scrape.value("tollgate_decision_duration_seconds_count"),
        5.0
    );
    // Each decision was alone in its call to Redis, so it waited as long as the call. A remembered denial did not wait.
    let waited = scrape.value("tollgate_decision_duration_seconds_sum");
    assert!(waited > 0.0 && waited < 10.0, "{waited} s");
    assert!((waited - scrape.value("tollgate_store_duration_seconds_sum")).abs() < 1e-6);
    assert_eq!(scrape.value("tollgate_inflight_requests"), 0.0);
}

#[tokio::test]
async fn metrics_count_calls_to_redis_and_never_show_its_password() {
    let mut redis = Redis::start_with(&["--requirepass", "canary-password"]);
    let url = format!("redis://:canary-password@127.0.0.1:{}/0", redis.port);
    let (server, http) = serve(&[
        "--store",
        &url,
        "--set",
        "workers=1",
        "--set",
        "store.deadline=5s",
    ]);
    let mut client = server.client().await;
    // HTTP has its own connection to Redis, and counts the same units.
    assert!(decide(&mut client, "k", "two").await.allowed);
    assert_eq!(check(&http, "key=k&plan=two").status, 200);
    for _ in 0..3 {
        assert!(!decide(&mut client, "k", "two").await.allowed);
    }
    let scrape = Scrape::of(&http);
    assert_calls_to_redis(&scrape);

    drop(server);
    redis.kill();
    let (server, http) = serve(&["--store", &url, "--set", "workers=1"]);
    let mut client = server.client().await;
    for plan in ["open", "open", "closed", "two"] {
        decide(&mut client, "k", plan).await;
    }
    let denied = check(&http, "key=k&plan=closed");
    assert_eq!(denied.status, 429);
    assert!(
        denied.body.contains("#temporary-reduced-capacity")
            && denied.header("retry-after").is_none(),
        "{denied:?}"
    );
    let scrape = Scrape::of(&http);
    let expected = counts(&[
        ("open allowed fail_open", 2.0),
        ("closed denied fail_closed", 2.0),
        ("two allowed local_fallback", 1.0),
    ]);
    assert_eq!(scrape.decisions(), expected);
    let errors: f64 = [
        "deadline",
        "unreachable",
        "refused",
        "nonsense",
        "overloaded",
        "full",
    ]
    .map(|kind| scrape.value(&format!("tollgate_store_errors_total{{kind=\"{kind}\"}}")))
    .iter()
    .sum();
    assert_eq!(errors, 5.0);
    // Readiness does not follow Redis.
    assert_eq!(get(&http, "/readyz").status, 200);
    let all = [scrape.text.as_str(), &denied.body, &server.log()].concat();
    assert!(!all.contains("canary-password"), "{all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_for_redis_are_in_flight_until_their_callers_leave() {
    let redis = Redis::start();
    let (server, http) = serve(&[
        "--store",
        &redis.url(),
        "--set",
        "store.deadline=10s",
        "--set",
        "workers=1",
    ]);
    let mut client = server.client().await;
    assert!(decide(&mut client, "k", "two").await.allowed);
    redis.signal("STOP");
    let mut waiting = client.clone();
    let call = tokio::spawn(async move { waiting.should_allow(request("k", "two", None)).await });
    let until = |count: f64| {
        let started = Instant::now();
        while Scrape::of(&http).value("tollgate_inflight_requests") != count {
            assert!(started.elapsed() < PATIENCE, "never {count} in flight");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(1.0);
    // Its caller goes away, long before the deadline.
    call.abort();
    let _ = call.await;
    until(0.0);
    redis.signal("CONT");
}

/// Whoever may scrape gets figures and health, and can ask for no decision; whoever may ask gets no figures.
#[tokio::test]
async fn metrics_at_an_address_of_their_own_are_apart_from_checks() {
    let (mut server, http) = serve(&["--set", "listen.metrics=127.0.0.1:0"]);
    let metrics = field(
        &server.wait_for_line("tollgate is serving").await,
        "metrics",
    );
    assert_eq!(check(&http, "key=a&plan=two").status, 200);
    for (path, by_http, by_metrics) in [
        ("/metrics", 404, 200),
        ("/v1/check?key=a&plan=two", 200, 404),
        ("/openapi.json", 200, 404),
        ("/healthz", 200, 200),
        ("/readyz", 200, 200),
        ("/", 404, 404),
    ] {
        assert_eq!(
            (get(&http, path).status, get(&metrics, path).status),
            (by_http, by_metrics),
            "{path}"
        );
    }
    assert_eq!(
        get(&metrics, "/").body,
        "not found: the paths are /metrics, /healthz and /readyz\n"
    );
    assert_eq!(
        Scrape::of(&metrics).decisions(),
        counts(&[("two allowed store", 2.0)])
    );
    server.signal("TERM");
    let started = Instant::now();
    while get(&metrics, "/readyz").status != 503 {
        assert!(started.elapsed() < PATIENCE, "still ready");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(get(&metrics, "/metrics").status, 200);
    assert!(server.wait().0.success());
}

/// No check endpoint is served then.
#[test]
fn metrics_need_no_other_http() {
    let server = Server::start(
        &PLANS.replace("127.0.0.1:0", ""),
        &["--set", "listen.metrics=127.0.0.1:0"],
    );
    let start = server.log();
    assert!(!start.contains("\"http\""), "{start}");
    let line = start
        .lines()
        .find(|line| line.contains("tollgate is serving"))
        .unwrap();
    assert_eq!(get(&field(line, "metrics"), "/metrics").status, 200);
}
