//! Messages on standard error. They wait for a limited time: a pipe may have no reader, and the process must still end.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Longest that a message waits to be written to standard error.
const ERROR_TIMEOUT: Duration = Duration::from_secs(1);

/// Prints an error message to standard error, and returns the exit code.
pub fn fail(code: u8, message: &str) -> ExitCode {
    tell(&format!("tollgate: {message}"));
    ExitCode::from(code)
}

/// Writes a line to standard error within `ERROR_TIMEOUT`. A line that cannot be written is lost.
pub fn tell(text: &str) {
    let (done, waited) = sync_channel(1);
    let line = format!("{text}\n");
    let writes = move || {
        let _ = io::stderr().write_all(line.as_bytes());
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(writes).is_ok() {
        let _ = waited.recv_timeout(ERROR_TIMEOUT);
    }
}
