//! Output and input of the command line. Error messages and input wait for a limited time: a pipe may have no reader or writer,
//! and the process must still end.

use std::io::{self, ErrorKind, Read, Write};
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

pub(super) use tollgate_server::standard_error::{fail, tell};

/// Longest that a config may take to arrive on standard input.
const INPUT_TIMEOUT: Duration = Duration::from_secs(10);

/// Prints a line to standard output. Errors: the exit code, after the reason was printed to standard error. A reader that has read
/// enough, as `head` does, is no error.
pub(super) fn print(text: &str) -> Result<(), ExitCode> {
    let mut output = io::stdout();
    let printed = writeln!(output, "{text}").and_then(|()| output.flush());
    match printed {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let why = format!("standard output cannot be written to: {error}");
            Err(fail(1, &why))
        }
        _ => Ok(()),
    }
}

/// Reads all of standard input, which must be UTF-8 of at most `bytes_max` bytes. Errors: a sentence.
pub(super) fn read_input(bytes_max: usize) -> Result<String, String> {
    let (sender, receiver) = sync_channel(1);
    let reads = move || {
        let mut bytes = Vec::new();
        // Reads one byte more, to recognise an input that is too long.
        let read = io::stdin()
            .take(bytes_max as u64 + 1)
            .read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| bytes));
    };
    std::thread::Builder::new()
        .spawn(reads)
        .map_err(|error| format!("standard input cannot be read: {error}"))?;
    let late = |_| {
        format!(
            "standard input did not end within {} s; a config is read to its end",
            INPUT_TIMEOUT.as_secs()
        )
    };
    let bytes = receiver.recv_timeout(INPUT_TIMEOUT).map_err(late)?;
    let bytes = bytes.map_err(|error| format!("standard input cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|_| "standard input is not UTF-8".to_owned())
}
