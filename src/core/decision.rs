//! `Decision`, `Outcome`, `LimitStatus`: the result of a request and its numbers.
//!
//! A denial is a decision, never an error. Times are durations in microseconds, so this module needs no clock.

use std::sync::Arc;

use smallvec::SmallVec;

/// A key is near its limit when less than one of this many parts of the capacity is left.
pub const NEAR_LIMIT: u64 = 5;

/// The outcome of a request, who decided it, and the key's standing in each limit of its plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may pass.
    pub outcome: Outcome,
    /// Who decided.
    pub decided_by: DecidedBy,
    /// Whether the plan's candidate would have let the charge pass. `None` if there is none, or it did not decide.
    pub candidate_allowed: Option<bool>,
    /// Name of the plan that decided, where it is not the plan that the request names.
    pub other_plan: Option<Arc<str>>,
    /// Whether an override took part.
    pub overridden: bool,
    statuses: SmallVec<[LimitStatus; 2]>,
    /// Whether `statuses` come from a state that was read. If not, the status holds only a limit's own numbers.
    counted: bool,
    /// Index of the binding limit in `statuses`, if there are any.
    binding: u8,
    /// Whether the last of `statuses` is of no limit of the plan: it denies because too many holds are open.
    is_full: bool,
    /// Whether one of the limits counts open holds.
    has_slots: bool,
    /// Whether the request's id was known, so that it was charged before and not now.
    pub is_repeated: bool,
}

impl Decision {
    /// A decision based on the status of every limit.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a plan has at most 8 limits"
    )]
    pub fn counted(
        outcome: Outcome,
        decided_by: DecidedBy,
        limits: SmallVec<[LimitStatus; 2]>,
    ) -> Self {
        let binding = (1..limits.len()).fold(0, |a, b| {
            if limits[b].binds_more_than(&limits[a]) {
                b
            } else {
                a
            }
        });
        Self {
            outcome,
            decided_by,
            candidate_allowed: None,
            other_plan: None,
            overridden: false,
            statuses: limits,
            counted: true,
            binding: binding as u8,
            is_full: false,
            has_slots: false,
            is_repeated: false,
        }
    }

    /// A decision for which no state was read.
    #[inline]
    pub fn uncounted(
        outcome: Outcome,
        decided_by: DecidedBy,
        binding: Option<LimitStatus>,
    ) -> Self {
        let statuses = binding.into_iter().collect();
        Self {
            outcome,
            decided_by,
            candidate_allowed: None,
            other_plan: None,
            overridden: false,
            statuses,
            counted: false,
            binding: 0,
            is_full: false,
            has_slots: false,
            is_repeated: false,
        }
    }

    /// The same by a plan in shadow mode, if `is_shadow`: it reports its denial and allows the request. Inlined, since every decision
    /// goes through it by value.
    #[inline]
    #[must_use]
    pub fn shadowed_if(mut self, is_shadow: bool) -> Self {
        if is_shadow && !self.allowed() {
            self.outcome = Outcome::ShadowDenied;
        }
        self
    }

    /// The same, of which a limit counts open holds if `has_slots` says so.
    #[must_use]
    pub fn with_slots(self, has_slots: bool) -> Self {
        Self { has_slots, ..self }
    }

    /// The same, denied because too many holds are open: this status binds, and is none of a limit of the plan.
    #[must_use]
    pub fn full(mut self, status: LimitStatus) -> Self {
        self.statuses.push(status);
        // There are at most nine.
        self.binding = u8::try_from(self.statuses.len() - 1).unwrap_or(0);
        self.is_full = true;
        self
    }

    /// The same for a request that could pass, while another one of its joint decision may not. It has no wait of its own, also where
    /// its plan is in shadow mode and would deny it.
    pub(crate) fn other_denied(self) -> Self {
        let mut statuses = self.statuses;
        statuses
            .iter_mut()
            .for_each(|status| status.retry_after_us = None);
        Self {
            counted: self.counted,
            candidate_allowed: self.candidate_allowed,
            ..Self::counted(Outcome::OtherDenied, self.decided_by, statuses)
        }
    }

    /// The key's standing after this decision, one status per limit in the plan's order. Empty when nothing was counted: an
    /// unlimited or blocked plan, a cost that never fits, or a store failure answered by fail open or closed.
    #[inline]
    pub fn limits(&self) -> &[LimitStatus] {
        let limits = self.statuses.len() - usize::from(self.is_full);
        if self.counted {
            &self.statuses[..limits]
        } else {
            &[]
        }
    }

    /// The binding limit: the one that denies longest, or without a denial the one with the smallest remaining share.
    #[inline]
    pub fn binding(&self) -> Option<&LimitStatus> {
        self.statuses.get(usize::from(self.binding))
    }

    /// The numbers of the answer.
    #[inline]
    pub fn key_status(&self) -> KeyStatus {
        let read = self.binding().filter(|_| self.counted);
        KeyStatus {
            remaining: self.remaining(),
            retry_after_us: self
                .binding()
                .filter(|_| !self.allowed())
                .and_then(|status| status.retry_after_us),
            reset_after_us: read.map(|status| status.reset_after_us),
            more_after_us: read.and_then(LimitStatus::more_after_us),
        }
    }

    /// Units that a request could take: the least of the rate limits, 0 where no hold may be opened. Free slots are not units, and
    /// count where there is no rate limit.
    #[inline]
    fn remaining(&self) -> Option<u64> {
        if self.is_full || self.has_slots {
            return self.remaining_beside_slots();
        }
        self.limits().iter().map(|status| status.remaining).min()
    }

    #[cold]
    fn remaining_beside_slots(&self) -> Option<u64> {
        let is_slots = |status: &&LimitStatus| status.is_of_slots();
        let slots = self
            .limits()
            .iter()
            .find(is_slots)
            .map(|slots| slots.remaining);
        let rates = self.limits().iter().filter(|status| !is_slots(status));
        match (rates.map(|status| status.remaining).min(), slots) {
            _ if self.is_full => Some(0),
            (_, Some(0)) => Some(0),
            (units, slots) => units.or(slots),
        }
    }

    /// Whether the caller may go on.
    #[inline]
    pub fn allowed(&self) -> bool {
        match self.outcome {
            Outcome::Allowed | Outcome::ShadowDenied => true,
            Outcome::Denied | Outcome::NeverFits | Outcome::OtherDenied => false,
        }
    }

    /// The names of the limits of which this request began a block.
    pub fn begun_blocks(&self) -> impl Iterator<Item = &Arc<str>> {
        // Most decisions are told by the first word.
        let limits = match self.outcome {
            Outcome::Allowed => &[],
            _ => self.limits(),
        };
        let begun = limits.iter().filter(|status| status.begins_block);
        begun.map(|status| &status.name)
    }

    /// Whether this request is what may not pass, and not another one of its joint decision.
    #[inline]
    pub fn denies(&self) -> bool {
        matches!(self.outcome, Outcome::Denied | Outcome::NeverFits)
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request may pass; the cost was charged to every limit of the plan.
    Allowed,
    /// The request may not pass; nothing was charged.
    Denied,
    /// The request can never pass, since the cost is above a limit's quota or burst. Nothing was charged.
    NeverFits,
    /// A plan in shadow mode would have denied. The caller may go on; nothing was charged.
    ShadowDenied,
    /// The request could pass, but another one of its joint decision may not. Nothing was charged.
    OtherDenied,
}

impl Outcome {
    /// Every outcome, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Allowed,
        Self::Denied,
        Self::NeverFits,
        Self::ShadowDenied,
        Self::OtherDenied,
    ];

    /// The name used in metrics and texts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::NeverFits => "never_fits",
            Self::ShadowDenied => "shadow_denied",
            Self::OtherDenied => "other_denied",
        }
    }
}

/// What decided a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecidedBy {
    /// The store, exactly.
    Store,
    /// This replica, by a remembered denial of the store that still holds.
    DenyCache,
    /// The plan alone: unlimited, blocked, or a cost that never fits.
    Plan,
    /// The plan's policy, which allows when the store cannot decide.
    FailOpen,
    /// The plan's policy, which denies when the store cannot decide.
    FailClosed,
    /// This replica's memory, at its share of the quota, because the store could not decide.
    LocalFallback,
}

impl DecidedBy {
    /// All variants, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Store,
        Self::DenyCache,
        Self::Plan,
        Self::FailOpen,
        Self::FailClosed,
        Self::LocalFallback,
    ];

    /// The name used in metrics and texts.
    pub fn as_str(self) -> &'static str {
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

/// The standing of a key over all limits of its plan, after a decision. Times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyStatus {
    /// Units that a request with this key could take right now: the least over all limits. `None` when no state was read.
    pub remaining: Option<u64>,
    /// Time until the same cost could pass if nothing else happens. `None` when the caller may go on, also under a plan in
    /// shadow mode, and when no wait is known to help.
    pub retry_after_us: Option<u64>,
    /// Time until the key is fresh again if nothing else happens. `None` when no state was read.
    pub reset_after_us: Option<u64>,
    /// Time until more units are free than now; see [`LimitStatus::more_after_us`]. `None` when no state was read.
    pub more_after_us: Option<u64>,
}

/// The standing of a key in one limit after a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitStatus {
    /// The limit's name.
    pub name: Arc<str>,
    /// The limit's quota, in units per window.
    pub limit: u64,
    /// The limit's window, in microseconds.
    pub window_us: u64,
    /// Whether all units come back at once, at the end of a fixed window.
    pub frees_at_once: bool,
    /// Maximum number of units that one request can ever take: the burst of a `token_bucket`, else the quota.
    pub capacity: u64,
    /// Units that a request could take right now.
    pub remaining: u64,
    /// Time until the same cost could pass if nothing else happens; `None` when this limit did not deny it.
    pub retry_after_us: Option<u64>,
    /// Time until the key is fresh again if nothing else happens.
    pub reset_after_us: u64,
    /// Time for which this limit blocks the key yet; 0 when it does not.
    pub blocked_for_us: u64,
    /// Whether this request began that block.
    pub begins_block: bool,
    /// Of a concurrency limit, time until the first lease of a slot ends, 0 without one.
    pub first_end_us: u64,
}

impl LimitStatus {
    /// The same beside a block that lasts so long yet, if one does: nothing passes before its end. `denies` tells whether the
    /// request was one that the block denies.
    pub(crate) fn block(&mut self, left_us: u64, denies: bool) {
        if left_us > 0 {
            let wait_us = self.retry_after_us.unwrap_or(0).max(left_us);
            self.remaining = 0;
            self.retry_after_us = denies.then_some(wait_us);
            self.reset_after_us = self.reset_after_us.max(left_us);
            self.blocked_for_us = left_us;
        }
    }

    /// Time until more units are free than now, if that is known. For a denial it is `retry_after_us`. A fixed window frees its
    /// units at its end.
    #[inline]
    pub fn more_after_us(&self) -> Option<u64> {
        if self.is_of_slots() {
            return (self.first_end_us > 0).then_some(self.first_end_us);
        }
        self.retry_after_us
            .or(self.frees_at_once.then_some(self.reset_after_us))
    }

    /// Whether it counts open holds, and no units. Only such a limit has no window.
    #[inline]
    pub fn is_of_slots(&self) -> bool {
        self.window_us == 0
    }

    /// Whether less than one of [`NEAR_LIMIT`] parts of the capacity is left.
    #[inline]
    pub fn is_near(&self) -> bool {
        self.remaining < self.capacity.div_ceil(NEAR_LIMIT)
    }

    /// A limit that denies binds more than one that does not. Then the longer wait decides, else the smaller remaining share.
    #[inline]
    pub fn binds_more_than(&self, other: &Self) -> bool {
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
mod tests;
