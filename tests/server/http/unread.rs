//! Requests that are answered before they are read as a whole: every client sees its answer, and what is behind it is bounded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{check, serve};
use crate::support::http::Scrape;
use crate::support::server::PATIENCE;

const KIB: usize = 1 << 10;
/// The bounds on what is read and dropped behind an answer.
const DROPPED_BYTES: usize = 4 << 20;
const DROPPED_WITHIN: Duration = Duration::from_secs(5);

fn connect(http: &str) -> TcpStream {
    let stream = TcpStream::connect(http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn head(method: &str, plan: &str, fields: &str) -> String {
    format!("{method} /v1/check?key=k&plan={plan} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")
}

/// The statuses of 40 requests, each on a connection of its own. The whole request is sent before the answer is read; 0 where
/// there was no whole answer.
fn statuses(http: &str, request: &str) -> Vec<u16> {
    let status = |_| {
        let mut stream = connect(http);
        let mut answer = Vec::new();
        let sent = stream.write_all(request.as_bytes());
        let read = sent.and_then(|()| stream.read_to_end(&mut answer));
        let text = String::from_utf8_lossy(&answer);
        read.ok()
            .and_then(|_| text.split(' ').nth(1)?.parse().ok())
            .unwrap_or_default()
    };
    (0..40).map(status).collect()
}

#[test]
fn an_answer_to_a_part_of_a_request_is_seen_by_every_client() {
    let (_server, http) = serve(&[]);
    let mut answered = 0.0;
    for (size, status) in [
        (KIB, 200),
        (15 * KIB, 200),
        (17 * KIB, 431),
        (28 * KIB, 431),
        (128 * KIB, 431),
        (KIB * KIB, 431),
    ] {
        let long = head(
            "GET",
            "open",
            &format!("Connection: close\r\nCookie: {}\r\n", "x".repeat(size)),
        );
        assert_eq!(
            statuses(&http, &long),
            [status; 40],
            "a head of {size} bytes"
        );
        answered += if status == 200 { 40.0 } else { 0.0 };
    }
    for (method, size, status) in [
        ("POST", 9 * KIB, 413),
        ("POST", 300 * KIB, 413),
        ("POST", 2 * KIB * KIB, 413),
        ("GET", 300 * KIB, 200),
        ("HEAD", 300 * KIB, 200),
        ("PUT", 300 * KIB, 405),
    ] {
        let with_body = head(
            method,
            "open",
            &format!("Connection: close\r\nContent-Length: {size}\r\n"),
        ) + &"x".repeat(size);
        assert_eq!(
            statuses(&http, &with_body),
            [status; 40],
            "{method} with {size} bytes"
        );
        answered += if status == 200 { 40.0 } else { 0.0 };
    }
    let decided: f64 = Scrape::of(&http).decisions().values().sum();
    assert_eq!(
        decided, answered,
        "each request that was decided saw its answer"
    );
}

#[test]
fn what_is_dropped_behind_an_answer_is_bounded_in_bytes() {
    let (_server, http) = serve(&[]);
    let mut stream = connect(&http);
    stream
        .write_all(head("GET", "open", "Content-Length: 1000000000\r\n").as_bytes())
        .unwrap();
    let piece = [b'x'; 64 << 10];
    // What the buffers of both systems take comes on top; a system grows them to some MiB.
    let taken = (0..1024)
        .find(|_| stream.write_all(&piece).is_err())
        .expect("the server reads on and on")
        * piece.len();
    println!("{taken} bytes were taken behind the answer");
    assert!(taken >= DROPPED_BYTES, "{taken} bytes");
}

#[test]
fn what_is_dropped_behind_an_answer_is_bounded_in_time() {
    let (_server, http) = serve(&[]);
    let mut stream = connect(&http);
    stream
        .write_all(head("GET", "open", "Content-Length: 1000000000\r\n").as_bytes())
        .unwrap();
    let began = Instant::now();
    // A client that goes on and on, a byte at a time.
    while stream.write_all(b"x").is_ok() {
        assert!(began.elapsed() < PATIENCE, "the server waits on and on");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(
        began.elapsed() >= DROPPED_WITHIN,
        "closed after {:?}",
        began.elapsed()
    );
    // Others are served.
    assert_eq!(check(&http, "key=b&plan=two").status, 200);
}

#[test]
fn half_a_head_behind_a_whole_request_is_not_waited_for_longer_than_half_a_head() {
    let (_server, http) = serve(&[]);
    let posted = "POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 25\r\n\r\n\
        {\"key\":\"k\",\"plan\":\"open\"}\n";
    for whole in [
        head("GET", "open", "Connection: keep-alive\r\n"),
        posted.to_owned(),
    ] {
        let mut stream = connect(&http);
        stream
            .write_all((whole + "GET /healthz HTTP/1.1\r\nHo").as_bytes())
            .unwrap();
        let began = Instant::now();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(
            answer.starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "closed after {:?}",
            began.elapsed()
        );
    }
    // A connection with nothing behind its request stays open.
    let mut stream = connect(&http);
    stream
        .write_all(head("GET", "open", "").as_bytes())
        .unwrap();
    std::thread::sleep(DROPPED_WITHIN * 2);
    stream
        .write_all(head("GET", "open", "Connection: close\r\n").as_bytes())
        .unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
}
