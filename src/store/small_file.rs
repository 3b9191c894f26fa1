//! Reads small files that the config names: a config, a certificate, a key, a token, a password.
//!
//! Only regular files are read, up to a bound in bytes and in time, each on its own thread. A pipe without a writer, or a mount
//! that hangs, costs the caller two seconds and the process one thread per file. Asynchronous code must call this through
//! `spawn_blocking`.

use std::collections::HashMap;
use std::fmt;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::platform;

/// Longest that a caller waits. A local file takes about 50 microseconds, a slow network file system some milliseconds.
pub const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The contents of a file.
#[derive(Debug)]
pub struct Contents {
    /// All bytes of the file.
    pub bytes: Vec<u8>,
    /// When the file was last changed, read after its contents; `None` if the file system does not say.
    pub modified: Option<SystemTime>,
}

/// Why a file was not read. The text contains neither its path nor its contents.
#[derive(Debug)]
pub enum ReadError {
    /// The system's error.
    System(io::Error),
    /// It is not a regular file, but this.
    NotRegular(&'static str),
    /// It has more bytes than the given maximum.
    TooLarge(usize),
    /// The file system did not answer in time, now or for an earlier read that still runs.
    Late,
}

impl fmt::Display for ReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => write!(out, "cannot be read: {error}"),
            Self::NotRegular("a directory") => out.write_str("is a directory; name the file in it"),
            Self::NotRegular(kind) => write!(out, "is {kind}; name a regular file"),
            Self::TooLarge(bytes_max) => write!(out, "has more than {bytes_max} bytes"),
            Self::Late => write!(
                out,
                "cannot be read: its file system did not answer within {} s",
                READ_TIMEOUT.as_secs()
            ),
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Reads a regular file, or the target of a link. Each step of it blocks for at most [`READ_TIMEOUT`].
pub fn read(path: &Path, bytes_max: usize) -> Result<Contents, ReadError> {
    let link = path.to_owned();
    let identity = read_within(READ_TIMEOUT, (path.to_owned(), None), move || {
        let metadata = std::fs::symlink_metadata(link)?;
        Ok((
            metadata.dev(),
            metadata.ino(),
            metadata.ctime_nsec() ^ metadata.ctime(),
        ))
    });
    let file = path.to_owned();
    read_within(
        READ_TIMEOUT,
        (path.to_owned(), Some(identity?)),
        move || read_regular(&file, bytes_max),
    )
}

fn read_regular(path: &Path, bytes_max: usize) -> Result<Contents, ReadError> {
    // Checked before opening, since opening some devices has side effects.
    regular(&std::fs::metadata(path)?)?;
    // Checked again after opening, since the file may have been replaced. The flag keeps a pipe from blocking.
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(platform::NON_BLOCKING)
        .open(path)?;
    let metadata = file.metadata()?;
    regular(&metadata)?;
    if metadata.len() > bytes_max as u64 {
        return Err(ReadError::TooLarge(bytes_max));
    }
    let mut bytes = Vec::new();
    // The file may grow, or hold more than its metadata says.
    Read::by_ref(&mut file)
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(ReadError::TooLarge(bytes_max));
    }
    Ok(Contents {
        bytes,
        modified: file.metadata()?.modified().ok(),
    })
}

fn regular(metadata: &Metadata) -> Result<(), ReadError> {
    let kind = metadata.file_type();
    let kinds = [
        (kind.is_dir(), "a directory"),
        (kind.is_fifo(), "a pipe"),
        (kind.is_socket(), "a socket"),
        (kind.is_char_device() || kind.is_block_device(), "a device"),
        (!kind.is_file(), "no file of bytes"),
    ];
    match kinds.iter().find(|(is, _)| *is) {
        Some((_, kind)) => Err(ReadError::NotRegular(kind)),
        None => Ok(()),
    }
}

/// A path and the identity of its file: device, inode and change time; `None` while the identity itself is read. So a file that
/// replaces one on a mount that hangs can be read.
type FileKey = (PathBuf, Option<(u64, u64, i64)>);

/// Maximum number of reads of one path that may run or hang at once.
const RUNNING_MAX: usize = 4;

/// Reads that are running. One at a time per file, so that a file whose mount hangs holds one thread.
static READS: LazyLock<Reads> = LazyLock::new(Reads::default);

#[derive(Default)]
struct Reads {
    /// The value is true after a caller has given up.
    running: Mutex<HashMap<FileKey, bool>>,
    ended: Condvar,
}

impl Reads {
    fn running(&self) -> MutexGuard<'_, HashMap<FileKey, bool>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other read of this file runs, and registers one. Errors: another read runs for too long, or too many
    /// reads of this path hang.
    fn begin(&self, key: &FileKey, within: Duration) -> Result<Running, ReadError> {
        let waits = |running: &mut HashMap<FileKey, bool>| running.get(key) == Some(&false);
        let waited = self.ended.wait_timeout_while(self.running(), within, waits);
        let (mut running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let of_path = running.keys().filter(|(path, _)| *path == key.0).count();
        if running.contains_key(key) || of_path >= RUNNING_MAX {
            return Err(ReadError::Late);
        }
        running.insert(key.clone(), false);
        Ok(Running(key.clone()))
    }

    fn give_up(&self, key: &FileKey) {
        if let Some(given_up) = self.running().get_mut(key) {
            *given_up = true;
        }
        self.ended.notify_all();
    }
}

/// A registered read; dropping it ends the registration.
struct Running(FileKey);

impl Drop for Running {
    fn drop(&mut self) {
        READS.running().remove(&self.0);
        READS.ended.notify_all();
    }
}

fn read_within<T: Send + 'static>(
    within: Duration,
    key: FileKey,
    read: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ReadError> {
    let running = READS.begin(&key, within)?;
    let (sender, receiver) = sync_channel(1);
    std::thread::Builder::new()
        .name("read file".to_owned())
        .spawn(move || {
            let contents = read();
            // Ended before the caller gets the result, so that the next read need not wait.
            drop(running);
            let _ = sender.send(contents);
        })?;
    match receiver.recv_timeout(within) {
        Ok(contents) => contents,
        Err(RecvTimeoutError::Timeout) => {
            READS.give_up(&key);
            Err(ReadError::Late)
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(io::Error::other("the thread that read it panicked").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    fn key(name: &str, change_time: i64) -> FileKey {
        (PathBuf::from(name), Some((0, 0, change_time)))
    }

    #[test]
    fn a_regular_file_is_read_and_so_is_the_target_of_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let link = folder.path().join("link");
        std::fs::write(&file, "twelve bytes").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let contents = read(path, 12).unwrap();
            assert_eq!(contents.bytes, b"twelve bytes");
            assert_eq!(
                contents.modified,
                std::fs::metadata(&file).unwrap().modified().ok()
            );
        }
        assert!(matches!(read(&file, 11), Err(ReadError::TooLarge(11))));
    }

    #[test]
    fn anything_but_a_regular_file_is_refused_at_once_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let socket = folder.path().join("socket");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, sentence) in [
            (pipe.as_path(), "is a pipe; name a regular file"),
            (&socket, "is a socket; name a regular file"),
            (Path::new("/dev/zero"), "is a device; name a regular file"),
            (folder.path(), "is a directory; name the file in it"),
            (
                Path::new("/nowhere/at/all"),
                "cannot be read: No such file or directory (os error 2)",
            ),
            // Its metadata says 0 bytes, and it has some.
            (Path::new("/proc/self/status"), "has more than 16 bytes"),
        ] {
            assert_eq!(read(path, 16).unwrap_err().to_string(), sentence);
        }
    }

    #[test]
    fn a_read_that_hangs_holds_one_thread_and_its_file_is_read_again_once_it_is_over() {
        let path = key("a file of a mount that hangs", 1);
        let (answer, answers) = channel::<()>();
        let hangs = move || {
            let _ = answers.recv();
            Ok(1)
        };
        assert!(matches!(
            read_within(SOON, path.clone(), hangs),
            Err(ReadError::Late)
        ));
        let begun = Arc::new(AtomicUsize::new(0));
        for _ in 0..10 {
            let begun = begun.clone();
            let counts = move || Ok(begun.fetch_add(1, Ordering::Relaxed));
            // Refused at once: a wait would take a minute.
            assert!(matches!(
                read_within(LONG, path.clone(), counts),
                Err(ReadError::Late)
            ));
        }
        assert_eq!(begun.load(Ordering::Relaxed), 0);
        // A file elsewhere can be read.
        assert_eq!(read_within(LONG, key("another", 1), || Ok(2)).unwrap(), 2);
        // So can a file that replaces the one that hangs.
        assert_eq!(
            read_within(LONG, key("a file of a mount that hangs", 2), || Ok(4)).unwrap(),
            4
        );
        drop(answer);
        while READS.running().contains_key(&path) {
            std::thread::yield_now();
        }
        assert_eq!(read_within(LONG, path.clone(), || Ok(3)).unwrap(), 3);
    }

    #[test]
    fn a_path_whose_files_hang_again_and_again_holds_few_threads() {
        let name = "a path of many mounts that hang";
        let begun = Arc::new(AtomicUsize::new(0));
        for file in 0..100 {
            let begun = begun.clone();
            let hangs = move || {
                begun.fetch_add(1, Ordering::Relaxed);
                std::thread::park_timeout(LONG);
                Ok(())
            };
            assert!(matches!(
                read_within(SOON, key(name, file), hangs),
                Err(ReadError::Late)
            ));
        }
        assert_eq!(begun.load(Ordering::Relaxed), RUNNING_MAX);
    }

    #[test]
    fn reads_of_one_file_wait_for_each_other_and_all_come_to_an_end() {
        let readers = (0..16).map(|_| {
            std::thread::spawn(|| {
                read_within(LONG, key("a file that many read", 1), || Ok(())).is_ok()
            })
        });
        assert!(
            readers
                .collect::<Vec<_>>()
                .into_iter()
                .all(|reader| reader.join().unwrap())
        );
    }

    #[test]
    fn a_read_that_panics_is_an_error_and_is_over() {
        let path = key("a file that panics", 1);
        assert!(matches!(
            read_within(LONG, path.clone(), || -> Result<(), _> {
                panic!("as it should")
            }),
            Err(ReadError::System(_))
        ));
        assert!(read_within(LONG, path, || Ok(())).is_ok());
    }
}
