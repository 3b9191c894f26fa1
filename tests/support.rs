//! What the suites share: a fake clock, plans, a Redis of one's own, a running server.

pub mod clock;
pub mod history;
pub mod plans;
pub mod redis;

/// Sends a signal (a name such as `STOP`) to a child that this test started.
pub fn signal(child: &std::process::Child, signal: &str) {
    let status = std::process::Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
    assert!(status.unwrap().success(), "kill -{signal}");
}
