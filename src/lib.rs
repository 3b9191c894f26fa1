//! tollgate: a standalone rate-limit service.
//!
//! Applications ask it over gRPC whether a request may pass; it keeps the plans' quotas in its config and, through one
//! script in Redis, lets any number of stateless replicas enforce one exact limit. The library exists for the binary, the
//! tests and the benchmarks; the service's interface is `proto/tollgate/v1/tollgate.proto`.
//!
//! # The map, in reading order
//! - [`key`]: `Key`, `Cost`: checked subject and price of a request
//! - [`plan`]: `Plan`, `Limit`, `PlanSet`: what is allowed, looked up by name
//! - [`decision`]: `Decision`, `Outcome`, `LimitStatus`: what was decided and the numbers that go back
//! - [`algorithm`]: the maths of each kind of limit, pure
//! - [`store`]: `trait Store`: decide a batch, each request atomically; embedded or in Redis
//! - [`limiter`]: plan look-up and reload, deny cache, deadline, and what to answer when the store cannot
//! - [`grpc`]: the wire
//! - [`http`]: check endpoint, health, metrics
//! - [`config`]: settings, every mistake at once, and whether their file changed
//! - [`tls`]: certificates of the listeners, and taking up new ones
//! - [`cli`], [`telemetry`], [`trace`], [`shutdown`], [`descriptors`], [`clock`], [`duration`], [`small_file`], [`log_throttle`]: the rim
//!
//! # Which way things depend
//! `key, plan, decision` <- `algorithm` <- `store` <- `limiter` <- `grpc` <- `http` <- `cli` <- `main`; `config` builds plans
//! and is used only by `cli`. `tests/tidy.rs` holds the code to this:
//! 1. [`algorithm`] is pure: no await, clock, log, lock or float. State, time and cost in; readings and new state out.
//! 2. Only `store/redis*` names fred. Only `grpc*` names tonic and prost, only `http*` axum, only these two hyper. Only
//!    `config*` names the config crate, only `trace` OpenTelemetry, only `tls*` and
//!    `store/redis/tls` rustls.
//! 3. One decision is one store call, all limits of a plan together, all or nothing.
//! 4. "No" is a [`decision::Decision`], never an error. An error means "could not decide"; [`limiter`] alone answers it.
//! 5. The store's clock is the clock: Redis `TIME` inside the script, the injected clock for memory.
//! 6. Everything has a bound, each a named constant or a config field with its reason.

pub mod key;

pub mod plan;

pub mod decision;

pub mod algorithm;

pub mod store;

pub mod limiter;

pub mod grpc;

pub mod http;

pub mod config;

pub mod cli;
pub mod clock;
pub mod descriptors;
pub mod duration;
pub mod log_throttle;
pub mod shutdown;
pub mod small_file;
pub mod telemetry;
pub mod tls;
pub mod trace;
