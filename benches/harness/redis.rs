//! The benchmark's own Redis server, and the figures that the benchmark measures on it without tollgate.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::process::{Process, free_port};

/// Number of INCR commands whose cost is measured. No limiter can cost Redis less than this native command.
const INCREMENTS: u64 = 2_000_000;
/// Number of them that are pipelined.
const PIPELINED: &str = "32";
/// Round trips of which the median is taken.
const PINGS: usize = 2_000;
/// Commands that run a script; what a script calls is not counted by these.
const SCRIPT_COMMANDS: [&str; 4] = [
    "cmdstat_eval:",
    "cmdstat_evalsha:",
    "cmdstat_eval_ro:",
    "cmdstat_fcall:",
];

pub struct Redis {
    pub process: Process,
    connection: TcpStream,
}

impl Redis {
    pub fn start(directory: &Path) -> Self {
        Self::to(Process::redis(directory, &[]))
    }

    /// A node of a Cluster without slots, and the port at which other nodes reach it.
    pub fn start_in_cluster(directory: &Path) -> (Self, u16) {
        let bus = free_port();
        let settings = [
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
            "--cluster-port",
            &bus.to_string(),
        ];
        (Self::to(Process::redis(directory, &settings)), bus)
    }

    fn to(process: Process) -> Self {
        let connection = TcpStream::connect(&process.address).expect("it listens");
        connection.set_nodelay(true).expect("TCP knows no delay");
        Self {
            process,
            connection,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.process.address)
    }

    pub fn flush(&mut self) {
        assert_eq!(self.ask("FLUSHALL"), "+OK", "FLUSHALL");
    }

    /// Script calls since Redis started.
    pub fn script_calls(&mut self) -> u64 {
        let statistics = self.ask("INFO commandstats");
        let calls = |line: &str| -> Option<u64> {
            let fields = SCRIPT_COMMANDS
                .iter()
                .find_map(|command| line.strip_prefix(command))?;
            fields
                .strip_prefix("calls=")?
                .split(',')
                .next()?
                .parse()
                .ok()
        };
        statistics.lines().filter_map(calls).sum()
    }

    /// The median of a PING's round trip, in microseconds. No decision through Redis is faster.
    pub fn round_trip_us(&mut self) -> f64 {
        let mut times: Vec<f64> = (0..PINGS)
            .map(|_| {
                let started = Instant::now();
                assert_eq!(self.ask("PING"), "+PONG", "PING");
                started.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[PINGS / 2]
    }

    /// CPU microseconds of Redis and increments a second, by redis-benchmark.
    pub fn increment(&mut self) -> (f64, f64) {
        let port = self
            .process
            .address
            .rsplit(':')
            .next()
            .expect("an address ends in its port");
        let mut command = Command::new("redis-benchmark");
        command.args([
            "-p",
            port,
            "-t",
            "incr",
            "-c",
            "8",
            "-P",
            PIPELINED,
            "-n",
            &INCREMENTS.to_string(),
            "-q",
        ]);
        let cpu_us = self.process.cpu_us();
        let started = Instant::now();
        let ended = command
            .stdout(Stdio::null())
            .status()
            .expect("redis-benchmark is needed: apt-get install redis-tools");
        assert!(ended.success(), "redis-benchmark: {ended}");
        let increments = INCREMENTS as f64;
        (
            (self.process.cpu_us() - cpu_us) / increments,
            increments / started.elapsed().as_secs_f64(),
        )
    }

    /// A command's reply, as one text: a line, or a bulk string.
    pub fn ask(&mut self, command: &str) -> String {
        self.connection
            .write_all(format!("{command}\r\n").as_bytes())
            .expect("Redis reads");
        let head = self.line();
        let Some(length) = head.strip_prefix('$') else {
            return head;
        };
        let length: usize = length
            .parse()
            .expect("a bulk string begins with its length");
        let mut text = vec![0; length + 2];
        self.connection
            .read_exact(&mut text)
            .expect("Redis sends what it announced");
        text.truncate(length);
        String::from_utf8(text).expect("Redis's statistics are text")
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.connection
                .read_exact(&mut byte)
                .expect("Redis answers");
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).expect("Redis's replies are text")
    }
}
