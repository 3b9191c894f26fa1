//! What a connection is served: the decider directly, since each decision pays for what stands before it; health and
//! reflection by way of tonic's router.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::pb::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

/// Largest request: a batch of 1,000 with the longest keys and names is below.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Of the paths of the decider's methods.
const DECIDER: &str = "/tollgate.v1.RateLimitService/";

/// Every service of a worker.
pub(super) struct Services<T> {
    decider: RateLimitServiceServer<T>,
    others: Routes,
}

impl<T> Clone for Services<T> {
    fn clone(&self) -> Self {
        Self { decider: self.decider.clone(), others: self.others.clone() }
    }
}

impl<T: RateLimitService> Services<T> {
    /// Serves `service`, beside what [`others`] made.
    pub(super) fn new(service: T, others: Routes) -> Self {
        Self { decider: RateLimitServiceServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX), others }
    }
}

impl<T: RateLimitService> hyper::service::Service<Request<Incoming>> for Services<T> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // Both are always ready, so neither is asked whether it is.
        if request.uri().path().starts_with(DECIDER) {
            self.decider.clone().call(request)
        } else {
            Box::pin(self.others.clone().call(request))
        }
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
    }
}
