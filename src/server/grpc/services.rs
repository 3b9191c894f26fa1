//! The services of a connection. Those that decide are called directly, since every layer before them costs each decision.
//! Health and reflection go through tonic's router.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::TryFutureExt;
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::header::HeaderMap;
use hyper::{Request, Response, Uri};
use tonic::Status;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::answer::{self, AnswerFuture, CallFuture, HeldByPiece, RequestHandler};
use super::calls::{CallKind, CallLimits, ConnectionCallLimits};
use super::codec::BatchParts;
use super::convert;
use super::drain::DrainSignal;
use super::envoy::{
    self, codec::DescriptorParts,
    pb::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer as EnvoyServer,
};
use super::pb::hold_service_server::HoldServiceServer;
use super::pb::rate_limit_service_server::RateLimitServiceServer;
use super::receive::{InboundBody, MessageSize, RequestBody, RequestReceiver, SMALL_BYTES_MAX};
use super::{WorkerService, pb, protocol, unary};
use crate::limiter::BATCH_MAX;
use crate::transport::account::Account;
use crate::transport::connection::CallStarter;
use crate::transport::send::Chunk;
use tollgate_core::joint::REQUESTS_MAX;

/// Largest request, in bytes: more than a batch of 1,000 with the longest keys and names.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Largest request for one decision, and largest message of a stream, in bytes. The longest key and name take 600 bytes. A
/// message three times as long still gets an error that names the fault.
const DECISION_BYTES_MAX: usize = SMALL_BYTES_MAX;
/// Largest joint decision, in bytes: eight requests with the longest keys, shards and names take 5,200.
const JOINT_BYTES_MAX: usize = 8 << 10;
/// Prefix of the paths of `RateLimitService`.
const DECIDER: &str = "/tollgate.v1.RateLimitService/";
/// Prefix of the paths of `HoldService`.
const HOLDER: &str = "/tollgate.v1.HoldService/";
/// The method that probes call.
const CHECK: &str = "/grpc.health.v1.Health/Check";
/// Header fields that are read here, or by tonic.
const READ_FIELDS: [&str; 6] = [
    "content-type",
    "grpc-accept-encoding",
    "grpc-encoding",
    "grpc-timeout",
    "traceparent",
    "tracestate",
];
/// Maximum number of header fields of a call that are kept as they came, and of their bytes. A gRPC client sends six or seven.
const FIELDS_MAX: usize = 16;
const FIELD_BYTES_MAX: usize = 3 << 10;
/// The method of clients that watch the health of their connection: one message, answered by a stream.
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// All services of a worker.
pub(super) struct Services<T> {
    service: Arc<T>,
    rate_limit: RateLimitServiceServer<T>,
    /// The same service with the limit for joint decisions, and with that for large messages.
    rate_limit_joint: RateLimitServiceServer<T>,
    rate_limit_large: RateLimitServiceServer<T>,
    holds: HoldServiceServer<T>,
    envoy: EnvoyServer<T>,
    other_routes: OtherRoutes,
    calls: CallLimits,
}

/// Health and reflection.
#[derive(Clone)]
pub(super) struct OtherRoutes {
    /// Reflection describes the services of tollgate alone.
    usual: Routes,
    /// Reflection also describes Envoy's service.
    with_envoy: Routes,
}

impl<T: WorkerService> Services<T> {
    /// Serves `service` and the other routes, within the limits of `calls`.
    pub(super) fn new(service: T, other_routes: OtherRoutes, calls: CallLimits) -> Self {
        // The size limit holds before and after decompression.
        let service = Arc::new(service);
        let rate_limit = RateLimitServiceServer::from_arc(service.clone())
            .accept_compressed(CompressionEncoding::Gzip);
        let rate_limit_large = rate_limit
            .clone()
            .max_decoding_message_size(REQUEST_BYTES_MAX);
        let rate_limit_joint = rate_limit
            .clone()
            .max_decoding_message_size(JOINT_BYTES_MAX);
        let rate_limit = rate_limit.max_decoding_message_size(DECISION_BYTES_MAX);
        let holds = HoldServiceServer::from_arc(service.clone())
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(DECISION_BYTES_MAX);
        let envoy =
            EnvoyServer::from_arc(service.clone()).accept_compressed(CompressionEncoding::Gzip);
        let envoy = envoy.max_decoding_message_size(REQUEST_BYTES_MAX);
        Self {
            service,
            rate_limit,
            rate_limit_joint,
            rate_limit_large,
            holds,
            envoy,
            other_routes,
            calls,
        }
    }

    /// Health and reflection, as the config in force has them.
    fn other_routes(&self) -> &Routes {
        if self.service.serves_envoy() {
            &self.other_routes.with_envoy
        } else {
            &self.other_routes.usual
        }
    }

    /// The call limits of all connections.
    pub(super) fn calls(&self) -> &CallLimits {
        &self.calls
    }

    /// Returns the services of a new connection. `drain` tells its streams to end.
    pub(super) fn for_connection(
        self: &Rc<Self>,
        calls: Rc<ConnectionCallLimits>,
        drain: DrainSignal,
    ) -> ConnectionServices<T> {
        ConnectionServices {
            services: self.clone(),
            calls,
            drain,
        }
    }
}

/// The services of one connection.
pub(super) struct ConnectionServices<T> {
    services: Rc<Services<T>>,
    calls: Rc<ConnectionCallLimits>,
    drain: DrainSignal,
}

impl<T: WorkerService> CallStarter<HeldByPiece> for ConnectionServices<T> {
    fn start(&self, request: Request<RecvStream>, respond: SendResponse<Chunk<HeldByPiece>>) {
        answer::spawn(self.call(request), respond);
    }
}

impl<T: WorkerService> ConnectionServices<T> {
    fn call(&self, mut request: Request<RecvStream>) -> CallFuture<Handler<T>> {
        let calls = self.calls.clone();
        if let Some(refused) = protocol::refuse(&request) {
            return CallFuture::immediate(refused, calls);
        }
        let method = MethodKind::from_path(request.uri().path());
        let Some(permit) = calls.permit(method.kind()) else {
            return CallFuture::immediate(too_many_calls().into_http(), calls);
        };
        let handler = Handler {
            services: self.services.clone(),
            account: calls.account().clone(),
            method,
        };
        keep_little(&mut request);
        if let MethodKind::Watch | MethodKind::Stream | MethodKind::Hold | MethodKind::Other =
            method
        {
            request.extensions_mut().insert(self.drain.clone());
        }
        if let MethodKind::Stream | MethodKind::Hold | MethodKind::Other = method {
            let (head, body) = request.into_parts();
            let inbound = InboundBody::new(body, calls.account());
            let request = Request::from_parts(head, RequestBody::Stream(inbound.clone()));
            return CallFuture::stream(handler.handle(request), inbound, calls, permit);
        }
        let call = CallFuture::after_request(
            RequestReceiver::new(request, method.size(), calls.clone(), permit),
            handler,
            calls,
        );
        if method == MethodKind::Watch {
            call.answered_by_stream()
        } else {
            call
        }
    }
}

/// Drops the header fields of a request that nothing here reads, if they take much. A field of one byte on the wire may take a
/// hundred, for as long as its call lasts.
fn keep_little(request: &mut Request<RecvStream>) {
    let field_bytes = |headers: &HeaderMap| {
        headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum::<usize>()
    };
    let headers = request.headers_mut();
    if headers.len() > FIELDS_MAX || field_bytes(headers) > FIELD_BYTES_MAX {
        let kept = READ_FIELDS
            .iter()
            .filter_map(|name| Some((name.parse().ok()?, headers.remove(*name)?)));
        *headers = kept
            .filter(|(_, value)| value.len() <= FIELD_BYTES_MAX / READ_FIELDS.len())
            .collect();
    }
    let uri = request.uri();
    if uri.path().len()
        + uri
            .authority()
            .map_or(0, |authority| authority.as_str().len())
        > FIELD_BYTES_MAX
    {
        // No method has so long a path. The authority is not used.
        *request.uri_mut() = Uri::from_static("/");
    }
}

/// Handles a call of this method.
pub(super) struct Handler<T> {
    services: Rc<Services<T>>,
    /// Of the call's connection.
    account: Arc<Account>,
    method: MethodKind,
}

impl<T: WorkerService> RequestHandler for Handler<T> {
    fn handle(&self, mut request: Request<RequestBody>) -> AnswerFuture {
        let service = &self.services.service;
        if let MethodKind::Joint | MethodKind::Batch | MethodKind::Stream | MethodKind::Hold =
            self.method
        {
            request.extensions_mut().insert(self.account.clone());
        }
        if let MethodKind::List = self.method
            && let Some(listed) = service.listed_plans()
        {
            // Whatever its message says: it has no fields.
            return unary::shared(listed);
        }
        match self.method {
            _ if T::UNARY_BY_TONIC || !unary::is_plain(&request) => self.handle_by_tonic(request),
            MethodKind::Decision => {
                let service = service.clone();
                unary::call::<BatchParts, _, _, _>(request, |request| async move {
                    service.should_allow(request).await
                })
            }
            MethodKind::Reserve => {
                let service = service.clone();
                unary::call::<BatchParts, _, _, _>(request, |request| async move {
                    service.reserve(request).await
                })
            }
            MethodKind::Settle => {
                let service = service.clone();
                unary::call::<BatchParts, _, _, _>(request, |request| async move {
                    service.settle(request).await
                })
            }
            MethodKind::Joint => {
                let service = service.clone();
                unary::call::<BatchParts, _, _, _>(request, |request| async move {
                    service.should_allow_joint(request).await
                })
            }
            MethodKind::Batch => {
                let service = service.clone();
                unary::call::<BatchParts, _, _, _>(request, |request| async move {
                    service.should_allow_batch(request).await
                })
            }
            MethodKind::Envoy => {
                let service = service.clone();
                unary::call::<DescriptorParts, _, _, _>(request, |request| async move {
                    service.should_rate_limit(request).await
                })
            }
            _ => self.handle_by_tonic(request),
        }
    }
}

impl<T: WorkerService> Handler<T> {
    fn handle_by_tonic(&self, request: Request<RequestBody>) -> AnswerFuture {
        let services = &self.services;
        // These services are always ready, so `poll_ready` is not called.
        match self.method {
            MethodKind::Decision | MethodKind::Peek | MethodKind::Record | MethodKind::Stream => {
                boxed(services.rate_limit.clone().call(request))
            }
            MethodKind::Reserve | MethodKind::Settle | MethodKind::Extend | MethodKind::Hold => {
                boxed(services.holds.clone().call(request))
            }
            MethodKind::Joint => boxed(services.rate_limit_joint.clone().call(request)),
            MethodKind::Batch | MethodKind::List => {
                boxed(services.rate_limit_large.clone().call(request))
            }
            MethodKind::Envoy => boxed(services.envoy.clone().call(request)),
            MethodKind::Check | MethodKind::Watch | MethodKind::Other => {
                boxed(services.other_routes().clone().call(request))
            }
        }
    }
}

fn boxed(
    response: impl Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
) -> AnswerFuture {
    Box::pin(response.map_ok(|response| protocol::own_answer(response).map(Into::into)))
}

/// Methods, as far as they are treated alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MethodKind {
    /// One decision.
    Decision,
    /// What a decision would be.
    Peek,
    /// What has happened.
    Record,
    /// A hold.
    Reserve,
    /// The end of a hold.
    Settle,
    /// A longer lease of a hold.
    Extend,
    /// Several requests that are decided together.
    Joint,
    Batch,
    List,
    Stream,
    /// A stream of holds.
    Hold,
    /// Decisions for a proxy: mostly one or two, of whose values each may be as long as a header field.
    Envoy,
    /// A health check.
    Check,
    /// A watch of health.
    Watch,
    Other,
}

impl MethodKind {
    fn from_path(path: &str) -> Self {
        match path.strip_prefix(DECIDER) {
            Some("ShouldAllow") => Self::Decision,
            Some("Peek") => Self::Peek,
            Some("Record") => Self::Record,
            Some("ShouldAllowJoint") => Self::Joint,
            Some("ShouldAllowBatch") => Self::Batch,
            Some("ListPlans") => Self::List,
            Some("ShouldAllowStream") => Self::Stream,
            None if path.starts_with(HOLDER) => Self::hold_method(&path[HOLDER.len()..]),
            None if path == envoy::PATH => Self::Envoy,
            None if path == CHECK => Self::Check,
            None if path == WATCH => Self::Watch,
            Some(_) | None => Self::Other,
        }
    }

    fn hold_method(method: &str) -> Self {
        match method {
            "Reserve" => Self::Reserve,
            "Settle" => Self::Settle,
            "Extend" => Self::Extend,
            "Hold" => Self::Hold,
            _ => Self::Other,
        }
    }

    /// The permit that a call needs. A proxy has one call open for each request that it holds, so its calls are as many as those
    /// for one decision. The bytes of large ones are reserved like those of batches.
    fn kind(self) -> CallKind {
        match self {
            Self::Decision
            | Self::Peek
            | Self::Record
            | Self::Reserve
            | Self::Settle
            | Self::Extend
            | Self::Joint
            | Self::Envoy => CallKind::Decision,
            Self::Batch | Self::List => CallKind::Large,
            Self::Stream | Self::Hold => CallKind::Stream,
            Self::Check => CallKind::Check,
            Self::Watch => CallKind::Watch,
            Self::Other => CallKind::Other,
        }
    }

    /// The message of a request that is received as a whole.
    fn size(self) -> MessageSize {
        let (bytes_max, items_max) = match self {
            Self::Batch | Self::Envoy => (REQUEST_BYTES_MAX, BATCH_MAX),
            Self::Joint => (JOINT_BYTES_MAX, REQUESTS_MAX),
            _ => (DECISION_BYTES_MAX, 0),
        };
        MessageSize {
            bytes_max,
            items_max,
        }
    }
}

fn too_many_calls() -> Status {
    convert::overloaded("this server holds as many calls as it may; try again in a moment")
}

impl OtherRoutes {
    /// The routes beside services that decide.
    pub(super) fn new(health: &HealthServer<impl Health>) -> Self {
        let routes =
            |descriptors: &[&'static [u8]]| health_and_reflection(health.clone(), descriptors);
        let usual = routes(&[pb::FILE_DESCRIPTOR_SET]);
        Self {
            usual,
            with_envoy: routes(&[pb::FILE_DESCRIPTOR_SET, envoy::pb::FILE_DESCRIPTOR_SET]),
        }
    }
}

/// Health and reflection. Reflection describes the services of `descriptors` and health.
pub(super) fn health_and_reflection(
    health: HealthServer<impl Health>,
    descriptors: &[&'static [u8]],
) -> Routes {
    let reflection = || {
        let builder = tonic_reflection::server::Builder::configure();
        let all = descriptors
            .iter()
            .chain([&tonic_health::pb::FILE_DESCRIPTOR_SET]);
        all.fold(builder, |builder, descriptors| {
            builder.register_encoded_file_descriptor_set(descriptors)
        })
    };
    // Both versions of reflection: ghz and older grpcurl know only v1alpha.
    let v1 = reflection().build_v1();
    let v1alpha = reflection().build_v1alpha();
    let v1 = v1
        .expect("descriptors that this build made decode")
        .accept_compressed(CompressionEncoding::Gzip);
    let v1alpha = v1alpha
        .expect("descriptors that this build made decode")
        .accept_compressed(CompressionEncoding::Gzip);
    // A client that compresses its calls also compresses calls to these services.
    Routes::new(
        health
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(DECISION_BYTES_MAX),
    )
    .add_service(v1.max_decoding_message_size(DECISION_BYTES_MAX))
    .add_service(v1alpha.max_decoding_message_size(DECISION_BYTES_MAX))
    .prepare()
}

#[cfg(test)]
mod tests;
