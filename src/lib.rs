//! tollgate: a standalone rate-limit service.

pub use tollgate_core::{algorithm, decision, duration, headers, key, plan, utc};
pub use tollgate_server::transport as server;
pub use tollgate_server::{
    config, descriptors, grpc, http, limiter, log_throttle, service_manager, shutdown, telemetry,
    tls, trace,
};
pub use tollgate_store as store;
pub use tollgate_store::{clock, platform, small_file};
pub use tollgate_tools::{cli, simulate};
