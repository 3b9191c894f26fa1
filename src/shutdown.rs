//! When to stop: SIGTERM from whoever runs the process, SIGINT from a terminal. And SIGHUP, which stops nothing.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Begins to listen for the signals; the future resolves to the name of the first that comes.
///
/// Errors: the system does not let this process handle them.
pub fn signals() -> io::Result<impl Future<Output = &'static str>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

/// Begins to listen for SIGHUP, which from here on no longer ends the process, but asks it to look at its config.
///
/// Errors: the system does not let this process handle it.
pub fn hangup() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}
