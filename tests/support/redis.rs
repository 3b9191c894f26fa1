//! A Redis for one test. It is stopped when it is dropped; every key that it then holds must have an expiry.

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::netns::Island;
use super::preload::Shift;

/// Most commands that are logged.
const LOGGED: &str = "10000";

const MISSING: &str = "is needed by this test and not installed; tests/run installs it, or: apt-get install redis-server";

pub struct Redis {
    child: Child,
    host: String,
    pub port: u16,
    /// The command that starts it: the server, or a program that first changes the environment and then becomes the server.
    program: Vec<String>,
    directory: tempfile::TempDir,
    options: Vec<String>,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(extra: &[&str]) -> Self {
        Self::start_by("127.0.0.1", &["redis-server"], extra)
    }

    /// Starts it on an island, at both addresses of that.
    pub fn start_on(island: &Island) -> Self {
        let program = ["ip", "netns", "exec", &island.name, "redis-server"];
        Self::start_by(
            &island.addresses[0],
            &program,
            &["--protected-mode", "no", "--bind", "0.0.0.0"],
        )
    }

    /// Starts it with a clock that the test sets. Its allocator's thread waits until a time of day, so behind the real time it would
    /// never sleep.
    pub fn start_shifted(shift: &Shift) -> Self {
        let variables = shift
            .environment()
            .map(|(name, value)| format!("{name}={value}"));
        Self::start_by(
            "127.0.0.1",
            &["env", &variables[0], &variables[1], "redis-server"],
            &["--jemalloc-bg-thread", "no"],
        )
    }

    pub fn start_by(host: &str, program: &[&str], extra: &[&str]) -> Self {
        let owned = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let program = owned(program);
        let own = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"];
        let options = owned(&[&own, extra].concat());
        // Another process may take the port before the server binds it. Another port is tried then.
        for _ in 0..20 {
            let directory = tempfile::tempdir().unwrap();
            let port = free_port();
            let child = spawn(&program, port, directory.path(), &options);
            let host = host.to_owned();
            let program = program.clone();
            let options = options.clone();
            let mut redis = Self {
                child,
                host,
                port,
                program,
                directory,
                options,
            };
            if redis.wait_until_up() {
                return redis;
            }
        }
        panic!("redis-server did not start on any of 20 free ports");
    }

    pub fn url(&self) -> String {
        self.url_at(&self.host)
    }

    /// As it is reached at another address of its host.
    pub fn url_at(&self, host: &str) -> String {
        format!("redis://{host}:{}", self.port)
    }

    /// What redis-cli prints.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let password = self
            .options
            .iter()
            .skip_while(|option| *option != "--requirepass")
            .nth(1);
        let mut command = Command::new("redis-cli");
        command.envs(password.map(|password| ("REDISCLI_AUTH", password)));
        let output = command
            .args(["-h", &self.host])
            .arg("-p")
            .arg(self.port.to_string())
            .args(arguments)
            .output();
        String::from_utf8(
            output
                .unwrap_or_else(|_| panic!("redis-cli {MISSING}"))
                .stdout,
        )
        .unwrap()
        .trim()
        .to_owned()
    }

    /// How often it ran a command, scripts' calls included; 0 where it never did.
    pub fn ran(&self, command: &str) -> u64 {
        let statistics = self.cli(&["INFO", "commandstats"]);
        let calls = statistics.lines().find_map(|line| {
            line.strip_prefix("cmdstat_")?
                .strip_prefix(command)?
                .strip_prefix(":calls=")
        });
        calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
    }

    /// Logs every command from now on, for [`Self::decision_calls`].
    pub fn log_calls(&self) {
        // Room for as many as a test may ask for, and for what servers ask for beside.
        let settings = ["slowlog-log-slower-than", "0", "slowlog-max-len", LOGGED];
        self.cli(&[&["CONFIG", "SET"], &settings[..]].concat());
        self.cli(&["SLOWLOG", "RESET"]);
    }

    /// Script calls since [`Self::log_calls`] that decided, or were about holds. Other scripts are about tollgate's own names, which
    /// begin with `{:`. Servers call these by time, so how many there are depends on how long a test takes.
    pub fn decision_calls(&self) -> usize {
        let log = self.cli(&["--no-raw", "SLOWLOG", "GET", LOGGED]);
        let arguments = log.lines().filter_map(|line| line.split_once('"'));
        let arguments: Vec<&str> = arguments.map(|(_, argument)| argument).collect();
        // The command, the script's hash, how many names follow, and the first of them.
        let calls = arguments
            .windows(4)
            .filter(|call| call[0].eq_ignore_ascii_case("evalsha\""));
        calls.filter(|call| !call[3].starts_with("{:")).count()
    }

    /// Its processor time so far, by its own account, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        let told = self.cli(&["info", "cpu"]);
        let seconds = |name: &str| -> f64 {
            let line = told.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse().unwrap()
        };
        (seconds("used_cpu_sys:") + seconds("used_cpu_user:")) * 1e6
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts again, empty, on the same port.
    pub fn restart(&mut self) {
        self.child = spawn(
            &self.program,
            self.port,
            self.directory.path(),
            &self.options,
        );
        assert!(self.wait_until_up(), "redis-server did not start again");
    }

    fn wait_until_up(&mut self) -> bool {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(30) {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if answers(&self.host, self.port) {
                return self.is_it_that_answers();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Whether this server answers at its port, and not that of another test, which took the port first. The own one then has not ended yet.
    /// A server that says nothing of itself counts as this one.
    fn is_it_that_answers(&self) -> bool {
        let told = self.cli(&["INFO", "server"]);
        let process = told
            .lines()
            .find_map(|line| line.strip_prefix("process_id:"));
        process.is_none_or(|process| process == self.child.id().to_string())
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|exit| exit.is_none())
    }

    pub fn signal(&self, signal: &str) {
        super::signal(&self.child, signal);
    }

    /// Names without an expiry, but for the overrides, which have none.
    pub fn keys_without_expiry(&self) -> String {
        let script = "local bad, cursor = {}, '0' repeat local page = redis.call('SCAN', cursor, 'COUNT', 1000) \
                      cursor = page[1] for _, key in ipairs(page[2]) do if redis.call('PTTL', key) == -1 and not string.find(key, '{:overrides}', 1, true) then \
                      bad[#bad + 1] = key end end until cursor == '0' return table.concat(bad, ' ')";
        self.cli(&["EVAL", script, "0"])
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // A node of a Cluster has only a part of the keys; `cluster.rs` checks them.
        let alone = !self
            .options
            .iter()
            .any(|option| option == "--cluster-enabled");
        let looked_at = alone && self.is_alive() && !std::thread::panicking();
        let without = if looked_at {
            self.keys_without_expiry()
        } else {
            String::new()
        };
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert!(without.is_empty(), "keys without an expiry: {without}");
    }
}

/// What redis-cli prints of a server of this host that asks for no password.
pub fn cli(port: u16, arguments: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .arg("-p")
        .arg(port.to_string())
        .args(arguments)
        .output();
    String::from_utf8(
        output
            .unwrap_or_else(|_| panic!("redis-cli {MISSING}"))
            .stdout,
    )
    .unwrap()
    .trim()
    .to_owned()
}

/// The program of another version or fork of Redis, which `tests/run` fetches. `--version` must begin with this text.
pub fn other_make(name: &str, version: &str) -> String {
    let path = format!("{}/target/servers/{name}", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(&path).arg("--version").output();
    let output = output.unwrap_or_else(|_| {
        panic!("{path} is needed by this test and not there; tests/run fetches it")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.starts_with(version),
        "{path} is not what its name says: {text}"
    );
    path
}

/// Below the ports that a system gives to who asks for any: from 32,768 on Linux, and from 49,152 on macOS.
const PORTS: Range<u64> = 20_000..32_000;

/// A port at which no process listens at the moment. It is given to no other test, and no server or client that asks for any port gets
/// it. So it is still free when a server is started with it.
pub fn free_port() -> u16 {
    // Test programs that run at the same time begin at different ports.
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(0) >> 32));
    let count = PORTS.end - PORTS.start;
    let port = (0..count)
        .map(|_| PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % count)
        .map(|port| u16::try_from(port).unwrap())
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    port.expect("no port is free")
}

fn spawn(program: &[String], port: u16, directory: &std::path::Path, options: &[String]) -> Child {
    let mut command = Command::new(&program[0]);
    command
        .args(&program[1..])
        .args(["--port", &port.to_string(), "--dir"])
        .arg(directory)
        .args(options);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
        .spawn()
        .unwrap_or_else(|_| panic!("redis-server {MISSING}"))
}

fn answers(host: &str, port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((host, port)) else {
        return false;
    };
    let mut reply = [0; 7];
    // Any reply will do: with a password set it is an error.
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut reply).is_ok()
}
