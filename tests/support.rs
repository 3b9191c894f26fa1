//! Tools that the suites share: a fake clock, plans, servers of Redis, nginx, HAProxy and tollgate, and plain clients.

pub mod admin;
pub mod asks;
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
pub mod preload;
pub mod proxy;
pub mod redis;
pub mod reflection;
pub mod sentinel;
pub mod server;
pub mod slow_calls;
pub mod tap;
pub mod tls;
pub mod untimed;
pub mod wire;

/// Sends a signal (a name such as `STOP`) to a child that this test started. Returns from `STOP` when every thread of it stands still:
/// one thread takes the signal and stops the others, which answer until then.
pub fn signal(child: &std::process::Child, signal: &str) {
    // The shell's own kill: the program of that name is missing on small systems.
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("kill -{signal} {}", child.id())])
        .status();
    assert!(status.unwrap().success(), "kill -{signal}");
    let sent = std::time::Instant::now();
    while signal == "STOP" && !stands_still(child.id()) {
        assert!(sent.elapsed() < server::PATIENCE, "it does not stop");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Whether every thread of a process is stopped, or has ended.
fn stands_still(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.map(Result::unwrap).all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        state.is_none_or(|state| state.trim_start().starts_with(['T', 'Z', 'X']))
    })
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
