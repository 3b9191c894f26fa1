//! The circuit breaker: whether Redis is asked, and when it is probed again.
//!
//! Pure: time and random numbers are arguments. While the breaker is closed, there is a connection and calls are sent on it.
//! It opens when the connection is lost, or when [`FAILURES_MAX`] calls in a row were not answered. It also opens when as many
//! calls, and half of all, were not answered within [`WINDOW`]. While it is open, no caller waits for Redis. Half-open means
//! that one probe is in flight: a new connection, which comes into use if a decision is answered on it in time.

use std::time::{Duration, Instant};

use super::pace::{ConnectFailure, Pace};

/// Failed calls in a row that open the breaker. It is one more than may be in flight at once, so that one stall of Redis, no
/// longer than the deadline, does not open it. A dead Redis costs its callers at most five deadlines.
#[expect(clippy::cast_possible_truncation, reason = "a handful of calls")]
pub(in crate::redis) const FAILURES_MAX: u32 = crate::redis::batcher::CALLS_MAX as u32 + 1;
/// The breaker also opens when half of the calls within this time fail. A server that answers every other call in time makes
/// half of the callers wait in vain.
const WINDOW: Duration = Duration::from_secs(1);
/// Longest pause before the first probe. It is short, since often only the connection was cut. It is not zero, since many
/// replicas may have lost their connections at one instant.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// Longest pause before any probe, except after a TLS handshake that timed out ([`crate::redis::connection::pace`]). A probe may be lost in the
/// network just before Redis is back, and takes [`crate::redis::connection::manager::CONNECT_MAX`]. This pause leaves time for the next probe
/// within the promised second.
const PAUSE_MAX: Duration = Duration::from_millis(300);
/// A breaker that opens again this soon after it closed keeps the pause that it had reached. Otherwise a Redis that answers
/// only probes would be probed dozens of times a second by every client.
const RELAPSE: Duration = Duration::from_secs(1);

/// The state of a store's breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Redis is asked.
    Closed,
    /// Redis is not asked; each plan's `on_store_failure` answers.
    Open,
    /// As open, and one probe is in flight.
    HalfOpen,
}

impl BreakerState {
    /// Orders the states from the best to the worst, to report the worst of several.
    pub(in crate::redis) fn severity(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::HalfOpen => 1,
            Self::Open => 2,
        }
    }
}

/// The state machine of one connection manager's breaker.
#[derive(Debug)]
pub(in crate::redis) struct Breaker {
    phase: Phase,
    /// The number of the present connection. Results of calls on earlier connections do not count for this one.
    connection: u64,
    /// Probes that failed since the breaker was last closed for longer than [`RELAPSE`].
    failed_probes: u32,
    pace: Pace,
    /// Whether more calls than [`FAILURES_MAX`] may be in flight at once; see [`Self::new`].
    crowded: bool,
}

/// The state, since when it lasts (open and half-open count together), and what it needs.
#[derive(Debug)]
enum Phase {
    Closed { since: Instant, failures: Failures },
    Open { since: Instant, probe_at: Instant },
    HalfOpen { since: Instant },
}

/// Counts failed calls on the connection in use.
#[derive(Debug)]
struct Failures {
    in_a_row: u32,
    last_at: Instant,
    /// When the window began. A window begins at the first failure after the last window.
    window_at: Instant,
    /// Failures in the window. If the breaker is crowded, calls that were in flight together count once.
    in_window: u32,
    /// All failed and all answered calls in the window.
    unanswered: u32,
    answered: u32,
}

impl Failures {
    fn none(now: Instant) -> Self {
        Self {
            in_a_row: 0,
            last_at: now,
            window_at: now,
            in_window: 0,
            unanswered: 0,
            answered: 0,
        }
    }

    fn answered(&mut self) {
        self.in_a_row = 0;
        self.answered = self.answered.saturating_add(1);
    }

    /// Counts a failed call. It is not `new` if it was in flight together with a failure that was counted already.
    fn unanswered(&mut self, new: bool, now: Instant) {
        if self.in_window == 0 || now.saturating_duration_since(self.window_at) > WINDOW {
            *self = Self {
                in_a_row: self.in_a_row,
                last_at: self.last_at,
                ..Self::none(now)
            };
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
    /// An open breaker with a probe due at once, since nothing is known of Redis yet. It is `crowded` where more calls than
    /// [`FAILURES_MAX`] may be in flight at once. Calls that were in flight when one failed then count as that one failure.
    pub(in crate::redis) fn new(now: Instant, crowded: bool) -> Self {
        Self {
            phase: Phase::Open {
                since: now,
                probe_at: now,
            },
            connection: 0,
            failed_probes: 0,
            pace: Pace::default(),
            crowded,
        }
    }

    pub(in crate::redis) fn state(&self) -> BreakerState {
        match self.phase {
            Phase::Closed { .. } => BreakerState::Closed,
            Phase::Open { .. } => BreakerState::Open,
            Phase::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Records that Redis answered a call on `connection`, whatever the answer was.
    pub(in crate::redis) fn answered(&mut self, connection: u64) {
        if let Phase::Closed { failures, .. } = &mut self.phase
            && connection == self.connection
        {
            failures.answered();
        }
    }

    /// Records that a call on `connection`, made at `sent`, was not answered in time or could not be sent. Returns whether that
    /// opened the breaker.
    pub(in crate::redis) fn unanswered(
        &mut self,
        connection: u64,
        sent: Instant,
        now: Instant,
        jitter: u64,
    ) -> bool {
        if let Phase::Closed { failures, .. } = &mut self.phase
            && connection == self.connection
        {
            failures.unanswered(!(self.crowded && sent < failures.last_at), now);
            return failures.are_enough() && self.open(now, jitter);
        }
        false
    }

    /// Records that `connection` has ended. Returns whether that opened the breaker.
    pub(in crate::redis) fn lost(&mut self, connection: u64, now: Instant, jitter: u64) -> bool {
        connection == self.connection && self.open(now, jitter)
    }

    /// Opens a closed breaker. Returns whether it was closed.
    fn open(&mut self, now: Instant, jitter: u64) -> bool {
        let Phase::Closed { since, .. } = self.phase else {
            return false;
        };
        if now.saturating_duration_since(since) >= RELAPSE {
            self.failed_probes = 0;
            self.pace.start_over();
        }
        self.phase = Phase::Open {
            since: now,
            probe_at: now + self.pause(jitter),
        };
        true
    }

    /// Makes the next probe due soon, because the cause of the failures may be gone.
    pub(in crate::redis) fn probe_soon(&mut self, now: Instant, jitter: u64) {
        if let Phase::Open { since, .. } = self.phase {
            self.failed_probes = 0;
            self.pace.start_over();
            self.phase = Phase::Open {
                since,
                probe_at: now + self.pause(jitter),
            };
        }
    }

    /// Opens the breaker from any state, as after a failed probe. For use after a panic of the task that drives it.
    pub(in crate::redis) fn start_over(&mut self, now: Instant, jitter: u64) {
        let since = match self.phase {
            Phase::Closed { .. } => now,
            Phase::Open { since, .. } | Phase::HalfOpen { since } => since,
        };
        self.phase = Phase::HalfOpen { since };
        self.probe_failed(ConnectFailure::Cheap, now, jitter);
    }

    /// When the next probe is due; `None` when one is in flight or none is needed.
    pub(in crate::redis) fn probe_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Open { probe_at, .. } => Some(probe_at),
            Phase::Closed { .. } | Phase::HalfOpen { .. } => None,
        }
    }

    /// Begins the probe if it is due. Returns the number of its connection.
    pub(in crate::redis) fn begin_probe(&mut self, now: Instant) -> Option<u64> {
        match self.phase {
            Phase::Open { since, probe_at } if now >= probe_at => {
                self.phase = Phase::HalfOpen { since };
                Some(self.connection + 1)
            }
            _ => None,
        }
    }

    /// Records that the probe in flight was answered in time: its connection comes into use. Returns how long the breaker was
    /// open.
    pub(in crate::redis) fn probe_passed(&mut self, now: Instant) -> Option<Duration> {
        let Phase::HalfOpen { since } = self.phase else {
            return None;
        };
        self.connection += 1;
        self.pace.succeeded();
        self.phase = Phase::Closed {
            since: now,
            failures: Failures::none(now),
        };
        Some(now.saturating_duration_since(since))
    }

    /// Records that the probe in flight failed. Another one is due after a pause.
    pub(in crate::redis) fn probe_failed(
        &mut self,
        failure: ConnectFailure,
        now: Instant,
        jitter: u64,
    ) {
        if let Phase::HalfOpen { since } = self.phase {
            self.pace.failed(failure);
            self.failed_probes = self.failed_probes.saturating_add(1);
            self.phase = Phase::Open {
                since,
                probe_at: now + self.pause(jitter),
            };
        }
    }

    /// The time limit for the next probe to connect.
    pub(in crate::redis) fn time_limit(&self) -> Duration {
        self.pace.time_limit()
    }

    /// The pause before the next probe: random, below a bound that doubles with each failed probe. So replicas that lost Redis at
    /// one instant come back spread out. `jitter` is a random number, all values equally likely.
    fn pause(&self, jitter: u64) -> Duration {
        let usual = PAUSE_FIRST
            .saturating_mul(1 << self.failed_probes.min(10))
            .min(PAUSE_MAX);
        random_within(self.pace.pause_max(usual), jitter)
    }
}

/// A random duration from zero to `bound`, which is at most four seconds ("full jitter").
pub(in crate::redis) fn random_within(bound: Duration, jitter: u64) -> Duration {
    // Both factors have at most 32 bits: the bound in nanoseconds, and the upper half of the random number.
    let bound_ns = u32::try_from(bound.as_nanos()).unwrap_or(u32::MAX);
    Duration::from_nanos((u64::from(bound_ns) * (jitter >> 32)) >> 32)
}

#[cfg(test)]
mod tests;
