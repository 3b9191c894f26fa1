//! Decides when a call that is not full may be sent while others are in flight.
//!
//! Pure: time is an argument. Redis is near or far, by the round trip to it. Near: new requests wait for the call in flight and
//! go with the next one, which makes calls few and full. Far: that wait would add a whole round trip, and requests would miss
//! their deadlines although Redis is well. So the calls that may be in flight at once are then spread over one round trip.

use std::time::{Duration, Instant};

/// Redis is far from this round trip on. Tokio's timers are too coarse to spread calls over a shorter one.
const FAR: Duration = Duration::from_millis(2);
/// With a short deadline, Redis is far from a round trip of one part in this many of the deadline on. A request that waits for
/// a shorter round trip and then takes one stays well within the deadline.
const FAR_DEADLINE_DIVISOR: u32 = 4;
/// Number of calls that are spread over a round trip: as many as may be in flight to one server.
const SPREAD_OVER: u32 = 4;
/// One part in this many of the smoothed round trip comes from the newest one, as in TCP (RFC 6298).
const SMOOTHING: u32 = 8;

/// Holds the smoothed round trip to one node, and when the last call was sent.
#[derive(Debug)]
pub(in crate::redis) struct Spacing {
    /// The smoothed round trip from which on Redis is far.
    far: Duration,
    round_trip: Duration,
    last_sent: Option<Instant>,
}

impl Spacing {
    /// For a Redis that has `deadline` to answer.
    pub(in crate::redis) fn new(deadline: Duration) -> Self {
        Self {
            far: FAR.min(deadline / FAR_DEADLINE_DIVISOR),
            round_trip: Duration::ZERO,
            last_sent: None,
        }
    }

    /// Records that a call was sent.
    pub(in crate::redis) fn sent(&mut self, now: Instant) {
        self.last_sent = Some(now);
    }

    /// Records that a call sent at `sent` was answered.
    pub(in crate::redis) fn answered(&mut self, sent: Instant, now: Instant) {
        let took = now.saturating_duration_since(sent);
        self.round_trip = self.round_trip - self.round_trip / SMOOTHING + took / SMOOTHING;
    }

    /// When the next call may be sent although others are in flight and it is not full; `None` where Redis is near.
    pub(in crate::redis) fn due(&self) -> Option<Instant> {
        let spread = self.round_trip / SPREAD_OVER;
        (self.round_trip >= self.far)
            .then(|| self.last_sent.map(|sent| sent + spread))
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn as_many_calls_are_spread_as_may_be_in_flight() {
        assert_eq!(
            usize::try_from(SPREAD_OVER),
            Ok(crate::redis::batcher::CALLS_MAX)
        );
    }

    /// Makes `calls` calls that take `took` each, one after another. Returns when the last was answered.
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

    /// A request waits until the next call is sent, and then for its answer.
    #[test]
    fn a_request_at_any_time_is_answered_before_the_deadline_if_redis_answers_in_three_quarters_of_it()
     {
        for deadline_ms in 1..200 {
            let deadline = deadline_ms * MS;
            for took in (1..=15).map(|part| deadline * part / 20) {
                let mut spacing = Spacing::new(deadline);
                let now = after(&mut spacing, monotonic(), 200, took);
                spacing.sent(now);
                let wait = spacing.due().map_or(took, |due| due - now);
                assert!(
                    wait + took <= deadline,
                    "{took:?} of {deadline:?}: {wait:?}"
                );
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
        assert_eq!(
            spacing.due(),
            None,
            "it is near again after short round trips"
        );
    }
}
