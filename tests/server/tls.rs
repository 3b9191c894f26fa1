//! Who may see and who may ask: what is encrypted, whom mutual TLS lets in, and how a certificate is replaced.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::frames::opening;
use crate::support::http::Scrape;
use crate::support::server::{PATIENCE, Server, decide, field, request, tollgate};
use crate::support::tls::{Authority, Folder, Pair, TlsClient};

const PLANS: &str = "plans: { p: { limits: [ { name: day, quota: 1000000, window: 1d } ] } }\n";

/// A server of this authority's certificate, with more fields of `listen.tls`, and its plaintext HTTP.
fn serve(authority: &Authority, folder: &Folder, more: &str) -> Server {
    folder.install(&authority.issue(&["localhost"], 2100));
    folder.write("ca.pem", &authority.pem);
    let config = format!(
        "{PLANS}listen: {{ http: 'plaintext:127.0.0.1:0', {} }}\n",
        folder.section(more)
    );
    Server::start(&config, &["--log-level", "debug,h2=info,hyper=info"])
}

fn mutual(folder: &Folder, names: &str) -> String {
    format!(
        ", client_ca_file: {}, client_names: [{names}]",
        folder.path("ca.pem").display()
    )
}

#[tokio::test]
async fn calls_over_tls_are_answered_and_plaintext_is_not() {
    let authority = Authority::new();
    let folder = Folder::new();
    let server = serve(&authority, &folder, "");
    for versions in [&[&rustls::version::TLS12], &[&rustls::version::TLS13]] {
        let client = authority.client_of(None, versions, b"h2");
        assert_eq!(
            client
                .shake(&server.address)
                .await
                .unwrap()
                .get_ref()
                .1
                .alpn_protocol(),
            Some(b"h2".as_slice())
        );
        assert!(
            decide(
                &mut client.connect(&server.address).await.unwrap(),
                "k",
                "p"
            )
            .await
            .allowed
        );
    }
    let mut plain = TcpStream::connect(&server.address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.write_all(&opening()).unwrap();
    let mut said = Vec::new();
    // An alert, perhaps, and the end.
    let _ = plain.read_to_end(&mut said);
    assert!(said.len() < 16, "{said:?}");
    // Somebody else's certificate is not taken for this one.
    assert!(
        Authority::new()
            .client(None)
            .connect(&server.address)
            .await
            .is_err()
    );
    assert_eq!(field(&server.start_line(), "tls"), server.address);
}

#[tokio::test]
async fn http_is_encrypted_alike_and_single_addresses_and_sockets_may_stay_plain() {
    let authority = Authority::new();
    let folder = Folder::new();
    folder.install(&authority.issue(&["localhost"], 2100));
    let socket = folder.path("s");
    let addresses = format!("plaintext:127.0.0.1:0,unix:{}?mode=0660", socket.display());
    let config = format!(
        "{PLANS}listen: {{ http: '127.0.0.1:0', {} }}\n",
        folder.section("")
    );
    let server = Server::start(&config, &["--listen", &addresses]);
    let over_http = authority.client_of(None, rustls::ALL_VERSIONS, b"http/1.1");
    let mut stream = over_http.shake(&server.http()).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said).await;
    assert!(
        said.starts_with("HTTP/1.1 200 OK") && said.ends_with("alive\n"),
        "{said}"
    );
    // The first that it listens at is `Server`'s own, the others are these.
    let grpc = field(&server.start_line(), "grpc");
    let plain = grpc.split(',').nth(1).unwrap();
    assert!(
        decide(&mut tollgate_client(plain).await, "k", "p")
            .await
            .allowed
    );
    let channel = tonic::transport::Endpoint::from_shared(format!("unix://{}", socket.display()))
        .unwrap()
        .connect()
        .await
        .unwrap();
    assert!(
        decide(&mut crate::support::server::Client::new(channel), "k", "p")
            .await
            .allowed
    );
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o660);
    server.signal("TERM");
    let ((status, _), _) = tokio::task::spawn_blocking(move || server.wait_and_log())
        .await
        .unwrap();
    assert!(status.success() && !socket.exists());
}

async fn tollgate_client(address: &str) -> crate::support::server::Client {
    crate::support::server::Client::new(crate::support::server::channel_to(address).await)
}

/// Whether a caller gets an answer over one connection.
async fn is_let_in(client: &TlsClient, server: &Server) -> bool {
    match client.connect(&server.address).await {
        Ok(mut client) => client.should_allow(request("k", "p", None)).await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test]
async fn mutual_tls_admits_only_clients_that_the_authority_signed() {
    let authority = Authority::new();
    let folder = Folder::new();
    let server = serve(&authority, &folder, &mutual(&folder, ""));
    assert!(
        is_let_in(
            &authority.client(Some(&authority.issue(&["anybody"], 2100))),
            &server
        )
        .await
    );
    assert!(!is_let_in(&authority.client(None), &server).await);
    assert!(
        !is_let_in(
            &authority.client(Some(&Authority::new().issue(&["anybody"], 2100))),
            &server
        )
        .await
    );
    assert!(
        !is_let_in(
            &authority.client(Some(&authority.issue(&["anybody"], 2000))),
            &server
        )
        .await
    );
    let failed = Scrape::of(&server.http()).value("tollgate_tls_failed_handshakes_total");
    assert!(failed >= 3.0, "{failed}");
}

#[tokio::test]
async fn of_those_it_signed_only_listed_names_are_let_in() {
    let authority = Authority::new();
    let folder = Folder::new();
    let server = serve(
        &authority,
        &folder,
        &mutual(
            &folder,
            "shop.house, 'spiffe://house/till', 'spiffe://house/ns/*'",
        ),
    );
    for (names, in_or_not) in [
        (&["shop.house"][..], true),
        (&["other.house", "SHOP.house"], true),
        (&["spiffe://house/till"], true),
        (&["spiffe://house/ns/a/sa/b"], true),
        (&["other.house"], false),
        (&["spiffe://house/till/more"], false),
        (&["spiffe://elsewhere/ns/a"], false),
        (&["spiffe://house/ns/../till"], false),
        (&["spiffe://house/ns/%2e%2e/till"], false),
        (&["spiffe://house/ns/a", "spiffe://house/other"], false),
        (&["uri:shop.house"], false),
        (&[], false),
    ] {
        for versions in [&[&rustls::version::TLS12], &[&rustls::version::TLS13]] {
            let client = authority.client_of(Some(&authority.issue(names, 2100)), versions, b"h2");
            assert_eq!(is_let_in(&client, &server).await, in_or_not, "{names:?}");
        }
    }
}

/// The certificate that a new connection is shown.
async fn shown(client: &TlsClient, address: &str) -> CertificateDer<'static> {
    let stream = client.shake(address).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0]
        .clone()
        .into_owned()
}

fn der(pair: &Pair) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap()
}

/// Until new connections are shown this one; how long that took.
async fn wait_for(client: &TlsClient, address: &str, pair: &Pair) -> Duration {
    let started = Instant::now();
    while shown(client, address).await != der(pair) {
        assert!(
            started.elapsed() < PATIENCE,
            "the certificate is not taken up"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    started.elapsed()
}

/// Installs a key that is not the certificate's, and then its certificate.
async fn assert_a_wrong_key_is_refused(
    authority: &Authority,
    folder: &Folder,
    server: &Server,
    trusting: &TlsClient,
) {
    let metric = |name: &str| Scrape::of(&server.http()).value(name);
    let before = shown(trusting, &server.address).await;
    let other = authority.issue(&["localhost"], 2103);
    folder.write("key.pem", &other.key);
    let started = Instant::now();
    while metric("tollgate_tls_reloads_total{result=\"failure\"}") < 1.0 {
        assert!(started.elapsed() < PATIENCE, "the change was not found");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(metric("tollgate_tls_last_reload_successful"), 0.0);
    server
        .wait_for_line("listen.tls.key_file is not the key of cert_file's certificate")
        .await;
    assert!(shown(trusting, &server.address).await == before);
    folder.install(&other);
    wait_for(trusting, &server.address, &other).await;
    assert_eq!(metric("tollgate_tls_last_reload_successful"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_22_a_certificate_is_replaced_under_load_and_no_call_is_lost() {
    let authority = Authority::new();
    let folder = Folder::new();
    let server = serve(&authority, &folder, "");
    let trusting = authority.client(None);
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicU64::new(0));
    let mut callers = Vec::new();
    for _ in 0..4 {
        // Each over one connection, which would be made again without a word; so its count is looked at below.
        let mut client = trusting.connect(&server.address).await.unwrap();
        let stop = stop.clone();
        let calls = calls.clone();
        callers.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                assert!(decide(&mut client, "k", "p").await.allowed);
                calls.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    let metric = |name: &str| Scrape::of(&server.http()).value(name);
    for year in [2101, 2102] {
        let next = authority.issue(&["localhost"], year);
        // One file after the other, as they come; what is between is not a pair.
        folder.write("cert.pem", &next.cert);
        folder.write("key.pem", &next.key);
        println!(
            "taken up after {:?}",
            wait_for(&trusting, &server.address, &next).await
        );
    }
    assert_eq!(
        metric("tollgate_tls_reloads_total{result=\"success\"}"),
        2.0
    );
    assert_eq!(
        metric("tollgate_tls_not_after_timestamp_seconds"),
        4_165_516_800.0
    );
    assert_a_wrong_key_is_refused(&authority, &folder, &server, &trusting).await;
    // SIGHUP looks at once.
    server.signal("HUP");
    stop.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.unwrap();
    }
    let calls = calls.load(Ordering::SeqCst);
    let open = metric("tollgate_connections");
    println!("{calls} calls, none lost");
    assert!(
        calls > 100 && open <= 4.0 + 1.0,
        "{calls} calls, {open} connections"
    );
}

/// The promise is 5 s for the handshake and the preface together.
#[tokio::test]
async fn fault_25_a_connection_without_a_timely_handshake_is_closed() {
    let authority = Authority::new();
    let folder = Folder::new();
    let server = serve(&authority, &folder, "");
    let mut silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(&server.address).unwrap())
        .collect();
    // The beginning of a record is silence too.
    silent
        .iter_mut()
        .step_by(2)
        .for_each(|stream| stream.write_all(b"\x16\x03\x01").unwrap());
    // And so is a handshake without a preface.
    let mut shaken = authority.client(None).shake(&server.address).await.unwrap();
    let started = Instant::now();
    assert!(
        decide(
            &mut authority
                .client(None)
                .connect(&server.address)
                .await
                .unwrap(),
            "k",
            "p"
        )
        .await
        .allowed
    );
    let gone = tokio::task::spawn_blocking(move || {
        for mut stream in silent {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut said = Vec::new();
            let ended = stream.read_to_end(&mut said);
            assert!(
                !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
                "{ended:?}"
            );
        }
    });
    gone.await.unwrap();
    let _ = tokio::time::timeout(PATIENCE, shaken.read_to_end(&mut Vec::new()))
        .await
        .expect("it was kept");
    println!("gone after {:?}", started.elapsed());
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn fault_28_no_tls_path_or_key_is_revealed() {
    let authority = Authority::new();
    let folder = Folder::new();
    let server = serve(&authority, &folder, "");
    let key = std::fs::read_to_string(folder.path("key.pem")).unwrap();
    folder.write("key.pem", "canary-of-a-key");
    let started = Instant::now();
    while !server.log().contains("certificate not reloaded") {
        assert!(started.elapsed() < PATIENCE, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let log = server.log();
    let metrics = Scrape::of(&server.http()).text;
    let config = format!("{PLANS}listen: {{ {} }}\n", folder.section(", ca_file: x"));
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), config).unwrap();
    let checked = tollgate().arg("check").arg(file.path()).output().unwrap();
    let config = format!("{PLANS}listen: {{ {} }}\n", folder.section(""));
    std::fs::write(file.path(), config).unwrap();
    let started = tollgate()
        .arg("--config")
        .arg(file.path())
        .output()
        .unwrap();
    assert_eq!(started.status.code(), Some(2));
    for said in [
        log.into_bytes(),
        metrics.into_bytes(),
        checked.stdout,
        checked.stderr,
        started.stdout,
        started.stderr,
    ] {
        let said = String::from_utf8(said).unwrap();
        assert!(
            !said.contains("canary-of") && !said.contains(key.lines().nth(1).unwrap()),
            "{said}"
        );
    }
}
