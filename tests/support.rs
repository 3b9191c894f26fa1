//! Tools that the suites share: a fake clock, plans, servers of Redis, nginx, HAProxy and tollgate, and plain clients.

pub mod admin;
pub mod authority;
pub mod caddy;
pub mod chromium;
pub mod clock;
pub mod clocked_store;
pub mod cluster;
pub mod envoy;
pub mod frames;
pub mod haproxy;
pub mod history;
pub mod holds;
pub mod hostile;
pub mod http;
pub mod manifests;
pub mod netns;
pub mod nginx;
pub mod outage;
pub mod plans;
pub mod proxy;
pub mod redis;
pub mod reflection;
pub mod sentinel;
pub mod server;
pub mod shift;
pub mod tap;
pub mod tls;
pub mod untimed;
pub mod wire;

/// Sends a signal (a name such as `STOP`) to a child that this test started.
pub fn signal(child: &std::process::Child, signal: &str) {
    // The shell's own kill: the program of that name is missing on small systems.
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("kill -{signal} {}", child.id())])
        .status();
    assert!(status.unwrap().success(), "kill -{signal}");
}

/// A process that ends with the test that started it, however the test ends.
pub struct Guarded(pub std::process::Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A recipe of the repository with these texts replaced, each of which it must have.
pub fn recipe(path: &str, changes: &[(&str, String)]) -> String {
    let text = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap();
    changes.iter().fold(text, |text, (written, meant)| {
        assert!(text.contains(written), "{path} says {written} no more");
        text.replace(written, meant)
    })
}
