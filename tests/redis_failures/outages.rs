//! Outages of the store under load. No call fails, no call waits for a store that is known to be out, and the store is used again
//! soon after its return. Tests that need a network of their own are in `network.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::grpc::pb::hold_service_client::HoldServiceClient;
use tollgate::grpc::pb::{self, DecidedBy};
use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Limit, Plan, Rule};
use tollgate::store::{BreakerState, Check, Mode, RedisStore, Store, StoreDeadline, StoreError};
use tonic::Code;

use crate::support::Guarded;
use crate::support::outage::{Answer, DEADLINE, Load, OPEN_AFTER, PLANS, healthy, judge, pass};
use crate::support::plans::{FIXED, ask, limit, plan, refund};
use crate::support::proxy::Proxy;
use crate::support::redis::{Redis, free_port};
use crate::support::server::{Client, Server, channel_to, request, tollgate};

/// Waits until the log has so many lines with these words.
async fn wait_for_lines(server: &Server, words: &str, lines: usize) -> String {
    let started = Instant::now();
    loop {
        let log = server.log();
        let found: Vec<&str> = log.lines().filter(|line| line.contains(words)).collect();
        assert!(
            found.len() <= lines,
            "more than {lines} of {words:?}: {log}"
        );
        if found.len() == lines {
            return found[lines - 1].to_owned();
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{words:?} is missing: {log}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A server that decides by this store, and a load on it that has begun.
async fn server_under_load(store: &str) -> (Server, Load) {
    let server = Server::start(PLANS, &["--store", store]);
    healthy(&server).await;
    let load = Load::start(&server).await;
    pass(Duration::from_millis(500)).await;
    (server, load)
}

/// Restarts Redis and, five seconds later, ends the load. Returns its answers, and when Redis was back: once it answered. Calls
/// between the start of its process and that moment are left out.
async fn answers_around_restart(redis: &mut Redis, load: Load) -> (Vec<Answer>, Instant) {
    let restarting = Instant::now();
    redis.restart();
    let back = Instant::now();
    pass(Duration::from_secs(5)).await;
    let answers = load
        .stop()
        .await
        .into_iter()
        .filter(|answer| answer.at < restarting || answer.at >= back);
    (answers.collect(), back)
}

/// A number of a JSON log line.
fn number(line: &str, name: &str) -> u64 {
    let rest = line
        .split(&format!("\"{name}\":"))
        .nth(1)
        .unwrap_or_else(|| panic!("no {name} in {line}"));
    rest.chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_02_redis_stopped_for_five_seconds_fails_no_call_and_slows_few() {
    let redis = Redis::start();
    let (_server, load) = server_under_load(&redis.url()).await;
    let began = Instant::now();
    redis.signal("STOP");
    let ended = pass(Duration::from_secs(5)).await;
    redis.signal("CONT");
    pass(Duration::from_secs(5)).await;
    judge("Redis stopped", &load.stop().await, began, ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_01_redis_killed_under_load_is_used_again_without_its_scripts() {
    let mut redis = Redis::start();
    let (_server, load) = server_under_load(&redis.url()).await;
    let began = Instant::now();
    redis.kill();
    pass(Duration::from_secs(2)).await;
    let (answers, ended) = answers_around_restart(&mut redis, load).await;
    judge("Redis killed", &answers, began, ended);
}

/// Failures of the connection attempt: no process listens, and later one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_absent_at_the_start_slows_no_call_and_is_used_when_it_comes() {
    let mut redis = Redis::start();
    redis.kill();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    let load = Load::start(&server).await;
    let began = Instant::now();
    pass(Duration::from_secs(2)).await;
    // Later a busy machine may keep callers waiting beyond a deadline, which is another outage.
    wait_for_lines(&server, "store out of reach", 1).await;
    let (answers, ended) = answers_around_restart(&mut redis, load).await;
    judge("Redis absent at the start", &answers, began, ended);
}

/// A device on the way that acknowledges everything and passes nothing on, and forgets the connections it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_15_a_swallowed_connection_is_replaced_and_none_is_left_behind() {
    let redis = Redis::start();
    let proxy = Proxy::before(redis.port);
    let (_server, load) = server_under_load(&proxy.url()).await;
    let began = Instant::now();
    let before = proxy.accepted();
    proxy.swallow();
    let ended = pass(Duration::from_secs(3)).await;
    let tried = proxy.accepted() - before;
    let open = proxy.open();
    proxy.let_through();
    pass(Duration::from_secs(5)).await;
    judge("connections swallowed", &load.stop().await, began, ended);
    println!(
        "{tried} connections tried in 3 s, {open} open at its end, {} a while after",
        proxy.open()
    );
    // Each takes half a second to give up.
    assert!((2..=20).contains(&tried), "{tried} probes");
    // The one that is dead and given up, and the one that is tried; one more for a proxy that is slow to notice.
    assert!(open <= 3, "{open} connections at once");
    assert_eq!(proxy.open(), 1);
}

/// A Redis that answers, but later than anybody waits, is as good as none; a PING would pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_03_redis_slower_than_the_deadline_is_not_waited_for() {
    let redis = Redis::start();
    let proxy = Proxy::before(redis.port);
    let (server, load) = server_under_load(&proxy.url()).await;
    let opened = |server: &Server| server.log().matches("store out of reach").count();
    let began = Instant::now();
    let before = opened(&server);
    // Connecting takes some round trips: all of them fit into what a probe is given, and its decision is late.
    proxy.delay(Duration::from_millis(30));
    let ended = pass(Duration::from_secs(3)).await;
    let times = opened(&server) - before;
    proxy.delay(Duration::ZERO);
    pass(Duration::from_secs(5)).await;
    judge("Redis slow", &load.stop().await, began, ended);
    assert_eq!(
        times, 1,
        "a probe that is too late must not close the breaker, to be found out by callers"
    );
}

/// A replica answers a PING and any script that does not write. Found out by a probe, not by callers again and again.
#[tokio::test]
async fn fault_06_a_redis_that_was_demoted_is_left_alone_until_it_may_write() {
    let redis = Redis::start();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    healthy(&server).await;
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let mut client = server.client().await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        let answer = client
            .should_allow(request("k", "open", None))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.decided_by(), DecidedBy::FailOpen);
    }
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    let began = Instant::now();
    healthy(&server).await;
    println!(
        "on a Redis that may write again after {:?}",
        began.elapsed()
    );
    wait_for_lines(&server, "store out of reach", 1).await;
    wait_for_lines(&server, "store connected", 2).await;
}

#[tokio::test]
async fn an_outage_is_two_lines_that_tell_how_long_and_how_many() {
    let redis = Redis::start();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    healthy(&server).await;
    let mut client = server.client().await;
    redis.signal("STOP");
    let mut by_policy = 0;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        let answer = client
            .should_allow(request("k", "open", None))
            .await
            .unwrap()
            .into_inner();
        by_policy += u64::from(answer.decided_by() == DecidedBy::FailOpen);
    }
    redis.signal("CONT");
    wait_for_lines(&server, "store out of reach", 1).await;
    let line = wait_for_lines(&server, "store connected", 2).await;
    let out_ms = number(&line, "out_ms");
    let undecided = number(&line, "undecided");
    println!("{by_policy} by policy; {line}");
    assert!((500..20_000).contains(&out_ms), "{line}");
    // Of the five whose time-outs open it, the last is the first that is counted; some come before the log line.
    assert!(
        undecided >= by_policy - 5 && undecided <= by_policy,
        "{by_policy} by policy: {line}"
    );
}

#[tokio::test]
async fn a_store_s_status_tells_its_breaker_and_counts_what_it_owes() {
    let mut redis = Redis::start();
    // A deadline that a busy machine keeps.
    let store = RedisStore::connect(&redis.url(), Duration::from_secs(10)).unwrap();
    assert_eq!(store.status().undecided, 0);
    assert!(store.connected(Duration::from_secs(10)).await);
    let well = store.status();
    assert_eq!(
        (well.breaker, well.opened, well.undecided),
        (BreakerState::Closed, 0, 0)
    );
    let limit = Limit::new("all", 10, Duration::from_secs(3600), Algorithm::SlidingLog).unwrap();
    let plan = Plan::new("plan", Rule::limits([limit]));
    let ask = Check {
        key: Key::new("k").unwrap(),
        plan: Arc::new(plan),
        cost: Cost::ONE,
        mode: Mode::Charge,
    };
    assert!(
        store
            .decide_one(&ask, StoreDeadline(DEADLINE * 400))
            .await
            .unwrap()
            .fits
    );
    redis.kill();
    let killed = Instant::now();
    while store.status().breaker == BreakerState::Closed {
        assert!(
            killed.elapsed() < Duration::from_secs(10),
            "the lost connection is not noticed"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Without a wait, though the deadline is long.
    assert!(matches!(
        store.decide_one(&ask, StoreDeadline(DEADLINE * 400)).await,
        Err(StoreError::NotSent(_))
    ));
    for answer in store
        .decide_batch(&vec![ask; 3], StoreDeadline(DEADLINE * 400))
        .await
    {
        assert!(matches!(answer, Err(StoreError::NotSent(_))));
    }
    let out = store.status();
    assert_eq!((out.opened, out.undecided), (1, 4));
    redis.restart();
    assert!(store.connected(Duration::from_secs(10)).await);
    let back = store.status();
    assert_eq!((back.breaker, back.opened), (BreakerState::Closed, 1));
    assert!(back.probes > well.probes);
}

/// No policy answers these, so their callers decide by what they are told.
#[tokio::test]
async fn a_settle_while_redis_is_known_to_be_out_is_told_that_it_was_not_sent() {
    let mut redis = Redis::start();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    healthy(&server).await;
    redis.kill();
    server
        .wait_until_decided_by(DecidedBy::FailOpen, "open")
        .await;
    pass(OPEN_AFTER).await;
    let mut holds = HoldServiceClient::new(channel_to(&server.address).await);
    let settle = pb::SettleRequest {
        key: "k".to_owned(),
        plan: "open".to_owned(),
        request_id: "a".to_owned(),
        ..Default::default()
    };
    let status = holds.settle(settle).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let told = status.message();
    assert!(told.starts_with("it was not sent to the store, so nothing was done; send it again: the store is out of reach"), "{told}");
}

/// Redis answers every call in two thirds of the deadline. A request that waited for the call in flight, and then for the next
/// one, would miss the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_52_a_distant_redis_also_decides_requests_that_come_during_a_call() {
    let redis = Redis::start();
    let proxy = Proxy::before(redis.port);
    let server = Server::start(
        PLANS,
        &["--store", &proxy.url(), "--set", "store.deadline=1200ms"],
    );
    healthy(&server).await;
    proxy.delay(Duration::from_millis(400));
    let client = server.client().await;
    let mut calls = Vec::new();
    let mut by_policy = 0;
    for call in 0..60 {
        let mut client = client.clone();
        calls.push(tokio::spawn(async move {
            client
                .should_allow(request(&call.to_string(), "open", None))
                .await
                .unwrap()
                .into_inner()
                .decided_by()
        }));
        pass(Duration::from_millis(130)).await;
    }
    // The first of them find out how far it is.
    for call in calls.into_iter().skip(10) {
        by_policy += u32::from(call.await.unwrap() != DecidedBy::Store);
    }
    println!("{by_policy} of 50 by policy");
    // Half of them without calls beside each other.
    assert!(by_policy <= 8, "{by_policy} of 50");
}

/// A device on the way forgets a connection that is not used. That is found out before the next decision needs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_15_an_idle_connection_that_was_forgotten_costs_no_decision() {
    let redis = Redis::start();
    let proxy = Proxy::before(redis.port);
    let server = Server::start(
        PLANS,
        &["--store", &proxy.url(), "--set", "store.deadline=500ms"],
    );
    healthy(&server).await;
    let mut client = server.client().await;
    proxy.swallow();
    proxy.let_through();
    wait_for_lines(&server, "store connected", 2).await;
    let answer = client
        .should_allow(request("k", "open", None))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.decided_by(), DecidedBy::Store);
}

/// A refund is given far longer than decisions are. It must not keep them from finding out that Redis is dead.
#[tokio::test]
async fn a_refund_under_way_holds_up_no_decision() {
    let redis = Redis::start();
    let store = RedisStore::connect(&redis.url(), DEADLINE).unwrap();
    assert!(store.connected(Duration::from_secs(10)).await);
    let plan = plan(vec![limit(10, Duration::from_secs(3600), FIXED)]);
    let charge = ask(&plan, "k", 1);
    let refund = refund(&plan, "k", 1);
    let operator = store.clone();
    let started = Instant::now();
    redis.signal("STOP");
    let refund = tokio::spawn(async move {
        let deadline = StoreDeadline(Duration::from_secs(60));
        operator.refund_batch(&[refund], deadline).await
    });
    while store.status().breaker == BreakerState::Closed {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "the breaker does not open"
        );
        let _ = store.decide_one(&charge, StoreDeadline(DEADLINE)).await;
    }
    println!("the breaker opened after {:?}", started.elapsed());
    redis.signal("CONT");
    // Its connection is gone, and it is not known whether the command was carried out.
    assert!(refund.await.unwrap()[0].is_err());
}

/// The listener is open before the first connection to Redis is tried. A call that comes then is answered within the deadline. It
/// does not wait for the half second that the start line waits for a connection.
#[tokio::test]
async fn a_call_that_comes_while_a_server_starts_without_redis_does_not_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tollgate.yaml");
    std::fs::write(&config, PLANS).unwrap();
    let mut took = Vec::new();
    // A busy machine may answer late: several starts are tried, of which one has to be in time, ten deadlines at most.
    for _ in 0..20 {
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = tollgate();
        command
            .args([
                "--listen",
                &address,
                "--store",
                "redis://127.0.0.1:1",
                "--log-format",
                "json",
                "--config",
            ])
            .arg(&config);
        let mut server = Guarded(command.stdout(std::process::Stdio::null()).spawn().unwrap());
        while std::net::TcpStream::connect(&address).is_err() {
            assert!(
                server.0.try_wait().unwrap().is_none(),
                "the server does not start"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        let open = Instant::now();
        let mut client = Client::new(channel_to(&address).await);
        let answer = client
            .should_allow(request("k", "open", None))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.decided_by(), DecidedBy::FailOpen);
        took.push(open.elapsed());
        if open.elapsed() < 10 * DEADLINE {
            println!("answered after {took:?}");
            return;
        }
    }
    panic!("a call waits for a Redis that is not there: {took:?}");
}

/// The longest `store.deadline`. The start waits for no multiple of it, and neither does the end.
#[test]
fn a_server_that_starts_without_redis_serves_and_ends_before_a_long_deadline_has_passed() {
    const LONG: Duration = Duration::from_secs(10);
    let flags = [
        "--store",
        "redis://127.0.0.1:1",
        "--set",
        "store.deadline=10s",
    ];
    let started = Instant::now();
    let mut server = Server::start(PLANS, &flags);
    let took = started.elapsed();
    assert!(took < LONG, "it served only after {took:?}");
    server.signal("TERM");
    let (status, took) = server.wait();
    assert!(status.success() && took < LONG, "{status} after {took:?}");
}
