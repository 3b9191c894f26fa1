//! When a call that is not full goes out beside those under way.
//!
//! Pure: time is an argument. Where Redis is near, what arrives waits for the call under way and goes with the next one, which
//! makes calls few and full. Where it is far, that wait is as long as the round trip again, and callers would run out of time
//! while Redis is well. So there the calls that may be under way at once are spread over one round trip.

use std::time::{Duration, Instant};

/// A round trip from which on Redis is far. Below, no timer of tokio's is fine enough to spread calls over it.
const FAR: Duration = Duration::from_millis(2);
/// With a short deadline a round trip is long from this part of it on: to wait for one and take one stays well within it.
const FAR_PART_OF_DEADLINE: u32 = 4;
/// Calls to one server that are spread over a round trip, as many as may be under way to it.
const SPREAD_OVER: u32 = 4;
/// Of each new round trip in the smoothed one, as TCP has it (RFC 6298).
const SMOOTHING: u32 = 8;

/// Of one lane.
#[derive(Debug)]
pub(super) struct Spacing {
    /// From when on a smoothed round trip is long.
    far: Duration,
    round_trip: Duration,
    last_sent: Option<Instant>,
}

impl Spacing {
    /// For a Redis that is given so long to answer.
    pub(super) fn new(deadline: Duration) -> Self {
        Self { far: FAR.min(deadline / FAR_PART_OF_DEADLINE), round_trip: Duration::ZERO, last_sent: None }
    }

    /// A call goes out.
    pub(super) fn sent(&mut self, now: Instant) {
        self.last_sent = Some(now);
    }

    /// A call that went out at `sent` was answered.
    pub(super) fn answered(&mut self, sent: Instant, now: Instant) {
        let took = now.saturating_duration_since(sent);
        self.round_trip = self.round_trip - self.round_trip / SMOOTHING + took / SMOOTHING;
    }

    /// When the next call may go out although others are under way and it is not full; `None` where Redis is near.
    pub(super) fn due(&self) -> Option<Instant> {
        let spread = self.round_trip / SPREAD_OVER;
        (self.round_trip >= self.far).then(|| self.last_sent.map(|sent| sent + spread)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn as_many_calls_are_spread_as_may_be_under_way() {
        assert_eq!(usize::try_from(SPREAD_OVER), Ok(crate::store::redis::batcher::CALLS_MAX));
    }

    /// After so many calls that took this long, one after another; when the last was answered.
    fn after(spacing: &mut Spacing, mut now: Instant, calls: u32, took: Duration) -> Instant {
        for _ in 0..calls {
            spacing.sent(now);
            spacing.answered(now, now + took);
            now += took;
        }
        now
    }

    #[test]
    fn a_near_redis_is_asked_by_one_call_after_another() {
        let mut spacing = Spacing::new(25 * MS);
        assert_eq!(spacing.due(), None);
        let now = after(&mut spacing, monotonic(), 100, MS);
        spacing.sent(now);
        assert_eq!(spacing.due(), None);
    }

    #[test]
    fn calls_to_a_far_redis_are_spread_over_its_round_trip() {
        let mut spacing = Spacing::new(115 * MS);
        let now = after(&mut spacing, monotonic(), 100, 75 * MS);
        spacing.sent(now);
        let wait = spacing.due().unwrap() - now;
        assert!(wait > 18 * MS && wait < 19 * MS, "{wait:?}");
    }

    /// Whoever comes waits for the next call and for its answer.
    #[test]
    fn whoever_comes_at_any_time_is_answered_before_the_deadline_if_redis_answers_in_three_quarters_of_it() {
        for deadline_ms in 1..200 {
            let deadline = deadline_ms * MS;
            for took in (1..=15).map(|part| deadline * part / 20) {
                let mut spacing = Spacing::new(deadline);
                let now = after(&mut spacing, monotonic(), 200, took);
                spacing.sent(now);
                let wait = spacing.due().map_or(took, |due| due - now);
                assert!(wait + took <= deadline, "{took:?} of {deadline:?}: {wait:?}");
            }
        }
    }

    #[test]
    fn the_first_long_round_trip_is_enough_to_tell() {
        let mut spacing = Spacing::new(115 * MS);
        let now = after(&mut spacing, monotonic(), 1_000, MS / 10);
        assert_eq!(spacing.due(), None);
        after(&mut spacing, now, 1, 75 * MS);
        assert!(spacing.due().is_some());
        let now = after(&mut spacing, now, 40, MS / 10);
        spacing.sent(now);
        assert_eq!(spacing.due(), None, "and it is near again when it answers so");
    }
}
