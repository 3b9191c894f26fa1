//! Where the admin service is served, and who may call it.

use std::os::unix::fs::PermissionsExt;

use tokio_stream::StreamExt;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

use super::*;
use crate::support::reflection::services;
use crate::support::server::channel_to;

fn with_token<T>(message: T, authorization: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(
        "authorization",
        MetadataValue::try_from(authorization).unwrap(),
    );
    request
}

/// Whether a listener's reflection knows a symbol.
async fn knows(channel: Channel, symbol: &str) -> bool {
    let find =
        v1::server_reflection_request::MessageRequest::FileContainingSymbol(symbol.to_owned());
    let ask = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(find),
    };
    let answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::once(ask))
        .await;
    let answer = answers.unwrap().into_inner().next().await.unwrap();
    answer.is_ok_and(|answer| {
        use v1::server_reflection_response::MessageResponse;
        matches!(
            answer.message_response,
            Some(MessageResponse::FileDescriptorResponse(_))
        )
    })
}

#[tokio::test]
async fn admin_is_served_and_listed_only_on_its_own_listener() {
    let fixture = Fixture::start(&[]).await;
    let main = channel_to(&fixture.server.address).await;
    let endpoint =
        Endpoint::from_shared(format!("unix://{}", fixture.path("admin.sock").display())).unwrap();
    let admin = endpoint.connect().await.unwrap();
    let refused = Admin::new(main.clone())
        .reset(reset(KEY, "trial"))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    let refused = Client::new(admin.clone())
        .should_allow(request(KEY, "trial", None))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    let with = |served: &[&str]| {
        let common = [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
        ];
        let all = common.iter().chain(served);
        all.map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        services(main.clone()).await,
        with(&["tollgate.v1.HoldService", "tollgate.v1.RateLimitService"])
    );
    assert_eq!(
        services(admin.clone()).await,
        with(&["tollgate.v1.AdminService"])
    );
    for symbol in ["tollgate.v1.AdminService", "tollgate.v1.ResetRequest"] {
        assert!(
            !knows(main.clone(), symbol).await && knows(admin.clone(), symbol).await,
            "{symbol}"
        );
    }
    for service in ["", "tollgate.v1.AdminService"] {
        let check = HealthCheckRequest {
            service: service.to_owned(),
        };
        let health = HealthClient::new(admin.clone())
            .check(check)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(
            health.status(),
            tonic_health::pb::health_check_response::ServingStatus::Serving
        );
    }
    let mode = std::fs::metadata(fixture.path("admin.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A server whose admin service listens on TCP, with the token in this file.
async fn start_with_token_file(file: &std::path::Path) -> (Server, Admin) {
    let token_file = format!("listen.admin_token_file={}", file.display());
    let server = Server::start(
        PLANS,
        &[
            "--set",
            "listen.admin=127.0.0.1:0",
            "--set",
            &token_file,
            "--log-level",
            "trace",
        ],
    );
    let admin = Admin::new(channel_to(&field(&server.start_line(), "admin")).await);
    (server, admin)
}

async fn reset_with(
    admin: &mut Admin,
    authorization: &str,
) -> Result<pb::ResetResponse, tonic::Status> {
    let answer = admin
        .reset(with_token(reset(KEY, "trial"), authorization))
        .await?;
    Ok(answer.into_inner())
}

/// What each method answers to an authorization that is wrong.
async fn errors_of_every_method(admin: &mut Admin, wrong: &str) -> [tonic::Status; 3] {
    [
        reset_with(admin, wrong).await.unwrap_err(),
        admin
            .refund(with_token(refund(KEY, "trial", None), wrong))
            .await
            .unwrap_err(),
        admin
            .reload_config(with_token(pb::ReloadConfigRequest {}, wrong))
            .await
            .unwrap_err(),
    ]
}

#[tokio::test]
async fn only_the_token_that_the_file_holds_now_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let (server, mut admin) = start_with_token_file(&file).await;
    let bearer = format!("Bearer {TOKEN}");
    let none = admin.reset(reset(KEY, "trial")).await.unwrap_err();
    assert!(
        none.code() == Code::Unauthenticated && none.message().contains("authorization: Bearer"),
        "{none:?}"
    );
    let short = &bearer[..bearer.len() - 1];
    let long = format!("{bearer}0");
    let upper = bearer.to_uppercase();
    for wrong in [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        short,
        &long,
        &upper,
        &format!("Basic {TOKEN}"),
    ] {
        for status in errors_of_every_method(&mut admin, wrong).await {
            assert!(
                status.code() == Code::Unauthenticated && status.message() == none.message(),
                "{wrong:?}: {status:?}"
            );
        }
    }
    for right in [&bearer, &format!("bearer {TOKEN}")] {
        assert!(!reset_with(&mut admin, right).await.unwrap().existed);
    }
    // A new token is accepted at once. Without a token file, no call is accepted.
    std::fs::write(&file, "another-canary-token").unwrap();
    let old = reset_with(&mut admin, &bearer).await.unwrap_err();
    assert_eq!(old.code(), Code::Unauthenticated);
    reset_with(&mut admin, "Bearer another-canary-token")
        .await
        .unwrap();
    std::fs::remove_file(&file).unwrap();
    let gone = reset_with(&mut admin, "Bearer another-canary-token")
        .await
        .unwrap_err();
    assert_eq!(gone.code(), Code::Unauthenticated);
    wait_for_lines(&server, "cannot be read", 1);
    let log = server.end_and_log();
    // The calls were made within seconds, so one log line reports many of them.
    let lines = log
        .lines()
        .filter(|line| line.contains("UNAUTHENTICATED"))
        .count();
    assert!((1..10).contains(&lines), "{lines} lines of 27 calls: {log}");
    assert!(!log.contains("canary-token"), "a token was logged");
}

#[test]
fn a_start_without_a_sound_token_is_refused_by_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    let token = folder.path().join("token");
    std::fs::write(&config, PLANS).unwrap();
    std::fs::write(&token, "too-short-canary").unwrap();
    let named = format!("listen.admin_token_file={}", token.display());
    let absent = format!(
        "listen.admin_token_file={}",
        folder.path().join("absent").display()
    );
    let refused = |flags: &[&str], words: &str| {
        let mut command = tollgate();
        command
            .arg("--config")
            .arg(&config)
            .args(["--listen", "127.0.0.1:0"]);
        command.args(flags.iter().flat_map(|flag| ["--set", flag]));
        let output = command.output().unwrap();
        let said =
            String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.code() == Some(2) && said.contains(words) && !said.contains("canary"),
            "{said}"
        );
    };
    refused(&["listen.admin=127.0.0.1:0"], "listen.admin_token_file");
    refused(
        &["listen.admin=0.0.0.0:0", &named],
        "admin listens on loopback",
    );
    refused(
        &["listen.admin=127.0.0.1:0", &absent],
        "cannot be read: No such file",
    );
    std::fs::write(&token, "too-short-canar").unwrap();
    refused(
        &["listen.admin=127.0.0.1:0", &named],
        "must hold 16 to 4096 bytes",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_listener_bounds_its_connections_and_ends_with_the_server() {
    let fixture = Fixture::start(&[]).await;
    let Fixture {
        server,
        admin,
        folder,
        ..
    } = fixture;
    // One more connection is open: that of `admin`.
    let open: Vec<_> = (0..63)
        .map(|_| std::os::unix::net::UnixStream::connect(folder.path().join("admin.sock")).unwrap())
        .collect();
    let more = std::os::unix::net::UnixStream::connect(folder.path().join("admin.sock")).unwrap();
    more.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(
        std::io::Read::read(&mut &more, &mut [0]).unwrap(),
        0,
        "it was not closed"
    );
    server.signal("TERM");
    let ((status, log), _) = server.wait_and_log();
    assert!(
        status.success() && log.contains("stopped: every call was answered"),
        "{log}"
    );
    drop((open, admin));
}
