//! What the command line prints and reads. Nothing here waits for a reader or a writer for ever: a pipe may be one that nobody
//! serves, and the process must still end.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Longest that a message waits to be written to standard error.
const ERROR_WITHIN: Duration = Duration::from_secs(1);
/// Longest that a config may take to come by standard input.
const INPUT_WITHIN: Duration = Duration::from_secs(10);

/// Prints a line to standard output. Errors: what to exit with; why was said.
pub(super) fn print(text: &str) -> Result<(), ExitCode> {
    let mut output = io::stdout();
    let printed = writeln!(output, "{text}").and_then(|()| output.flush());
    printed.map_err(|error| fail(1, &format!("standard output cannot be written to: {error}")))
}

/// Says a message on standard error; the exit code.
pub(super) fn fail(code: u8, message: &str) -> ExitCode {
    tell(&format!("tollgate: {message}"));
    ExitCode::from(code)
}

/// A line to standard error, if that takes it in time. Where it does not, there is nobody left to tell.
pub(super) fn tell(text: &str) {
    let (done, waited) = sync_channel(1);
    let line = format!("{text}\n");
    let writes = move || {
        let _ = io::stderr().write_all(line.as_bytes());
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(writes).is_ok() {
        let _ = waited.recv_timeout(ERROR_WITHIN);
    }
}

/// All of standard input, if it is a text of at most `bytes_max` bytes. Errors: a sentence.
pub(super) fn read_input(bytes_max: usize) -> Result<String, String> {
    let (sender, receiver) = sync_channel(1);
    let reads = move || {
        let mut bytes = Vec::new();
        // One more, so that what is too long is told from what is not.
        let read = io::stdin().take(bytes_max as u64 + 1).read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| bytes));
    };
    std::thread::Builder::new().spawn(reads).map_err(|error| format!("standard input cannot be read: {error}"))?;
    let late = |_| format!("standard input did not end within {} s; a config is read to its end", INPUT_WITHIN.as_secs());
    let bytes = receiver.recv_timeout(INPUT_WITHIN).map_err(late)?;
    let bytes = bytes.map_err(|error| format!("standard input cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|_| "standard input is not UTF-8".to_owned())
}
