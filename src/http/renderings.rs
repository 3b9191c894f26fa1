//! The text of `/metrics`, shared by those who read it at the same time, so that readers who are slow hold a few of them at
//! most, however many readers there are.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;

/// Most texts that are held at once. 10,000 plans take 7 MiB each. Whoever asks while all are being read is given the
/// youngest, which is as old as [`super::progress`] lets a reader take, at most.
const RENDERINGS_MAX: usize = 4;
/// A text is given out again for so long if it has more than so many bytes: a large one takes milliseconds to write, on the
/// thread that answers probes.
const FRESH_FOR: Duration = Duration::from_secs(1);
const LARGE_BYTES: usize = 256 << 10;

/// Texts, the youngest last, each with the moment when it was written.
#[derive(Default)]
pub(super) struct Renderings(Mutex<Vec<(Instant, Bytes)>>);

impl Renderings {
    /// The text as of `now`, written by `write`, or one that is young enough.
    pub(super) fn text(&self, now: Instant, write: impl FnOnce() -> String) -> Bytes {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh =
            |(at, text): &&(Instant, Bytes)| text.len() > LARGE_BYTES && now.saturating_duration_since(*at) < FRESH_FOR;
        if let Some((_, text)) = texts.last().filter(is_fresh) {
            return text.clone();
        }
        // The others are being read.
        texts.retain(|(_, text)| !text.is_unique());
        if texts.len() >= RENDERINGS_MAX
            && let Some((_, text)) = texts.last()
        {
            return text.clone();
        }
        let text = Bytes::from(write());
        texts.push((now, text.clone()));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn a_text_that_nobody_reads_is_written_anew_and_a_large_one_once_a_second() {
        let (renderings, start) = (Renderings::default(), monotonic());
        assert_eq!(renderings.text(start, || "a".into()), "a");
        assert_eq!(renderings.text(start, || "b".into()), "b");
        let large = "c".repeat(LARGE_BYTES + 1);
        drop(renderings.text(start, || large.clone()));
        assert_eq!(renderings.text(start + FRESH_FOR / 2, || "d".into()), large);
        assert_eq!(renderings.text(start + FRESH_FOR, || "d".into()), "d");
    }

    #[test]
    fn slow_readers_hold_a_few_texts_and_whoever_comes_meanwhile_is_given_the_youngest() {
        let (renderings, now) = (Renderings::default(), monotonic());
        let held: Vec<Bytes> = (0..RENDERINGS_MAX).map(|text| renderings.text(now, || text.to_string())).collect();
        assert_eq!(renderings.text(now, || "new".into()), held[RENDERINGS_MAX - 1]);
        assert_eq!(renderings.0.lock().unwrap().len(), RENDERINGS_MAX);
        drop(held);
        assert_eq!(renderings.text(now, || "new".into()), "new");
        assert_eq!(renderings.0.lock().unwrap().len(), 1);
    }
}
