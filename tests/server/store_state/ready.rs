//! Readiness and the store: by `store.ready`, a replica waits until it has reached its store once.

use tollgate::grpc::pb;

use super::{PLANS, assert_seen_first, health, open, sentence, start, top, when};
use crate::support::http::{Reply, Scrape, get};
use crate::support::redis::Redis;
use crate::support::server::{Server, decide};

/// Whether `/readyz` tells that Redis was never reached, because of the password.
fn refuses_the_password(ready: &Reply) -> bool {
    ready.body.contains("\nRedis was never reached since 2") && ready.body.contains("WRONGPASS")
}

/// Asserts that start line, log, `tollgate top` and metrics tell of a store that was never reached.
async fn assert_wrong_password_is_told(server: &Server, said: &str) {
    assert!(
        server
            .start_line()
            .contains("Redis was never reached since 2"),
        "{}",
        server.start_line()
    );
    assert!(
        server
            .wait_for_line("store out of reach")
            .await
            .contains("WRONGPASS")
    );
    assert_eq!(top(server, &[]).lines().next(), Some(said));
    let scrape = Scrape::of(&server.http());
    assert_eq!(
        (
            scrape.value("tollgate_store_reached"),
            scrape.value("tollgate_degraded")
        ),
        (0.0, 1.0)
    );
}

/// A server that need not reach its store is ready without it.
fn assert_is_ready_without_the_store(url: &str) {
    let always = Server::start(PLANS, &["--store", url]);
    let ready = when(|| get(&always.http(), "/readyz"), refuses_the_password);
    assert_eq!(
        (
            ready.status,
            health(&always, &["--service", "readiness"]).as_str()
        ),
        (200, "SERVING")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_named_and_keeps_a_replica_from_being_ready_where_that_is_asked() {
    let redis = Redis::start_with(&["--requirepass", "right-canary"]);
    let url = format!("redis://:wrong-canary@127.0.0.1:{}", redis.port);
    assert_is_ready_without_the_store(&url);

    let (server, _folder) = start(&["--store", &url, "--set", "store.ready=once_reached"]);
    let mut client = server.client().await;
    let http = server.http();
    let ready = when(|| get(&http, "/readyz"), refuses_the_password);
    assert_eq!(
        (ready.status, ready.body.lines().next()),
        (503, Some("waiting for the store"))
    );
    assert_eq!(health(&server, &["--service", "readiness"]), "NOT_SERVING");
    assert_eq!(health(&server, &[]), "SERVING", "the process is alive");
    // Whoever calls it nevertheless gets an answer.
    assert_eq!(
        decide(&mut client, "alice", "strict").await.decided_by(),
        pb::DecidedBy::FailClosed
    );
    let said = sentence(&ready);
    assert_wrong_password_is_told(&server, &said).await;
    let mut browser = open(&http, "never reached Redis");
    assert_seen_first(&mut browser, &said, "password");
    // The server's password becomes the one that was given.
    redis.cli(&[
        "-a",
        "right-canary",
        "CONFIG",
        "SET",
        "requirepass",
        "wrong-canary",
    ]);
    when(
        || get(&http, "/readyz"),
        |ready| (ready.status, ready.body.as_str()) == (200, "ready\nRedis decides.\n"),
    );
    when(
        || health(&server, &["--service", "readiness"]),
        |health| health == "SERVING",
    );
    assert_eq!(Scrape::of(&http).value("tollgate_store_reached"), 1.0);
    redis.cli(&["-a", "wrong-canary", "CONFIG", "SET", "requirepass", ""]);
    let page = browser.eval("document.body.innerText");
    let data = get(&http, "/status/data").body;
    for text in [
        page.as_str().unwrap().to_owned(),
        data,
        server.end_and_log(),
    ] {
        assert!(!text.contains("canary"), "{text}");
    }
}

#[test]
fn a_replica_that_was_ready_stays_so_when_redis_goes() {
    let mut redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.ready=once_reached"],
    );
    when(
        || get(&server.http(), "/readyz"),
        |ready| ready.status == 200,
    );
    redis.kill();
    let ready = when(
        || get(&server.http(), "/readyz"),
        |ready| ready.body.contains("Redis has not decided since 2"),
    );
    assert_eq!(ready.status, 200);
    // gRPC's health follows within a tenth of a second.
    when(
        || health(&server, &["--service", "readiness"]),
        |health| health == "SERVING",
    );
    // The embedded store needs no connection.
    let embedded = Server::start(PLANS, &["--set", "store.ready=once_reached"]);
    let ready = get(&embedded.http(), "/readyz");
    assert_eq!(
        (ready.status, sentence(&ready).split(':').next()),
        (200, Some("The embedded store decides"))
    );
    assert!(embedded.start_line().contains("The embedded store decides"));
}
