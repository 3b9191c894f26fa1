//! Why a store could not decide, in sentences for people and words for metrics.

use std::time::Duration;

use tollgate_core::duration::Shown;

/// Why a store could not decide. The limiter answers by the plan's policy then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline: the store is slow, stopped or out of reach. The charge may still take effect.
    #[error("no answer from the store within {}", whole_ms(*.0))]
    Deadline(Duration),
    /// The store cannot be reached: check its address and its health.
    #[error("the store is out of reach: {0}")]
    Unreachable(String),
    /// As [`Self::Unreachable`], and that was known before: it was not asked, so nothing was done.
    #[error("the store is out of reach: {0}")]
    NotSent(String),
    /// The store answered with an error: it is read-only, out of memory, loading, or lacks a permission.
    #[error("the store refused: {0}")]
    Refused(String),
    /// The store's answer cannot be understood: check what listens at its address.
    #[error("the store's answer makes no sense: {0}")]
    InvalidReply(String),
    /// Too many requests wait for the store already. This one was not sent.
    #[error("{0} requests wait for the store already")]
    Overloaded(usize),
    /// The embedded store is full of live keys and cannot take a new one. Keys that it holds are still decided.
    #[error("the embedded store is full of live keys")]
    Full,
}

impl StoreError {
    /// Every value that [`Self::kind`] can return. They are values of a metric's label, so they stay as they are; `nonsense` is an
    /// invalid reply.
    pub const KINDS: [&str; 6] = [
        "deadline",
        "unreachable",
        "refused",
        "nonsense",
        "overloaded",
        "full",
    ];

    /// A word for logs and metrics.
    pub fn kind(&self) -> &'static str {
        Self::KINDS[self.kind_index()]
    }

    /// The index of that word in [`Self::KINDS`].
    pub fn kind_index(&self) -> usize {
        match self {
            Self::Deadline(_) => 0,
            Self::Unreachable(_) | Self::NotSent(_) => 1,
            Self::Refused(_) => 2,
            Self::InvalidReply(_) => 3,
            Self::Overloaded(_) => 4,
            Self::Full => 5,
        }
    }
}

/// A duration for people, rounded up to a millisecond: what is left of a deadline is a little less than what was configured.
fn whole_ms(duration: Duration) -> Shown {
    Shown(Duration::from_millis(
        u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
    ))
}
