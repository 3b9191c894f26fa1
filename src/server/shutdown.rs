//! Signals: SIGTERM from a service manager and SIGINT from a terminal stop the process. SIGHUP reloads and stops nothing.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Starts to listen for SIGTERM and SIGINT. The future resolves to the name of the first that arrives.
///
/// Errors: the system does not let this process handle them.
pub fn signals() -> io::Result<impl Future<Output = &'static str>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

/// Starts to listen for SIGHUP. From now on SIGHUP does not end the process, but makes it reload its config.
///
/// Errors: the system does not let this process handle it.
pub fn hangup() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}
