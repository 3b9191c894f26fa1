//! nginx in two places: before several replicas (`grpc_pass`, calls spread evenly), and before an application, where it asks the
//! check endpoint about each request (`auth_request`).

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
    /// Starts nginx before these replicas.
    pub fn before(replicas: &[&str]) -> Self {
        let servers: String = replicas
            .iter()
            .map(|replica| format!("server {replica} max_fails=0; "))
            .collect();
        // A call whose request was sent is never sent again: it may have been charged.
        Self::start(|address| {
            format!(
                "upstream replicas {{ {servers} keepalive 512; keepalive_requests 10000000; }}\n\
                 server {{ listen {address} http2; http2_max_concurrent_streams 512;\n\
                 location / {{ grpc_pass grpc://replicas; grpc_next_upstream error; grpc_connect_timeout 1s; }} }}"
            )
        })
    }

    /// Starts nginx with [`recipe`] before an application that answers with a line of text. Each request is checked first; its
    /// key is `X-User`.
    pub fn asking(http: &str, plan: &str) -> Self {
        let application = "location @application { return 200 'the application'; }";
        Self::by_recipe(
            &recipe(http, plan),
            &[("/", "try_files /none @application;")],
            application,
        )
    }

    /// Starts nginx with a recipe for these locations: the prefix of each, and what it does with an allowed request. `more` is
    /// added to the server's block.
    pub fn by_recipe(recipe: &str, locations: &[(&str, &str)], more: &str) -> Self {
        let begin = recipe.find("    location / {").unwrap();
        let end = begin + recipe[begin..].find("\n    }\n").unwrap() + "\n    }\n".len();
        let guarded = &recipe[begin..end];
        assert!(guarded.contains(APPLICATION), "{guarded}");
        let filled = |(prefix, does): &(&str, &str)| {
            guarded
                .replacen("location / ", &format!("location {prefix} "), 1)
                .replace(APPLICATION, does)
        };
        let locations: String = locations.iter().map(filled).collect();
        let servers = recipe.replace(guarded, &(locations + more));
        assert!(servers.contains(LISTEN), "{servers}");
        Self::start(|address| servers.replace(LISTEN, &format!("listen {address};")))
    }

    /// Answers every request, as far as `limit_req` lets it at this rate, with these parameters beside the zone.
    pub fn limiting(rate: &str, parameters: &str) -> Self {
        Self::start(|address| {
            format!(
                "limit_req_zone $binary_remote_addr zone=all:1m rate={rate};\n\
                 server {{ listen {address}; location / {{ limit_req zone=all {parameters}; try_files /none @application; }}\n\
                 location @application {{ return 200 'the application'; }} }}"
            )
        })
    }

    fn start(servers: impl FnOnce(&str) -> String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| {
                format!(
                    "{kind}_temp_path {}; ",
                    directory.path().join(kind).display()
                )
            })
            .collect();
        let config = format!(
            "worker_processes 1; daemon off; pid {0}/nginx.pid; error_log {0}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; {temporary} keepalive_requests 10000000;\n{1} }}\n",
            directory.path().display(),
            servers(&address)
        );
        let file = directory.path().join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(directory.path())
            .arg("-c")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let missing = "nginx is needed by this test and not installed; tests/run installs it, or: apt-get install nginx";
        let child = command.spawn().unwrap_or_else(|_| panic!("{missing}"));
        let nginx = Self {
            child,
            address,
            _directory: directory,
        };
        nginx.wait_until_up();
        nginx
    }

    fn wait_until_up(&self) {
        let started = Instant::now();
        while TcpStream::connect(&self.address).is_err() {
            assert!(
                started.elapsed() < super::server::PATIENCE,
                "nginx does not listen"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM makes the master end its workers. If it were killed, they would stay.
        super::signal(&self.child, "TERM");
        let _ = self.child.wait();
    }
}

/// What the recipe has in the place of the application, and of the address.
const APPLICATION: &str = "proxy_pass http://127.0.0.1:3000;";
const LISTEN: &str = "listen 8000;";

/// The recipe for customers and addresses, asking these replicas. nginx waits as long as a busy machine needs.
pub fn customers(replicas: &[&str]) -> String {
    let servers: Vec<String> = replicas
        .iter()
        .map(|replica| format!("server {replica};"))
        .collect();
    let changes = [
        ("server 127.0.0.1:8080;", servers.join(" ")),
        (
            "proxy_connect_timeout 100ms",
            "proxy_connect_timeout 60s".to_owned(),
        ),
        (
            "proxy_read_timeout 250ms",
            "proxy_read_timeout 60s".to_owned(),
        ),
    ];
    super::recipe("deploy/nginx/customers.conf", &changes)
}

/// The recipe, asking this server about this plan, the key being `X-User`. nginx waits as long as a busy machine needs.
pub fn recipe(http: &str, plan: &str) -> String {
    let changes = [
        ("server 127.0.0.1:8080;", format!("server {http};")),
        ("plan=free", format!("plan={plan}")),
        ("key=$remote_addr", "key=$http_x_user".to_owned()),
        (
            "proxy_connect_timeout 100ms",
            "proxy_connect_timeout 60s".to_owned(),
        ),
        (
            "proxy_read_timeout 250ms",
            "proxy_read_timeout 60s".to_owned(),
        ),
    ];
    super::recipe("deploy/nginx/tollgate.conf", &changes)
}
