//! The caller's deadline: how long a caller waits for the answer to a request. It is a type apart from [`StoreDeadline`], and
//! only this module compares the two.
//!
//! A store that needs longer than [`StoreDeadline`] has failed, and the plan's policy answers. A caller with a shorter deadline
//! proves nothing about the store. Its request ends as [`Refusal::CallerDeadline`], which is not a decision. So no caller can
//! get the policy's answer by choosing a short deadline. Stores never see a caller's deadline.

use std::future::Future;
use std::time::Duration;

use super::Refusal;
use tollgate_store::StoreDeadline;

/// How long a caller waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallerDeadline(Duration);

/// The caller's deadline passed before the store answered. No policy applies to this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallerDeadlinePassed;

impl From<CallerDeadlinePassed> for Refusal {
    fn from(_: CallerDeadlinePassed) -> Self {
        Self::CallerDeadline
    }
}

/// Time that is left to a proxy when it is answered by policy: 2 ms for the way, and 1 ms by which a timer may be late. A proxy
/// with less than twice that has half of its time left.
const ANSWERED_BEFORE: Duration = Duration::from_millis(3);

impl CallerDeadline {
    /// A caller that waits this long from now on.
    pub const fn new(left: Duration) -> Self {
        Self(left)
    }

    /// The whole time that the caller waits.
    pub const fn left(self) -> Duration {
        self.0
    }

    /// What is left of it when this time has passed.
    pub(super) fn reduced_by(self, took: Duration) -> Self {
        Self(self.0.saturating_sub(took))
    }

    /// How long to wait for the store, if the caller's deadline is shorter than the store's; `None` otherwise.
    pub(super) fn wait_limit(self, store: StoreDeadline) -> Option<Duration> {
        (self.0 < store.0).then(|| self.wait())
    }

    /// The caller's time but for a quarter, which is kept for the way back, so that the answer arrives in time.
    fn wait(self) -> Duration {
        self.0 - self.0 / 4
    }

    /// How long to wait for the store, so that the caller gets the policy's answer before its deadline; `None` if the store's
    /// deadline comes first. For callers that must have an answer, such as a proxy.
    pub(super) fn answered_before(self, store: StoreDeadline) -> Option<Duration> {
        let limit = self.0.saturating_sub(ANSWERED_BEFORE).max(self.0 / 2);
        (limit < store.0).then_some(limit)
    }
}

/// The store's answer, or an error if the caller's deadline comes first.
pub(super) async fn within_deadline<T>(
    caller: Option<CallerDeadline>,
    store: StoreDeadline,
    answer: impl Future<Output = T>,
) -> Result<T, CallerDeadlinePassed> {
    match caller.and_then(|caller| caller.wait_limit(store)) {
        None => Ok(answer.await),
        Some(limit) => in_time(limit, answer).await,
    }
}

/// What several answers of the store make together, or an error if the caller's deadline comes first.
pub(super) async fn in_caller_time<T>(
    caller: Option<CallerDeadline>,
    answers: impl Future<Output = T>,
) -> Result<T, CallerDeadlinePassed> {
    match caller {
        None => Ok(answers.await),
        Some(caller) => in_time(caller.wait(), answers).await,
    }
}

/// Awaits `answer` for at most `limit`. With a limit of zero, `answer` is not even started. Dropping a store's future half-way
/// loses only its answer, by the store's contract.
pub(super) async fn in_time<T>(
    limit: Duration,
    answer: impl Future<Output = T>,
) -> Result<T, CallerDeadlinePassed> {
    if limit.is_zero() {
        return Err(CallerDeadlinePassed);
    }
    tokio::time::timeout(limit, answer)
        .await
        .map_err(|_| CallerDeadlinePassed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_s_deadline_counts_only_where_it_is_shorter_than_the_store_s() {
        let before_us = |caller_us| {
            let caller = CallerDeadline::new(Duration::from_micros(caller_us));
            caller
                .wait_limit(StoreDeadline(Duration::from_micros(1_000)))
                .map(|limit| limit.as_micros())
        };
        for longer in [1_000, 1_001, u64::MAX] {
            assert_eq!(before_us(longer), None, "{longer}");
        }
        for (shorter, limit) in [(0, 0), (4, 3), (800, 600)] {
            assert_eq!(before_us(shorter), Some(limit), "{shorter}");
        }
    }

    #[test]
    fn a_proxy_is_answered_two_milliseconds_before_its_deadline_or_at_half_of_it() {
        let before_us = |caller_us| {
            let caller = CallerDeadline::new(Duration::from_micros(caller_us));
            caller
                .answered_before(StoreDeadline(Duration::from_millis(25)))
                .map(|limit| limit.as_micros())
        };
        for (caller, limit) in [
            (20_000, Some(17_000)),
            (27_999, Some(24_999)),
            (28_000, None),
            (u64::MAX, None),
        ] {
            assert_eq!(before_us(caller), limit, "{caller}");
        }
        assert_eq!(
            (before_us(6_000), before_us(1_000), before_us(0)),
            (Some(3_000), Some(500), Some(0))
        );
    }

    #[tokio::test]
    async fn a_caller_without_time_begins_nothing() {
        let mut begun = false;
        assert_eq!(
            in_time(Duration::ZERO, async { begun = true }).await,
            Err(CallerDeadlinePassed)
        );
        assert!(!begun);
        assert_eq!(
            in_time(Duration::from_nanos(1), async { 7 }).await,
            Ok(7),
            "an answer that is there is given"
        );
        let never = std::future::pending::<()>();
        assert_eq!(
            in_time(Duration::from_millis(1), never).await,
            Err(CallerDeadlinePassed)
        );
    }
}
