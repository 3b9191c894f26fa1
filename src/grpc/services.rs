//! What a connection is served: the decider directly, since each decision pays for what stands before it; health and
//! reflection by way of tonic's router.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::calls::{CallSeat, Calls, Fresh};
use super::convert;
use super::leaving::Leaving;
use super::pb::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

/// Largest request: a batch of 1,000 with the longest keys and names is below.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Of the paths of the decider's methods.
const DECIDER: &str = "/tollgate.v1.RateLimitService/";
/// The one method whose calls do not end by themselves.
const STREAM: &str = "/tollgate.v1.RateLimitService/ShouldAllowStream";

/// Every service of a worker.
pub(super) struct Services<T> {
    decider: RateLimitServiceServer<T>,
    others: Routes,
    calls: Calls,
}

impl<T: RateLimitService> Services<T> {
    /// Serves `service`, beside what [`others`] made, to as many calls as `calls` has seats.
    pub(super) fn new(service: T, others: Routes, calls: Calls) -> Self {
        let decider = RateLimitServiceServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX);
        Self { decider, others, calls }
    }

    /// The calls of all connections.
    pub(super) fn calls(&self) -> Calls {
        self.calls.clone()
    }

    /// For one more connection, which tells by `leaving` that it is to end.
    pub(super) fn desk(&self, leaving: Leaving) -> Desk<T> {
        let (decider, others, calls) = (self.decider.clone(), self.others.clone(), self.calls.clone());
        Desk { decider, others, calls, leaving }
    }
}

/// The services as one connection has them.
pub(super) struct Desk<T> {
    decider: RateLimitServiceServer<T>,
    others: Routes,
    calls: Calls,
    leaving: Leaving,
}

impl<T: RateLimitService> hyper::service::Service<Request<Incoming>> for Desk<T> {
    type Response = Response<Seated>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, mut request: Request<Incoming>) -> Answer {
        let decides = request.uri().path().starts_with(DECIDER);
        let seat = if decides { self.calls.seat() } else { self.calls.reserved_seat() };
        if request.uri().path() == STREAM {
            request.extensions_mut().insert(self.leaving.clone());
        }
        // The services are always ready, so none is asked whether it is.
        let inner: Inner = match (&seat, decides) {
            (None, _) => Box::pin(std::future::ready(Ok(too_many_calls().into_http()))),
            (Some(_), true) => self.decider.clone().call(request),
            (Some(_), false) => Box::pin(self.others.clone().call(request)),
        };
        Answer { inner, seat, fresh: Some(self.calls.fresh()) }
    }
}

type Inner = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

fn too_many_calls() -> Status {
    convert::overloaded("this server holds as many calls as it may; ask again in a moment")
}

/// An answer in the making, and the seat of its call.
pub(super) struct Answer {
    inner: Inner,
    seat: Option<CallSeat>,
    fresh: Option<Fresh>,
}

impl Future for Answer {
    type Output = Result<Response<Seated>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.fresh = None;
        let Ok(response) = ready!(self.inner.as_mut().poll(context));
        let seat = self.seat.take();
        Poll::Ready(Ok(response.map(|body| Seated { body, _seat: seat })))
    }
}

/// The body of an answer, whose call has its seat until it has been sent.
pub(super) struct Seated {
    body: Body,
    _seat: Option<CallSeat>,
}

impl HttpBody for Seated {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
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
    Routes::new(health)
        .add_service(v1.expect("descriptors that this build made decode"))
        .add_service(v1alpha.expect("descriptors that this build made decode"))
        .prepare()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decider_s_paths_are_those_of_its_service() {
        assert_eq!(DECIDER, format!("/{}/", crate::grpc::pb::rate_limit_service_server::SERVICE_NAME));
        assert_eq!(STREAM, format!("{DECIDER}ShouldAllowStream"));
    }
}
