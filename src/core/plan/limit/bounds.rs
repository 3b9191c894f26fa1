//! What is wrong with the numbers of a limit.

use std::time::Duration;

use super::{
    Algorithm, BLOCK_MAX, BLOCK_MIN, BURST_MAX, FILL_MAX_US, LUA_INTEGER_MAX, PRECISION_MAX,
    PRECISION_MIN, QUOTA_MAX, SLIDING_LOG_QUOTA_MAX, WINDOW_MAX, WINDOW_MIN,
};
use crate::duration;
use crate::plan::fingerprint::MILLISECOND_WINDOW_MAX;

/// An error in a limit's numbers, by field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The quota is out of range.
    #[error("{0}")]
    Quota(String),
    /// The window is out of range or too fine.
    #[error("{0}")]
    Window(String),
    /// The precision is out of range.
    #[error("{0}")]
    Precision(String),
    /// The burst is out of range.
    #[error("{0}")]
    Burst(String),
    /// The block is out of range or too fine.
    #[error("{0}")]
    Block(String),
}

/// In milliseconds.
pub(super) fn check_block(block: Duration) -> Result<u32, LimitError> {
    if !(BLOCK_MIN..=BLOCK_MAX).contains(&block) {
        let block = duration::Shown(block);
        return Err(LimitError::Block(format!("is {block}; write 1s to 31d")));
    }
    if !block.as_nanos().is_multiple_of(1_000_000) {
        let why = "has a part below a millisecond; give whole milliseconds";
        return Err(LimitError::Block(why.to_owned()));
    }
    // The longest fits.
    Ok(u32::try_from(block.as_millis()).unwrap_or(u32::MAX))
}

pub(super) fn check_window(window: Duration) -> Result<u64, LimitError> {
    let error = |text: String| Err(LimitError::Window(text));
    if window < WINDOW_MIN || window > WINDOW_MAX {
        return error(format!(
            "is {}; a window is 1ms to 366d",
            duration::Shown(window)
        ));
    }
    if !window.as_nanos().is_multiple_of(1_000_000) {
        return error("has a part below a millisecond; give whole milliseconds".to_owned());
    }
    if window.as_millis() > u128::from(MILLISECOND_WINDOW_MAX) && window.subsec_millis() != 0 {
        return error("is above 24 days and has milliseconds; give whole seconds".to_owned());
    }
    // At most 366 days, which fits u64 easily.
    Ok(window.as_secs() * 1_000_000 + u64::from(window.subsec_micros()))
}

pub(super) fn check_quota(quota: u64, algorithm: Option<Algorithm>) -> Option<LimitError> {
    let error = |text: String| Some(LimitError::Quota(text));
    match algorithm {
        _ if quota == 0 => error(
            "is 0; a quota is at least 1 (to let nothing pass, use `blocked: true`)".to_owned(),
        ),
        _ if quota > QUOTA_MAX => error(format!("is {quota}; a quota is at most {QUOTA_MAX}")),
        Some(Algorithm::SlidingLog) if quota > SLIDING_LOG_QUOTA_MAX => error(format!(
            "is {quota}; sliding_log keeps every unit, at most {SLIDING_LOG_QUOTA_MAX}; use sliding_window, which keeps 0.8 KB at any quota"
        )),
        _ => None,
    }
}

pub(super) fn check_parameters(algorithm: Algorithm) -> Option<LimitError> {
    match algorithm {
        Algorithm::SlidingWindow { precision }
            if !(PRECISION_MIN..=PRECISION_MAX).contains(&precision) =>
        {
            Some(LimitError::Precision(format!(
                "is {precision}; a precision is {PRECISION_MIN} to {PRECISION_MAX}"
            )))
        }
        Algorithm::TokenBucket { burst } if !(1..=BURST_MAX).contains(&burst) => {
            Some(LimitError::Burst(format!(
                "is {burst}; a burst is 1 to {BURST_MAX}; leave it out for one as large as the quota"
            )))
        }
        _ => None,
    }
}

/// Checks that the numbers fit each other. Quota and window must be in range on their own.
pub(super) fn check_together(
    quota: u64,
    window_us: u64,
    algorithm: Algorithm,
) -> Option<LimitError> {
    match algorithm {
        Algorithm::SlidingCounter
            if quota
                .checked_mul(window_us)
                .is_none_or(|product| product > LUA_INTEGER_MAX) =>
        {
            Some(LimitError::Quota(format!(
                "is {quota}; sliding_counter multiplies it by the window and stays exact up to {} here; use sliding_window",
                LUA_INTEGER_MAX / window_us
            )))
        }
        Algorithm::TokenBucket { burst } => check_bucket(quota, window_us, burst),
        _ => None,
    }
}

pub(super) fn check_bucket(quota: u64, window_us: u64, burst: u64) -> Option<LimitError> {
    let emission_us = window_us.div_ceil(quota);
    // The rate in whole microseconds must be within 1 % of the configured rate.
    if u128::from(emission_us) * u128::from(quota) * 100 > u128::from(window_us) * 101 {
        return Some(LimitError::Quota(format!(
            "is {quota}; a token_bucket gives a unit per whole microsecond, so it would hold only {} here; use sliding_window",
            window_us / emission_us
        )));
    }
    if burst
        .checked_mul(emission_us)
        .is_none_or(|fill_us| fill_us > FILL_MAX_US)
    {
        return Some(LimitError::Burst(format!(
            "is {burst}; it would take more than ten years to fill; at most {} here",
            FILL_MAX_US / emission_us
        )));
    }
    None
}
