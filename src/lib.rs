//! tollgate: a standalone rate-limit service.
//!
//! Applications ask it over gRPC whether a request may pass. It keeps the plans' quotas in its config. Through one script in
//! Redis, any number of stateless replicas enforce one exact limit. This library exists for the binary, the tests and the
//! benchmarks. The interface of the service is `proto/tollgate/v1/tollgate.proto`.
//!
//! # The map, in reading order
//! - [`key`]: `Key`, `Cost`: checked subject and cost of a request
//! - [`plan`]: `Plan`, `Limit`, `PlanSet`: what is allowed, looked up by name; `plan::envoy`: which plan decides a descriptor of Envoy
//! - [`decision`]: `Decision`, `Outcome`, `LimitStatus`: the result of a request and its numbers
//! - [`headers`]: the result as header fields for HTTP clients, pure
//! - [`algorithm`]: the maths of each kind of limit, pure
//! - [`simulate`]: what limits would have done to the requests of a log, pure
//! - [`store`]: `trait Store`: decide a batch, each request atomically; embedded or in Redis
//! - [`limiter`]: plan look-up and reload, deny cache, deadline, and what to answer when the store cannot
//! - [`server`]: listeners, connections and the pool of workers, for gRPC and HTTP alike
//! - [`grpc`]: the gRPC services and their conversion to domain types
//! - [`http`]: check endpoint, health, metrics
//! - [`config`]: settings, checked with all errors at once, and the watch of their file
//! - [`tls`]: certificates of the listeners and their reload
//! - [`cli`], [`telemetry`], [`trace`], [`service_manager`], [`shutdown`], [`descriptors`], [`clock`], [`duration`], [`small_file`], [`utc`], `file_watch`, `nearest`, `random`, `visible`, [`log_throttle`]: small modules at the edge
//! - [`platform`]: what is asked of the operating system, and all that differs between systems
//!
//! # Which way things depend
//! `key, plan, decision, headers` <- `algorithm` <- `store` <- `limiter` <- `grpc` <- `http` <- `cli` <- `main`; `server` knows none of these; `config` builds plans
//! and is used only by `cli`. `tests/process/tidy.rs` checks this:
//! 1. [`algorithm`] is pure: no await, clock, log, lock or float. State, time and cost in; readings and new state out.
//! 2. Only `platform*` names a system. Only `store/redis*` names fred, but for one setting in `platform*`. Only `grpc*` names tonic and prost, only `http*` axum, only these two and `server*` hyper, only `grpc*` and `server*` h2. Only
//!    `config*` names the config crate, only `trace` OpenTelemetry, only `tls*` and
//!    `store/redis/connection/tls` rustls.
//! 3. One decision is one store call, all limits of a plan together, all or nothing.
//! 4. "No" is a [`decision::Decision`], never an error. An error means "could not decide"; only [`limiter`] turns it into an answer.
//! 5. Decisions use the store's clock: Redis `TIME` inside the script, the injected clock for memory.
//! 6. Everything has a bound: a named constant or a config field, with its reason.

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

pub use tollgate_core::{algorithm, decision, duration, headers, key, nearest, plan, utc, visible};

pub mod simulate;

pub use tollgate_store as store;
pub use tollgate_store::{clock, platform, random, small_file};

pub use tollgate_server::transport as server;
pub use tollgate_server::{
    config, descriptors, grpc, http, limiter, log_throttle, service_manager, shutdown, telemetry,
    tls, trace,
};

pub mod cli;
