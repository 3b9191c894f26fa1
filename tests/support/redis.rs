//! A Redis of one's own, stopped when dropped. When it is, every key it holds must have an expiry.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MISSING: &str = "is needed by this test and not installed; tests/run installs it, or: apt-get install redis-server";

pub struct Redis {
    child: Child,
    pub port: u16,
    directory: tempfile::TempDir,
    extra: Vec<String>,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(extra: &[&str]) -> Self {
        let extra: Vec<String> = extra.iter().map(|argument| (*argument).to_owned()).collect();
        let directory = tempfile::tempdir().unwrap();
        // Another process may take the port between the look and the start; then the next is tried.
        for _ in 0..20 {
            let port = free_port();
            let mut child = spawn(port, directory.path(), &extra);
            if wait_until_up(&mut child, port) {
                return Self { child, port, directory, extra };
            }
            drop(super::Guarded(child));
        }
        panic!("redis-server did not start on any of 20 free ports");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What redis-cli prints.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli").arg("-p").arg(self.port.to_string()).args(arguments).output();
        String::from_utf8(output.unwrap_or_else(|_| panic!("redis-cli {MISSING}")).stdout).unwrap().trim().to_owned()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts again, empty, on the same port.
    pub fn restart(&mut self) {
        self.child = spawn(self.port, self.directory.path(), &self.extra);
        assert!(wait_until_up(&mut self.child, self.port), "redis-server did not start again");
    }

    pub fn signal(&self, signal: &str) {
        super::signal(&self.child, signal);
    }

    pub fn keys_without_expiry(&self) -> String {
        let script = "local bad, cursor = {}, '0' repeat local page = redis.call('SCAN', cursor, 'COUNT', 1000) \
                      cursor = page[1] for _, key in ipairs(page[2]) do if redis.call('PTTL', key) == -1 then \
                      bad[#bad + 1] = key end end until cursor == '0' return table.concat(bad, ' ')";
        self.cli(&["EVAL", script, "0"])
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let alive = self.child.try_wait().is_ok_and(|exit| exit.is_none());
        let without = if alive && !std::thread::panicking() { self.keys_without_expiry() } else { String::new() };
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert!(without.is_empty(), "keys without an expiry: {without}");
    }
}

/// A port that nobody listens on at the moment.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn spawn(port: u16, directory: &std::path::Path, extra: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]);
    command.arg("--dir").arg(directory).args(extra).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|_| panic!("redis-server {MISSING}"))
}

fn wait_until_up(child: &mut Child, port: u16) -> bool {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if answers(port) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut reply = [0; 7];
    // Any reply will do: with a password set it is an error.
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut reply).is_ok()
}
