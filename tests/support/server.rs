//! A running tollgate: the real binary, on a port that the system chose.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tollgate::grpc::pb::rate_limit_service_client::RateLimitServiceClient;
use tollgate::grpc::pb::{self, DecidedBy};
use tonic::transport::{Channel, Endpoint};

/// Longest wait of a test, far longer than anything takes, so that no test fails on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub type Client = RateLimitServiceClient<Channel>;

pub struct Server {
    pub child: Child,
    pub address: String,
    log: Arc<Mutex<Vec<String>>>,
    /// The config file, kept while the server runs; `None` if the test keeps it.
    config: Option<tempfile::NamedTempFile>,
}

impl Server {
    /// Starts a server with this config and further `flags`.
    pub fn start(config: &str, flags: &[&str]) -> Self {
        let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        file.write_all(config.as_bytes()).unwrap();
        Self::start_from("127.0.0.1:0", file, flags)
    }

    /// Starts a server with the config file at this path, which the test may change.
    pub fn start_on(config: &Path, flags: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", config, flags)
    }

    /// As [`Self::start_on`], with these environment variables.
    pub fn start_on_in(config: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = tollgate();
        command.envs(variables.iter().copied());
        Self::start_by(command, "127.0.0.1:0", config, flags)
    }

    fn start_from(address: &str, file: tempfile::NamedTempFile, flags: &[&str]) -> Self {
        let mut server = Self::start_at(address, file.path(), flags);
        server.config = Some(file);
        server
    }

    /// As [`Self::start`], with these environment variables.
    pub fn start_in(config: &str, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        file.write_all(config.as_bytes()).unwrap();
        let mut server = Self::start_on_in(file.path(), flags, variables);
        server.config = Some(file);
        server
    }

    /// Starts a server by another command, which becomes the server.
    pub fn start_as(command: Command, config: &str, flags: &[&str]) -> Self {
        let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        file.write_all(config.as_bytes()).unwrap();
        let mut server = Self::start_by(command, "127.0.0.1:0", file.path(), flags);
        server.config = Some(file);
        server
    }

    fn start_at(address: &str, config: &Path, flags: &[&str]) -> Self {
        Self::start_by(tollgate(), address, config, flags)
    }

    fn start_by(mut command: Command, address: &str, config: &Path, flags: &[&str]) -> Self {
        command.args(["--listen", address]).args(flags);
        Self::spawn(command, config)
    }

    /// Starts a server at the addresses of its config.
    pub fn start_configured(config: &Path) -> Self {
        Self::spawn(tollgate(), config)
    }

    fn spawn(mut command: Command, config: &Path) -> Self {
        command
            .arg("--config")
            .arg(config)
            .args(["--log-format", "json"]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (log, started) = read_log(&mut child);
        let Ok(line) = started.recv_timeout(PATIENCE) else {
            let _ = child.kill();
            panic!(
                "the server did not start: {:?} {}",
                log.lock().unwrap(),
                read_all(child.stderr.take())
            );
        };
        Self {
            child,
            address: field(&line, "grpc"),
            log,
            config: None,
        }
    }

    /// Starts a server again on its old port, after it has ended.
    pub fn again(self, flags: &[&str]) -> Self {
        let config = self
            .config
            .as_ref()
            .expect("only where the server has its own file")
            .reopen_path();
        let address = self.address.clone();
        drop(self);
        Self::start_from(&address, config, flags)
    }

    pub async fn client(&self) -> Client {
        RateLimitServiceClient::new(channel_to(&self.address).await)
    }

    /// Writes its config file anew. It is taken up when the server is told to, or by itself after a while.
    pub fn write_config(&self, config: &str) {
        let file = self.config.as_ref().expect("the server has it");
        std::fs::write(file.path(), config).unwrap();
    }

    /// The line of the log that tells where it serves.
    pub fn start_line(&self) -> String {
        self.log()
            .lines()
            .find(|line| line.contains("tollgate is serving"))
            .unwrap()
            .to_owned()
    }

    /// Where it serves HTTP, which its config must ask for.
    pub fn http(&self) -> String {
        field(&self.start_line(), "http")
    }

    /// Memory of the process by a field of its status, such as `VmRSS`.
    pub fn memory_kb(&self, field: &str) -> u64 {
        memory_kb(self.child.id(), field)
    }

    /// Processor time that a thread of the process has had, by the thread's name.
    pub fn thread_time(&self, name: &str) -> Duration {
        let times = self.thread_times();
        let of_name = times.iter().find(|(thread, _)| thread == name);
        of_name
            .unwrap_or_else(|| panic!("no thread is named {name:?}: {times:?}"))
            .1
    }

    /// Names of the threads that the process has now, and the processor time that each has had.
    pub fn thread_times(&self) -> Vec<(String, Duration)> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let read = |thread: PathBuf| {
            let name = std::fs::read_to_string(thread.join("comm")).ok()?;
            let times = std::fs::read_to_string(thread.join("schedstat")).ok()?;
            let nanoseconds = times.split(' ').next()?.parse().ok()?;
            Some((
                name.trim_end().to_owned(),
                Duration::from_nanos(nanoseconds),
            ))
        };
        threads
            .filter_map(|thread| read(thread.unwrap().path()))
            .collect()
    }

    /// Asks for a new key of this plan each time, until the decision is made `by` this decider.
    pub async fn wait_until_decided_by(&self, by: DecidedBy, plan: &str) {
        let mut client = self.client().await;
        let started = Instant::now();
        for probe in 0.. {
            let answer = decide(&mut client, &format!("probe {probe}"), plan).await;
            if answer.decided_by() == by {
                return;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "still decided by {:?}: {}",
                answer.decided_by(),
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// What was logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Waits until the log has a line with these words, which its thread reads some time after it was written; that line.
    pub async fn wait_for_line(&self, words: &str) -> String {
        let started = Instant::now();
        loop {
            let log = self.log();
            if let Some(line) = log.lines().find(|line| line.contains(words)) {
                return line.to_owned();
            }
            assert!(
                started.elapsed() < PATIENCE,
                "{words:?} is not in the log: {log}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn signal(&self, signal: &str) {
        super::signal(&self.child, signal);
    }

    /// Waits until the process has ended and its whole log was read. Returns the exit status and how long that took.
    pub fn wait(&mut self) -> (ExitStatus, Duration) {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                let took = started.elapsed();
                // A thread that reads the server's output shares the log until the output ends.
                while Arc::strong_count(&self.log) > 1 && started.elapsed() < PATIENCE {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return (status, took);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server did not end within {PATIENCE:?}");
    }
}

impl Server {
    /// Ends the server and returns its whole log, for tests that the log does not contain something.
    pub fn end_and_log(mut self) -> String {
        self.signal("INT");
        self.wait();
        self.log()
    }

    /// As [`Self::wait`], by value, with the whole log.
    pub fn wait_and_log(mut self) -> ((ExitStatus, String), Duration) {
        let (status, took) = self.wait();
        ((status, self.log()), took)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

trait Reopen {
    fn reopen_path(&self) -> tempfile::NamedTempFile;
}

impl Reopen for tempfile::NamedTempFile {
    /// A file of its own with the same content.
    fn reopen_path(&self) -> tempfile::NamedTempFile {
        let mut copy = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        copy.write_all(&std::fs::read(self.path()).unwrap())
            .unwrap();
        copy
    }
}

/// A command that runs the binary without settings of tollgate from the environment of this process.
pub fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    without_settings(&mut command);
    command
}

/// Takes settings of tollgate out of the environment of a command.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_ours(&name.to_string_lossy())) {
        command.env_remove(name);
    }
}

fn is_ours(variable: &str) -> bool {
    variable.starts_with("TOLLGATE_") || variable.starts_with("OTEL_")
}

pub async fn channel_to(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

pub fn request(key: &str, plan: &str, cost: Option<u64>) -> pb::ShouldAllowRequest {
    pb::ShouldAllowRequest {
        key: key.to_owned(),
        plan: plan.to_owned(),
        cost,
        ..Default::default()
    }
}

/// One decision on a cost of 1. An error fails the test.
pub async fn decide(client: &mut Client, key: &str, plan: &str) -> pb::ShouldAllowResponse {
    client
        .should_allow(request(key, plan, None))
        .await
        .unwrap()
        .into_inner()
}

/// Memory of a process by a field of its status, such as `VmRSS`.
pub fn memory_kb(process: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let name = format!("{field}:");
    let line = status.lines().find(|line| line.starts_with(&name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A field of a JSON log line, if it is a text without quotes in it.
pub fn field(line: &str, name: &str) -> String {
    let begin = line
        .find(&format!("\"{name}\":\""))
        .unwrap_or_else(|| panic!("no {name} in {line}"))
        + name.len()
        + 4;
    line[begin..].split('"').next().unwrap().to_owned()
}

fn read_log(child: &mut Child) -> (Arc<Mutex<Vec<String>>>, Receiver<String>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let (sender, started) = channel();
    let stdout = child.stdout.take().unwrap();
    let log = lines.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            log.lock().unwrap().push(line.clone());
            if line.contains("tollgate is serving") {
                // The test may have given up by now.
                let _ = sender.send(line);
            }
        }
    });
    (lines, started)
}

fn read_all(from: Option<impl std::io::Read>) -> String {
    let mut text = String::new();
    if let Some(mut from) = from {
        let _ = from.read_to_string(&mut text);
    }
    text
}
