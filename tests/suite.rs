//! Every black-box suite, as one binary so that it links once. Suites run in any order and in parallel; each starts what
//! it needs. A tool that is missing fails its tests with a sentence that says how to get it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end by panicking; that is how it fails")]

mod support;

mod contract;
mod oracle;
mod parity;
