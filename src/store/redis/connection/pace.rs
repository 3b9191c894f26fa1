//! The time limit of an attempt to connect, and the pause before the next attempt.
//!
//! Pure. A TLS handshake costs a server milliseconds, even if the client has stopped waiting for it. When many clients time
//! out together and retry soon, the server spends all its time on abandoned handshakes. So after an attempt over TLS that
//! timed out, the next one has a longer time limit and begins later. Attempts that the server refused cost it nothing, and
//! neither do connections without TLS. These are retried after the usual pause.

use std::time::Duration;

use super::manager::CONNECT_MAX;

/// Maximum number of times that the time limit and the pause double: from half a second to four. 150 clients keep a server with a
/// certificate of 4096 bits busy for a second, or for a few on a slow machine.
const DOUBLINGS_MAX: u32 = 3;
/// Longest pause after the first attempt that timed out. It doubles as the time limit does, to more than a second.
const PAUSE_TIMED_OUT: Duration = Duration::from_millis(300);

/// How an attempt to connect failed, as far as it matters for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::redis) enum ConnectFailure {
    /// It was refused, or otherwise cost the server nothing.
    Cheap,
    /// A TLS handshake was not over in time. The server may still be working on it or on others.
    HandshakeTimedOut,
}

/// The pace at which one client tries to connect to one server.
#[derive(Debug, Default)]
pub(in crate::redis) struct Pace {
    timed_out: u32,
}

impl Pace {
    /// The time limit of the next attempt.
    pub(in crate::redis) fn time_limit(&self) -> Duration {
        CONNECT_MAX * (1 << self.timed_out)
    }

    /// The longest pause before the next attempt. It is `usual` when no attempt timed out.
    pub(in crate::redis) fn pause_max(&self, usual: Duration) -> Duration {
        match self.timed_out {
            0 => usual,
            timed_out => usual.max(PAUSE_TIMED_OUT * (1 << (timed_out - 1))),
        }
    }

    /// Records that an attempt failed.
    pub(in crate::redis) fn failed(&mut self, failure: ConnectFailure) {
        self.timed_out = match failure {
            ConnectFailure::Cheap => 0,
            ConnectFailure::HandshakeTimedOut => (self.timed_out + 1).min(DOUBLINGS_MAX),
        };
    }

    /// Records that an attempt succeeded. It undoes only one doubling: a server that is lost again at once is lost to many
    /// clients.
    pub(in crate::redis) fn succeeded(&mut self) {
        self.timed_out = self.timed_out.saturating_sub(1);
    }

    /// Forgets past failures, because their cause is over.
    pub(in crate::redis) fn start_over(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_millis(20);

    fn numbers(pace: &Pace) -> (u128, u128) {
        (
            pace.time_limit().as_millis(),
            pace.pause_max(USUAL).as_millis(),
        )
    }

    #[test]
    fn handshakes_that_time_out_are_given_more_time_and_tried_later_to_a_bound() {
        let mut pace = Pace::default();
        let mut seen = vec![numbers(&pace)];
        for _ in 0..5 {
            pace.failed(ConnectFailure::HandshakeTimedOut);
            seen.push(numbers(&pace));
        }
        assert_eq!(
            seen,
            [
                (500, 20),
                (1_000, 300),
                (2_000, 600),
                (4_000, 1_200),
                (4_000, 1_200),
                (4_000, 1_200)
            ]
        );
    }

    #[test]
    fn a_success_is_one_step_back_and_a_refusal_all_of_them() {
        let mut pace = Pace::default();
        (0..4).for_each(|_| pace.failed(ConnectFailure::HandshakeTimedOut));
        pace.succeeded();
        assert_eq!(numbers(&pace), (2_000, 600));
        pace.failed(ConnectFailure::Cheap);
        assert_eq!(numbers(&pace), (500, 20));
        pace.succeeded();
        assert_eq!(numbers(&pace), (500, 20));
    }

    #[test]
    fn a_longer_usual_pause_stays() {
        let mut pace = Pace::default();
        pace.failed(ConnectFailure::HandshakeTimedOut);
        assert_eq!(
            pace.pause_max(Duration::from_secs(9)),
            Duration::from_secs(9)
        );
    }
}
