//! The listeners of a running server: gRPC, HTTP, the admin service, TLS, hostile peers, and how it stops.

mod abuse;
mod admin;
mod calendar;
mod caller_deadlines;
mod check_sources;
mod check_subjects;
mod drain;
mod envoy_proxy;
mod envoy_rls;
mod explain;
mod gateways;
mod gateways_customers;
mod grpc;
mod http;
mod openapi;
mod overrides;
mod plan_metrics;
mod protocol;
mod ready_headers;
mod rude_peers;
mod shares;
mod status_page;
mod store_state;
mod tls;
mod top;
mod workers;
