//! What a connection is served: the decider directly, since each decision pays for what stands before it; health and
//! reflection by way of tonic's router.

use std::convert::Infallible;
use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::Status;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::answer::{Answer, Answering, Handle, SentBody};
use super::calls::{Calls, ConnectionCalls, Kind};
use super::convert;
use super::leaving::Leaving;
use super::pb::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use super::protocol;
use super::receive::{Receiving, RequestBody, SMALL_BYTES_MAX, no_room};

/// Largest request: a batch of 1,000 with the longest keys and names is below.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Largest request for one decision, and largest message of a stream: the longest key and name take 600 bytes, and one three
/// times as long is still told what is wrong with it.
const DECISION_BYTES_MAX: usize = SMALL_BYTES_MAX;
/// What a list of plans is taken for until it is there: 10,000 plans of two limits.
const LIST_BYTES: usize = 1 << 20;
/// Of the paths of the decider's methods.
const DECIDER: &str = "/tollgate.v1.RateLimitService/";
/// The one method whose answer is large and whose request is not.
const LIST: &str = "/tollgate.v1.RateLimitService/ListPlans";
/// How a probe asks.
const CHECK: &str = "/grpc.health.v1.Health/Check";

/// Every service of a worker.
pub(super) struct Services<T> {
    decider: RateLimitServiceServer<T>,
    /// The same for large messages.
    large: RateLimitServiceServer<T>,
    others: Routes,
    calls: Calls,
}

impl<T: RateLimitService> Services<T> {
    /// Serves `service`, beside what [`others`] made, to as many calls as `calls` has seats.
    pub(super) fn new(service: T, others: Routes, calls: Calls) -> Self {
        // What is inflated has the same bound as what is sent.
        let decider = RateLimitServiceServer::new(service).accept_compressed(CompressionEncoding::Gzip);
        let large = decider.clone().max_decoding_message_size(REQUEST_BYTES_MAX);
        Self { decider: decider.max_decoding_message_size(DECISION_BYTES_MAX), large, others, calls }
    }

    /// The calls of all connections.
    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// For one more connection, which tells by `leaving` that it is to end.
    pub(super) fn desk(self: &Rc<Self>, calls: Rc<ConnectionCalls>, leaving: Leaving) -> Desk<T> {
        Desk { services: self.clone(), calls, leaving }
    }
}

/// The services as one connection has them.
pub(super) struct Desk<T> {
    services: Rc<Services<T>>,
    calls: Rc<ConnectionCalls>,
    leaving: Leaving,
}

impl<T: RateLimitService> hyper::service::Service<Request<Incoming>> for Desk<T> {
    type Response = Response<SentBody>;
    type Error = Infallible;
    type Future = Answer<Handler<T>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let calls = self.calls.clone();
        if let Some(refused) = protocol::refuse(&request) {
            return Answer::at_once(refused, calls);
        }
        let kind = kind(request.uri().path());
        let Some(seat) = calls.seat(kind) else { return Answer::at_once(too_many_calls().into_http(), calls) };
        let handler = Handler { services: self.services.clone(), kind };
        let receiving = match kind {
            Kind::Decision | Kind::Check => Receiving::new(request, DECISION_BYTES_MAX, calls.clone(), seat),
            Kind::Large if request.uri().path() == LIST => match calls.room(LIST_BYTES) {
                Some(room) => Receiving::new(request, DECISION_BYTES_MAX, calls.clone(), seat).with_room(room),
                None => return Answer::at_once(no_room().into_http(), calls),
            },
            Kind::Large => Receiving::new(request, REQUEST_BYTES_MAX, calls.clone(), seat),
            Kind::Stream | Kind::Other => {
                request.extensions_mut().insert(self.leaving.clone());
                return Answer::stream(handler.handle(request.map(RequestBody::Stream)), calls, seat);
            }
        };
        Answer::received(receiving, handler, calls)
    }
}

/// What answers a call of this kind.
pub(super) struct Handler<T> {
    services: Rc<Services<T>>,
    kind: Kind,
}

impl<T: RateLimitService> Handle for Handler<T> {
    fn handle(&self, request: Request<RequestBody>) -> Answering {
        let services = &self.services;
        // The services are always ready, so none is asked whether it is.
        match self.kind {
            Kind::Decision | Kind::Stream => services.decider.clone().call(request),
            Kind::Large => services.large.clone().call(request),
            Kind::Check | Kind::Other => Box::pin(services.others.clone().call(request)),
        }
    }
}

fn kind(path: &str) -> Kind {
    match path.strip_prefix(DECIDER) {
        Some("ShouldAllow" | "Peek") => Kind::Decision,
        Some("ShouldAllowBatch" | "ListPlans") => Kind::Large,
        Some("ShouldAllowStream") => Kind::Stream,
        None if path == CHECK => Kind::Check,
        Some(_) | None => Kind::Other,
    }
}

fn too_many_calls() -> Status {
    convert::overloaded("this server holds as many calls as it may; ask again in a moment")
}

/// Health and reflection, which tells of the services that these descriptors have.
pub(super) fn others(health: HealthServer<impl Health>, descriptors: &[u8]) -> Routes {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(descriptors)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Both generations: ghz and older grpcurl know only v1alpha.
    let (v1, v1alpha) = (reflection().build_v1(), reflection().build_v1alpha());
    let v1 = v1.expect("descriptors that this build made decode").accept_compressed(CompressionEncoding::Gzip);
    let v1alpha = v1alpha.expect("descriptors that this build made decode").accept_compressed(CompressionEncoding::Gzip);
    // A client that compresses its calls compresses these too.
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
    fn every_method_of_the_decider_has_its_kind() {
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
        assert_eq!(kind("/grpc.health.v1.Health/Watch"), Kind::Other);
    }
}
