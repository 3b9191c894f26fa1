//! A store that goes and comes back under load, each row of it: no call fails, nobody waits for a store that is known to
//! be out, and it is used again soon after its return.
//!
//! The promises are 30 ms an answer, 1 ms once the breaker is open, and one second until Redis decides again. What is
//! printed is to be read against those; what is asserted leaves room for a machine that is busy with other tests, and is
//! far below what a client without a breaker would show.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::grpc::pb::DecidedBy;
use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Limit, OnStoreFailure, Plan, Rule};
use tollgate::store::{Ask, BreakerState, Mode, RedisStore, Store, StoreError};

use crate::support::proxy::Proxy;
use crate::support::redis::Redis;
use crate::support::server::{Client, Server, channel_to, request};

/// A window so long that nothing but the store's trouble changes an answer.
const PLANS: &str = "
workers: 1
plans:
  open: { limits: [ { quota: 1000000000, window: 1d, algorithm: fixed_window } ], on_store_failure: allow }
";
const DEADLINE: Duration = Duration::from_millis(25);
/// Four times the promise.
const BACK_WITHIN: Duration = Duration::from_secs(4);
/// Twice as long as the breaker takes to open when calls of one deadline each follow each other, so that what is measured
/// after it is the open breaker.
const OPEN_AFTER: Duration = Duration::from_millis(500);

/// One call: when it was made, how long it took, who decided.
#[derive(Clone, Copy)]
struct Answer {
    at: Instant,
    took: Duration,
    by: DecidedBy,
}

/// About 2,000 calls a second on 4 connections, of keys that change, until told to stop.
struct Load {
    over: Arc<AtomicBool>,
    callers: Vec<tokio::task::JoinHandle<Vec<Answer>>>,
}

const CALLERS: u32 = 16;
const EVERY: Duration = Duration::from_millis(8);

impl Load {
    async fn start(server: &Server) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut channels = Vec::new();
        for _ in 0..4 {
            channels.push(channel_to(&server.address).await);
        }
        let callers = (0..CALLERS).map(|caller| {
            let client = Client::new(channels[caller as usize % channels.len()].clone());
            tokio::spawn(call_until(over.clone(), client, caller))
        });
        Self { callers: callers.collect(), over }
    }

    /// Every answer, in the order of the calls; a call that failed fails the test here.
    async fn stop(self) -> Vec<Answer> {
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
        let answer = client.should_allow(request(&key, "open", None)).await.expect("no call fails").into_inner();
        assert!(answer.allowed);
        answers.push(Answer { at, took: at.elapsed(), by: answer.decided_by() });
    }
    answers
}

/// What callers saw of an outage that began and ended at these instants; prints it and holds it to the promises.
fn judge(row: &str, answers: &[Answer], began: Instant, ended: Instant) {
    let during = |from: Instant| answers.iter().filter(move |answer| answer.at >= from && answer.at < ended);
    let mut open: Vec<Duration> = during(began + OPEN_AFTER).map(|answer| answer.took).collect();
    assert!(open.len() > 100, "{row}: {} calls tell nothing", open.len());
    assert!(during(began + OPEN_AFTER).all(|answer| answer.by == DecidedBy::FailOpen), "{row}: decided by a store that is out");
    open.sort();
    let rank = |share: f64| open[((open.len() - 1) as f64 * share) as usize];
    let mut before: Vec<Duration> = answers.iter().filter(|it| it.at < began).map(|answer| answer.took).collect();
    before.sort();
    let worst = during(began).map(|answer| answer.took).max().unwrap();
    let back = answers.iter().find(|answer| answer.at >= ended && answer.by == DecidedBy::Store);
    let back = back.map(|answer| answer.at + answer.took - ended).expect("the store decides again");
    println!(
        "{row}: {} answers of an open breaker: p50 {:?}, p99 {:?}, max {:?} (p50 {:?} before); slowest of the outage \
         {worst:?}; on Redis {back:?} after its return",
        open.len(),
        rank(0.5),
        rank(0.99),
        open[open.len() - 1],
        before.get(before.len() / 2),
    );
    assert!(rank(0.5) < DEADLINE / 2, "{row}: p50 {:?}: callers wait for a store that is out", rank(0.5));
    assert!(worst < Duration::from_secs(2), "{row}: {worst:?}");
    assert!(back < BACK_WITHIN, "{row}: back after {back:?}");
}

/// Waits, under load, until the store decides for a while, so that every outage begins in health.
async fn healthy(server: &Server) {
    let mut client = server.client().await;
    let (started, mut in_a_row) = (Instant::now(), 0);
    while in_a_row < 20 {
        let answer = client.should_allow(request("healthy", "open", None)).await.unwrap().into_inner();
        in_a_row = if answer.decided_by() == DecidedBy::Store { in_a_row + 1 } else { 0 };
        assert!(started.elapsed() < Duration::from_secs(30), "the store does not decide");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn pass(duration: Duration) -> Instant {
    tokio::time::sleep(duration).await;
    Instant::now()
}

/// Waits until the log has so many lines with these words.
async fn logged(server: &Server, words: &str, lines: usize) -> String {
    let started = Instant::now();
    loop {
        let log = server.log();
        let found: Vec<&str> = log.lines().filter(|line| line.contains(words)).collect();
        assert!(found.len() <= lines, "more than {lines} of {words:?}: {log}");
        if found.len() == lines {
            return found[lines - 1].to_owned();
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{words:?} is missing: {log}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A number of a JSON log line.
fn number(line: &str, name: &str) -> u64 {
    let rest = line.split(&format!("\"{name}\":")).nth(1).unwrap_or_else(|| panic!("no {name} in {line}"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_02_redis_stopped_for_five_seconds_fails_no_call_and_slows_few() {
    let redis = Redis::start();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    healthy(&server).await;
    let load = Load::start(&server).await;
    pass(Duration::from_millis(500)).await;
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
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    healthy(&server).await;
    let load = Load::start(&server).await;
    pass(Duration::from_millis(500)).await;
    let began = Instant::now();
    redis.kill();
    pass(Duration::from_secs(2)).await;
    // Its return is when it answers; from the start of its process until then, nobody could have been decided for.
    let early = Instant::now();
    redis.restart();
    let ended = Instant::now();
    pass(Duration::from_secs(5)).await;
    let answers: Vec<Answer> = load.stop().await.into_iter().filter(|it| it.at < early || it.at >= ended).collect();
    judge("Redis killed", &answers, began, ended);
}

/// What connecting itself can meet: nobody listens, and later somebody does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_absent_at_the_start_slows_no_call_and_is_used_when_it_comes() {
    let mut redis = Redis::start();
    redis.kill();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    let load = Load::start(&server).await;
    let began = Instant::now();
    pass(Duration::from_secs(2)).await;
    let early = Instant::now();
    redis.restart();
    let ended = Instant::now();
    pass(Duration::from_secs(5)).await;
    let answers: Vec<Answer> = load.stop().await.into_iter().filter(|it| it.at < early || it.at >= ended).collect();
    judge("Redis absent at the start", &answers, began, ended);
    logged(&server, "store out of reach", 1).await;
}

/// A device on the way that acknowledges everything and passes nothing on, and forgets the connections it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_15_a_swallowed_connection_is_replaced_and_none_is_left_behind() {
    let redis = Redis::start();
    let proxy = Proxy::before(redis.port);
    let server = Server::start(PLANS, &["--store", &proxy.url()]);
    healthy(&server).await;
    let load = Load::start(&server).await;
    pass(Duration::from_millis(500)).await;
    let (began, before) = (Instant::now(), proxy.accepted());
    proxy.swallow();
    let ended = pass(Duration::from_secs(3)).await;
    let (tried, open) = (proxy.accepted() - before, proxy.open());
    proxy.let_through();
    pass(Duration::from_secs(5)).await;
    judge("connections swallowed", &load.stop().await, began, ended);
    println!("{tried} connections tried in 3 s, {open} open at its end, {} a while after", proxy.open());
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
    let server = Server::start(PLANS, &["--store", &proxy.url()]);
    healthy(&server).await;
    let load = Load::start(&server).await;
    pass(Duration::from_millis(500)).await;
    let opened = |server: &Server| server.log().matches("store out of reach").count();
    let (began, before) = (Instant::now(), opened(&server));
    // Connecting takes some round trips: all of them fit into what a probe is given, and its decision is late.
    proxy.delay(Duration::from_millis(30));
    let ended = pass(Duration::from_secs(3)).await;
    let times = opened(&server) - before;
    proxy.delay(Duration::ZERO);
    pass(Duration::from_secs(5)).await;
    judge("Redis slow", &load.stop().await, began, ended);
    assert_eq!(times, 1, "a probe that is too late must not close the breaker, to be found out by callers");
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
        let answer = client.should_allow(request("k", "open", None)).await.unwrap().into_inner();
        assert_eq!(answer.decided_by(), DecidedBy::FailOpen);
    }
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    let began = Instant::now();
    healthy(&server).await;
    println!("on a Redis that may write again after {:?}", began.elapsed());
    logged(&server, "store out of reach", 1).await;
    logged(&server, "store connected", 2).await;
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
        let answer = client.should_allow(request("k", "open", None)).await.unwrap().into_inner();
        by_policy += u64::from(answer.decided_by() == DecidedBy::FailOpen);
    }
    redis.signal("CONT");
    logged(&server, "store out of reach", 1).await;
    let line = logged(&server, "store connected", 2).await;
    let (out_ms, undecided) = (number(&line, "out_ms"), number(&line, "undecided"));
    println!("{by_policy} by policy; {line}");
    assert!((500..20_000).contains(&out_ms), "{line}");
    // Of the five whose time-outs open it, the last is the first that is counted; some come before the log line.
    assert!(undecided >= by_policy - 5 && undecided <= by_policy, "{by_policy} by policy: {line}");
}

#[tokio::test]
async fn a_store_s_status_tells_its_breaker_and_counts_what_it_owes() {
    let mut redis = Redis::start();
    // A deadline that a busy machine keeps.
    let store = RedisStore::connect(&redis.url(), Duration::from_secs(10)).unwrap();
    assert_eq!(store.status().undecided, 0);
    assert!(store.connected(Duration::from_secs(10)).await);
    let well = store.status();
    assert_eq!((well.breaker, well.opened, well.undecided), (BreakerState::Closed, 0, 0));
    let limit = Limit::new("all", 10, Duration::from_secs(3600), Algorithm::SlidingLog).unwrap();
    let (rule, name) = (Rule::Limits(vec![limit]), Arc::from("plan"));
    let plan = Plan { counts_as: Arc::clone(&name), name, rule, shadow: false, on_store_failure: OnStoreFailure::Local };
    let ask = Ask { key: Key::new("k").unwrap(), plan: Arc::new(plan), cost: Cost::ONE, mode: Mode::Charge };
    assert!(store.decide_one(&ask, DEADLINE * 400).await.unwrap().fits);
    redis.kill();
    let killed = Instant::now();
    while store.status().breaker == BreakerState::Closed {
        assert!(killed.elapsed() < Duration::from_secs(10), "the lost connection is not noticed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Without a wait, though the deadline is long.
    assert!(matches!(store.decide_one(&ask, DEADLINE * 400).await, Err(StoreError::Unreachable(_))));
    for answer in store.decide_batch(&vec![ask; 3], DEADLINE * 400).await {
        assert!(matches!(answer, Err(StoreError::Unreachable(_))));
    }
    let out = store.status();
    assert_eq!((out.opened, out.undecided), (1, 4));
    redis.restart();
    assert!(store.connected(Duration::from_secs(10)).await);
    let back = store.status();
    assert_eq!((back.breaker, back.opened), (BreakerState::Closed, 1));
    assert!(back.probes > well.probes);
}
