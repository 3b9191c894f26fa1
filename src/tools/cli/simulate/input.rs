//! The log as lines: a file or standard input, plain or compressed by gzip.

use std::fs::File;
use std::io::{self, Chain, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use crate::cli::INPUT;

/// Longest line that is read. Web servers cut a line at some kilobytes; longer ones are counted and left out.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes that are read at a time. They also are the sample, some thousands of lines.
const BUFFER_BYTES: usize = 1 << 20;
/// Maximum number of lines of the sample.
const SAMPLE_LINES_MAX: usize = 10_000;
/// What every gzip file begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// An opened log.
pub(super) struct OpenedLog {
    pub(super) lines: Lines<Box<dyn Read>>,
    /// Bytes read so far, as they are in the file.
    pub(super) read: Arc<AtomicU64>,
    /// Size of the file, if it is one.
    pub(super) bytes: Option<u64>,
    pub(super) name: String,
}

impl OpenedLog {
    /// Errors: a sentence that follows the name of the log.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let is_input = path.as_os_str() == INPUT;
        let (source, bytes): (Box<dyn Read>, Option<u64>) = if is_input {
            (Box::new(io::stdin()), None)
        } else {
            let (file, bytes) = open_file(path)?;
            (Box::new(file), bytes)
        };
        let read = Arc::new(AtomicU64::new(0));
        let source = begin(CountedRead {
            source,
            read: read.clone(),
        })
        .map_err(cannot_be_read)?;
        let name = if is_input {
            "standard input".to_owned()
        } else {
            path.display().to_string()
        };
        Ok(Self {
            lines: Lines::new(source),
            read,
            bytes,
            name,
        })
    }
}

/// Opens a file. Returns its size too, unless it is a pipe or a device.
fn open_file(path: &Path) -> Result<(File, Option<u64>), String> {
    let file = File::open(path).map_err(cannot_be_read)?;
    let metadata = file.metadata().map_err(cannot_be_read)?;
    if metadata.is_dir() {
        return Err("is a directory; name a log in it".to_owned());
    }
    Ok((file, metadata.is_file().then_some(metadata.len())))
}

fn cannot_be_read(error: io::Error) -> String {
    format!("cannot be read: {error}")
}

/// Looks at the first bytes, and decompresses what begins as gzip does.
fn begin(mut source: CountedRead) -> io::Result<Box<dyn Read>> {
    let mut first = Vec::new();
    source
        .by_ref()
        .take(GZIP.len() as u64)
        .read_to_end(&mut first)?;
    let is_gzip = first == GZIP;
    let whole: Chain<Cursor<Vec<u8>>, CountedRead> = Cursor::new(first).chain(source);
    Ok(if is_gzip {
        Box::new(MultiGzDecoder::new(whole))
    } else {
        Box::new(whole)
    })
}

struct CountedRead {
    source: Box<dyn Read>,
    read: Arc<AtomicU64>,
}

impl Read for CountedRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.source.read(buffer)?;
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// Its text without the end of the line.
    Text(&'a [u8]),
    /// It has more than [`LINE_BYTES_MAX`] bytes.
    TooLong,
}

/// Cuts bytes into lines, in a buffer that does not grow.
pub(super) struct Lines<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    is_at_end: bool,
    /// Whether the begin of a line that is too long was thrown away.
    is_cut: bool,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            is_at_end: false,
            is_cut: false,
        }
    }

    /// The first lines, which are read again by [`Self::next`].
    pub(super) fn sample(&mut self) -> io::Result<Vec<&[u8]>> {
        while !self.is_at_end && self.end < self.buffer.len() {
            self.fill()?;
        }
        let mut lines: Vec<&[u8]> = self.buffer[self.start..self.end]
            .split(|byte| *byte == b'\n')
            .collect();
        // The last one may go on; after a line's end it is empty.
        let last = lines.pop();
        lines.extend(last.filter(|line| self.is_at_end && !line.is_empty()));
        lines.truncate(SAMPLE_LINES_MAX);
        Ok(lines.into_iter().map(without_carriage_return).collect())
    }

    /// Why [`Self::sample`] has no line: a sentence that follows the name of the log.
    pub(super) fn why_no_sample(&self) -> &'static str {
        if self.start == self.end {
            "is empty"
        } else {
            "begins with a line of more than 1 MiB; a line has 64 KiB at most"
        }
    }

    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        loop {
            if let Some(length) = memchr::memchr(b'\n', &self.buffer[self.start..self.end]) {
                let line = self.start..self.start + length;
                self.start = line.end + 1;
                return Ok(Some(self.line(line)));
            }
            if self.is_at_end {
                let line = self.start..self.end;
                self.start = self.end;
                return Ok(if line.is_empty() && !self.is_cut {
                    None
                } else {
                    Some(self.line(line))
                });
            }
            if self.end - self.start > LINE_BYTES_MAX {
                (self.is_cut, self.start) = (true, self.end);
            }
            self.fill()?;
        }
    }

    fn line(&mut self, line: std::ops::Range<usize>) -> Line<'_> {
        let is_cut = std::mem::take(&mut self.is_cut);
        if is_cut || line.len() > LINE_BYTES_MAX {
            Line::TooLong
        } else {
            Line::Text(without_carriage_return(&self.buffer[line]))
        }
    }

    /// Reads once, after the bytes that are not cut yet.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(bytes) => {
                    self.end += bytes;
                    self.is_at_end = bytes == 0;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn without_carriage_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<String> {
        let mut lines = Lines::new(text);
        let mut found = Vec::new();
        let sample: Vec<Vec<u8>> = lines
            .sample()
            .unwrap()
            .iter()
            .map(|line| line.to_vec())
            .collect();
        while let Some(line) = lines.next().unwrap() {
            found.push(match line {
                Line::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
                Line::TooLong => "too long".to_owned(),
            });
        }
        if text.len() < LINE_BYTES_MAX {
            assert_eq!(
                sample
                    .iter()
                    .map(|line| String::from_utf8_lossy(line).into_owned())
                    .collect::<Vec<_>>(),
                found
            );
        }
        found
    }

    #[test]
    fn lines_end_with_a_newline_a_return_or_the_file() {
        assert_eq!(lines(b""), Vec::<String>::new());
        assert_eq!(lines(b"a\n"), ["a"]);
        assert_eq!(lines(b"a\r\n\nb"), ["a", "", "b"]);
    }

    #[test]
    fn a_line_that_is_too_long_is_one_line_and_takes_no_memory() {
        for bytes in [LINE_BYTES_MAX, LINE_BYTES_MAX + 1, 3 * BUFFER_BYTES] {
            let long = "x".repeat(bytes);
            let expected = if bytes > LINE_BYTES_MAX {
                "too long"
            } else {
                &long
            };
            assert_eq!(
                lines(format!("a\n{long}\nb").as_bytes()),
                ["a", expected, "b"]
            );
            assert_eq!(lines(long.as_bytes()), [expected]);
        }
    }

    #[test]
    fn lines_across_reads_are_whole() {
        let text: String = (0..300_000)
            .map(|index| format!("line {index}\n"))
            .collect();
        assert_eq!(lines(text.as_bytes()).len(), 300_000);
        assert!(
            lines(text.as_bytes())
                .iter()
                .enumerate()
                .all(|(index, line)| *line == format!("line {index}"))
        );
    }
}
