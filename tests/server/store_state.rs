//! What is wrong is what one sees first: the head of the status page, and the one sentence on the store that page, `tollgate top`,
//! start line, log, `/readyz` and metrics agree on.

mod ready;

use std::time::{Duration, Instant};

use serde_json::Value;

use super::status_page::LEAST_CONTRAST;
use crate::support::chromium::Chromium;
use crate::support::cluster::Cluster;
use crate::support::http::{Reply, Scrape, get};
use crate::support::redis::{Redis, free_port};
use crate::support::server::{PATIENCE, Server, decide, field, request, tollgate};

const PLANS: &str = "listen: { http: '127.0.0.1:0' }
status: { page: true }
workers: 2
plans:
  login: { limits: [ { name: day, quota: 1000, window: 300d } ] }
  strict: { limits: [ { name: day, quota: 1000, window: 300d } ], on_store_failure: deny }
";

/// What is wrong must stand above this line of the screen.
const FIRST_PIXELS: f64 = 300.0;

/// What the config of [`refuse_a_config`] has wrong.
const WRONG: &str = "plans.login.limits[0].quota";

fn get_json(http: &str) -> Value {
    serde_json::from_str(&get(http, "/status/data").body).unwrap()
}

/// What stands there once it is right.
fn when<T: std::fmt::Debug>(see: impl Fn() -> T, right: impl Fn(&T) -> bool) -> T {
    let began = Instant::now();
    loop {
        let seen = see();
        if right(&seen) {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "{seen:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The second line of `/readyz`: the sentence on the store.
fn sentence(ready: &Reply) -> String {
    ready
        .body
        .lines()
        .nth(1)
        .unwrap_or_else(|| panic!("{ready:?}"))
        .to_owned()
}

/// A server with an admin listener, which `top` asks, and the folder of its socket.
fn start(flags: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let admin = format!(
        "listen.admin=unix:{}",
        folder.path().join("admin.sock").display()
    );
    (
        Server::start(PLANS, &[&["--set", &admin], flags].concat()),
        folder,
    )
}

/// What `tollgate top` prints.
fn top(server: &Server, flags: &[&str]) -> String {
    let admin = field(&server.start_line(), "admin");
    let output = tollgate()
        .args(["top", "--once", "--admin", &admin])
        .args(flags)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn health(server: &Server, service: &[&str]) -> String {
    let output = tollgate()
        .args(["health", "--address", &server.address])
        .args(service)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The page in a browser, once its headline says this.
fn open(http: &str, headline: &str) -> Chromium {
    let mut browser = Chromium::start();
    browser.screen(1280, 800, false);
    browser.open(&format!("http://{http}/status"));
    wait_for_headline(&mut browser, headline);
    browser
}

fn wait_for_headline(browser: &mut Chromium, headline: &str) {
    browser.wait_for(&format!(
        "document.querySelector('h1')?.textContent === 'tollgate {headline}'"
    ));
}

/// Asserts that these words are what is told first, in the first pixels of a desk's and a phone's screen, light and dark.
fn assert_seen_first(browser: &mut Chromium, words: &str, picture: &str) {
    let first = "document.querySelector('#problems li')";
    browser.wait_for(&format!("{first}?.textContent.includes({words:?})"));
    for (width, height, screen) in [(1280, 800, "desk"), (390, 844, "phone")] {
        for (dark, light) in [(false, "light"), (true, "dark")] {
            browser.screen(width, height, dark);
            browser.picture(&format!("{picture}-{screen}-{light}"));
            let bottom = browser
                .eval(&format!(
                    "scrollTo(0, 0); {first}.getBoundingClientRect().bottom"
                ))
                .as_f64()
                .unwrap();
            assert!(
                bottom <= FIRST_PIXELS,
                "{picture}, {screen}, {light}: it ends at {bottom} px"
            );
            let wide = browser
                .eval("document.documentElement.scrollWidth")
                .as_f64()
                .unwrap();
            assert!(
                wide <= f64::from(width),
                "{picture}, {screen}: {wide} px wide"
            );
            let least = browser.eval(LEAST_CONTRAST);
            assert!(
                least[0].as_f64().unwrap() >= 4.5,
                "{picture}, {screen}, {light}: {least}"
            );
        }
    }
    browser.screen(1280, 800, false);
}

fn refuse_a_config(server: &Server, file: &std::path::Path) {
    std::fs::write(
        file,
        PLANS.replace(
            "quota: 1000, window: 300d } ] }",
            "quota: none, window: 300d } ] }",
        ),
    )
    .unwrap();
    server.signal("HUP");
    when(
        || get_json(&server.http()),
        |data| data["config_changes"][0]["outcome"] == "refused",
    );
}

/// Asserts that page and `tollgate top` tell this of a stopped Redis.
fn assert_page_and_top_say(browser: &mut Chromium, server: &Server, said: &str) {
    assert_seen_first(browser, said, "stopped");
    assert_eq!(
        browser.eval("document.title"),
        "serves without Redis – tollgate status"
    );
    assert_eq!(
        browser.eval("document.getElementById('state').className"),
        "bad"
    );
    browser.wait_for("document.getElementById('policy').className === 'bad'");
    assert_eq!(
        browser.eval("document.getElementById('store').textContent"),
        said
    );
    browser.wait_for("document.querySelector('#rates .policy').getAttribute('d') !== ''");
    assert_eq!(top(server, &[]).lines().next(), Some(said));
    let json: Value = serde_json::from_str(&top(server, &["--output", "json"])).unwrap();
    assert_eq!(
        (&json["store_state"], &json["store_decides"]),
        (&said.into(), &false.into())
    );
}

/// What `/readyz` answers once Redis is gone and a new connection is refused.
fn ready_without_redis(http: &str) -> Reply {
    // All connections have noticed, and the last attempt has the same end for each.
    let ready = when(
        || get(http, "/readyz"),
        |ready| ready.body.contains("Redis has not decided since 2"),
    );
    assert_eq!(
        (ready.status, ready.body.lines().next()),
        (200, Some("ready")),
        "the loss of a store takes no replica away"
    );
    when(
        || get(http, "/readyz"),
        |ready| ready.body.contains("Z: Connection refused. "),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_stopped_page_top_log_and_readyz_say_so_first_and_in_the_same_words() {
    let mut redis = Redis::start();
    let (server, _folder) = start(&["--store", &redis.url()]);
    let mut client = server.client().await;
    let http = server.http();
    let well = when(
        || get(&http, "/readyz"),
        |ready| ready.body == "ready\nRedis decides.\n",
    );
    assert_eq!(well.status, 200);
    let mut browser = open(&http, "is serving");
    assert_eq!(
        browser.eval("document.querySelectorAll('#problems li').length"),
        0
    );
    assert!(top(&server, &[]).starts_with("Redis decides.\n"));
    redis.kill();
    wait_for_headline(&mut browser, "serves without Redis");
    for _ in 0..3 {
        assert!(decide(&mut client, "alice", "login").await.allowed);
    }
    let said = sentence(&ready_without_redis(&http));
    assert!(
        said.ends_with(" Each plan's on_store_failure answers meanwhile."),
        "{said}"
    );
    assert_page_and_top_say(&mut browser, &server, &said);
    // A busy machine may have been late at the start, which is another outage.
    let line = server
        .wait_for_line(&format!(
            "store out of reach: Redis at 127.0.0.1:{} has not decided since 2",
            redis.port
        ))
        .await;
    assert!(
        line.contains("Each plan's on_store_failure answers meanwhile."),
        "{line}"
    );
    assert_eq!(
        (
            Scrape::of(&http).value("tollgate_degraded"),
            Scrape::of(&http).value("tollgate_store_reached")
        ),
        (1.0, 1.0)
    );
    redis.restart();
    wait_for_headline(&mut browser, "is serving");
    when(
        || get(&http, "/readyz").body,
        |body| body == "ready\nRedis decides.\n",
    );
    assert!(
        server
            .wait_for_line(&format!(
                "store connected: Redis at 127.0.0.1:{} decides.",
                redis.port
            ))
            .await
            .contains("out_ms")
    );
}

#[test]
fn a_refused_config_is_what_the_page_shows_first_until_it_is_right() {
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::io::Write::write_all(&mut file, PLANS.as_bytes()).unwrap();
    let server = Server::start_on(file.path(), &[]);
    let mut browser = open(&server.http(), "is serving");
    refuse_a_config(&server, file.path());
    wait_for_headline(&mut browser, "serves an old config");
    assert_seen_first(&mut browser, WRONG, "refused");
    std::fs::write(file.path(), PLANS).unwrap();
    server.signal("HUP");
    wait_for_headline(&mut browser, "is serving");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_out_comes_before_a_refused_config_and_that_before_unknown_plans() {
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::io::Write::write_all(&mut file, PLANS.as_bytes()).unwrap();
    let server = Server::start_on(
        file.path(),
        &["--store", &format!("redis://127.0.0.1:{}", free_port())],
    );
    let mut client = server.client().await;
    refuse_a_config(&server, file.path());
    let began = Instant::now();
    let headlines = loop {
        client
            .should_allow(request("alice", "nowhere", None))
            .await
            .unwrap_err();
        let data = get_json(&server.http());
        let headlines: Vec<String> = data["problems"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["headline"].as_str().unwrap().to_owned())
            .collect();
        if headlines.len() == 3 {
            break headlines;
        }
        assert!(began.elapsed() < PATIENCE, "{data}");
    };
    assert_eq!(
        headlines,
        [
            "never reached Redis",
            "serves an old config",
            "is asked for unknown plans"
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_refuses_is_not_said_to_decide() {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.deadline=10s"],
    );
    let mut client = server.client().await;
    let http = server.http();
    when(
        || get(&http, "/readyz").body,
        |body| body.ends_with("Redis decides.\n"),
    );
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(decide(&mut client, "alice", "login").await.allowed);
    let ready = get(&http, "/readyz");
    let said = sentence(&ready);
    assert!(
        ready.status == 200
            && said.starts_with("Redis has refused requests since 2")
            && said.contains("OOM"),
        "{said}"
    );
    assert_eq!(
        get_json(&http)["problems"][0]["headline"],
        "is refused by Redis"
    );
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let again = "the store decides again";
    let began = Instant::now();
    while !server.log().contains(again) {
        assert!(began.elapsed() < PATIENCE, "{}", server.log());
        decide(&mut client, "alice", "login").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.end_and_log().matches(again).count(), 1);
}

#[test]
fn a_cluster_without_a_node_is_not_an_embedded_store() {
    let server = Server::start(
        PLANS,
        &[
            "--store",
            &format!("redis-cluster://127.0.0.1:{}", free_port()),
        ],
    );
    let ready = when(
        || get(&server.http(), "/readyz"),
        |ready| ready.body.contains("Connection refused"),
    );
    assert!(
        sentence(&ready).starts_with("Redis was never reached since 2"),
        "{ready:?}"
    );
    assert_eq!(get_json(&server.http())["store"]["embedded"], false);
    let scrape = Scrape::of(&server.http());
    assert_eq!(
        (
            scrape.value("tollgate_degraded"),
            scrape.value("tollgate_store_reached")
        ),
        (1.0, 0.0)
    );
    let cluster = Cluster::start();
    let server = Server::start(PLANS, &["--store", &cluster.url()]);
    when(
        || get(&server.http(), "/readyz").body,
        |body| body == "ready\nRedis decides.\n",
    );
}

#[test]
fn a_paused_page_says_that_its_updates_are_paused_and_not_the_server() {
    let server = Server::start(PLANS, &[]);
    let mut browser = open(&server.http(), "is serving");
    let button = "document.getElementById('pause')";
    browser.eval(&format!("{button}.click()"));
    assert_eq!(
        browser.eval(&format!("{button}.textContent")),
        "Resume updates"
    );
    assert_eq!(
        browser.eval("document.querySelector('h1').textContent"),
        "tollgate is serving"
    );
    assert!(
        browser
            .eval("document.getElementById('about').textContent")
            .as_str()
            .unwrap()
            .starts_with("Updates are paused.")
    );
    browser.eval(&format!("{button}.click()"));
    assert_eq!(
        browser.eval(&format!("{button}.textContent")),
        "Pause updates"
    );
    browser.wait_for("document.getElementById('about').textContent.startsWith('Version ')");
}
