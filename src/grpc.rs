//! The gRPC side: `tollgate.v1.RateLimitService`, health and reflection on every listener.
//!
//! Only this module and those below it name tonic and prost; `convert` alone knows both wire and domain types.

mod client;
pub mod codec;
mod convert;
mod listener;
mod service;

use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

pub use client::{Answer, ask};
pub use listener::{Address, AddressError, BindError, Listener};
pub use service::Service;

use crate::store::Store;

/// The generated messages and services.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; the proto file is the manual")]
pub mod pb {
    tonic::include_proto!("tollgate.v1");
    /// Descriptors of the contract, for reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tollgate.binpb"));
}

/// Name under which health tells whether this server decides; "" tells whether it is alive.
pub const HEALTH_SERVICE: &str = "tollgate.v1.RateLimitService";

/// Streams that one connection may have open at once. More wait on the client's side.
const STREAMS_PER_CONNECTION: u32 = 1024;
/// Streams that a peer may make us reset before the connection is closed; hyper's own bound, which tonic removes unless told.
const LOCAL_RESETS_MAX: usize = 1024;
/// After this long without a sign of life a peer is asked for one, and dropped when none comes in time.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);
/// Between attempts to accept after one that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Largest request: a batch of 1,000 with the longest keys and names is below.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Longest that open calls and connections may hold up the end. Kubernetes kills after 30 s, and promises stand at 10.
const DRAIN_WITHIN: Duration = Duration::from_secs(8);

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every call was answered and every connection closed.
    Clean,
    /// Some connection did not close in time and was cut.
    Cut,
}

/// Serves on `listeners` until `shutdown` resolves, then drains: health says NOT_SERVING, connections are told to go away,
/// calls under way are answered, and after at most 8 seconds what is left is cut.
pub async fn serve<S: Store>(listeners: Vec<Listener>, service: Service<S>, shutdown: impl Future<Output = ()>) -> Drained {
    let (health, health_service) = health_reporter();
    health.set_service_status("", ServingStatus::Serving).await;
    health.set_service_status(HEALTH_SERVICE, ServingStatus::Serving).await;
    let routes = routes(service).add_service(health_service);
    let (stop, stopped) = watch::channel(());
    let mut servers = JoinSet::new();
    for listener in listeners {
        servers.spawn(serve_listener(listener, routes.clone(), stopped.clone()));
    }
    tokio::select! {
        () = shutdown => {}
        // A listener ends by itself only when it failed, which it logged; a server that nobody can reach must not stay.
        _ = servers.join_next() => {}
    }
    drain(&health, stop, servers).await
}

fn routes<S: Store>(service: Service<S>) -> Routes {
    let decider =
        pb::rate_limit_service_server::RateLimitServiceServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let mut routes = Routes::builder();
    routes.add_service(decider);
    // Both generations: ghz and older grpcurl know only v1alpha.
    let (v1, v1alpha) = (reflection().build_v1(), reflection().build_v1alpha());
    routes.add_service(v1.expect("descriptors that this build made decode"));
    routes.add_service(v1alpha.expect("descriptors that this build made decode"));
    routes.routes()
}

async fn serve_listener(listener: Listener, routes: Routes, mut stopped: watch::Receiver<()>) {
    let address = listener.address().clone();
    let router = Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_WITHIN))
        .add_routes(routes);
    let stopped = async move {
        // An error means that the sender is gone, which is an end too.
        let _ = stopped.changed().await;
    };
    let ended = match listener {
        Listener::Tcp(listener, _) => {
            let incoming = TcpListenerStream::new(listener).then(|accepted| async {
                if let Err(error) = &accepted {
                    // Out of descriptors, most likely: trying again at once would only burn the processor.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                // A connection that cannot be set to send at once still serves.
                accepted.inspect(|stream| drop(stream.set_nodelay(true)))
            });
            let incoming = std::pin::pin!(incoming);
            router.serve_with_incoming_shutdown(incoming, stopped).await
        }
        Listener::Unix(listener, _) => router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped).await,
    };
    if let Err(error) = ended {
        tracing::error!(%address, %error, "listener ended");
    }
}

async fn drain(health: &HealthReporter, stop: watch::Sender<()>, mut servers: JoinSet<()>) -> Drained {
    health.set_service_status(HEALTH_SERVICE, ServingStatus::NotServing).await;
    drop(stop);
    let all = async { while servers.join_next().await.is_some() {} };
    match tokio::time::timeout(DRAIN_WITHIN, all).await {
        Ok(()) => Drained::Clean,
        Err(_) => Drained::Cut,
    }
}
