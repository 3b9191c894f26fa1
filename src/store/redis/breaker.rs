//! The circuit breaker: whether Redis is asked, and when it is tried again.
//!
//! Pure: time and chance are arguments. Closed, there is a connection and calls go out on it. Once it is lost, or
//! [`FAILURES_MAX`] calls in a row went unanswered, or as many and half of all within [`WINDOW`], the breaker is open and nobody
//! is made to wait. Half-open is one probe
//! under way: a connection of its own, which becomes the one in use if a decision comes back over it in time.

use std::time::{Duration, Instant};

use super::pace::{Failure, Pace};

/// Calls in a row that must fail. One more than may be under way at once, so that a single stall of Redis, no longer than
/// the deadline, opens nothing; a dead one costs its callers five deadlines at most.
#[expect(clippy::cast_possible_truncation, reason = "a handful of calls")]
pub(super) const FAILURES_MAX: u32 = super::batcher::CALLS_MAX as u32 + 1;
/// Within this, half of the calls that go unanswered open it too: a server that answers every other call in time makes half of
/// the callers wait for nothing.
const WINDOW: Duration = Duration::from_secs(1);
/// Longest pause before the first probe. A connection that was cut is often all that was wrong, so it is short; it is not
/// nothing, since many replicas may have lost theirs at one instant.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// Longest pause before any probe, but for one after a TLS handshake that timed out ([`super::pace`]). With a probe that is lost on the way just before Redis is back
/// ([`super::keeper::CONNECT_MAX`]) it leaves time for the next one within the second that is promised.
const PAUSE_MAX: Duration = Duration::from_millis(300);
/// A breaker that opens again this soon after it closed goes on pacing its probes where it had come to: a Redis that
/// answers a probe and no more is not asked by everyone dozens of times a second.
const RELAPSE: Duration = Duration::from_secs(1);

/// Where a store's breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Redis is asked.
    Closed,
    /// Redis is not asked; each plan's `on_store_failure` answers.
    Open,
    /// As open, and one probe is under way.
    HalfOpen,
}

impl BreakerState {
    /// Of several, the one that tells most.
    pub(super) fn badness(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::HalfOpen => 1,
            Self::Open => 2,
        }
    }
}

#[derive(Debug)]
pub(super) struct Breaker {
    phase: Phase,
    /// Numbers the connections, so that what became of a call on an earlier one says nothing of this one.
    connection: u64,
    /// Probes that failed since the store was last well.
    failed_probes: u32,
    pace: Pace,
    crowded: bool,
}

#[derive(Debug)]
enum Phase {
    Closed { since: Instant, failures: Failures },
    Open { since: Instant, probe_at: Instant },
    HalfOpen { since: Instant },
}

/// Calls on the connection in use that went unanswered.
#[derive(Debug)]
struct Failures {
    in_a_row: u32,
    last_at: Instant,
    /// When the window began: at the first failure after the last window.
    window_at: Instant,
    /// In the window; of calls that were under way together where the breaker is crowded, one.
    in_window: u32,
    /// All unanswered and all answered calls of the window.
    unanswered: u32,
    answered: u32,
}

impl Failures {
    fn none(now: Instant) -> Self {
        Self { in_a_row: 0, last_at: now, window_at: now, in_window: 0, unanswered: 0, answered: 0 }
    }

    fn answered(&mut self) {
        self.in_a_row = 0;
        self.answered = self.answered.saturating_add(1);
    }

    /// Counts a call that went unanswered, which says something `new` or what others have said.
    fn unanswered(&mut self, new: bool, now: Instant) {
        if self.in_window == 0 || now.saturating_duration_since(self.window_at) > WINDOW {
            *self = Self { in_a_row: self.in_a_row, last_at: self.last_at, ..Self::none(now) };
        }
        self.unanswered = self.unanswered.saturating_add(1);
        if new {
            self.in_a_row += 1;
            self.in_window += 1;
            self.last_at = now;
        }
    }

    fn are_enough(&self) -> bool {
        let half = self.unanswered >= self.answered;
        self.in_a_row >= FAILURES_MAX || self.in_window >= FAILURES_MAX && half
    }
}

impl Breaker {
    /// Open, with a probe due at once: nothing is known of Redis yet. Where more calls are under way at once than
    /// [`FAILURES_MAX`], it is `crowded`: those that were when one failed count as that one.
    pub(super) fn new(now: Instant, crowded: bool) -> Self {
        Self { phase: Phase::Open { since: now, probe_at: now }, connection: 0, failed_probes: 0, pace: Pace::default(), crowded }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.phase {
            Phase::Closed { .. } => BreakerState::Closed,
            Phase::Open { .. } => BreakerState::Open,
            Phase::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// A call on `connection` was answered by Redis, by whatever.
    pub(super) fn answered(&mut self, connection: u64) {
        if let Phase::Closed { failures, .. } = &mut self.phase
            && connection == self.connection
        {
            failures.answered();
        }
    }

    /// A call on `connection`, made at `sent`, was not answered in time, or could not be sent; whether that opened the
    /// breaker.
    pub(super) fn unanswered(&mut self, connection: u64, sent: Instant, now: Instant, chance: u64) -> bool {
        if let Phase::Closed { failures, .. } = &mut self.phase
            && connection == self.connection
        {
            failures.unanswered(!(self.crowded && sent < failures.last_at), now);
            return failures.are_enough() && self.open(now, chance);
        }
        false
    }

    /// `connection` has ended; whether that opened the breaker.
    pub(super) fn lost(&mut self, connection: u64, now: Instant, chance: u64) -> bool {
        connection == self.connection && self.open(now, chance)
    }

    /// Opens a closed breaker; whether it was closed.
    fn open(&mut self, now: Instant, chance: u64) -> bool {
        let Phase::Closed { since, .. } = self.phase else { return false };
        if now.saturating_duration_since(since) >= RELAPSE {
            self.failed_probes = 0;
            self.pace.start_over();
        }
        self.phase = Phase::Open { since: now, probe_at: now + self.pause(chance) };
        true
    }

    /// What kept probes from passing has changed: the next is due soon.
    pub(super) fn hasten(&mut self, now: Instant, chance: u64) {
        if let Phase::Open { since, .. } = self.phase {
            self.failed_probes = 0;
            self.pace.start_over();
            self.phase = Phase::Open { since, probe_at: now + self.pause(chance) };
        }
    }

    /// Opens it from wherever it stands, as after a failed probe: whoever drove it has lost the thread.
    pub(super) fn start_over(&mut self, now: Instant, chance: u64) {
        let since = match self.phase {
            Phase::Closed { .. } => now,
            Phase::Open { since, .. } | Phase::HalfOpen { since } => since,
        };
        self.phase = Phase::HalfOpen { since };
        self.probe_failed(Failure::Cheap, now, chance);
    }

    /// When the next probe is due; `None` when one is under way or none is needed.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Open { probe_at, .. } => Some(probe_at),
            Phase::Closed { .. } | Phase::HalfOpen { .. } => None,
        }
    }

    /// Begins the probe if it is due; the number of its connection.
    pub(super) fn begin_probe(&mut self, now: Instant) -> Option<u64> {
        match self.phase {
            Phase::Open { since, probe_at } if now >= probe_at => {
                self.phase = Phase::HalfOpen { since };
                Some(self.connection + 1)
            }
            _ => None,
        }
    }

    /// The probe under way was answered in time: its connection is the one in use. How long the breaker was open.
    pub(super) fn probe_passed(&mut self, now: Instant) -> Option<Duration> {
        let Phase::HalfOpen { since } = self.phase else { return None };
        self.connection += 1;
        self.pace.succeeded();
        self.phase = Phase::Closed { since: now, failures: Failures::none(now) };
        Some(now.saturating_duration_since(since))
    }

    /// The probe under way failed: another is due after a pause.
    pub(super) fn probe_failed(&mut self, failure: Failure, now: Instant, chance: u64) {
        if let Phase::HalfOpen { since } = self.phase {
            self.pace.failed(failure);
            self.failed_probes = self.failed_probes.saturating_add(1);
            self.phase = Phase::Open { since, probe_at: now + self.pause(chance) };
        }
    }

    /// Longest that the next probe may take to connect.
    pub(super) fn patience(&self) -> Duration {
        self.pace.patience()
    }

    /// A bound that doubles with each failed probe: however many replicas lost Redis at one instant, they come back to it
    /// spread out. `chance` is any number, all equally likely.
    fn pause(&self, chance: u64) -> Duration {
        let usual = PAUSE_FIRST.saturating_mul(1 << self.failed_probes.min(10)).min(PAUSE_MAX);
        within(self.pace.pause_max(usual), chance)
    }
}

/// Anything from nothing to a bound, four seconds at most, as chance has it ("full jitter").
pub(super) fn within(bound: Duration, chance: u64) -> Duration {
    // Below 2^64: such a bound of nanoseconds takes 32 bits, the chance is cut to 32.
    let bound_ns = u32::try_from(bound.as_nanos()).unwrap_or(u32::MAX);
    Duration::from_nanos((u64::from(bound_ns) * (chance >> 32)) >> 32)
}

#[cfg(test)]
mod tests;
