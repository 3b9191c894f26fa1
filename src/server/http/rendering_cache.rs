//! Caches a text that many readers ask for: `/metrics`, and the figures of the status page. So few texts are in memory at once,
//! however many readers there are and however slow they are.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;

/// Maximum number of texts that are held at once. The text of 10,000 plans takes 7 MiB. While so many texts are being read, a new
/// reader gets the youngest of them. It is at most as old as the time that [`super::progress`] gives a reader.
const RENDERINGS_MAX: usize = 4;

/// Texts with the moment when each was written, the youngest last.
pub(super) struct RenderingCache {
    fresh_for: Duration,
    small_bytes: usize,
    texts: Mutex<Vec<(Instant, Bytes)>>,
}

impl RenderingCache {
    /// Gives a text to further readers for so long, if it has more bytes than `small_bytes`.
    pub(super) fn new(fresh_for: Duration, small_bytes: usize) -> Self {
        Self {
            fresh_for,
            small_bytes,
            texts: Mutex::default(),
        }
    }

    /// The youngest text, if it is young enough at `now`.
    pub(super) fn fresh(&self, now: Instant) -> Option<Bytes> {
        self.fresh_of(
            &self.texts.lock().unwrap_or_else(PoisonError::into_inner),
            now,
        )
    }

    /// Returns the text as of `now`, written by `write`, or one that is young enough.
    pub(super) fn text(&self, now: Instant, write: impl FnOnce() -> String) -> Bytes {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = self.fresh_of(&texts, now) {
            return text;
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

    fn fresh_of(&self, texts: &[(Instant, Bytes)], now: Instant) -> Option<Bytes> {
        let (at, text) = texts.last()?;
        let is_fresh =
            text.len() > self.small_bytes && now.saturating_duration_since(*at) < self.fresh_for;
        is_fresh.then(|| text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_store::clock::monotonic;

    const SMALL_BYTES: usize = 1_000;
    const FRESH_FOR: Duration = Duration::from_secs(1);

    fn cache() -> RenderingCache {
        RenderingCache::new(FRESH_FOR, SMALL_BYTES)
    }

    #[test]
    fn a_small_text_without_readers_is_written_anew_and_a_large_one_once_a_second() {
        let cache = cache();
        let start = monotonic();
        assert_eq!(cache.text(start, || "a".into()), "a");
        assert_eq!(cache.text(start, || "b".into()), "b");
        let large = "c".repeat(SMALL_BYTES + 1);
        drop(cache.text(start, || large.clone()));
        assert_eq!(cache.text(start + FRESH_FOR / 2, || "d".into()), large);
        assert_eq!(cache.text(start + FRESH_FOR, || "d".into()), "d");
    }

    #[test]
    fn slow_readers_hold_a_few_texts_and_new_readers_get_the_youngest() {
        let cache = cache();
        let now = monotonic();
        let held: Vec<Bytes> = (0..RENDERINGS_MAX)
            .map(|text| cache.text(now, || text.to_string()))
            .collect();
        assert_eq!(cache.text(now, || "new".into()), held[RENDERINGS_MAX - 1]);
        assert_eq!(cache.texts.lock().unwrap().len(), RENDERINGS_MAX);
        drop(held);
        assert_eq!(cache.text(now, || "new".into()), "new");
        assert_eq!(cache.texts.lock().unwrap().len(), 1);
    }
}
