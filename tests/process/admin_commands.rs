//! `tollgate reset`, `refund` and `explain`: what they print, how they exit, and over which connections they ask.

mod overrides;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::support::authority::Authority;
use crate::support::redis::Redis;
use crate::support::server::{Server, field, tollgate};

const TOKEN: &str = "canary-token-0123456789abcdef";
const PLANS: &str = "
plans:
  p: { limits: [ { name: day, quota: 5, window: 1d } ], counts_as: customer }
  several: { limits: [ { name: log, quota: 4, window: 97s, algorithm: sliding_log },
                       { name: bucket, quota: 6, window: 30d, algorithm: token_bucket } ] }
  internal: { unlimited: true }
  banned: { blocked: true }
";

/// A server with an admin socket in a folder of its own.
struct Fixture {
    folder: tempfile::TempDir,
    server: Server,
}

impl Fixture {
    fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = format!(
            "listen.admin=unix:{}",
            folder.path().join("admin.sock").display()
        );
        let server = Server::start(PLANS, &[&["--set", &socket], flags].concat());
        Self { folder, server }
    }

    fn admin(&self) -> String {
        format!("unix:{}", self.folder.path().join("admin.sock").display())
    }

    /// Takes units by `tollgate try`.
    fn take(&self, plan: &str, cost: &str) -> i32 {
        let taken = tollgate()
            .args([
                "try",
                "--address",
                &self.server.address,
                "--key",
                "k",
                "--plan",
                plan,
                "--cost",
                cost,
            ])
            .output();
        taken.unwrap().status.code().unwrap()
    }

    fn ask(&self, command: &str, plan: &str, more: &[&str]) -> (i32, String) {
        asked(
            command,
            &self.admin(),
            &[&["--key", "k", "--plan", plan], more].concat(),
        )
    }

    fn json(&self, command: &str, plan: &str, more: &[&str]) -> (i32, Value) {
        let (code, text) = self.ask(command, plan, &[&["--output", "json"], more].concat());
        (
            code,
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")),
        )
    }
}

/// The exit code and what was printed.
fn asked(command: &str, admin: &str, arguments: &[&str]) -> (i32, String) {
    let output = tollgate()
        .args([command, "--admin", admin])
        .args(arguments)
        .output()
        .unwrap();
    let printed =
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(
        !printed.contains("panicked") && !printed.contains("canary"),
        "{printed}"
    );
    (output.status.code().unwrap(), printed)
}

#[test]
fn reset_and_refund_exit_with_whether_there_was_something() {
    let fixture = Fixture::start(&[]);
    assert_eq!(
        fixture.ask("reset", "p", &[]),
        (1, "nothing to reset: the key had used nothing\n".to_owned())
    );
    assert_eq!(fixture.ask("refund", "p", &[]).0, 1);
    fixture.take("p", "4");
    assert_eq!(
        fixture.ask("refund", "p", &[]),
        (
            0,
            "refunded: 1\nlimit day: 1 refunded, 2 of 5 remaining\n".to_owned()
        )
    );
    let (code, refunded) = fixture.json("refund", "p", &["--cost", "10"]);
    assert_eq!(
        (
            code,
            &refunded["refunded"],
            &refunded["limits"][0]["remaining"]
        ),
        (0, &3.into(), &5.into())
    );
    fixture.take("p", "5");
    assert_eq!(
        (fixture.take("p", "1"), fixture.json("reset", "p", &[])),
        (1, (0, serde_json::json!({ "existed": true })))
    );
    assert_eq!(fixture.take("p", "5"), 0);
    for (command, plan, more, sentence) in [
        (
            "reset",
            "q",
            &[][..],
            "NotFound: plan \"q\" is not in the config",
        ),
        (
            "refund",
            "internal",
            &[],
            "FailedPrecondition: plan \"internal\" has no limits",
        ),
        (
            "refund",
            "p",
            &["--cost", "0"],
            "InvalidArgument: cost is 0",
        ),
        ("explain", "q", &[], "NotFound"),
    ] {
        let (code, printed) = fixture.ask(command, plan, more);
        assert!(
            code == 2 && printed.contains(sentence),
            "{command}: {code} {printed}"
        );
    }
}

#[test]
fn reload_takes_up_the_file_or_tells_what_is_wrong_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.yaml");
    let admin = format!("unix:{}", folder.path().join("admin.sock").display());
    let config = |more: &str| std::fs::write(&file, format!("{PLANS}{more}")).unwrap();
    config("");
    let _server = Server::start_on(&file, &["--set", &format!("listen.admin={admin}")]);
    config("  new: { blocked: true }\nworkers: 3\n");
    let (code, reloaded) = asked("reload", &admin, &[]);
    // The file may have been taken up by itself before.
    let counted = [
        "plans: 1 added, 0 removed, 0 edited\n",
        "plans: 0 added, 0 removed, 0 edited\n",
    ];
    assert!(
        code == 0
            && reloaded.starts_with("reloaded: config ")
            && counted.iter().any(|it| reloaded.contains(it)),
        "{reloaded}"
    );
    assert!(
        reloaded.ends_with("changed, and taken up by a restart only: workers\n"),
        "{reloaded}"
    );
    let (code, json) = asked("reload", &admin, &["--output", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (code, &json["restart_needed"][0], &json["removed"]),
        (0, &"workers".into(), &0.into())
    );
    config("  new: { blokced: true }\n");
    let (code, refused) = asked("reload", &admin, &[]);
    assert!(
        code == 2
            && refused.contains("the plans stay as they are: ")
            && refused.contains("did you mean blocked?"),
        "{refused}"
    );
}

#[test]
fn replicas_tells_how_many_share_the_quotas_and_why() {
    let asks = |fixture: &Fixture| asked("replicas", &fixture.admin(), &[]);
    let alone = Fixture::start(&[]);
    let expected = "1 replica has each quota while the store cannot decide, since the embedded store is shared with nobody\n";
    assert_eq!(asks(&alone), (0, expected.to_owned()));
    let redis = Redis::start();
    let store = ["--store", &redis.url(), "--set", "workers=1"];
    let one = Fixture::start(&store);
    let two = Fixture::start(&store);
    let began = std::time::Instant::now();
    let counted = loop {
        let (_, told) = asks(&one);
        if told.starts_with('2') || began.elapsed() > crate::support::server::PATIENCE {
            break told;
        }
    };
    let expected = "2 replicas share each quota while the store cannot decide, as they announce themselves in Redis\nconnections to Redis: ";
    assert!(counted.starts_with(expected), "{counted}");
    drop(two);
    let fixed = Fixture::start(&[&store[..], &["--set", "store.expected_replicas=5"]].concat());
    assert!(
        asks(&fixed)
            .1
            .starts_with("5 replicas share each quota while the store cannot decide, as store.expected_replicas says\n")
    );
    let (code, json) = asked("replicas", &fixed.admin(), &["--output", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (code, &json["replicas"], &json["source"]),
        (0, &5.into(), &"config".into())
    );
}

/// Takes units of a plan of two limits, and asserts what `explain` tells of each.
fn assert_log_and_bucket_are_explained(fixture: &Fixture) {
    fixture.take("several", "3");
    let (code, several) = fixture.json("explain", "several", &[]);
    assert_eq!((code, &several["next"]["decided_by"]), (0, &"store".into()));
    assert_eq!(
        several["redis_names"],
        serde_json::json!(["{several:k}", "{several:k}log:97000000"])
    );
    let limits = &several["limits"];
    assert_eq!(
        (
            &limits[0]["used"],
            &limits[0]["remaining"],
            &limits[0]["algorithm"]
        ),
        (&3.into(), &1.into(), &"sliding_log".into())
    );
    assert_eq!(
        limits[0]["releases"].as_array().unwrap().len(),
        1,
        "{limits}"
    );
    assert_eq!(limits[0]["releases"][0]["units"], Value::from(4));
    let bucket: Vec<u64> = limits[1]["releases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|at| at["units"].as_u64().unwrap())
        .collect();
    assert_eq!(bucket, [4, 5, 6]);
}

#[test]
fn explain_prints_a_sentence_and_every_limit() {
    let redis = Redis::start();
    let fixture = Fixture::start(&["--store", &redis.url(), "--set", "store.deadline=10s"]);
    let (code, fresh) = fixture.ask("explain", "p", &[]);
    let sentence = "The next request of cost 1 is allowed: in limit day, which binds, 0 of 5 units are used and 5 can be taken now.\n";
    assert!(code == 0 && fresh.starts_with(sentence), "{fresh}");
    let (_, after) = fresh
        .split_once("plan p, counted as customer\nhash of the key: ")
        .unwrap_or_else(|| panic!("{fresh}"));
    assert!(
        after[16..].starts_with("\nin Redis: {customer:k}\nconnections to Redis: "),
        "{fresh}"
    );
    assert!(
        fresh.ends_with("limit day: 0 of 5 used, 5 remaining (sliding_window, 1d)\n"),
        "{fresh}"
    );
    fixture.take("p", "5");
    let (code, denied) = fixture.ask("explain", "p", &[]);
    assert!(
        code == 1
            && denied.starts_with(
                "The next request of cost 1 is denied by limit day: 5 of 5 units are used"
            ),
        "{denied}"
    );
    assert!(
        denied.contains("  5 units can be taken in 23h59m"),
        "{denied}"
    );
    assert_log_and_bucket_are_explained(&fixture);
    let (code, banned) = fixture.ask("explain", "banned", &[]);
    assert!(
        code == 1 && banned.starts_with("Plan banned is blocked, so every request is denied"),
        "{banned}"
    );
    assert_eq!(fixture.ask("explain", "internal", &[]).0, 0);
}

#[test]
fn a_token_is_read_from_its_file_and_never_sent_in_the_clear() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("token"), format!("{TOKEN}\n")).unwrap();
    std::fs::write(path("wrong"), "another-canary-0123456789").unwrap();
    std::fs::write(path("garbled"), "canary\n\x01\n").unwrap();
    let named = format!("listen.admin_token_file={}", path("token"));
    let server = Server::start(
        PLANS,
        &["--set", "listen.admin=127.0.0.1:0", "--set", &named],
    );
    let admin = field(&server.start_line(), "admin");
    let ask = |admin: &str, file: Option<&str>| {
        let file = file.map(path);
        let flags: Vec<&str> = file
            .iter()
            .flat_map(|file| ["--token-file", file])
            .collect();
        asked(
            "reset",
            admin,
            &[&["--key", "k", "--plan", "p"], &flags[..]].concat(),
        )
    };
    assert_eq!(
        ask(&admin, Some("token")),
        (1, "nothing to reset: the key had used nothing\n".to_owned())
    );
    for file in [None, Some("wrong")] {
        let (code, refused) = ask(&admin, file);
        assert!(
            code == 2 && refused.contains("Unauthenticated: send the admin token"),
            "{refused}"
        );
    }
    let refused = |admin: &str, file: &str, sentence: &str| {
        let (code, printed) = ask(admin, Some(file));
        assert!(code == 2 && printed.contains(sentence), "{code} {printed}");
    };
    refused(
        &admin,
        "absent",
        "the file of --token-file cannot be read: No such file",
    );
    refused(
        &admin,
        "garbled",
        "the file of --token-file holds what no header can carry",
    );
    // An address of documentation, to which nothing is sent.
    refused(
        "192.0.2.1:50051",
        "token",
        "the token would travel to 192.0.2.1:50051 unencrypted",
    );
}

/// A proxy with TLS before the admin socket: its certificate is signed, and callers show one where `mutual`.
async fn proxy(authority: &Authority, admin: PathBuf, mutual: bool) -> String {
    let certificate = |file: &str| CertificateDer::from_pem_file(authority.path(file)).unwrap();
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if mutual {
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca.crt")).unwrap();
        builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .unwrap(),
        )
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_file(authority.path("server.key")).unwrap();
    let mut config = builder
        .with_single_cert(vec![certificate("server.crt")], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let relay = async move |stream: TcpStream, acceptor: TlsAcceptor, admin: PathBuf| {
        let Ok(mut caller) = acceptor.accept(stream).await else {
            return;
        };
        let mut server = tokio::net::UnixStream::connect(admin).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut caller, &mut server).await;
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(relay(stream, acceptor.clone(), admin.clone()));
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_three_ask_over_tls_and_mutual_tls() {
    let fixture = Fixture::start(&[]);
    let authority = Authority::new();
    authority.sign("server", "127.0.0.1");
    authority.sign("client", "client.test");
    let socket = fixture.folder.path().join("admin.sock");
    let tls = proxy(&authority, socket.clone(), false).await;
    let mtls = proxy(&authority, socket, true).await;
    let ca = authority.text("ca.crt");
    let cert = authority.text("client.crt");
    let key = authority.text("client.key");
    let asks = move || {
        for (command, code) in [("explain", 0), ("reset", 1), ("refund", 1)] {
            let ask = |admin: &str, more: &[&str]| {
                asked(
                    command,
                    admin,
                    &[&["--key", "k", "--plan", "p", "--tls-ca", &ca], more].concat(),
                )
            };
            assert_eq!(ask(&tls, &[]).0, code, "{command}");
            assert_eq!(
                ask(&mtls, &["--tls-cert", &cert, "--tls-key", &key]).0,
                code,
                "{command}"
            );
            let (refused, printed) = ask(&mtls, &[]);
            assert!(
                refused == 2 && printed.contains("ended without an answer"),
                "{command}: {printed}"
            );
        }
    };
    tokio::task::spawn_blocking(asks).await.unwrap();
    drop(fixture);
}
