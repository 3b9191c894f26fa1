//! Every black-box suite, as one binary so that it links once. Suites run in any order and in parallel; each starts what
//! it needs. A tool that is missing fails its tests with a sentence that says how to get it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end by panicking; that is how it fails")]
#![allow(unreachable_pub, reason = "one crate of many files; what is shared is pub")]
#![allow(clippy::disallowed_methods, reason = "waiting for real processes takes real time")]

mod support;

mod abuse;
mod acl;
mod admin;
mod ailments;
mod caller_deadlines;
mod checker;
mod clocks;
mod cluster;
mod command_line;
mod contract;
mod deny_cache;
mod descriptors;
mod drain;
mod embedded;
mod faults;
mod fleet;
mod flood;
mod grpc;
mod hostile_configs;
mod http;
mod key_prefix;
mod log_output;
mod logs;
mod memory;
mod netlab;
mod oracle;
mod outages;
mod parity;
mod promises;
mod protocol;
mod reload;
mod replicas;
mod script;
mod secrets;
mod sentinel;
mod shares;
mod store_tls;
mod tidy;
mod tls;
mod trace;
mod workers;
