//! `Decision`, `Outcome`, `LimitStatus`: what was decided and the numbers that go back.
//!
//! "No" is a decision, never an error. Times are durations in microseconds, so nothing here needs a clock.

use std::sync::Arc;

use smallvec::SmallVec;

/// What was decided, by whom, and where the key stands in each limit of its plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The answer.
    pub outcome: Outcome,
    /// Who gave it.
    pub decided_by: DecidedBy,
    statuses: SmallVec<[LimitStatus; 2]>,
    /// Whether these are of a state that was read, and not only a limit's numbers.
    counted: bool,
    /// Which of them binds, if there are any: there are no more than limits of a plan.
    binding: u8,
}

impl Decision {
    /// A decision from the standing of every limit.
    pub fn counted(outcome: Outcome, decided_by: DecidedBy, limits: SmallVec<[LimitStatus; 2]>) -> Self {
        let binding = (1..limits.len()).fold(0, |a, b| if limits[b].binds_more_than(&limits[a]) { b } else { a });
        Self { outcome, decided_by, statuses: limits, counted: true, binding: binding as u8 }
    }

    /// A decision that looked at no state.
    pub fn uncounted(outcome: Outcome, decided_by: DecidedBy, binding: Option<LimitStatus>) -> Self {
        Self { outcome, decided_by, statuses: binding.into_iter().collect(), counted: false, binding: 0 }
    }

    /// Where the key stands after this decision, a row per limit in the plan's order. Empty when nobody counted: an
    /// unlimited or blocked plan, a cost that never fits, a store that failed open or closed.
    pub fn limits(&self) -> &[LimitStatus] {
        if self.counted { &self.statuses } else { &[] }
    }

    /// The limit that binds: the one that denies longest, else the one with the least remaining share.
    pub fn binding(&self) -> Option<&LimitStatus> {
        self.statuses.get(usize::from(self.binding))
    }

    /// Units that a request with this key could take right now: the least that any limit would give. `None` where no state was
    /// read.
    pub fn remaining(&self) -> Option<u64> {
        self.limits().iter().map(|status| status.remaining).min()
    }

    /// Time until the same cost could pass, nothing else happening. `None` when the caller may go on, also where that is by a
    /// plan in shadow mode, and when no wait is known to help.
    pub fn retry_after_us(&self) -> Option<u64> {
        self.binding().filter(|_| !self.allowed())?.retry_after_us
    }

    /// Time until the key is as fresh, nothing else happening. `None` where no state was read.
    pub fn reset_after_us(&self) -> Option<u64> {
        self.binding().filter(|_| self.counted).map(|status| status.reset_after_us)
    }

    /// Time until more can be taken than now; see [`LimitStatus::more_after_us`]. `None` where no state was read.
    pub fn more_after_us(&self) -> Option<u64> {
        self.binding().filter(|_| self.counted)?.more_after_us()
    }

    /// Whether the caller may go on.
    pub fn allowed(&self) -> bool {
        match self.outcome {
            Outcome::Allowed | Outcome::ShadowDenied => true,
            Outcome::Denied | Outcome::NeverFits => false,
        }
    }
}

/// The answer to "may this request pass?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Yes; the cost was charged to every limit of the plan.
    Allowed,
    /// No; nothing was charged.
    Denied,
    /// No, and no wait will change it: the cost is above a limit's quota or burst. Nothing was charged.
    NeverFits,
    /// A plan in shadow mode would have said no; the caller may go on, nothing was charged.
    ShadowDenied,
}

impl Outcome {
    /// Every outcome, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Allowed, Self::Denied, Self::NeverFits, Self::ShadowDenied];

    /// A word for metrics and texts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::NeverFits => "never_fits",
            Self::ShadowDenied => "shadow_denied",
        }
    }
}

/// Who gave an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecidedBy {
    /// The store, exactly.
    Store,
    /// This replica, which remembers a denial by the store that still holds.
    DenyCache,
    /// The plan alone: unlimited, blocked, or a cost that never fits.
    Plan,
    /// Nobody could decide; the plan says to allow then.
    FailOpen,
    /// Nobody could decide; the plan says to deny then.
    FailClosed,
    /// This replica's memory, at its share of the quota, because the store could not decide.
    LocalFallback,
}

impl DecidedBy {
    /// Everybody, in the order of their numbers.
    pub const ALL: [Self; 6] = [Self::Store, Self::DenyCache, Self::Plan, Self::FailOpen, Self::FailClosed, Self::LocalFallback];

    /// A word for metrics and texts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::DenyCache => "deny_cache",
            Self::Plan => "plan",
            Self::FailOpen => "fail_open",
            Self::FailClosed => "fail_closed",
            Self::LocalFallback => "local_fallback",
        }
    }
}

/// Where a key stands in one limit after a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitStatus {
    /// The limit's name.
    pub name: Arc<str>,
    /// The limit's quota, in units per window.
    pub limit: u64,
    /// What the quota refers to, in microseconds.
    pub window_us: u64,
    /// Whether all units come back at one instant, the end of a fixed window.
    pub frees_at_once: bool,
    /// Most units that one request can ever get: the burst, or the quota.
    pub capacity: u64,
    /// Units that a request could take right now.
    pub remaining: u64,
    /// Time until the same cost could pass, nothing else happening; `None` when this limit did not deny it.
    pub retry_after_us: Option<u64>,
    /// Time until the key is as fresh, nothing else happening.
    pub reset_after_us: u64,
}

impl LimitStatus {
    /// Time until more units can be taken than now, as far as it is known: a denial tells when the same cost could pass, and
    /// of a fixed window its end is the time.
    pub fn more_after_us(&self) -> Option<u64> {
        self.retry_after_us.or(self.frees_at_once.then_some(self.reset_after_us))
    }

    /// Denying beats not denying; then the longer wait, else the smaller share that remains.
    fn binds_more_than(&self, other: &Self) -> bool {
        match (self.retry_after_us, other.retry_after_us) {
            (Some(mine), Some(others)) => mine > others,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => {
                let share = |a: &Self, b: &Self| u128::from(a.remaining) * u128::from(b.capacity);
                share(self, other) < share(other, self)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn status(name: &str, remaining: u64, limit: u64, retry_after_us: Option<u64>) -> LimitStatus {
        let (window_us, frees_at_once) = (1_000_000, false);
        LimitStatus {
            name: name.into(),
            limit,
            window_us,
            frees_at_once,
            capacity: limit,
            remaining,
            retry_after_us,
            reset_after_us: 0,
        }
    }

    fn binding(limits: SmallVec<[LimitStatus; 2]>) -> String {
        Decision::counted(Outcome::Denied, DecidedBy::Store, limits).binding().unwrap().name.to_string()
    }

    #[test]
    fn the_limit_that_denies_longest_binds() {
        assert_eq!(binding(smallvec![status("a", 0, 9, Some(1)), status("b", 0, 9, Some(2)), status("c", 0, 9, None)]), "b");
        assert_eq!(binding(smallvec![status("a", 0, 9, None), status("b", 5, 9, Some(1))]), "b");
    }

    #[test]
    fn else_the_least_remaining_share_binds_and_the_first_wins_a_tie() {
        assert_eq!(binding(smallvec![status("a", 20, 33, None), status("b", 100, 2000, None)]), "b");
        assert_eq!(binding(smallvec![status("a", 1, 2, None), status("b", 2, 4, None)]), "a");
    }

    #[test]
    fn what_remains_is_the_least_of_any_limit_and_not_the_binding_one_s() {
        // The share of the second is smaller, its units are more.
        let limits = smallvec![status("a", 5, 10, None), status("b", 395, 1000, None)];
        let decision = Decision::counted(Outcome::Allowed, DecidedBy::Store, limits);
        assert_eq!((&*decision.binding().unwrap().name, decision.remaining()), ("b", Some(5)));
        let uncounted = Decision::uncounted(Outcome::NeverFits, DecidedBy::Plan, Some(status("a", 0, 9, None)));
        assert_eq!((uncounted.remaining(), uncounted.reset_after_us(), uncounted.more_after_us()), (None, None, None));
    }

    #[test]
    fn an_answer_that_lets_pass_tells_no_wait() {
        let of = |outcome| Decision::counted(outcome, DecidedBy::Store, smallvec![status("a", 0, 9, Some(7))]);
        assert_eq!(of(Outcome::Denied).retry_after_us(), Some(7));
        let shadow = of(Outcome::ShadowDenied);
        assert_eq!((shadow.retry_after_us(), shadow.limits()[0].retry_after_us), (None, Some(7)));
    }
}
