//! Tells the service manager how this process stands: starting, ready, reloading or stopping. That is the protocol of
//! systemd's `Type=notify`. Without the variable `NOTIFY_SOCKET` nothing is sent.
//!
//! A message is one datagram. There are a few in the life of a process, and the manager's socket queues that many. So sending
//! does not wait.

use sd_notify::NotifyState;

/// The start is over, or a reload.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// A reload begins. [`ready`] must follow.
pub fn reloading() {
    // The manager refuses a reload without the time of its begin.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager is not told of the reload"),
    }
}

/// The process was told to stop, and ends soon.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told how this process stands");
    }
}
