//! The services of a connection. `RateLimitService` is called directly, since every layer before it costs each decision.
//! Health and reflection go through tonic's router.

use std::convert::Infallible;
use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::Status;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::answer::{CallFuture, RequestHandler, ResponseFuture, SentBody};
use super::calls::{CallLimits, ConnectionCallLimits, Kind};
use super::convert;
use super::drain::DrainSignal;
use super::pb::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use super::protocol;
use super::receive::{RequestBody, RequestReceiver, SMALL_BYTES_MAX, no_bytes_left};

/// Largest request, in bytes: more than a batch of 1,000 with the longest keys and names.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Largest request for one decision, and largest message of a stream, in bytes. The longest key and name take 600 bytes. A
/// message three times as long still gets an error that names the fault.
const DECISION_BYTES_MAX: usize = SMALL_BYTES_MAX;
/// Bytes reserved for a list of plans before its size is known: 10,000 plans of two limits.
const LIST_BYTES: usize = 1 << 20;
/// Prefix of the paths of `RateLimitService`.
const DECIDER: &str = "/tollgate.v1.RateLimitService/";
/// The only method with a small request and a large answer.
const LIST: &str = "/tollgate.v1.RateLimitService/ListPlans";
/// The method that probes call.
const CHECK: &str = "/grpc.health.v1.Health/Check";
/// The method of clients that watch the health of their connection: one message, answered by a stream.
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// All services of a worker.
pub(super) struct Services<T> {
    rate_limit: RateLimitServiceServer<T>,
    /// The same service with the limit for large messages.
    rate_limit_large: RateLimitServiceServer<T>,
    other_routes: Routes,
    calls: CallLimits,
}

impl<T: RateLimitService> Services<T> {
    /// Serves `service` and the routes of [`health_and_reflection`], within the limits of `calls`.
    pub(super) fn new(service: T, other_routes: Routes, calls: CallLimits) -> Self {
        // The size limit holds before and after decompression.
        let rate_limit = RateLimitServiceServer::new(service).accept_compressed(CompressionEncoding::Gzip);
        let rate_limit_large = rate_limit.clone().max_decoding_message_size(REQUEST_BYTES_MAX);
        Self { rate_limit: rate_limit.max_decoding_message_size(DECISION_BYTES_MAX), rate_limit_large, other_routes, calls }
    }

    /// The call limits of all connections.
    pub(super) fn calls(&self) -> &CallLimits {
        &self.calls
    }

    /// Returns the services of a new connection. `drain` tells its streams to end.
    pub(super) fn for_connection(self: &Rc<Self>, calls: Rc<ConnectionCallLimits>, drain: DrainSignal) -> ConnectionServices<T> {
        ConnectionServices { services: self.clone(), calls, drain }
    }
}

/// The services of one connection.
pub(super) struct ConnectionServices<T> {
    services: Rc<Services<T>>,
    calls: Rc<ConnectionCallLimits>,
    drain: DrainSignal,
}

impl<T: RateLimitService> hyper::service::Service<Request<Incoming>> for ConnectionServices<T> {
    type Response = Response<SentBody>;
    type Error = Infallible;
    type Future = CallFuture<Handler<T>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let calls = self.calls.clone();
        if let Some(refused) = protocol::refuse(&request) {
            return CallFuture::immediate(refused, calls);
        }
        let kind = kind(request.uri().path());
        let Some(permit) = calls.permit(kind) else { return CallFuture::immediate(too_many_calls().into_http(), calls) };
        let handler = Handler { services: self.services.clone(), kind };
        let receiver = match kind {
            Kind::Decision | Kind::Check => RequestReceiver::new(request, DECISION_BYTES_MAX, calls.clone(), permit),
            Kind::Large if request.uri().path() == LIST => match calls.reserve(LIST_BYTES) {
                Some(reservation) => {
                    RequestReceiver::new(request, DECISION_BYTES_MAX, calls.clone(), permit).with_reservation(reservation)
                }
                None => return CallFuture::immediate(no_bytes_left().into_http(), calls),
            },
            Kind::Large => RequestReceiver::new(request, REQUEST_BYTES_MAX, calls.clone(), permit),
            Kind::Watch => {
                request.extensions_mut().insert(self.drain.clone());
                let receiver = RequestReceiver::new(request, DECISION_BYTES_MAX, calls.clone(), permit);
                return CallFuture::after_request(receiver, handler, calls).answered_by_stream();
            }
            Kind::Stream | Kind::Other => {
                request.extensions_mut().insert(self.drain.clone());
                return CallFuture::stream(handler.handle(request.map(RequestBody::Stream)), calls, permit);
            }
        };
        CallFuture::after_request(receiver, handler, calls)
    }
}

/// Handles a call of this kind.
pub(super) struct Handler<T> {
    services: Rc<Services<T>>,
    kind: Kind,
}

impl<T: RateLimitService> RequestHandler for Handler<T> {
    fn handle(&self, request: Request<RequestBody>) -> ResponseFuture {
        let services = &self.services;
        // These services are always ready, so `poll_ready` is not called.
        match self.kind {
            Kind::Decision | Kind::Stream => services.rate_limit.clone().call(request),
            Kind::Large => services.rate_limit_large.clone().call(request),
            Kind::Check | Kind::Watch | Kind::Other => Box::pin(services.other_routes.clone().call(request)),
        }
    }
}

fn kind(path: &str) -> Kind {
    match path.strip_prefix(DECIDER) {
        Some("ShouldAllow" | "Peek") => Kind::Decision,
        Some("ShouldAllowBatch" | "ListPlans") => Kind::Large,
        Some("ShouldAllowStream") => Kind::Stream,
        None if path == CHECK => Kind::Check,
        None if path == WATCH => Kind::Watch,
        Some(_) | None => Kind::Other,
    }
}

fn too_many_calls() -> Status {
    convert::overloaded("this server holds as many calls as it may; try again in a moment")
}

/// Health and reflection. Reflection describes the services of `descriptors` and health.
pub(super) fn health_and_reflection(health: HealthServer<impl Health>, descriptors: &[u8]) -> Routes {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(descriptors)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Both versions of reflection: ghz and older grpcurl know only v1alpha.
    let (v1, v1alpha) = (reflection().build_v1(), reflection().build_v1alpha());
    let v1 = v1.expect("descriptors that this build made decode").accept_compressed(CompressionEncoding::Gzip);
    let v1alpha = v1alpha.expect("descriptors that this build made decode").accept_compressed(CompressionEncoding::Gzip);
    // A client that compresses its calls also compresses calls to these services.
    Routes::new(health.accept_compressed(CompressionEncoding::Gzip).max_decoding_message_size(DECISION_BYTES_MAX))
        .add_service(v1.max_decoding_message_size(DECISION_BYTES_MAX))
        .add_service(v1alpha.max_decoding_message_size(DECISION_BYTES_MAX))
        .prepare()
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn every_method_of_the_rate_limit_service_has_its_kind() {
        assert_eq!(DECIDER, format!("/{}/", crate::grpc::pb::rate_limit_service_server::SERVICE_NAME));
        let file = prost_types::FileDescriptorSet::decode(crate::grpc::pb::FILE_DESCRIPTOR_SET).unwrap();
        let services = file.file.iter().flat_map(|file| &file.service);
        let methods: Vec<_> = services.flat_map(|service| &service.method).map(|method| method.name()).collect();
        assert!(methods.len() >= 5);
        for method in methods {
            assert_ne!(kind(&format!("{DECIDER}{method}")), Kind::Other, "{method}");
        }
        assert_eq!(kind(LIST), Kind::Large);
        assert_eq!(kind(CHECK), Kind::Check);
        assert_eq!(kind(WATCH), Kind::Watch);
    }
}
