//! The admin service from outside: where it is served, who may call it, and that the effect of a call shows at once.

mod access;
mod reset;

use std::path::PathBuf;
use std::time::Duration;

use tollgate::grpc::pb::admin_service_client::AdminServiceClient;
use tollgate::grpc::pb::{self, DecidedBy, Outcome};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::support::admin::admin_at;
use crate::support::http::Scrape;
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, field, request, tollgate};

const TOKEN: &str = "canary-token-0123456789abcdef";

const KEY: &str = "canary-key-alice";

const PLANS: &str = "
plans:
  trial: { limits: [ { name: day, quota: 5, window: 1d } ], counts_as: customer }
  paid: { limits: [ { name: day, quota: 50, window: 1d } ], counts_as: customer }
  several: { limits: [ { name: fixed, quota: 4, window: 30d, algorithm: fixed_window, anchor: first_request },
                       { name: log, quota: 6, window: 97s, algorithm: sliding_log },
                       { name: bucket, quota: 8, window: 30d, algorithm: token_bucket } ] }
  internal: { unlimited: true }
  banned: { blocked: true }
";

type Admin = AdminServiceClient<Channel>;

/// A server with an admin socket in a folder of its own.
struct Fixture {
    folder: tempfile::TempDir,
    server: Server,
    client: Client,
    admin: Admin,
}

impl Fixture {
    async fn start(flags: &[&str]) -> Self {
        Self::start_with(PLANS, flags).await
    }

    async fn start_with(plans: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.yaml"), plans).unwrap();
        let socket = format!(
            "listen.admin=unix:{}",
            folder.path().join("admin.sock").display()
        );
        let config = folder.path().join("config.yaml");
        let server = Server::start_on(
            &config,
            &[
                &["--set", &socket, "--set", "listen.http=127.0.0.1:0"],
                flags,
            ]
            .concat(),
        );
        let client = server.client().await;
        let admin = admin_at(&folder.path().join("admin.sock")).await;
        Self {
            folder,
            server,
            client,
            admin,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn ask(&mut self, plan: &str, cost: u64) -> (Outcome, DecidedBy) {
        let answer = self
            .client
            .should_allow(request(KEY, plan, Some(cost)))
            .await
            .unwrap()
            .into_inner();
        (answer.outcome(), answer.decided_by())
    }

    async fn refund(&mut self, plan: &str, cost: u64) -> pb::RefundResponse {
        self.admin
            .refund(refund(KEY, plan, Some(cost)))
            .await
            .unwrap()
            .into_inner()
    }

    async fn reload(&mut self) -> Result<pb::ReloadConfigResponse, tonic::Status> {
        let answer = self.admin.reload_config(pb::ReloadConfigRequest {}).await?;
        Ok(answer.into_inner())
    }

    async fn list_plans(&mut self) -> pb::ListPlansResponse {
        self.client
            .list_plans(pb::ListPlansRequest {})
            .await
            .unwrap()
            .into_inner()
    }
}

fn reset(key: &str, plan: &str) -> pb::ResetRequest {
    pb::ResetRequest {
        key: key.to_owned(),
        plan: plan.to_owned(),
        ..Default::default()
    }
}

fn refund(key: &str, plan: &str, cost: Option<u64>) -> pb::RefundRequest {
    pb::RefundRequest {
        key: key.to_owned(),
        plan: plan.to_owned(),
        cost,
        ..Default::default()
    }
}

/// Waits until the log has `count` lines with these words. Returns them.
fn wait_for_lines(server: &Server, words: &str, count: usize) -> Vec<String> {
    let started = std::time::Instant::now();
    loop {
        let lines: Vec<String> = server
            .log()
            .lines()
            .filter(|line| line.contains(words))
            .map(str::to_owned)
            .collect();
        if lines.len() >= count {
            return lines;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "never {words:?}: {}",
            server.log()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

async fn assert_refund_gives_back_what_was_used(flags: &[&str]) {
    let mut fixture = Fixture::start(flags).await;
    assert_eq!(fixture.ask("several", 3).await.0, Outcome::Allowed);
    assert_eq!(fixture.ask("several", 2).await.0, Outcome::Denied);
    let left = |answer: &pb::RefundResponse| {
        let limit = |limit: &pb::LimitRefund| {
            let status = limit.status.clone().unwrap();
            assert!(status.retry_after.is_none() && status.reset_after.is_some());
            (status.name, status.limit, status.remaining, limit.refunded)
        };
        answer.limits.iter().map(limit).collect::<Vec<_>>()
    };
    let row =
        |name: &str, limit, remaining, refunded| (name.to_owned(), limit, remaining, refunded);
    let answer = fixture.refund("several", 1).await;
    let rows = [
        row("fixed", 4, 2, 1),
        row("log", 6, 4, 1),
        row("bucket", 8, 6, 1),
    ];
    assert_eq!((answer.refunded, left(&answer)), (1, rows.to_vec()));
    assert_eq!(
        fixture.ask("several", 2).await,
        (Outcome::Allowed, DecidedBy::Store)
    );
    let answer = fixture.refund("several", u64::MAX).await;
    let rows = [
        row("fixed", 4, 4, 4),
        row("log", 6, 6, 4),
        row("bucket", 8, 8, 4),
    ];
    assert_eq!((answer.refunded, left(&answer)), (4, rows.to_vec()));
    assert_eq!(fixture.refund("several", 1).await.refunded, 0);
    assert_eq!(fixture.ask("several", 4).await.0, Outcome::Allowed);
    assert_eq!(fixture.ask("several", 1).await.0, Outcome::Denied);
    // The default is one unit.
    let one = fixture
        .admin
        .refund(refund(KEY, "several", None))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(one.refunded, 1);
}

#[tokio::test]
async fn a_refund_gives_back_and_never_more_than_was_used_in_memory() {
    assert_refund_gives_back_what_was_used(&[]).await;
}

#[tokio::test]
async fn a_refund_gives_back_and_never_more_than_was_used_in_redis() {
    let redis = Redis::start();
    assert_refund_gives_back_what_was_used(&[
        "--store",
        &redis.url(),
        "--set",
        "store.deadline=10s",
    ])
    .await;
}

#[tokio::test]
async fn an_admin_call_that_cannot_be_done_says_why() {
    let mut fixture = Fixture::start(&[]).await;
    let long = "k".repeat(513);
    for (key, plan, code, words) in [
        ("", "trial", Code::InvalidArgument, "key is empty"),
        (&*long, "trial", Code::InvalidArgument, "key has 513 bytes"),
        (KEY, "", Code::InvalidArgument, "plan is empty"),
        (KEY, &long, Code::InvalidArgument, "plan has 513 bytes"),
        (KEY, "trail", Code::NotFound, "did you mean \"trial\"?"),
        (KEY, "internal", Code::FailedPrecondition, "has no limits"),
        (KEY, "banned", Code::FailedPrecondition, "has no limits"),
    ] {
        for status in [
            fixture.admin.reset(reset(key, plan)).await.unwrap_err(),
            fixture
                .admin
                .refund(refund(key, plan, None))
                .await
                .unwrap_err(),
        ] {
            assert!(
                status.code() == code && status.message().contains(words),
                "{plan}: {status:?}"
            );
        }
    }
    let zero = fixture
        .admin
        .refund(refund(KEY, "trial", Some(0)))
        .await
        .unwrap_err();
    assert!(
        zero.code() == Code::InvalidArgument && zero.message().contains("cost is 0"),
        "{zero:?}"
    );
}

/// `on_store_failure` does not apply to admin calls.
#[tokio::test]
async fn an_admin_call_that_the_store_does_not_answer_is_unavailable() {
    let mut redis = Redis::start();
    let mut fixture =
        Fixture::start(&["--store", &redis.url(), "--set", "store.deadline=2s"]).await;
    assert_eq!(
        fixture.ask("trial", 5).await,
        (Outcome::Allowed, DecidedBy::Store)
    );
    redis.signal("STOP");
    for status in [
        fixture.admin.reset(reset(KEY, "trial")).await.unwrap_err(),
        fixture
            .admin
            .refund(refund(KEY, "trial", None))
            .await
            .unwrap_err(),
    ] {
        assert!(
            status.code() == Code::Unavailable
                && status.message().contains("it is not known whether"),
            "{status:?}"
        );
    }
    redis.signal("CONT");
    redis.kill();
    for status in [
        fixture.admin.reset(reset(KEY, "trial")).await.unwrap_err(),
        fixture
            .admin
            .refund(refund(KEY, "trial", None))
            .await
            .unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
}

/// An open `tollgate top` asks each second.
#[tokio::test]
async fn calls_that_only_read_are_counted_and_write_no_line_at_the_usual_level() {
    let mut fixture = Fixture::start(&[]).await;
    for _ in 0..3 {
        fixture.admin.top(pb::TopRequest::default()).await.unwrap();
        fixture
            .admin
            .explain(pb::ExplainRequest {
                key: KEY.to_owned(),
                plan: "trial".to_owned(),
                ..Default::default()
            })
            .await
            .unwrap();
    }
    fixture.admin.reset(reset(KEY, "trial")).await.unwrap();
    let lines = wait_for_lines(&fixture.server, "admin call", 1);
    assert!(
        lines.len() == 1 && lines[0].contains("\"method\":\"Reset\""),
        "{lines:?}"
    );
    let scrape = Scrape::of(&fixture.server.http());
    assert_eq!(
        scrape.value("tollgate_admin_calls_total{method=\"Top\",code=\"OK\"}"),
        3.0
    );
}

/// What the log lines of the four calls below say, in their order.
const WORDS_OF_LOGGED_CALLS: [&[&str]; 4] = [
    &[
        "\"method\":\"Refund\"",
        "\"code\":\"OK\"",
        "\"plan\":\"trial\"",
        "refunded: 2 of 2",
    ],
    &["\"method\":\"Reset\"", "\"code\":\"OK\"", "existed: true"],
    &[
        "FAILED_PRECONDITION",
        "\"plan\":\"internal\"",
        "has no limits",
    ],
    &["INVALID_ARGUMENT", "key is empty"],
];

#[tokio::test]
async fn every_admin_call_that_changes_something_is_logged_and_counted_without_its_key() {
    let mut fixture = Fixture::start(&[]).await;
    fixture.ask("trial", 3).await;
    fixture.refund("trial", 2).await;
    fixture.admin.reset(reset(KEY, "trial")).await.unwrap();
    fixture
        .admin
        .reset(reset(KEY, "internal"))
        .await
        .unwrap_err();
    fixture.admin.reset(reset("", "trial")).await.unwrap_err();
    let lines = wait_for_lines(&fixture.server, "admin call", 4);
    let log = fixture.server.log();
    assert_eq!(lines.len(), 4, "{lines:?}");
    for (line, words) in lines.iter().zip(WORDS_OF_LOGGED_CALLS) {
        assert!(words.iter().all(|words| line.contains(words)), "{log}");
    }
    assert_eq!(field(&lines[0], "key_hash"), field(&lines[1], "key_hash"));
    assert!(!log.contains("canary"), "a key was logged");
    let scrape = Scrape::of(&fixture.server.http());
    let count = |method: &str, code: &str| {
        scrape.value(&format!(
            "tollgate_admin_calls_total{{method=\"{method}\",code=\"{code}\"}}"
        ))
    };
    assert_eq!(
        (
            count("Reset", "OK"),
            count("Reset", "FAILED_PRECONDITION"),
            count("Reset", "INVALID_ARGUMENT")
        ),
        (1.0, 1.0, 1.0)
    );
    assert_eq!(
        (count("Refund", "OK"), count("ReloadConfig", "OK")),
        (1.0, 0.0)
    );
}

#[tokio::test]
async fn a_reload_applies_the_file_or_reports_its_errors() {
    let mut fixture = Fixture::start(&[]).await;
    let before = fixture.list_plans().await.config_hash;
    let same = fixture.reload().await.unwrap();
    assert_eq!(
        (same.config_hash, same.added, same.removed, same.edited),
        (before.clone(), 0, 0, 0)
    );
    let edited = PLANS
        .replace("quota: 50,", "quota: 60,")
        .replace("  banned: { blocked: true }", "  new: { blocked: true }");
    std::fs::write(
        fixture.path("config.yaml"),
        format!("{edited}workers: 7\nstore: {{ expected_replicas: 3 }}\n"),
    )
    .unwrap();
    let answer = fixture.reload().await.unwrap();
    // The server may have reloaded the changed file by itself a moment before.
    let changes = (answer.added, answer.removed, answer.edited);
    assert!(changes == (1, 1, 1) || changes == (0, 0, 0), "{changes:?}");
    assert_eq!(
        answer.restart_needed,
        ["store.expected_replicas", "workers"]
    );
    let listed = fixture.list_plans().await;
    assert!(listed.config_hash == answer.config_hash && answer.config_hash != before);
    assert!(
        listed
            .plans
            .iter()
            .any(|plan| plan.name == "paid" && plan.limits[0].quota == 60)
    );
    std::fs::write(
        fixture.path("config.yaml"),
        edited
            .replace("quota: 60,", "quota: 0,")
            .replace("unlimited: true", "limitless: true"),
    )
    .unwrap();
    let status = fixture.reload().await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    for words in [
        "the plans stay as they are",
        "plans.paid.limits[0].quota is 0",
        "plans.internal.limitless is not a field",
    ] {
        assert!(status.message().contains(words), "{status:?}");
    }
    let kept = fixture.list_plans().await;
    assert_eq!(kept.config_hash, answer.config_hash);
}

#[tokio::test]
async fn without_a_file_there_is_nothing_to_reload() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin.sock");
    let mut command = tollgate();
    command.args([
        "--listen",
        "127.0.0.1:0",
        "--set",
        &format!("listen.admin=unix:{}", socket.display()),
    ]);
    let _server =
        crate::support::Guarded(command.stdout(std::process::Stdio::null()).spawn().unwrap());
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    let started = std::time::Instant::now();
    let channel = loop {
        match endpoint.connect().await {
            Ok(channel) => break channel,
            Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let status = Admin::new(channel)
        .reload_config(pb::ReloadConfigRequest {})
        .await
        .unwrap_err();
    assert!(
        status.code() == Code::FailedPrecondition
            && status.message().contains("no config file was named"),
        "{status:?}"
    );
}
