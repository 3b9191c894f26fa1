//! Caddy as people put it before an application that it asks the check endpoint for (`forward_auth`).

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::redis::free_port;

pub struct Caddy {
    child: Child,
    pub address: String,
    _directory: tempfile::TempDir,
}

impl Caddy {
    /// Before `application`, asking `http` about this plan by the recipe, the key being `X-User`.
    pub fn asking(http: &str, plan: &str, application: &str) -> Self {
        let key_and_plan = (
            "key={remote_host}&plan=free",
            format!("key={{http.request.header.X-User}}&plan={plan}"),
        );
        Self::by_recipe(
            "deploy/caddy/Caddyfile",
            &[key_and_plan],
            (&[http], application),
        )
    }

    /// Before `application`, asking these replicas by the recipe for customers and addresses.
    pub fn for_customers(replicas: &[&str], application: &str) -> Self {
        Self::by_recipe(
            "deploy/caddy/customers.Caddyfile",
            &[],
            (replicas, application),
        )
    }

    /// By this recipe with some texts replaced. Caddy waits as long as a busy machine needs.
    fn by_recipe(
        path: &str,
        changes: &[(&str, String)],
        (replicas, application): (&[&str], &str),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let changes: Vec<(&str, String)> = [
            (":8000 {", format!("http://{address} {{")),
            (
                "forward_auth 127.0.0.1:8080",
                format!("forward_auth {}", replicas.join(" ")),
            ),
            ("127.0.0.1:3000", application.to_owned()),
            ("dial_timeout 100ms", "dial_timeout 60s".to_owned()),
            (
                "response_header_timeout 250ms",
                "response_header_timeout 60s".to_owned(),
            ),
        ]
        .into_iter()
        .chain(changes.iter().cloned())
        .collect();
        let recipe = super::recipe(path, &changes);
        let file = directory.path().join("Caddyfile");
        // The recipe may have a block of options.
        let options = "{\n\tadmin off\n\tauto_https off\n";
        let config = match recipe.split_once("\n{\n") {
            Some((before, after)) => format!("{before}\n{options}{after}"),
            None => format!("{options}}}\n{recipe}"),
        };
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("caddy");
        command
            .args(["run", "--adapter", "caddyfile", "--config"])
            .arg(&file);
        // It keeps files of its own below the home folder.
        command
            .env("HOME", directory.path())
            .env_remove("XDG_DATA_HOME")
            .env_remove("XDG_CONFIG_HOME");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let missing = "caddy is needed by this test and not installed; tests/run installs it, or: apt-get install caddy";
        let caddy = Self {
            child: command.spawn().unwrap_or_else(|_| panic!("{missing}")),
            address,
            _directory: directory,
        };
        let started = Instant::now();
        while TcpStream::connect(&caddy.address).is_err() {
            assert!(
                started.elapsed() < super::server::PATIENCE,
                "caddy does not listen"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        caddy
    }
}

impl Drop for Caddy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
