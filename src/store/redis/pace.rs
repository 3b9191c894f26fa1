//! How long an attempt to connect is waited for, and how long is paused before the next one.
//!
//! Pure. A TLS handshake costs a server milliseconds, whether the client still waits for its end or not. Where many clients
//! give up together and try again soon, the server does nothing but handshakes that nobody wants. So an attempt over TLS that
//! timed out makes the next one wait longer, and begin later. Attempts that the server refused cost it nothing, and neither do
//! connections without TLS: they are tried as soon as ever.

use std::time::Duration;

use super::keeper::CONNECT_MAX;

/// Times that patience and pause double: from half a second to four. 150 clients at a certificate of 4096 bits keep a server
/// busy for a second, or for a few on a slow machine.
const DOUBLINGS_MAX: u32 = 3;
/// Longest pause after an attempt that timed out; doubles as patience does, to more than a second.
const PAUSE_TIMED_OUT: Duration = Duration::from_millis(300);

/// How an attempt to connect failed, as far as it tells when to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// It was refused, or cost the server nothing.
    Cheap,
    /// The server may be working on it, or on others like it: a TLS handshake that was not over in time.
    HandshakeTimedOut,
}

/// The pace of one client's attempts at one server.
#[derive(Debug, Default)]
pub(super) struct Pace {
    timed_out: u32,
}

impl Pace {
    /// Longest that the next attempt is waited for.
    pub(super) fn patience(&self) -> Duration {
        CONNECT_MAX * (1 << self.timed_out)
    }

    /// Longest pause before the next attempt, which is `usual` where none timed out.
    pub(super) fn pause_max(&self, usual: Duration) -> Duration {
        match self.timed_out {
            0 => usual,
            timed_out => usual.max(PAUSE_TIMED_OUT * (1 << (timed_out - 1))),
        }
    }

    /// An attempt failed.
    pub(super) fn failed(&mut self, failure: Failure) {
        self.timed_out = match failure {
            Failure::Cheap => 0,
            Failure::HandshakeTimedOut => (self.timed_out + 1).min(DOUBLINGS_MAX),
        };
    }

    /// An attempt succeeded. One step back only: a server that is lost again at once is lost to many.
    pub(super) fn succeeded(&mut self) {
        self.timed_out = self.timed_out.saturating_sub(1);
    }

    /// Whatever kept attempts from succeeding is over.
    pub(super) fn start_over(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_millis(20);

    fn numbers(pace: &Pace) -> (u128, u128) {
        (pace.patience().as_millis(), pace.pause_max(USUAL).as_millis())
    }

    #[test]
    fn handshakes_that_time_out_are_given_more_time_and_tried_later_to_a_bound() {
        let mut pace = Pace::default();
        let mut seen = vec![numbers(&pace)];
        for _ in 0..5 {
            pace.failed(Failure::HandshakeTimedOut);
            seen.push(numbers(&pace));
        }
        assert_eq!(seen, [(500, 20), (1_000, 300), (2_000, 600), (4_000, 1_200), (4_000, 1_200), (4_000, 1_200)]);
    }

    #[test]
    fn a_success_is_one_step_back_and_a_refusal_all_of_them() {
        let mut pace = Pace::default();
        (0..4).for_each(|_| pace.failed(Failure::HandshakeTimedOut));
        pace.succeeded();
        assert_eq!(numbers(&pace), (2_000, 600));
        pace.failed(Failure::Cheap);
        assert_eq!(numbers(&pace), (500, 20));
        pace.succeeded();
        assert_eq!(numbers(&pace), (500, 20));
    }

    #[test]
    fn a_longer_usual_pause_stays() {
        let mut pace = Pace::default();
        pace.failed(Failure::HandshakeTimedOut);
        assert_eq!(pace.pause_max(Duration::from_secs(9)), Duration::from_secs(9));
    }
}
