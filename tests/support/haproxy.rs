//! HAProxy as people put it before several replicas (HTTP/2 on both sides, calls spread evenly, replicas probed), and before an
//! application that it asks the check endpoint for (a Lua action).

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::redis::free_port;

pub struct Haproxy {
    child: Child,
    pub address: String,
    _directory: tempfile::TempDir,
}

impl Haproxy {
    /// Before replicas that are gRPC addresses, each with that of its HTTP, which is asked whether it is ready.
    pub fn before(replicas: &[(String, String)]) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let server = |(index, (grpc, http)): (usize, &(String, String))| {
            let port = http.rsplit(':').next().unwrap();
            format!(
                "  server r{index} {grpc} proto h2 check check-proto h1 port {port} inter 200ms fall 1 rise 1\n"
            )
        };
        let servers: String = replicas.iter().enumerate().map(server).collect();
        // A call whose request was sent is never sent again: it may have been charged. One that found no server is sent again.
        let config = format!(
            "global\n  maxconn 2000\n\
             defaults\n  mode http\n  timeout connect 1s\n  timeout client 60s\n  timeout server 60s\n  retries 3\n\
             \x20 option redispatch 1\n  retry-on conn-failure\n\
             frontend grpc\n  bind {address} proto h2\n  default_backend replicas\n\
             backend replicas\n  balance roundrobin\n  option httpchk GET /readyz\n{servers}"
        );
        Self::start(address, &config, tempfile::tempdir().unwrap())
    }

    /// Before `application`, asking `http` about this plan by the recipe, the key being `X-User`.
    pub fn asking(http: &str, plan: &str, application: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let lua = super::recipe(
            "deploy/haproxy/tollgate.lua",
            &[("TIMEOUT = 0.25", "TIMEOUT = 60".to_owned())],
        );
        let script = directory.path().join("tollgate.lua");
        std::fs::write(&script, lua).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let changes = [
            ("/etc/haproxy/tollgate.lua", script.display().to_string()),
            ("bind :8000", format!("bind {address}")),
            (
                "127.0.0.1 8080 free",
                format!("{} {plan}", http.replace(':', " ")),
            ),
            ("127.0.0.1:3000", application.to_owned()),
            (
                "txn.tollgate_key) src",
                "txn.tollgate_key) req.hdr(X-User)".to_owned(),
            ),
        ];
        let config = super::recipe("deploy/haproxy/haproxy.cfg", &changes);
        Self::start(address, &config, directory)
    }

    fn start(address: String, config: &str, directory: tempfile::TempDir) -> Self {
        let file = directory.path().join("haproxy.cfg");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("haproxy");
        command
            .current_dir("/")
            .arg("-db")
            .arg("-f")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let missing = "haproxy is needed by this test and not installed; tests/run installs it, or: apt-get install haproxy";
        let haproxy = Self {
            child: command.spawn().unwrap_or_else(|_| panic!("{missing}")),
            address,
            _directory: directory,
        };
        let started = Instant::now();
        while TcpStream::connect(&haproxy.address).is_err() {
            assert!(
                started.elapsed() < super::server::PATIENCE,
                "haproxy does not listen"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        haproxy
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
