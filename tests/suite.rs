//! Every black-box suite, as one binary so that it links once. Suites run in any order and in parallel; each starts what
//! it needs. A tool that is missing fails its tests with a sentence that says how to get it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may end by panicking; that is how it fails"
)]
#![allow(
    unreachable_pub,
    reason = "one crate of many files; what is shared is pub"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "waiting for real processes takes real time"
)]

mod support;

mod algorithms;
mod process;
mod redis_failures;
mod server;
mod store;
