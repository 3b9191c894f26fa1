//! nginx as people put it before several replicas: `grpc_pass` to all of them, calls spread evenly.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::redis::free_port;

pub struct Nginx {
    child: Child,
    pub address: String,
    _directory: tempfile::TempDir,
}

impl Nginx {
    pub fn before(replicas: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let servers: String = replicas.iter().map(|replica| format!("server {replica} max_fails=0; ")).collect();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {}; ", directory.path().join(kind).display()))
            .collect();
        // A call whose request was sent is never sent again: it may have been charged.
        let config = format!(
            "worker_processes 1; daemon off; pid {0}/nginx.pid; error_log {0}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; {temporary} keepalive_requests 10000000;\n\
             upstream replicas {{ {servers} keepalive 512; keepalive_requests 10000000; }}\n\
             server {{ listen {address} http2; http2_max_concurrent_streams 512;\n\
             location / {{ grpc_pass grpc://replicas; grpc_next_upstream error; grpc_connect_timeout 1s; }} }} }}\n",
            directory.path().display()
        );
        let file = directory.path().join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(directory.path()).arg("-c").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let missing = "nginx is needed by this test and not installed; tests/run installs it, or: apt-get install nginx";
        let child = command.spawn().unwrap_or_else(|_| panic!("{missing}"));
        let nginx = Self { child, address, _directory: directory };
        nginx.wait_until_up();
        nginx
    }

    fn wait_until_up(&self) {
        let started = Instant::now();
        while TcpStream::connect(&self.address).is_err() {
            assert!(started.elapsed() < super::server::PATIENCE, "nginx does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master ends its workers when told to; killed, it would leave them behind.
        super::signal(&self.child, "TERM");
        let _ = self.child.wait();
    }
}
