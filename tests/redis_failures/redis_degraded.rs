//! A Redis that runs and does not serve: full of clients, busy, still loading, empty, or asked for again by everybody at once.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use tollgate::grpc::pb::{DecidedBy, Outcome};

use crate::support::Guarded;
use crate::support::http::Scrape;
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, decide};

const QUOTA: u64 = 10;
const PLANS: &str = "
workers: 1
plans:
  day: { limits: [ { quota: 10, window: 300d, algorithm: fixed_window } ], on_store_failure: deny }
";

/// Asks for a new key each time, until the decision is made `by` this decider.
async fn wait_until_decided_by(client: &mut Client, by: DecidedBy) -> Duration {
    let started = Instant::now();
    for probe in 0.. {
        let answer = decide(client, &format!("probe {probe}"), "day").await;
        if answer.decided_by() == by {
            break;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "still decided by {:?}",
            answer.decided_by()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    started.elapsed()
}

async fn granted(client: &mut Client) -> u64 {
    let mut granted = 0;
    while decide(client, "k", "day").await.outcome() == Outcome::Allowed {
        granted += 1;
    }
    granted
}

/// Redis says so itself, to each connection.
#[tokio::test]
async fn fault_11_a_redis_that_may_drop_counters_is_warned_of() {
    let redis = Redis::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    let warning = server.wait_for_line("may drop counters").await;
    assert!(warning.contains("\"policy\":\"allkeys-lru\""), "{warning}");
    let sound = Redis::start_with(&["--maxmemory", "100mb"]);
    let quiet = Server::start(PLANS, &["--store", &sound.url()]);
    wait_until_decided_by(&mut quiet.client().await, DecidedBy::Store).await;
    let log = quiet.end_and_log();
    assert!(!log.contains("may drop counters"), "{log}");
}

#[tokio::test]
async fn fault_04_a_redis_that_lost_its_data_passes_one_quota_more_at_each_loss() {
    let mut redis = Redis::start();
    let flags = [
        "--store",
        &redis.url(),
        "--set",
        "deny_cache.entries=0",
        "--set",
        "listen.http=127.0.0.1:0",
    ];
    let server = Server::start(PLANS, &flags);
    let mut client = server.client().await;
    wait_until_decided_by(&mut client, DecidedBy::Store).await;
    assert_eq!(granted(&mut client).await, QUOTA);
    redis.cli(&["FLUSHALL"]);
    assert_eq!(granted(&mut client).await, QUOTA);
    let node = format!("{{node=\"127.0.0.1:{}\"}}", redis.port);
    let of_node = |metric: &str| Scrape::of(&server.http()).value(&format!("{metric}{node}"));
    assert_eq!(
        (
            of_node("tollgate_store_replaced_total"),
            of_node("tollgate_store_breaker_opened_total")
        ),
        (0.0, 0.0)
    );
    redis.kill();
    wait_until_decided_by(&mut client, DecidedBy::FailClosed).await;
    assert_eq!(Scrape::of(&server.http()).value("tollgate_degraded"), 1.0);
    redis.restart();
    wait_until_decided_by(&mut client, DecidedBy::Store).await;
    assert_eq!(granted(&mut client).await, QUOTA);
    assert_eq!(granted(&mut client).await, 0);
    let started = Instant::now();
    while of_node("tollgate_store_replaced_total") != 1.0
        || Scrape::of(&server.http()).value("tollgate_degraded") != 0.0
    {
        assert!(
            started.elapsed() < PATIENCE,
            "the loss is not told: {}",
            Scrape::of(&server.http()).text
        );
    }
    // The connection of the only worker.
    let closed = format!(
        "tollgate_store_connections{{node=\"127.0.0.1:{}\",breaker=\"closed\"}}",
        redis.port
    );
    assert_eq!(Scrape::of(&server.http()).value(&closed), 1.0);
    assert_eq!(of_node("tollgate_store_breaker_opened_total"), 1.0);
    // The first connection, and the one after the loss; perhaps others that found no Redis.
    assert!(of_node("tollgate_store_probes_total") >= 2.0);
}

/// Redis has as many clients as it may, so it sends a new one an error and closes the connection.
#[tokio::test]
async fn fault_12_a_redis_without_room_for_one_more_client_is_used_once_there_is() {
    let redis = Redis::start_with(&["--maxclients", "4"]);
    let idle: Vec<TcpStream> = (0..4)
        .map(|_| TcpStream::connect(("127.0.0.1", redis.port)).unwrap())
        .collect();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    let mut client = server.client().await;
    for _ in 0..100 {
        assert_eq!(
            decide(&mut client, "k", "day").await.decided_by(),
            DecidedBy::FailClosed
        );
    }
    drop(idle);
    println!(
        "on Redis {:?} after it had room",
        wait_until_decided_by(&mut client, DecidedBy::Store).await
    );
    assert_eq!(granted(&mut client).await, QUOTA);
}

/// A script of another program runs for a long time. tollgate does not kill it, and answers by policy until it ends.
#[tokio::test]
async fn fault_13_a_redis_that_is_busy_with_another_s_script_is_answered_for() {
    let redis = Redis::start_with(&["--busy-reply-threshold", "20"]);
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    let mut client = server.client().await;
    wait_until_decided_by(&mut client, DecidedBy::Store).await;
    let port = redis.port.to_string();
    let mut endless = std::process::Command::new("redis-cli");
    let endless = endless
        .args(["-p", &port, "EVAL", "while true do end", "0"])
        .stdout(std::process::Stdio::null());
    let mut endless = Guarded(endless.spawn().unwrap());
    wait_until_decided_by(&mut client, DecidedBy::FailClosed).await;
    for _ in 0..200 {
        assert_eq!(
            decide(&mut client, "k", "day").await.decided_by(),
            DecidedBy::FailClosed
        );
    }
    assert!(
        endless.0.try_wait().unwrap().is_none(),
        "the script was killed, and not by this test"
    );
    assert_eq!(redis.cli(&["SCRIPT", "KILL"]), "OK");
    println!(
        "on Redis {:?} after the script's end",
        wait_until_decided_by(&mut client, DecidedBy::Store).await
    );
    // Of the calls that it had taken in and not answered, some may still be charged.
    assert!(granted(&mut client).await <= QUOTA);
}

#[tokio::test]
async fn fault_13_a_redis_that_is_loading_is_answered_for_and_has_its_counts() {
    let redis = Redis::start_with(&["--enable-debug-command", "yes"]);
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "deny_cache.entries=0"],
    );
    let mut client = server.client().await;
    wait_until_decided_by(&mut client, DecidedBy::Store).await;
    assert_eq!(granted(&mut client).await, QUOTA);
    let fill = "for i = 1, 3000 do redis.call('SET', 'filler' .. i, string.rep('x', 3000), 'EX', 1000) end";
    redis.cli(&["EVAL", fill, "0"]);
    // A millisecond for each key, so that it loads for three seconds and answers meanwhile.
    redis.cli(&["CONFIG", "SET", "key-load-delay", "1000"]);
    let port = redis.port.to_string();
    let mut reload = std::process::Command::new("redis-cli");
    let mut reload = Guarded(
        reload
            .args(["-p", &port, "DEBUG", "RELOAD"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap(),
    );
    wait_until_decided_by(&mut client, DecidedBy::FailClosed).await;
    let mut refused = 0;
    while reload.0.try_wait().unwrap().is_none() {
        refused += u64::from(
            decide(&mut client, "other", "day").await.decided_by() == DecidedBy::FailClosed,
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!(
        "{refused} answered while it loaded; on Redis {:?} after",
        wait_until_decided_by(&mut client, DecidedBy::Store).await
    );
    assert!(
        refused > 100,
        "{refused}: it did not load long enough to tell"
    );
    assert_eq!(
        granted(&mut client).await,
        0,
        "what was counted before is not forgotten"
    );
}

/// Many replicas lose Redis at one instant. None asks for it more than a few times a second, and when it is back each comes
/// with one connection and one script.
#[tokio::test]
async fn fault_32_many_replicas_come_back_to_redis_without_a_rush() {
    const REPLICAS: usize = 8;
    let mut redis = Redis::start();
    let servers: Vec<Server> = (0..REPLICAS)
        .map(|_| Server::start(PLANS, &["--store", &redis.url()]))
        .collect();
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(server.client().await);
        wait_until_decided_by(clients.last_mut().unwrap(), DecidedBy::Store).await;
    }
    redis.kill();
    for client in &mut clients {
        wait_until_decided_by(client, DecidedBy::FailClosed).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    redis.restart();
    let returned = Instant::now();
    for client in &mut clients {
        wait_until_decided_by(client, DecidedBy::Store).await;
    }
    let took = returned.elapsed();
    let statistics = redis.cli(&["INFO", "stats"]);
    let connections = statistics
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    let connections: u64 = connections.unwrap().trim().parse().unwrap();
    let loads = redis.ran("script|load");
    println!(
        "{REPLICAS} replicas on Redis within {took:?} of its return: {connections} connections, {loads} scripts loaded"
    );
    // The script that decides, by each, and perhaps the one that counts replicas.
    assert!(
        (REPLICAS as u64..=2 * REPLICAS as u64).contains(&loads),
        "{loads} scripts loaded"
    );
    // One each, and what the test itself asked by: to see that it is up, and these two questions.
    assert!(
        connections <= REPLICAS as u64 + 8,
        "{connections} connections"
    );
}

/// The connections end first, and Redis refuses new ones for another reason, which is what helps.
#[tokio::test]
async fn an_outage_whose_cause_changes_is_logged_by_each_cause_once() {
    let redis = Redis::start();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    let mut client = server.client().await;
    wait_until_decided_by(&mut client, DecidedBy::Store).await;
    redis.cli(&["CONFIG", "SET", "requirepass", "canary"]);
    redis.cli(&["-a", "canary", "CLIENT", "KILL", "TYPE", "normal"]);
    wait_until_decided_by(&mut client, DecidedBy::FailClosed).await;
    let line = server.wait_for_line("NOAUTH").await;
    assert!(line.contains("store out of reach"), "{line}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(
        server.log().matches("NOAUTH").count(),
        1,
        "{}",
        server.log()
    );
    redis.cli(&["-a", "canary", "CONFIG", "SET", "requirepass", ""]);
    wait_until_decided_by(&mut client, DecidedBy::Store).await;
}

#[tokio::test]
async fn fault_11_a_user_who_may_not_ask_for_info_is_warned_of() {
    let redis = Redis::start();
    let user = "ACL SETUSER tollgate on >canary ~* &* +@all -info";
    redis.cli(&user.split(' ').collect::<Vec<_>>());
    let url = redis.url().replacen("://", "://tollgate:canary@", 1);
    let server = Server::start(PLANS, &["--store", &url, "--set", "workers=4"]);
    wait_until_decided_by(&mut server.client().await, DecidedBy::Store).await;
    let warning = "may not call INFO";
    server.wait_for_line(warning).await;
    let log = server.end_and_log();
    assert_eq!(log.matches(warning).count(), 1, "{log}");
}
