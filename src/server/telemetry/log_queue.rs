//! The queue between threads that log and standard output, so that logging never waits for a reader.
//!
//! A line that finds the queue full is dropped and counted. One thread writes, and only that thread blocks when the output is
//! not read. The module does not know the format of lines.
//!
//! `tracing-appender` was considered. It bounds the number of lines and not their bytes, and cannot say where lines are missing.
//! When it ends, it prints to standard error, which blocks if that is the same full pipe.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Maximum number of bytes of waiting lines, some thousand lines. A log collector that pauses loses none, and one that hangs
/// costs no more memory than this.
pub const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Pause before retrying an output that cannot take anything now. Only a non-blocking output reports that.
const RETRY_AFTER: Duration = Duration::from_millis(10);

thread_local! {
    /// Whether this thread is the one that writes. Lines that it logs itself are never dropped; see [`LogQueue::run`].
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

/// Lines that wait to be written. Clones share one queue.
#[derive(Debug, Clone, Default)]
pub struct LogQueue(Arc<SharedQueue>);

#[derive(Debug, Default)]
struct SharedQueue {
    state: Mutex<QueueState>,
    /// Notified whenever `state` changes.
    changed: Condvar,
    /// Lines dropped since the start.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct QueueState {
    lines: VecDeque<Vec<u8>>,
    /// Sum of the lengths of `lines`.
    bytes: usize,
    /// Whether the writer has taken lines that are not written yet.
    writing: bool,
    /// Dropped lines that no log line has reported yet.
    unreported: u64,
}

impl LogQueue {
    /// Starts to write to standard output, on a thread that runs as long as the process.
    ///
    /// Errors: no thread can be started, or standard output is closed.
    pub fn to_standard_output() -> io::Result<Self> {
        // Bypasses the buffer of `std::io`, whose lock a blocked write would hold.
        let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let queue = Self::default();
        let writer = queue.clone();
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writer.run(output))?;
        Ok(queue)
    }

    /// Lines dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, for `within` at most. Returns whether it was.
    pub fn flush(&self, within: Duration) -> bool {
        let waiting = self
            .0
            .changed
            .wait_timeout_while(self.state(), within, |state| {
                state.writing || !state.lines.is_empty()
            });
        !waiting
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .timed_out()
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.bytes.saturating_add(line.len()) > QUEUE_BYTES_MAX && !IS_WRITER.get() {
            state.unreported += 1;
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_vec());
        drop(state);
        self.0.changed.notify_all();
    }

    /// Writes lines for ever. After a gap, logs how many are missing.
    fn run(&self, mut output: impl Write) {
        IS_WRITER.set(true);
        loop {
            let lines = self.take();
            let failed = lines
                .iter()
                .filter(|line| write_all(&mut output, line).is_err())
                .count() as u64;
            let mut state = self.state();
            state.writing = false;
            self.0.dropped.fetch_add(failed, Ordering::Relaxed);
            state.unreported += failed;
            // A failing output gets no line about its failure, since that line would fail too, for ever.
            let unreported = if failed == 0 {
                std::mem::take(&mut state.unreported)
            } else {
                0
            };
            drop(state);
            if unreported > 0 {
                tracing::warn!(
                    lines = unreported,
                    "lines of this log were dropped here: its reader was too slow"
                );
            }
            self.0.changed.notify_all();
        }
    }

    /// Waits for lines, and takes all of them.
    fn take(&self) -> VecDeque<Vec<u8>> {
        let waited = self
            .0
            .changed
            .wait_while(self.state(), |state| state.lines.is_empty());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        state.bytes = 0;
        std::mem::take(&mut state.lines)
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        // Each change of the state is complete, so a panic between two leaves it valid.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Like [`Write::write_all`], and also works with an output that does not block.
fn write_all(output: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY_AFTER),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes lines from the subscriber, one whole line per write.
impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogQueue {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// An output that waits for a turn before each line. The turn says whether the write fails, or passes the line to the test.
    struct Reader {
        turns: Receiver<io::Result<()>>,
        lines: Sender<Vec<u8>>,
    }

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            // After the test has ended, it returns at once, so that no thread blocks.
            self.turns.recv().unwrap_or(Ok(()))?;
            let _ = self.lines.send(line.to_vec());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue() -> (LogQueue, Sender<io::Result<()>>, Receiver<Vec<u8>>) {
        let queue = LogQueue::default();
        let (turn, turns) = channel();
        let (lines, read) = channel();
        let writer = queue.clone();
        std::thread::spawn(move || {
            let subscriber = tracing_subscriber::fmt()
                .with_writer(writer.clone())
                .with_ansi(false)
                .finish();
            tracing::subscriber::with_default(subscriber, || writer.run(Reader { turns, lines }));
        });
        (queue, turn, read)
    }

    fn log(queue: &LogQueue, line: &[u8]) {
        queue.make_writer().write_all(line).unwrap();
    }

    #[test]
    fn lines_come_out_in_their_order() {
        let (queue, turn, read) = queue();
        for line in [b"one", b"two"] {
            turn.send(Ok(())).unwrap();
            log(&queue, line);
        }
        assert_eq!(
            (read.recv().unwrap(), read.recv().unwrap()),
            (b"one".to_vec(), b"two".to_vec())
        );
        assert_eq!(queue.dropped(), 0);
    }

    #[test]
    fn logging_never_waits_and_dropped_lines_are_counted_and_reported_where_they_are_missing() {
        const LINE: [u8; 1 << 10] = [b'x'; 1 << 10];
        let (queue, turn, read) = queue();
        let logged = 3 * QUEUE_BYTES_MAX / LINE.len();
        (0..logged).for_each(|_| log(&queue, &LINE));
        let dropped = queue.dropped();
        // The lines that the writer took are written, and the queue holds as many as fit.
        let kept = logged as u64 - dropped;
        let most = (2 * QUEUE_BYTES_MAX / LINE.len()) as u64;
        assert!((most / 2..=most).contains(&kept), "{kept} of {logged}");
        assert!(!queue.flush(Duration::from_millis(1)));
        (0..=kept).for_each(|_| turn.send(Ok(())).unwrap());
        (0..kept).for_each(|_| assert_eq!(read.recv().unwrap(), LINE));
        let report = String::from_utf8(read.recv().unwrap()).unwrap();
        assert!(
            report.contains("were dropped here") && report.contains(&format!("lines={dropped}")),
            "{report}"
        );
        turn.send(Ok(())).unwrap();
        log(&queue, b"after");
        assert_eq!(read.recv().unwrap(), b"after");
        assert!(queue.flush(Duration::from_secs(60)));
        assert_eq!(queue.dropped(), dropped);
    }

    #[test]
    fn an_output_that_fails_loses_its_lines_and_gets_a_report_once_it_works_again() {
        let (queue, turn, read) = queue();
        for kind in [ErrorKind::BrokenPipe, ErrorKind::StorageFull] {
            turn.send(Err(kind.into())).unwrap();
            log(&queue, b"lost");
            assert!(queue.flush(Duration::from_secs(60)));
        }
        assert_eq!(queue.dropped(), 2);
        // Interrupted and would-block are not failures.
        for again in [
            Err(ErrorKind::Interrupted.into()),
            Err(ErrorKind::WouldBlock.into()),
            Ok(()),
            Ok(()),
        ] {
            turn.send(again).unwrap();
        }
        log(&queue, b"written");
        assert_eq!(read.recv().unwrap(), b"written");
        assert!(
            String::from_utf8(read.recv().unwrap())
                .unwrap()
                .contains("lines=2")
        );
    }
}
