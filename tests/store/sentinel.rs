//! Redis Sentinel: the server finds the master, follows a failover, and drops the old master.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use tollgate::grpc::pb::DecidedBy;

use crate::support::http::get;
use crate::support::outage::{Load, PLANS, healthy, pass};
use crate::support::redis::Redis;
use crate::support::sentinel::{SERVICE, Watched};
use crate::support::server::{PATIENCE, Server};

/// Waits until some Sentinel announces another master. Returns when the first one did.
async fn first_switch(switches: &[Receiver<Instant>]) -> Instant {
    let started = Instant::now();
    loop {
        if let Some(at) = switches
            .iter()
            .filter_map(|switched| switched.try_recv().ok())
            .min()
        {
            return at;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "no Sentinel announced another master"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_07_after_the_master_is_killed_the_new_one_is_used_soon() {
    let mut watched = Watched::start();
    let server = Server::start(PLANS, &["--store", &watched.url()]);
    healthy(&server).await;
    let (_listeners, switches): (Vec<_>, Vec<_>) = watched
        .sentinels
        .iter()
        .map(|sentinel| sentinel.switches())
        .unzip();
    let load = Load::start(&server).await;
    pass(Duration::from_millis(500)).await;
    let killed = Instant::now();
    watched.servers[0].kill();
    let switched = first_switch(&switches).await;
    server.wait_until_decided_by(DecidedBy::Store, "open").await;
    pass(Duration::from_millis(500)).await;
    let answers = load.stop().await;
    let during = answers
        .iter()
        .filter(|answer| answer.at > killed && answer.at < switched);
    let worst = during.map(|answer| answer.took).max().unwrap();
    let back = answers.iter().find(|answer| {
        answer.at > killed + Duration::from_millis(300) && answer.by == DecidedBy::Store
    });
    let back = back
        .map(|answer| (answer.at + answer.took).saturating_duration_since(switched))
        .unwrap();
    println!(
        "switched {:?} after the kill; on the new master {back:?} later; slowest answer {worst:?}",
        switched - killed
    );
    assert!(back < Duration::from_secs(4), "{back:?}");
    assert!(worst < Duration::from_secs(2), "{worst:?}");
    assert_ne!(watched.sentinels[0].master(), watched.servers[0].port);
}

/// After a failover by command, the old master stays up and accepts writes for seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_08_an_old_master_that_still_accepts_writes_is_dropped_at_the_switch() {
    let watched = Watched::start();
    let server = Server::start(PLANS, &["--store", &watched.url()]);
    healthy(&server).await;
    let (_listeners, switches): (Vec<_>, Vec<_>) = watched
        .sentinels
        .iter()
        .map(|sentinel| sentinel.switches())
        .unzip();
    let load = Load::start(&server).await;
    pass(Duration::from_millis(300)).await;
    assert_eq!(
        watched.sentinels[1].cli(&["SENTINEL", "FAILOVER", SERVICE]),
        "OK"
    );
    let switched = first_switch(&switches).await;
    let old = &watched.servers[0];
    let mut count = old.ran("evalsha");
    let mut last_write = switched;
    while switched.elapsed() < Duration::from_secs(2) {
        let now = old.ran("evalsha");
        if now > count {
            (count, last_write) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let answers = load.stop().await;
    let written = last_write.saturating_duration_since(switched);
    let back = answers
        .iter()
        .find(|answer| answer.at > switched + written && answer.by == DecidedBy::Store);
    let back = back
        .map(|answer| (answer.at + answer.took).saturating_duration_since(switched))
        .unwrap();
    let by_policy = answers
        .iter()
        .filter(|answer| answer.by != DecidedBy::Store)
        .count();
    println!(
        "the old master was last written to {written:?} after the switch, the new one decides after {back:?}; \
         {by_policy} of {} answers by policy",
        answers.len()
    );
    assert!(
        written < Duration::from_millis(700),
        "written to for {written:?}"
    );
    assert!(back < Duration::from_secs(4), "{back:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_08_a_stopped_master_that_continues_after_the_failover_is_not_asked() {
    let watched = Watched::start();
    let server = Server::start(PLANS, &["--store", &watched.url()]);
    healthy(&server).await;
    let (_listeners, switches): (Vec<_>, Vec<_>) = watched
        .sentinels
        .iter()
        .map(|sentinel| sentinel.switches())
        .unzip();
    let load = Load::start(&server).await;
    pass(Duration::from_millis(300)).await;
    let old = &watched.servers[0];
    old.signal("STOP");
    let stopped = Instant::now();
    let switched = first_switch(&switches).await;
    server.wait_until_decided_by(DecidedBy::Store, "open").await;
    let back = switched.elapsed();
    old.signal("CONT");
    // The old master now executes the commands that arrived while it was stopped.
    pass(Duration::from_millis(200)).await;
    let woken = old.ran("evalsha");
    pass(Duration::from_secs(1)).await;
    let later = old.ran("evalsha");
    load.stop().await;
    println!(
        "switched {:?} after the stop, on the new master {back:?} later; {woken} calls before, {later} after",
        switched - stopped
    );
    assert_eq!(woken, later, "the old master is asked");
    assert!(back < Duration::from_secs(4), "{back:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_may_be_absent_stopped_or_ignorant_as_long_as_one_knows_the_master() {
    let watched = Watched::start();
    watched.sentinels[0].signal("STOP");
    // A Redis that is not a Sentinel, and a port at which no process listens.
    let ignorant = Redis::start();
    let others = format!("&node=127.0.0.1:{}&node=127.0.0.1:1", ignorant.port);
    let server = Server::start(PLANS, &["--store", &format!("{}{others}", watched.url())]);
    server.wait_until_decided_by(DecidedBy::Store, "open").await;
    watched.sentinels[1].signal("STOP");
    // By then the server has dropped the silent Sentinel, and keeps the master.
    pass(Duration::from_secs(2)).await;
    server.wait_until_decided_by(DecidedBy::Store, "open").await;
    server.wait_for_line("this Sentinel names no master").await;
    watched
        .sentinels
        .iter()
        .take(2)
        .for_each(|sentinel| sentinel.signal("CONT"));
}

/// The two questions that a Sentinel is asked fail with different words.
#[tokio::test]
async fn a_redis_that_is_no_sentinel_is_logged_once_and_ready_tells_its_error() {
    let redis = Redis::start();
    let url = format!(
        "redis-sentinel://127.0.0.1:{}?sentinelServiceName=m",
        redis.port
    );
    let flags = ["--store", &url, "--set", "workers=1"];
    let server = Server::start(
        PLANS,
        &[&flags[..], &["--set", "listen.http=127.0.0.1:0"]].concat(),
    );
    let words = "no Sentinel has named a master yet; the last error is of 127.0.0.1";
    let began = Instant::now();
    let mut ready = String::new();
    while !ready.contains(words) {
        assert!(began.elapsed() < PATIENCE, "{ready}");
        ready = get(&server.http(), "/readyz").body;
    }
    assert!(ready.contains("unknown command"), "{ready}");
    // It was asked dozens of times by then.
    pass(Duration::from_secs(3)).await;
    let log = server.end_and_log();
    assert_eq!(
        log.matches("this Sentinel names no master").count(),
        1,
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_servers_have_passwords_of_their_own() {
    let lines = format!(
        "requirepass canary-two\nsentinel sentinel-pass canary-two\nsentinel auth-pass {SERVICE} canary-one"
    );
    let passwords = ["--requirepass", "canary-one", "--masterauth", "canary-one"];
    let watched = Watched::start_with(&passwords, &lines);
    let url = watched.url().replace("://", "://:canary-one@") + "&sentinelPassword=canary-two";
    let server = Server::start(PLANS, &["--store", &url]);
    server.wait_until_decided_by(DecidedBy::Store, "open").await;
    let log = server.end_and_log();
    assert!(!log.contains("canary"), "{log}");
}
