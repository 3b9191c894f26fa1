//! tollgate: a standalone rate-limit service.
//!
//! Applications ask it over gRPC whether a request may pass. It keeps the plans' quotas in its config. Through one script in
//! Redis, any number of stateless replicas enforce one exact limit. The interface of the service is
//! `proto/tollgate/v1/tollgate.proto`.
//!
//! The program consists of four crates, and of `main`. This library only names their modules in one place, for the tests and the
//! benchmarks. A module that is not listed here is internal to its crate.
//!
//! # The map, in reading order
//! `src/core` (`tollgate-core`) is pure. It depends on none of the others.
//! - [`key`]: `Key`, `Cost`: checked subject and cost of a request
//! - [`decision`]: `Decision`, `Outcome`, `LimitStatus`: the result of a request and its numbers
//! - [`plan`]: `Plan`, `Limit`, `PlanSet`: what is allowed, looked up by name; `plan::envoy`: which plan decides a descriptor of Envoy
//! - [`joint`]: `JointDecision`: the result of several requests that pass together or not at all
//! - [`headers`]: the result as header fields for HTTP clients
//! - [`algorithm`]: the maths of each kind of limit
//! - [`duration`], [`utc`], `nearest`, `visible`: durations and times as text, the name that was meant, texts of others made visible
//!
//! `src/store` (`tollgate-store`) keeps the counters. It depends on `tollgate-core`.
//! - [`store`]: `trait Store`: decide a batch, each request atomically; embedded or in Redis
//! - [`clock`], [`small_file`], `random`: the only readers of time, of small files and of random numbers
//! - [`platform`]: what is asked of the operating system, and all that differs between systems
//!
//! `src/server` (`tollgate-server`) is what runs. It depends on both.
//! - [`limiter`]: plan look-up and reload, deny cache, deadline, and what to answer when the store cannot
//! - [`server`] (`transport` in its crate): listeners, connections and the pool of workers, for gRPC and HTTP alike
//! - [`grpc`]: the gRPC services and their conversion to domain types; the client of the commands
//! - [`http`]: check endpoint, health, metrics
//! - [`config`]: settings, checked with all errors at once, and the watch of their file
//! - [`tls`]: certificates of the listeners and their reload
//! - [`telemetry`], [`trace`], [`service_manager`], [`shutdown`], [`descriptors`], [`log_throttle`], `file_watch`, `standard_error`: small modules at the edge
//! - `serve`: starts all of this by a config, reloads it, and stops it
//!
//! `src/tools` (`tollgate-tools`) is the command line. It depends on all three.
//! - [`simulate`]: what limits would have done to the requests of a log, pure
//! - [`cli`]: the arguments, and all commands: they serve, check, convert, simulate, or ask a running server
//!
//! # Which way things depend
//! The manifests hold which crate uses which, and which packages of others. `tests/process/tidy.rs` holds what is finer than a crate:
//! 1. `tollgate-core` and [`simulate`] are pure: no await, clock, log, lock or file. [`algorithm`] has no float. State, time and
//!    cost in; readings and new state out.
//! 2. In `tollgate-server`, [`limiter`] <- [`grpc`] <- [`http`] <- `serve`. `transport` knows none of these. [`config`] builds plans
//!    and is used by `serve` and the commands.
//! 3. Only `platform*` names a system. Only `grpc*` names tonic, only `http*` axum, only `grpc*` and `transport*` h2, only these three and
//!    `trace` hyper. Only `grpc*` names prost, but for the packed logs of [`simulate`]. Only `config*` names the config crate, only
//!    `trace` OpenTelemetry, only `tls*` and `redis/connection/tls` rustls.
//!
//! No test can hold these:
//! 1. One decision is one store call, all limits of a plan together, all or nothing.
//! 2. "No" is a [`decision::Decision`], never an error. An error means "could not decide"; only [`limiter`] turns it into an answer.
//! 3. Decisions use the store's clock: Redis `TIME` inside the script, the injected clock for memory.
//! 4. Everything has a bound: a named constant or a config field, with its reason.

pub use tollgate_core::{algorithm, decision, duration, headers, joint, key, plan, utc};
pub use tollgate_server::transport as server;
pub use tollgate_server::{
    config, descriptors, grpc, http, limiter, log_throttle, service_manager, shutdown, telemetry,
    tls, trace,
};
pub use tollgate_store as store;
pub use tollgate_store::{clock, platform, small_file};
pub use tollgate_tools::{cli, simulate};
