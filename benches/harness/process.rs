//! A process under test: started on a free loopback port, measured by `/proc`, ended with its owner.

use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Environment variable that makes this program the echo server. Its value is the address to listen at.
pub const ECHO: &str = "TOLLGATE_BENCH_ECHO";
/// Environment variable with the number of the echo server's workers.
pub const WORKERS: &str = "TOLLGATE_BENCH_WORKERS";
/// Longest that a server may take to listen.
const START_WITHIN: Duration = Duration::from_secs(10);

/// A server and where it listens.
pub struct Process {
    child: Child,
    pub address: String,
    /// Where tollgate listens for HTTP/1.1; unused by other programs.
    pub http: String,
}

/// Resident memory, in KiB.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pub now_kib: u64,
    /// The highest value since the start.
    pub peak_kib: u64,
}

impl Process {
    pub fn echo(workers: NonZeroUsize) -> Self {
        let program = std::env::current_exe().expect("a running program has a path");
        Self::start(|address, _| {
            let mut command = Command::new(&program);
            command.env(ECHO, address).env(WORKERS, workers.to_string());
            command
        })
    }

    /// Starts tollgate with a deadline of 5 s. A store that is slow because the machine is busy must show as latency, not as
    /// answers by policy.
    pub fn tollgate(config: &Path, store: &str, workers: NonZeroUsize) -> Self {
        Self::start(|address, http| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
            command.arg("--config").arg(config).args([
                "--listen",
                address,
                "--store",
                store,
                "--log-level",
                "warn",
            ]);
            command.args([
                "--set",
                "store.deadline=5s",
                "--set",
                &format!("workers={workers}"),
            ]);
            command.args(["--set", &format!("listen.http={http}")]);
            command
        })
    }

    pub fn redis(directory: &Path, settings: &[&str]) -> Self {
        Self::start(|address, _| {
            let port = address
                .rsplit(':')
                .next()
                .expect("an address ends in its port");
            let mut command = Command::new("redis-server");
            command
                .args([
                    "--bind",
                    "127.0.0.1",
                    "--port",
                    port,
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--dir",
                ])
                .arg(directory);
            command.args(settings);
            command
        })
    }

    /// Starts a command, without settings of tollgate from the environment of this process, and waits until it listens.
    fn start(command: impl Fn(&str, &str) -> Command) -> Self {
        let [address, http] = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
        let mut command = command(&address, &http);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TOLLGATE_"))
        {
            if name != ECHO && name != WORKERS {
                command.env_remove(name);
            }
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child
            .unwrap_or_else(|error| panic!("cannot start {program}: {error}; is it installed?"));
        let mut process = Self {
            child,
            address,
            http,
        };
        process.wait_until_it_listens(&program);
        process
    }

    fn wait_until_it_listens(&mut self, program: &str) {
        let started = Instant::now();
        while TcpStream::connect(&self.address).is_err() {
            let ended = self.child.try_wait().expect("a child can be waited for");
            assert!(
                ended.is_none() && started.elapsed() < START_WITHIN,
                "{program} did not start at {}",
                self.address
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// CPU time of all threads so far, in microseconds.
    ///
    /// From `/proc/PID/task/*/schedstat`, whose first number is nanoseconds on the processor: `utime` and `stime` of
    /// `/proc/PID/stat` are the same time in ticks of 10 ms, too coarse for a span of seconds. A thread that ends takes its
    /// time with it; those under test live as long as their process.
    pub fn cpu_us(&self) -> f64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id()))
            .expect("a child has threads in /proc");
        let nanoseconds = |thread: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
            // A thread may end after the folder was listed.
            let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        threads.filter_map(nanoseconds).sum::<u64>() as f64 / 1e3
    }

    pub fn memory(&self) -> Memory {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .expect("a child is in /proc");
        let field = |name: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .expect("a process has resident memory");
            line.trim()
                .trim_end_matches(" kB")
                .parse()
                .expect("it is a number of kB")
        };
        Memory {
            now_kib: field("VmRSS:"),
            peak_kib: field("VmHWM:"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port at which no process listens now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener
        .local_addr()
        .expect("a bound socket has an address")
        .port()
}
