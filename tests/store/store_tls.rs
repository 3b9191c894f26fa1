//! TLS to Redis, with and without a client certificate, and secrets in files. The next connection uses a replaced file.

use std::time::{Duration, Instant};

use tollgate::grpc::pb::DecidedBy;

use crate::support::authority::Authority;
use crate::support::http::Scrape;
use crate::support::outage::PLANS;
use crate::support::redis::{Redis, free_port};
use crate::support::server::{PATIENCE, Server, request, tollgate};

/// A Redis that speaks TLS at the port returned, and plainly, for redis-cli, at its own.
fn redis_over_tls(authority: &Authority, extra: &[&str]) -> (Redis, u16) {
    let port = free_port().to_string();
    let certificate = authority.text("redis.crt");
    let key = authority.text("redis.key");
    let ca = authority.text("ca.crt");
    let tls = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
    ];
    (
        Redis::start_with(&[&tls[..], extra].concat()),
        port.parse().unwrap(),
    )
}

async fn decided_by(server: &Server) -> DecidedBy {
    server
        .client()
        .await
        .should_allow(request("k", "open", None))
        .await
        .unwrap()
        .into_inner()
        .decided_by()
}

async fn wait_until_decided(server: &Server) {
    server.wait_until_decided_by(DecidedBy::Store, "open").await;
}

/// Waits until the log says why the store is out of reach.
async fn wait_for_reason(server: &Server, words: &str) {
    let started = Instant::now();
    while !server.log().contains(words) {
        assert_eq!(decided_by(server).await, DecidedBy::FailOpen);
        assert!(
            started.elapsed() < PATIENCE,
            "{words:?} is missing: {}",
            server.log()
        );
    }
}

fn set(path: &str, value: &str) -> [String; 2] {
    ["--set".to_owned(), format!("{path}={value}")]
}

fn start(url: &str, settings: &[[String; 2]]) -> Server {
    let settings = settings.iter().flatten().map(String::as_str);
    Server::start(
        PLANS,
        &["--store", url]
            .into_iter()
            .chain(settings)
            .collect::<Vec<_>>(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_used_over_tls_only_with_a_valid_certificate() {
    let authority = Authority::new();
    authority.sign("redis", "127.0.0.1");
    let (plain, port) = redis_over_tls(&authority, &["--tls-auth-clients", "no"]);
    let url = format!("rediss://127.0.0.1:{port}");
    let ca = set("store.tls.ca_file", &authority.text("ca.crt"));
    wait_until_decided(&start(&url, std::slice::from_ref(&ca))).await;
    let other = Authority::new();
    wait_for_reason(
        &start(&url, &[set("store.tls.ca_file", &other.text("ca.crt"))]),
        "InvalidCertificate",
    )
    .await;
    let elsewhere = set("store.tls.server_name", "redis.internal");
    wait_for_reason(
        &start(&url, &[ca.clone(), elsewhere.clone()]),
        "store out of reach",
    )
    .await;
    // What speaks no TLS.
    wait_for_reason(
        &start(
            &format!("rediss://127.0.0.1:{}", plain.port),
            std::slice::from_ref(&ca),
        ),
        "store out of reach",
    )
    .await;
    // A name that the address is not.
    authority.sign("redis", "redis.internal");
    let (_named, port) = redis_over_tls(&authority, &["--tls-auth-clients", "no"]);
    wait_until_decided(&start(
        &format!("rediss://127.0.0.1:{port}"),
        &[ca, elsewhere],
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_22_a_certificate_that_was_rotated_is_shown_by_the_next_connection() {
    let authority = Authority::new();
    let stranger = Authority::new();
    authority.sign("redis", "127.0.0.1");
    stranger.sign("tollgate", "tollgate");
    let (redis, port) = redis_over_tls(&authority, &[]);
    for file in ["tollgate.crt", "tollgate.key"] {
        std::fs::copy(stranger.path(file), authority.path(file)).unwrap();
    }
    let url = format!("rediss://127.0.0.1:{port}");
    let files = [
        ("ca_file", "ca.crt"),
        ("cert_file", "tollgate.crt"),
        ("key_file", "tollgate.key"),
    ];
    let settings: Vec<_> = files
        .iter()
        .map(|(field, file)| set(&format!("store.tls.{field}"), &authority.text(file)))
        .collect();
    wait_for_reason(&start(&url, &settings[..1]), "store out of reach").await;
    let server = start(&url, &settings);
    wait_for_reason(&server, "store out of reach").await;
    authority.sign("tollgate", "tollgate");
    wait_until_decided(&server).await;
    // A pair that does not fit is told of, and disturbs nothing that is connected.
    std::fs::copy(
        stranger.path("tollgate.key"),
        authority.path("tollgate.key"),
    )
    .unwrap();
    wait_until_decided(&server).await;
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    wait_for_reason(&server, "do not go together").await;
    authority.sign("tollgate", "tollgate");
    wait_until_decided(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_asked_over_tls() {
    let authority = Authority::new();
    authority.sign("redis", "127.0.0.1");
    let bus = free_port().to_string();
    let alone = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--tls-cluster",
        "yes",
        "--tls-auth-clients",
        "no",
    ];
    let (redis, port) = redis_over_tls(&authority, &alone);
    assert_eq!(redis.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    let ca = set("store.tls.ca_file", &authority.text("ca.crt"));
    wait_until_decided(&start(&format!("rediss-cluster://127.0.0.1:{port}"), &[ca])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_in_a_file_is_read_again_when_it_was_rotated() {
    let redis = Redis::start();
    redis.cli(&[
        "ACL",
        "SETUSER",
        "gate",
        "on",
        ">canary-old",
        "allcommands",
        "allkeys",
    ]);
    redis.cli(&["ACL", "SETUSER", "default", "off"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "canary-old\n").unwrap();
    let settings = [
        set("store.username", "gate"),
        set("store.password_file", file.path().to_str().unwrap()),
    ];
    let server = start(&redis.url(), &settings);
    wait_until_decided(&server).await;
    let gate = ["--user", "gate", "--pass", "canary-old"];
    redis.cli(
        &[
            &gate[..],
            &["ACL", "SETUSER", "gate", "resetpass", ">canary-new"],
        ]
        .concat(),
    );
    let gate = ["--user", "gate", "--pass", "canary-new"];
    redis.cli(&[&gate[..], &["CLIENT", "KILL", "USER", "gate"]].concat());
    wait_for_reason(&server, "store out of reach").await;
    std::fs::write(file.path(), "canary-new\n").unwrap();
    wait_until_decided(&server).await;
    let log = server.end_and_log();
    assert!(!log.contains("canary"), "{log}");
    redis.cli(&[&gate[..], &["ACL", "SETUSER", "default", "on"]].concat());
}

#[test]
fn a_file_that_cannot_be_used_ends_the_start_and_its_setting_is_named() {
    let authority = Authority::new();
    authority.sign("a", "a");
    authority.sign("b", "b");
    let garbled = "-----BEGIN CERTIFICATE-----\ncanary\n-----END CERTIFICATE-----\n";
    std::fs::write(authority.path("garbled"), garbled).unwrap();
    std::fs::write(authority.path("empty"), "").unwrap();
    let folder = authority.text("").trim_end_matches('/').to_owned();
    for (files, words) in UNUSABLE_FILES {
        let settings: Vec<_> = files
            .iter()
            .map(|(setting, file)| set(setting, &authority.text(file)))
            .collect();
        let told = refusal(&settings);
        assert!(
            words.iter().all(|word| told.contains(word)),
            "{words:?}: {told}"
        );
        assert!(
            !told.contains("canary") && !told.contains(&folder),
            "{told}"
        );
    }
}

/// Settings with the file of each, and words that must be in the refusal.
type Row = (&'static [(&'static str, &'static str)], [&'static str; 2]);

const CA: (&str, &str) = ("store.tls.ca_file", "ca.crt");
const CERTIFICATE: (&str, &str) = ("store.tls.cert_file", "a.crt");
const UNUSABLE_FILES: [Row; 7] = [
    (
        &[("store.tls.ca_file", "absent")],
        ["store.tls.ca_file", "No such file"],
    ),
    (
        &[("store.tls.ca_file", "garbled")],
        ["store.tls.ca_file", "not an authority's certificate"],
    ),
    (
        &[("store.tls.ca_file", "empty")],
        ["store.tls.ca_file", "there is none in it"],
    ),
    (&[CA, CERTIFICATE], ["cert_file and key_file", "name both"]),
    (
        &[CA, CERTIFICATE, ("store.tls.key_file", "b.key")],
        ["store.tls.cert_file", "do not go together"],
    ),
    (
        &[CA, CERTIFICATE, ("store.tls.key_file", "a.crt")],
        ["store.tls.key_file", "private key"],
    ),
    (
        &[("store.password_file", "empty"), CA],
        ["store.password_file", "first line"],
    ),
];

/// What a server with these settings writes before it ends.
fn refusal(settings: &[[String; 2]]) -> String {
    let output = tollgate()
        .args(["--store", "rediss://h", "--listen", "127.0.0.1:0"])
        .args(settings.iter().flatten())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{settings:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A certificate of 4096 bits, as many authorities inside companies still give: each handshake costs Redis some milliseconds.
fn sign_rsa_4096(authority: &Authority) {
    let extensions = "[req]\ndistinguished_name=name\nx509_extensions=leaf\nprompt=no\n[name]\nCN=redis\n\
                      [leaf]\nbasicConstraints=critical,CA:FALSE\nsubjectAltName=IP:127.0.0.1\n";
    std::fs::write(authority.path("openssl.conf"), extensions).unwrap();
    let config = authority.text("openssl.conf");
    let key = authority.text("redis.key");
    let certificate = authority.text("redis.crt");
    let made = std::process::Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:4096", "-nodes", "-days", "3650", "-config", &config,
        ])
        .args(["-keyout", &key, "-out", &certificate])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    // It is its own authority.
    std::fs::copy(authority.path("redis.crt"), authority.path("ca.crt")).unwrap();
}

/// Connections to Redis over which these servers ask it; each worker has one.
fn connections(servers: &[Server]) -> usize {
    let of = |server: &Server| {
        let text = Scrape::of(&server.http()).text;
        let closed = text.lines().find(|line| {
            line.starts_with("tollgate_store_connections{") && line.contains("\"closed\"")
        });
        closed
            .and_then(|line| line.rsplit_once(' '))
            .map_or(0, |(_, count)| count.parse().unwrap())
    };
    servers.iter().map(of).sum()
}

/// Waits until all servers are connected to Redis. Returns how long that took. The promise is ten seconds on an idle machine.
fn all_connected(servers: &[Server], count: usize) -> Duration {
    let started = Instant::now();
    loop {
        let connected = connections(servers);
        if connected == count {
            return started.elapsed();
        }
        assert!(connected < count, "{connected} of {count}");
        assert!(
            started.elapsed() < PATIENCE,
            "{connected} of {count} connected"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// More connections at once than a server of such a certificate makes in half a second.
#[test]
fn fault_51_many_connections_reach_a_redis_with_slow_tls_handshakes_also_after_its_restart() {
    for (processes, workers) in [(1, 150), (20, 6)] {
        let authority = Authority::new();
        sign_rsa_4096(&authority);
        let (mut redis, port) = redis_over_tls(
            &authority,
            &["--tls-auth-clients", "no", "--maxclients", "1000"],
        );
        let url = format!("rediss://127.0.0.1:{port}");
        let settings = [
            set("store.tls.ca_file", &authority.text("ca.crt")),
            set("workers", &workers.to_string()),
            set("listen.http", "127.0.0.1:0"),
        ];
        let servers: Vec<Server> = (0..processes).map(|_| start(&url, &settings)).collect();
        let count = processes * workers;
        let first = all_connected(&servers, count);
        redis.kill();
        while connections(&servers) > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        redis.restart();
        println!(
            "{processes} processes of {workers} workers: {first:?} at first, {:?} again",
            all_connected(&servers, count)
        );
    }
}
