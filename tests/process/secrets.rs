//! Row 28 of the table of faults: whatever is secret, and where it is kept, is told by no log at any level, no metric, no error
//! and no report of `check`, whatever goes wrong.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use tollgate::grpc::pb;
use tonic::Request;

use crate::support::admin::admin_at;
use crate::support::http::get;
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, decide, request, tollgate};

/// In every secret, and in every path that leads to one.
const CANARY: &str = "canary";
const TOKEN: &str = "canary-token-of-the-admin";

fn config(store: &str, folder: &Path) -> String {
    format!(
        "listen: {{ http: '127.0.0.1:0', admin: 'unix:{0}/admin.sock', admin_token_file: '{0}/canary-token' }}\n\
         store: {{ url: '{store}' }}\n\
         plans: {{ day: {{ limits: [ {{ quota: 1, window: 300d }} ] }} }}\n",
        folder.display()
    )
}

/// Everything that anybody was told.
#[derive(Default)]
struct Told(Vec<(String, String)>);

impl Told {
    fn add(&mut self, by: &str, text: impl Into<String>) {
        self.0.push((by.to_owned(), text.into()));
    }

    fn add_output(&mut self, by: &str, output: &Output) {
        self.add(by, String::from_utf8_lossy(&output.stdout));
        self.add(by, String::from_utf8_lossy(&output.stderr));
    }

    fn assert_no_secret(&self) {
        for (by, text) in &self.0 {
            let line = text
                .lines()
                .find(|line| line.to_lowercase().contains(CANARY));
            assert!(line.is_none(), "{by} told a secret: {}", line.unwrap());
        }
    }
}

/// A Redis that knows its password, then another one, and in between is gone; calls of all kinds meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_28_a_server_reveals_no_secret_through_outages_and_reloads() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("canary-token"), TOKEN).unwrap();
    let mut redis = Redis::start_with(&["--requirepass", "canary-password"]);
    let url = format!("redis://default:canary-password@127.0.0.1:{}", redis.port);
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, config(&url, folder.path())).unwrap();
    let mut server = Server::start_on_in(&file, &["--log-level", "trace"], &VARIABLES);
    let mut told = Told::default();
    let mut client = server.client().await;
    decide(&mut client, "k", "day").await;
    admin_calls(folder.path(), &mut told).await;
    redis.kill();
    decide(&mut client, "k", "day").await;
    redis.restart();
    change_password(&redis);
    wait_until_refused(&server, &mut client).await;
    let unknown = client.should_allow(request("k", "none", None)).await;
    told.add("an unknown plan", unknown.unwrap_err().to_string());
    reload_wrong_configs(&server, &file).await;
    told.add("/metrics", get(&server.http(), "/metrics").body);
    let check = get(&server.http(), "/v1/check?key=k&plan=day&deny_status=403");
    told.add("/v1/check", check.body);
    redis.cli(&["-a", "another-canary", "CONFIG", "SET", "requirepass", ""]);
    server.signal("TERM");
    server.wait();
    told.add("the log", server.log());
    assert!(
        server.log().contains("TRACE") || server.log().contains("trace"),
        "nothing was logged at the level that was asked for"
    );
    told.assert_no_secret();
}

/// The environment of the server: traces are sent to an address with a secret.
const VARIABLES: [(&str, &str); 3] = [
    (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "http://canary:canary@127.0.0.1:1",
    ),
    ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer canary"),
    ("OTEL_TRACES_SAMPLER", "always_on"),
];

/// Gives Redis another password than that of the config, and ends the connections that know the old one.
fn change_password(redis: &Redis) {
    let setting = ["CONFIG", "SET", "requirepass", "another-canary"];
    let old = ["-a", "canary-password"];
    assert_eq!(redis.cli(&[&old[..], &setting].concat()), "OK");
    redis.cli(&["-a", "another-canary", "CLIENT", "KILL", "TYPE", "normal"]);
}

/// Asks until Redis has refused the password of the config.
async fn wait_until_refused(server: &Server, client: &mut Client) {
    let started = Instant::now();
    while !server.log().contains("WRONGPASS") && !server.log().contains("invalid username-password")
    {
        assert!(
            started.elapsed() < PATIENCE,
            "it never met the other password: {}",
            server.log()
        );
        decide(client, "k", "day").await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Reloads configs that are wrong in many places, some of them secret.
async fn reload_wrong_configs(server: &Server, file: &Path) {
    let folder = file.parent().unwrap();
    let garbled = config("redis:/canary:canary@", folder) + "canary: [\n";
    std::fs::write(file, garbled).unwrap();
    server.signal("HUP");
    std::fs::write(file, config("redis://:canary@h/canary", folder)).unwrap();
    server.signal("HUP");
    tokio::time::sleep(Duration::from_millis(500)).await;
}

async fn admin_calls(folder: &Path, told: &mut Told) {
    let mut admin = admin_at(&folder.join("admin.sock")).await;
    for token in [TOKEN, "canary-guess"] {
        let mut request = Request::new(pb::ReloadConfigRequest {});
        request
            .metadata_mut()
            .insert("authorization", format!("Bearer {token}").parse().unwrap());
        match admin.reload_config(request).await {
            Ok(answer) => told.add("ReloadConfig", format!("{answer:?}")),
            Err(status) => told.add("ReloadConfig", format!("{status:?}")),
        }
    }
}

/// URLs of stores, each with a secret, most of them wrong.
const STORES: [&str; 12] = [
    "redis://user:canary@127.0.0.1:6379",
    "redis://user:canary@127.0.0.1:bad",
    "redis://user:canary@",
    "redis:canary",
    "canary://user:canary@h",
    "user:canary@h",
    "redis+unix:canary:canary@h",
    "redis://user:canary@h?canary=canary",
    "redis://user:canary@h/canary",
    "rediss://user:canary@h:99999",
    "redis-sentinel://user:canary@h:1?sentinelServiceName=&sentinelPassword=canary&x=canary",
    "redis-cluster://user:canary@h:1?node=canary:canary@h:1",
];

/// Settings that are given together, each with a path that is secret.
const SECRET_SETTINGS: [[&str; 3]; 4] = [
    [
        "listen.tls.cert_file",
        "listen.tls.key_file",
        "listen.tls.client_ca_file",
    ],
    [
        "store.tls.ca_file",
        "store.tls.cert_file",
        "store.tls.key_file",
    ],
    ["store.password_file", "store.username", "store.tls.ca_file"],
    [
        "listen.admin_token_file",
        "store.tls.cert_file",
        "store.tls.server_name",
    ],
];

/// Configs that are wrong at, or around, what is secret.
#[test]
fn fault_28_a_report_on_a_config_reveals_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let mut told = Told::default();
    for (place, store) in STORES.iter().enumerate() {
        let file = folder.path().join(format!("{place}.yaml"));
        std::fs::write(&file, config(store, folder.path())).unwrap();
        told.add_output(store, &tollgate().arg("check").arg(&file).output().unwrap());
        let set = format!("store.url={store}");
        // At the command line, too; where nothing is wrong, it goes on to listen, which a port of another's ends.
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        told.add_output(
            store,
            &tollgate()
                .args(["--set", &set, "--listen", &address])
                .output()
                .unwrap(),
        );
    }
    for settings in SECRET_SETTINGS {
        // None of these files is there, or what it should be.
        let flags =
            settings.map(|setting| format!("{setting}={}/canary.pem", folder.path().display()));
        std::fs::write(
            folder.path().join("canary.pem"),
            ["", "-----BEGIN canary-----\n"][usize::from(flags[2].len() % 2 == 0)],
        )
        .unwrap();
        for url in ["redis://127.0.0.1:1", "rediss://127.0.0.1:1"] {
            let url = format!("store.url={url}");
            let mut serve = tollgate();
            serve.args([
                "--set", &url, "--set", &flags[0], "--set", &flags[1], "--set", &flags[2],
            ]);
            told.add_output(settings[0], &serve.output().unwrap());
        }
    }
    told.assert_no_secret();
}
