//! What is counted, allowed and decided. All of it is pure: no file, socket, clock, log or task.

#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a number that is encoded is converted by a check, so that it is never taken for another one"
    )
)]

pub mod key;

pub mod decision;

pub mod plan;

pub mod joint;

pub mod headers;

pub mod algorithm;

pub mod duration;
pub mod nearest;
pub mod utc;
pub mod visible;
