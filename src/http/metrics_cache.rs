//! Caches the text of `/metrics`. So few texts are in memory at once, however many readers there are and however slow they are.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;

/// Most texts that are held at once. The text of 10,000 plans takes 7 MiB. While so many texts are being read, a new reader gets
/// the youngest of them. It is at most as old as the time that [`super::progress`] gives a reader.
const RENDERINGS_MAX: usize = 4;
/// How long a text larger than [`LARGE_BYTES`] is given to further readers. Writing it takes milliseconds on the thread that
/// answers probes.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Texts of more bytes than this are kept for [`FRESH_FOR`].
const LARGE_BYTES: usize = 256 << 10;

/// Texts with the moment when each was written, the youngest last.
#[derive(Default)]
pub(super) struct MetricsCache(Mutex<Vec<(Instant, Bytes)>>);

impl MetricsCache {
    /// Returns the text as of `now`, written by `write`, or one that is young enough.
    pub(super) fn text(&self, now: Instant, write: impl FnOnce() -> String) -> Bytes {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh =
            |(at, text): &&(Instant, Bytes)| text.len() > LARGE_BYTES && now.saturating_duration_since(*at) < FRESH_FOR;
        if let Some((_, text)) = texts.last().filter(is_fresh) {
            return text.clone();
        }
        // Keeps only texts that are being read.
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
    fn a_text_without_readers_is_written_anew_and_a_large_one_once_a_second() {
        let (metrics_cache, start) = (MetricsCache::default(), monotonic());
        assert_eq!(metrics_cache.text(start, || "a".into()), "a");
        assert_eq!(metrics_cache.text(start, || "b".into()), "b");
        let large = "c".repeat(LARGE_BYTES + 1);
        drop(metrics_cache.text(start, || large.clone()));
        assert_eq!(metrics_cache.text(start + FRESH_FOR / 2, || "d".into()), large);
        assert_eq!(metrics_cache.text(start + FRESH_FOR, || "d".into()), "d");
    }

    #[test]
    fn slow_readers_hold_a_few_texts_and_new_readers_get_the_youngest() {
        let (metrics_cache, now) = (MetricsCache::default(), monotonic());
        let held: Vec<Bytes> = (0..RENDERINGS_MAX).map(|text| metrics_cache.text(now, || text.to_string())).collect();
        assert_eq!(metrics_cache.text(now, || "new".into()), held[RENDERINGS_MAX - 1]);
        assert_eq!(metrics_cache.0.lock().unwrap().len(), RENDERINGS_MAX);
        drop(held);
        assert_eq!(metrics_cache.text(now, || "new".into()), "new");
        assert_eq!(metrics_cache.0.lock().unwrap().len(), 1);
    }
}
