//! `tollgate try` and `tollgate health`: what they print, how they exit, and over which connections they ask.

use std::net::TcpListener;
use std::process::Output;

use serde_json::Value;

use crate::support::authority::Authority;
use crate::support::server::{Server, field, tollgate};

const PLANS: &str =
    "plans: { p: { limits: [ { name: day, quota: 2, window: 1d } ] }, any: { unlimited: true } }\n";

fn run(command: &str, address: &str, arguments: &[&str]) -> Output {
    tollgate()
        .args([command, "--address", address])
        .args(arguments)
        .output()
        .unwrap()
}

/// The exit code and what was printed.
fn asked(command: &str, address: &str, arguments: &[&str]) -> (i32, String) {
    let output = run(command, address, arguments);
    let printed =
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(!printed.contains("panicked"), "{printed}");
    (output.status.code().unwrap(), printed)
}

fn assert_fails(command: &str, address: &str, arguments: &[&str], sentence: &str) {
    let (code, printed) = asked(command, address, arguments);
    assert!(
        code == 2 && printed.contains(sentence),
        "{command} {address} {arguments:?}: {code} {printed}"
    );
}

const P: [&str; 4] = ["--key", "k", "--plan", "p"];
const ANY: [&str; 4] = ["--key", "k", "--plan", "any"];

#[test]
fn try_exits_with_the_answer() {
    let server = Server::start(PLANS, &[]);
    let ask = |more: &[&str]| asked("try", &server.address, &[&P, more].concat());
    let (code, peeked) = ask(&["--peek"]);
    assert!(
        code == 0 && peeked.contains("limit day: 2 of 2 remaining"),
        "{peeked}"
    );
    assert_eq!(ask(&["--cost", "2"]).0, 0);
    let (code, denied) = ask(&[]);
    assert_eq!(code, 1);
    let begin = "outcome: denied\ndecided by: store\nlimit day: 0 of 2 remaining, retry after ";
    assert!(denied.starts_with(begin), "{denied}");
    assert_fails(
        "try",
        &server.address,
        &["--key", "k", "--plan", "q"],
        "NotFound: plan \"q\" is not in the config",
    );
    assert_fails(
        "try",
        &server.address,
        &[&P[..], &["--cost", "0"]].concat(),
        "InvalidArgument: cost is 0",
    );
}

#[test]
fn an_answer_in_json_has_the_words_of_the_check_endpoint() {
    let server = Server::start(PLANS, &[]);
    let ask = |more: &[&str]| {
        asked(
            "try",
            &server.address,
            &[&P[..], &["--output", "json"], more].concat(),
        )
    };
    let json = |(code, text): (i32, String)| (code, serde_json::from_str::<Value>(&text).unwrap());
    let (code, allowed) = json(ask(&[]));
    assert_eq!(
        (code, &allowed["allowed"], &allowed["outcome"]),
        (0, &Value::from(true), &Value::from("allowed"))
    );
    assert_eq!(
        (&allowed["decided_by"], &allowed["limit_name"]),
        (&Value::from("store"), &Value::from("day"))
    );
    let numbers = ["limit", "remaining", "window_us"].map(|name| allowed[name].as_u64().unwrap());
    assert_eq!(numbers, [2, 1, 86_400_000_000]);
    assert_eq!(allowed["limits"][0]["remaining"], Value::from(1));
    assert!(
        allowed["limits"][0].get("retry_after_us").is_none()
            && allowed.get("retry_after_us").is_none()
    );
    let (code, summed) = json(ask(&["--repeat", "3"]));
    assert_eq!(
        (
            code,
            &summed["asked"],
            &summed["allowed"],
            &summed["denied"]
        ),
        (1, &3.into(), &1.into(), &2.into())
    );
    assert_eq!(summed["first_denied"]["request"], Value::from(2));
    let wait_us = summed["first_denied"]["retry_after_us"].as_u64().unwrap();
    assert!((1..=86_400_000_000).contains(&wait_us), "{wait_us}");
    assert_eq!(summed["last"]["outcome"], Value::from("denied"));
}

#[test]
fn try_reserves_settles_and_records() {
    let plans = "plans: { tokens: { limits: [ { name: minute, quota: 100000, window: 1m } ] },
        jobs: { limits: [ { quota: 1, algorithm: concurrency } ] } }";
    let server = Server::start(plans, &[]);
    let ask = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        asked("try", &server.address, &words)
    };
    let reserve = "--key acme --plan tokens --cost 2000 --reserve r1 --ttl 5m";
    let (code, reserved) = ask(reserve);
    assert_eq!(code, 0, "{reserved}");
    let told = "limit minute: 98000 of 100000 remaining";
    assert!(
        reserved.contains(told) && reserved.ends_with("held: for 300.000000s\n"),
        "{reserved}"
    );
    assert!(ask(reserve).1.contains("repeated: nothing was charged"));
    let settle = "--key acme --plan tokens --settle r1 --actual 740";
    let (code, settled) = ask(settle);
    let told =
        "settlement: settled\nheld 2000, used 740, returned 1260, excess 0\nlimit minute: 99260 of";
    assert!(code == 0 && settled.starts_with(told), "{settled}");
    let (code, again) = ask(&format!("{settle} --output json"));
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(
        (code, &again["settlement"], &again["returned"]),
        (0, &"repeated".into(), &0.into())
    );
    let (code, recorded) = ask("--key acme --plan tokens --cost 120000 --record");
    assert!(
        code == 0 && recorded.starts_with("recorded: 120000\nlimit minute: 0 of"),
        "{recorded}"
    );
    assert_eq!(ask("--key acme --plan jobs --reserve a").0, 0);
    let (code, denied) = ask("--key acme --plan jobs --reserve b --output json");
    let denied: Value = serde_json::from_str(&denied).unwrap();
    let held = (
        &denied["held"],
        &denied["expires_after_us"],
        &denied["request_id"],
    );
    assert_eq!(
        (code, held),
        (1, (&false.into(), &Value::Null, &"b".into()))
    );
}

#[test]
fn try_tells_what_is_wrong_about_a_hold() {
    let plans = "plans: { tokens: { limits: [ { quota: 5, window: 1m } ] } }";
    let server = Server::start(plans, &[]);
    for (words, told) in [
        ("--reserve a --settle b", "cannot be used with"),
        ("--reserve a --peek", "cannot be used with"),
        ("--record --repeat 2", "cannot be used with"),
        ("--settle a --cost 2", "cannot be used with"),
        ("--ttl 5m", "--reserve <ID>"),
        ("--actual 5", "--settle <ID>"),
        (
            "--reserve a --ttl soon",
            "write a whole number and its unit",
        ),
        ("--reserve ", "request_id is empty"),
        ("--reserve a --ttl 11m", "ttl is 11m: send 1s to 10m"),
        (
            "--settle a --actual 1000000000001",
            "actual is 1000000000001",
        ),
    ] {
        let words = format!("--key k --plan tokens {words}");
        let words: Vec<&str> = words.split(' ').collect();
        let (code, printed) = asked("try", &server.address, &words);
        assert!(
            code == 2 && printed.contains(told),
            "{words:?}: {code} {printed}"
        );
    }
}

#[test]
fn plans_lists_what_the_server_enforces() {
    let plans = "plans:\n  b: { limits: [ { name: rate, quota: 20, window: 10m, algorithm: token_bucket, burst: 5 } ], counts_as: g, \
                 shadow: true, on_store_failure: deny, candidate: c }\n  \
                 c: { limits: [ { quota: 9, window: 1d, algorithm: fixed_window }, { quota: 99, window: month, starts: 15, \
                 zone: europe/berlin } ] }\n  any: { unlimited: true }\n";
    let server = Server::start(plans, &[]);
    let (code, listed) = asked("plans", &server.address, &[]);
    let (head, lines) = listed.split_once('\n').unwrap();
    assert!(
        code == 0 && head.starts_with("config ") && head.ends_with(", 3 plans"),
        "{listed}"
    );
    let expected = "plan any: unlimited\nplan b: on store failure deny, counted as g, shadow, candidate c\n  \
                    limit rate: 20 in 10m (token_bucket, burst 5)\nplan c: on store failure local\n  \
                    limit fixed_window/1d: 9 in 1d (fixed_window, anchor clock)\n  \
                    limit fixed_window/month: 99 in month from day 15 in Europe/Berlin (fixed_window)\n";
    assert_eq!(lines, expected);
    let (code, json) = asked("plans", &server.address, &["--output", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (
            code,
            &json["plans"][1]["limits"][0]["burst"],
            &json["plans"][1]["counts_as"]
        ),
        (0, &5.into(), &"g".into())
    );
    let calendar = serde_json::json!({ "unit": "month", "zone": "Europe/Berlin", "starts": 15 });
    assert_eq!(json["plans"][2]["limits"][1]["calendar"], calendar);
    assert_eq!(
        (
            &json["plans"][2]["limits"][0]["window_us"],
            &json["plans"][0]["candidate"]
        ),
        (&86_400_000_000_u64.into(), &Value::Null)
    );
}

/// More than a batch may have requests.
#[test]
fn plans_lists_all_of_many() {
    let plan = |number: u32| format!("  p{number}: {{ unlimited: true }}\n");
    let plans: String = (0..1_500).map(plan).collect();
    let server = Server::start(&format!("plans:\n{plans}"), &[]);
    let (code, listed) = asked("plans", &server.address, &[]);
    assert_eq!((code, listed.lines().count()), (0, 1_501), "{listed:.200}");
}

#[test]
fn repeated_questions_are_added_up_until_one_fails() {
    let mut server = Server::start(PLANS, &[]);
    let (code, summed) = asked(
        "try",
        &server.address,
        &[&P[..], &["--repeat", "5"]].concat(),
    );
    assert!(
        summed
            .starts_with("asked: 5\nallowed: 2\ndenied: 3\nfirst denial: request 3, retry after "),
        "{summed}"
    );
    assert!(
        code == 1 && summed.contains("\nlast answer:\n  outcome: denied\n"),
        "{summed}"
    );
    let (code, summed) = asked(
        "try",
        &server.address,
        &[&ANY[..], &["--repeat", "1000"]].concat(),
    );
    assert!(
        code == 0 && summed.starts_with("asked: 1000\nallowed: 1000\ndenied: 0\nlast answer:"),
        "{summed}"
    );
    for wrong in ["0", "100001"] {
        assert_fails(
            "try",
            &server.address,
            &[&P[..], &["--repeat", wrong]].concat(),
            "is not in 1..=100000",
        );
    }
    assert_loss_of_server_is_told(&mut server);
}

/// The server is ended while questions are on their way.
fn assert_loss_of_server_is_told(server: &mut Server) {
    let mut command = tollgate();
    command
        .args(["try", "--address", &server.address, "--repeat", "100000"])
        .args(ANY);
    let asking = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let id = asking.id();
    let ended = std::thread::spawn(move || asking.wait_with_output().unwrap());
    while !is_connected(id) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    server.signal("KILL");
    server.wait();
    let output = ended.join().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && told.starts_with("asked: "),
        "{told}{failed}"
    );
    assert!(
        !told.starts_with("asked: 100000\n") && failed.contains("ended without an answer"),
        "{told}{failed}"
    );
}

/// Whether a process has a connection over TCP or has ended, as its files tell.
fn is_connected(process: u32) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else {
        return true;
    };
    let sockets = files
        .filter_map(Result::ok)
        .filter_map(|file| std::fs::read_link(file.path()).ok());
    let numbers: Vec<String> = sockets
        .filter_map(|link| {
            Some(
                link.to_str()?
                    .strip_prefix("socket:[")?
                    .trim_end_matches(']')
                    .to_owned(),
            )
        })
        .collect();
    // The fourth column is the state, 01 is established; the tenth is the number of the socket.
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[3] == "01")
        .any(|row| numbers.iter().any(|number| number == row[9]))
}

#[test]
fn a_server_that_is_not_there_or_silent_or_no_tollgate_gets_a_sentence() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let absent = format!("unix:{}", folder.path().join("absent.sock").display());
    for command in ["try", "health"] {
        let ask = |address: &str, more: &[&str], sentence: &str| {
            let subject = if command == "try" { &P[..] } else { &[] };
            assert_fails(command, address, &[subject, more].concat(), sentence);
        };
        ask("127.0.0.1:1", &[], "nothing answers at 127.0.0.1:1");
        ask(&absent, &[], "nothing answers at unix:/");
        ask(
            &at,
            &["--timeout", "50ms"],
            &format!("no answer from {at} within 0.05s"),
        );
        ask(
            &at,
            &["--timeout", "50ms", "--tls"],
            "does not answer within 0.05s",
        );
        ask(
            "50051",
            &[],
            "is not an address; write host:port, such as 127.0.0.1:50051 or [::1]:50051, or unix:/path",
        );
        ask(
            &absent,
            &["--tls"],
            "is a Unix socket, and nothing encrypts it",
        );
        ask(&at, &["--timeout", "0s"], "a timeout is 1ms to 1h");
        ask(&at, &["--tls-cert", "c"], "--tls-key <FILE>");
    }
    let server = Server::start(PLANS, &["--set", "listen.http=127.0.0.1:0"]);
    assert_fails("health", &server.http(), &[], "ended without an answer");
}

/// The first address at which a server takes gRPC.
fn first_address(server: &Server) -> String {
    field(&server.log(), "grpc")
        .split(',')
        .next()
        .unwrap()
        .to_owned()
}

#[test]
fn both_ask_over_unix_sockets_tls_and_mutual_tls() {
    let authority = Authority::new();
    authority.sign("server", "tollgate.test");
    authority.sign("client", "client.test");
    let socket = authority.text("s.sock");
    let ca = authority.text("ca.crt");
    let cert = authority.text("client.crt");
    let key = authority.text("client.key");
    let pair = format!(
        "cert_file: {}, key_file: {}",
        authority.text("server.crt"),
        authority.text("server.key")
    );
    let secured = Server::start(&format!("{PLANS}listen: {{ tls: {{ {pair} }} }}\n"), &[]);
    let mutual = Server::start(
        &format!("{PLANS}listen: {{ tls: {{ {pair}, client_ca_file: {ca} }} }}\n"),
        &["--listen", &format!("unix:{socket}")],
    );
    let tls = first_address(&secured);
    let mtls = first_address(&mutual);
    let unix = format!("unix:{socket}");
    for (command, subject) in [("try", &ANY[..]), ("health", &["--service", "readiness"])] {
        let ask = |at: &str, more: &[&str]| asked(command, at, &[subject, more].concat());
        let trusted = ["--tls-ca", &ca, "--tls-server-name", "tollgate.test"];
        let shown = [&trusted[..], &["--tls-cert", &cert, "--tls-key", &key]].concat();
        for (at, flags) in [(&unix, &[][..]), (&tls, &trusted), (&mtls, &shown)] {
            let (code, printed) = ask(at, flags);
            assert_eq!(code, 0, "{command} {at} {flags:?}: {printed}");
        }
        let refused = |at: &str, more: &[&str], sentence: &str| {
            assert_fails(command, at, &[subject, more].concat(), sentence);
        };
        refused(
            &tls,
            &["--tls-ca", &ca],
            "no TLS connection with 127.0.0.1: invalid peer certificate",
        );
        refused(&tls, &[], "does tollgate serve gRPC there, without TLS?");
        refused(&mtls, &trusted, "ended without an answer");
        refused(
            &tls,
            &["--tls-ca", &key],
            "the file of --tls-ca has no certificate",
        );
        refused(
            &tls,
            &["--tls-ca", "/nowhere.pem"],
            "the file of --tls-ca cannot be read: No such file",
        );
        refused(
            &tls,
            &["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &cert],
            "the file of --tls-key has no private key",
        );
    }
}

#[test]
fn health_tells_whether_a_service_serves() {
    let server = Server::start(PLANS, &[]);
    let health = |more: &[&str]| asked("health", &server.address, more);
    assert_eq!(health(&[]), (0, "SERVING\n".to_owned()));
    assert_eq!(
        health(&["--service", "readiness"]),
        (0, "SERVING\n".to_owned())
    );
    assert_eq!(
        health(&["--output", "json"]),
        (0, "{\"status\":\"SERVING\"}\n".to_owned())
    );
    let (code, unknown) = health(&["--service", "nothing"]);
    assert!(code == 2 && unknown.contains("NotFound"), "{unknown}");
}

/// By a server of the test's own, since tollgate is in this state only while it stops.
#[tokio::test]
async fn health_exits_with_1_where_a_service_does_not_serve() {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter
        .set_service_status("", tonic_health::ServingStatus::Serving)
        .await;
    reporter
        .set_service_status(
            tollgate::grpc::HEALTH_SERVICE,
            tonic_health::ServingStatus::NotServing,
        )
        .await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming),
    );
    let asks = move || {
        (
            asked("health", &address, &["--service", "readiness"]),
            asked("health", &address, &[]),
        )
    };
    let (readiness, liveness) = tokio::task::spawn_blocking(asks).await.unwrap();
    assert_eq!(
        (readiness, liveness),
        ((1, "NOT_SERVING\n".to_owned()), (0, "SERVING\n".to_owned()))
    );
}
