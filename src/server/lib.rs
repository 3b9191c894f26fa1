//! What runs: the limiter over a store, the services for gRPC and HTTP, and what starts and stops them.

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

pub mod limiter;

pub mod transport;

pub mod grpc;

pub mod http;

pub mod config;

pub mod serve;

#[cfg(test)]
#[path = "../fuzz.rs"]
mod fuzz;

pub mod descriptors;
mod file_watch;
pub mod log_throttle;
pub mod service_manager;
pub mod shutdown;
pub mod standard_error;
pub mod telemetry;
pub mod tls;
pub mod trace;

/// The version of the program, and the commit if it is known.
pub const VERSION_WITH_COMMIT: &str = env!("VERSION_WITH_COMMIT");
