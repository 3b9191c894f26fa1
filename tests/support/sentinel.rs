//! A Redis that Sentinels watch: a master, two replicas and three Sentinels, each a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::Guarded;
use super::redis::{Redis, free_port};
use super::server::PATIENCE;

/// Name of the master in the configuration of the Sentinels.
pub const SERVICE: &str = "counters";
const SERVERS: usize = 3;
const SENTINELS: usize = 3;

pub struct Watched {
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Sentinel>,
}

pub struct Sentinel {
    child: Guarded,
    pub port: u16,
    password: Option<String>,
    _directory: tempfile::TempDir,
}

impl Watched {
    /// Starts all servers and Sentinels. After a second of silence, the Sentinels take the master for lost.
    pub fn start() -> Self {
        Self::start_with(&[], "")
    }

    /// As [`Self::start`], with options for the servers, and lines for the configuration of the Sentinels.
    pub fn start_with(options: &[&str], lines: &str) -> Self {
        let options = [&["--repl-diskless-sync-delay", "0"], options].concat();
        let master = Redis::start_with(&options);
        let of_master = [
            "--replicaof".to_owned(),
            format!("127.0.0.1 {}", master.port),
        ];
        let replica: Vec<&str> = options
            .into_iter()
            .chain(of_master.iter().map(String::as_str))
            .collect();
        let mut servers = vec![master];
        servers.extend((1..SERVERS).map(|_| Redis::start_with(&replica)));
        let sentinels = (0..SENTINELS)
            .map(|_| Sentinel::start(servers[0].port, lines))
            .collect();
        let watched = Self { servers, sentinels };
        watched.wait_until_agreed();
        watched
    }

    pub fn url(&self) -> String {
        let [first, rest @ ..] = self.sentinels.as_slice() else {
            panic!("no Sentinels")
        };
        let rest: String = rest
            .iter()
            .map(|sentinel| format!("&node=127.0.0.1:{}", sentinel.port))
            .collect();
        format!(
            "redis-sentinel://127.0.0.1:{}?sentinelServiceName={SERVICE}{rest}",
            first.port
        )
    }

    fn wait_until_agreed(&self) {
        let field = |details: &str, name: &str| {
            details
                .lines()
                .skip_while(|line| *line != name)
                .nth(1)
                .unwrap_or("")
                .to_owned()
        };
        let agreed = |sentinel: &Sentinel| {
            let details = sentinel.cli(&["SENTINEL", "MASTER", SERVICE]);
            let counts = [
                field(&details, "num-slaves"),
                field(&details, "num-other-sentinels"),
                field(&details, "flags"),
            ];
            counts
                == [
                    (SERVERS - 1).to_string(),
                    (SENTINELS - 1).to_string(),
                    "master".to_owned(),
                ]
        };
        let in_sync = |server: &Redis| {
            server
                .cli(&["INFO", "replication"])
                .contains("master_link_status:up")
        };
        let started = Instant::now();
        while !self.sentinels.iter().all(agreed) || !self.servers[1..].iter().all(in_sync) {
            assert!(started.elapsed() < PATIENCE, "the Sentinels do not agree");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Sentinel {
    fn start(master: u16, lines: &str) -> Self {
        for _ in 0..20 {
            let directory = tempfile::tempdir().unwrap();
            let port = free_port();
            let file = directory.path().join("sentinel.conf");
            let config = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {master} 2\n\
                 sentinel down-after-milliseconds {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 5000\n\
                 sentinel parallel-syncs {SERVICE} 2\n{lines}\n",
                directory.path().display()
            );
            std::fs::write(&file, config).unwrap();
            let mut command = Command::new("redis-server");
            let child = command
                .arg(file)
                .arg("--sentinel")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            let password = lines
                .lines()
                .find_map(|line| line.strip_prefix("requirepass "))
                .map(str::to_owned);
            let sentinel = Self {
                child: Guarded(child.unwrap()),
                port,
                password,
                _directory: directory,
            };
            let started = Instant::now();
            while started.elapsed() < PATIENCE {
                if !sentinel.cli(&["PING"]).is_empty() {
                    return sentinel;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        panic!("no Sentinel started");
    }

    /// What redis-cli prints.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.envs(
            self.password
                .iter()
                .map(|password| ("REDISCLI_AUTH", password)),
        );
        let output = command
            .arg("-p")
            .arg(self.port.to_string())
            .args(arguments)
            .output();
        String::from_utf8(output.unwrap().stdout)
            .unwrap()
            .trim()
            .to_owned()
    }

    pub fn master(&self) -> u16 {
        self.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])
            .lines()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    }

    pub fn signal(&self, signal: &str) {
        super::signal(&self.child.0, signal);
    }

    /// Receives the moments at which this Sentinel announces another master.
    pub fn switches(&self) -> (Guarded, Receiver<Instant>) {
        let mut command = Command::new("redis-cli");
        command
            .args(["-p", &self.port.to_string(), "SUBSCRIBE", "+switch-master"])
            .stdout(Stdio::piped());
        let mut child: Child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The first three lines confirm the subscription.
        (0..3).for_each(|_| drop(lines.next().unwrap().unwrap()));
        let (sender, switched) = channel();
        std::thread::spawn(move || {
            for line in lines
                .map_while(Result::ok)
                .filter(|line| line.starts_with(SERVICE))
            {
                let at = Instant::now();
                if line.split(' ').count() == 5 && sender.send(at).is_err() {
                    return;
                }
            }
        });
        (Guarded(child), switched)
    }
}
