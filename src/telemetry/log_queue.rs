//! The queue between whoever logs and standard output, so that logging never waits for a reader.
//!
//! A line that finds the queue full is dropped and counted. One thread writes; it alone blocks when nobody reads. Knows
//! nothing of formats.
//!
//! `tracing-appender` was considered. It bounds lines and not bytes, cannot tell where lines are missing, and at its end
//! prints to standard error, which blocks when that is the same full pipe.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Most bytes of lines that wait. Some thousand lines: a pause of a log collector costs none, and a stuck one costs no
/// more memory than this.
pub const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Pause before an output that takes nothing at the moment is tried again. Only one that was made non-blocking says so.
const RETRY_AFTER: Duration = Duration::from_millis(10);

thread_local! {
    /// Whether this thread writes a queue's lines. Its own lines always find room, see [`LogQueue::run`].
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

/// Lines on their way out; clones share them.
#[derive(Debug, Clone, Default)]
pub struct LogQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Told whenever `state` changes.
    changed: Condvar,
    /// Lines dropped, ever.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Sum of the lengths of `lines`.
    bytes: usize,
    /// Whether the writer has taken lines that are not written yet.
    writing: bool,
    /// Lines dropped that no line of the log tells of yet.
    untold: u64,
}

impl LogQueue {
    /// Begins to write to standard output, on a thread of its own that lasts as long as the process.
    ///
    /// Errors: the system gives no thread, or standard output is closed.
    pub fn to_standard_output() -> io::Result<Self> {
        // Past the library's own buffer, whose lock a blocked write would hold.
        let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let queue = Self::default();
        let writer = queue.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || writer.run(output))?;
        Ok(queue)
    }

    /// Lines dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, no longer than `within`; whether it is.
    pub fn flush(&self, within: Duration) -> bool {
        let waiting = self.0.changed.wait_timeout_while(self.state(), within, |state| state.writing || !state.lines.is_empty());
        !waiting.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.bytes.saturating_add(line.len()) > QUEUE_BYTES_MAX && !IS_WRITER.get() {
            state.untold += 1;
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_vec());
        drop(state);
        self.0.changed.notify_all();
    }

    /// Writes lines as they come, for ever; after a gap, tells how many are missing.
    fn run(&self, mut output: impl Write) {
        IS_WRITER.set(true);
        loop {
            let lines = self.take();
            let failed = lines.iter().filter(|line| write_all(&mut output, line).is_err()).count() as u64;
            let mut state = self.state();
            state.writing = false;
            self.0.dropped.fetch_add(failed, Ordering::Relaxed);
            state.untold += failed;
            // An output that fails is not told that it does: the line about it would fail too, for ever.
            let told = if failed == 0 { std::mem::take(&mut state.untold) } else { 0 };
            drop(state);
            if told > 0 {
                tracing::warn!(lines = told, "lines of this log were dropped here: nobody read it fast enough");
            }
            self.0.changed.notify_all();
        }
    }

    /// Waits for lines, and takes all there are.
    fn take(&self) -> VecDeque<Vec<u8>> {
        let waited = self.0.changed.wait_while(self.state(), |state| state.lines.is_empty());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        state.bytes = 0;
        std::mem::take(&mut state.lines)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of it is whole; a panic between two leaves it sound.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As [`Write::write_all`], also to an output that does not block.
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

/// Takes what the subscriber formats: one whole line per write.
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

    /// Takes a line each time it is told to, and fails or shows it.
    struct Reader {
        turns: Receiver<io::Result<()>>,
        lines: Sender<Vec<u8>>,
    }

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            // A test that is over reads no more, and so blocks no thread.
            self.turns.recv().unwrap_or(Ok(()))?;
            let _ = self.lines.send(line.to_vec());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue() -> (LogQueue, Sender<io::Result<()>>, Receiver<Vec<u8>>) {
        let (queue, (turn, turns), (lines, read)) = (LogQueue::default(), channel(), channel());
        let writer = queue.clone();
        std::thread::spawn(move || {
            let subscriber = tracing_subscriber::fmt().with_writer(writer.clone()).with_ansi(false).finish();
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
        assert_eq!((read.recv().unwrap(), read.recv().unwrap()), (b"one".to_vec(), b"two".to_vec()));
        assert_eq!(queue.dropped(), 0);
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_is_dropped_is_counted_and_told_where_it_is_missing() {
        const LINE: [u8; 1 << 10] = [b'x'; 1 << 10];
        let (queue, turn, read) = queue();
        let logged = 3 * QUEUE_BYTES_MAX / LINE.len();
        (0..logged).for_each(|_| log(&queue, &LINE));
        let dropped = queue.dropped();
        // What the writer has taken is written; as much as fits waits.
        let kept = logged as u64 - dropped;
        let most = (2 * QUEUE_BYTES_MAX / LINE.len()) as u64;
        assert!((most / 2..=most).contains(&kept), "{kept} of {logged}");
        assert!(!queue.flush(Duration::from_millis(1)));
        (0..=kept).for_each(|_| turn.send(Ok(())).unwrap());
        (0..kept).for_each(|_| assert_eq!(read.recv().unwrap(), LINE));
        let told = String::from_utf8(read.recv().unwrap()).unwrap();
        assert!(told.contains("were dropped here") && told.contains(&format!("lines={dropped}")), "{told}");
        turn.send(Ok(())).unwrap();
        log(&queue, b"after");
        assert_eq!(read.recv().unwrap(), b"after");
        assert!(queue.flush(Duration::from_secs(60)));
        assert_eq!(queue.dropped(), dropped);
    }

    #[test]
    fn an_output_that_fails_costs_its_lines_and_is_told_once_it_works_again() {
        let (queue, turn, read) = queue();
        for kind in [ErrorKind::BrokenPipe, ErrorKind::StorageFull] {
            turn.send(Err(kind.into())).unwrap();
            log(&queue, b"lost");
            assert!(queue.flush(Duration::from_secs(60)));
        }
        assert_eq!(queue.dropped(), 2);
        // Interrupted and would-block are no failures.
        for again in [Err(ErrorKind::Interrupted.into()), Err(ErrorKind::WouldBlock.into()), Ok(()), Ok(())] {
            turn.send(again).unwrap();
        }
        log(&queue, b"written");
        assert_eq!(read.recv().unwrap(), b"written");
        assert!(String::from_utf8(read.recv().unwrap()).unwrap().contains("lines=2"));
    }
}
