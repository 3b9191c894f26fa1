//! The log and its reader: a reader that stops reading blocks nothing, and a log line tells how many lines are missing.

use std::io::{BufRead, BufReader, PipeReader};
use std::time::{Duration, Instant};

use crate::support::http::{Scrape, get};
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, channel_to, decide, field, tollgate};
use crate::support::{Guarded, signal};

const PLANS: &str = "plans: { p: { limits: [ { quota: 1000000, window: 1d } ] } }\n";
const DROPPED: &str = "tollgate_log_lines_dropped_total";

/// A server whose standard output and standard error are one pipe, which the test reads or does not.
struct Unread {
    server: Guarded,
    log: BufReader<PipeReader>,
    address: String,
    http: String,
    _config: tempfile::NamedTempFile,
}

impl Unread {
    /// Reads the log until the server serves, and no further. Everything is logged, so that the pipe is soon full.
    fn start(flags: &[&str]) -> Self {
        let config = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(config.path(), PLANS).unwrap();
        let (log, output) = std::io::pipe().unwrap();
        let mut command = tollgate();
        command.arg("--config").arg(config.path()).args([
            "--listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
            "--log-level",
            "trace",
        ]);
        command
            .args([
                "--set",
                "listen.http=127.0.0.1:0",
                "--set",
                "listen.lame_duck=0s",
            ])
            .args(flags);
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let server = Guarded(command.spawn().unwrap());
        // The command holds the writing end of the pipe. Without this, the pipe would not end with the server.
        drop(command);
        let mut log = BufReader::new(log);
        let mut line = String::new();
        while !line.contains("tollgate is serving") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it does not start");
        }
        Self {
            server,
            log,
            address: field(&line, "grpc"),
            http: field(&line, "http"),
            _config: config,
        }
    }

    async fn client(&self) -> Client {
        Client::new(channel_to(&self.address).await)
    }

    fn dropped(&self) -> f64 {
        Scrape::of(&self.http).value(DROPPED)
    }

    /// Makes the server log until the pipe and its queue are full and lines are dropped.
    async fn overflow(&self) {
        let mut client = self.client().await;
        let started = Instant::now();
        while self.dropped() == 0.0 {
            assert!(started.elapsed() < PATIENCE, "the log never overflows");
            for _ in 0..100 {
                decide(&mut client, "k", "p").await;
            }
        }
    }

    /// Stops the server. Returns how long that took.
    fn ends(&mut self) -> Duration {
        let started = Instant::now();
        signal(&self.server.0, "TERM");
        while self.server.0.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        started.elapsed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_log_blocks_neither_decisions_nor_http_nor_the_shutdown() {
    let mut redis = Redis::start();
    let mut unread = Unread::start(&["--store", &redis.url()]);
    unread.overflow().await;
    redis.kill();
    let mut client = unread.client().await;
    let mut took = Vec::new();
    for key in 0..300 {
        let asked = Instant::now();
        decide(&mut client, &key.to_string(), "p").await;
        took.push(asked.elapsed());
    }
    took.sort();
    println!(
        "without a reader and without Redis: median {:?}, p99 {:?}, slowest {:?}",
        took[150], took[297], took[299]
    );
    // The promise is 30 ms. A decision that the log blocked would never be answered.
    assert!(took[297] < Duration::from_secs(3), "{took:?}");
    assert_eq!(
        (
            get(&unread.http, "/healthz").status,
            get(&unread.http, "/readyz").status
        ),
        (200, 200)
    );
    let ended = unread.ends();
    println!("ended {ended:?} after SIGTERM");
    assert!(ended < Duration::from_secs(10), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_read_again_tells_how_much_is_missing_and_how_it_ended() {
    let mut unread = Unread::start(&[]);
    unread.overflow().await;
    let mut log = std::mem::replace(&mut unread.log, BufReader::new(std::io::pipe().unwrap().0));
    let reader = std::thread::spawn(move || {
        let mut lines = Vec::new();
        let mut line = Vec::new();
        while log.read_until(b'\n', &mut line).unwrap() > 0 {
            lines.push(String::from_utf8(std::mem::take(&mut line)).unwrap());
        }
        lines
    });
    let before = unread.dropped();
    let started = Instant::now();
    // Goes on until the report is logged, which takes a moment: the waiting lines come first.
    let mut client = unread.client().await;
    while started.elapsed() < Duration::from_secs(1) {
        decide(&mut client, "k", "p").await;
    }
    let dropped = unread.dropped();
    drop(client);
    unread.ends();
    let lines = reader.join().unwrap();
    let told = |line: &String| {
        let count = line.split_once("\"lines\":")?.1.split(['}', ',']).next()?;
        line.contains("were dropped here")
            .then(|| count.parse::<f64>().unwrap())
    };
    let told: Vec<f64> = lines.iter().filter_map(told).collect();
    println!("{before} dropped before it was read again, {dropped} in all, told of as {told:?}");
    assert!(
        told.iter().sum::<f64>() >= before && before > 0.0,
        "{told:?} of {before}"
    );
    assert!(
        lines
            .iter()
            .all(|line| line.starts_with('{') && line.ends_with("}\n")),
        "a line is cut"
    );
    assert!(
        lines
            .last()
            .unwrap()
            .contains("stopped: every call was answered"),
        "{:?}",
        lines.last()
    );
}
