//! How far the replay is, on a terminal's last line.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use tollgate_store::clock::monotonic;

/// Time between two updates.
const EVERY: Duration = Duration::from_millis(200);
const BAR_WIDTH: u64 = 30;

/// A bar that is drawn on standard error if that is a terminal.
pub(super) struct ProgressBar {
    started: Instant,
    drawn: Option<Instant>,
    is_shown: bool,
    bytes: Option<u64>,
}

impl ProgressBar {
    pub(super) fn new(bytes: Option<u64>) -> Self {
        Self {
            started: monotonic(),
            drawn: None,
            is_shown: io::stderr().is_terminal(),
            bytes,
        }
    }

    /// Draws, unless it was just done. What cannot be drawn is lost.
    pub(super) fn draw(&mut self, lines: u64, read: u64) {
        if !self.is_shown || self.drawn.is_some_and(|drawn| drawn.elapsed() < EVERY) {
            return;
        }
        self.drawn = Some(monotonic());
        let _ = write!(
            io::stderr(),
            "\r{}\x1b[K",
            bar(lines, read, self.bytes, self.started.elapsed())
        );
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal at most")]
fn bar(lines: u64, read: u64, bytes: Option<u64>, elapsed: Duration) -> String {
    let millions = lines as f64 / 1e6;
    let rate = millions / elapsed.as_secs_f64().max(0.001);
    let Some(bytes) = bytes.filter(|bytes| *bytes > 0) else {
        return format!("{millions:.1} million lines, {rate:.1} million a second");
    };
    let read = read.clamp(1, bytes);
    let filled = read.saturating_mul(BAR_WIDTH) / bytes;
    let marks: String = (0..BAR_WIDTH)
        .map(|index| if index < filled { '#' } else { '.' })
        .collect();
    let left = elapsed.as_secs_f64() * (bytes - read) as f64 / read as f64;
    format!(
        "[{marks}] {:3} %  {millions:.1} million lines, {rate:.1} million a second, {left:.0} s left",
        read.saturating_mul(100) / bytes
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_tells_how_much_is_done_and_left() {
        let half = bar(3_000_000, 500, Some(1_000), Duration::from_secs(2));
        assert_eq!(
            half,
            "[###############...............]  50 %  3.0 million lines, 1.5 million a second, 2 s left"
        );
        assert_eq!(
            bar(3_000_000, 500, None, Duration::from_secs(2)),
            "3.0 million lines, 1.5 million a second"
        );
        // A file that grew, and one without bytes.
        assert!(bar(1, 2_000, Some(1_000), Duration::ZERO).contains("100 %"));
        assert!(bar(0, 0, Some(0), Duration::ZERO).contains("lines"));
    }
}
