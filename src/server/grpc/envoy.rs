//! Envoy's Rate Limit Service: `envoy.service.ratelimit.v3.RateLimitService`, by the rules of the config's `envoy` table.
//!
//! The handler parses, asks the limiter, and answers. `convert` alone knows both wire and domain types.

pub(crate) mod codec;
mod convert;
pub mod pb;

use tonic::{Request, Response};

use super::service::{ResponseFuture, Service};
use super::{convert as common, span};
use crate::trace;
use pb::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use pb::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate_store::Store;

/// The path of the service's only method.
pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The same, as spans name it.
const METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[tonic::async_trait]
impl<S: Store> RateLimitService for Service<S> {
    /// Not an async function, as [`super::service`] explains.
    fn should_rate_limit<'a, 'f>(
        &'a self,
        request: Request<RateLimitRequest>,
    ) -> ResponseFuture<'f, RateLimitResponse>
    where
        'a: 'f,
        Self: 'f,
    {
        let span = trace::grpc_call(METHOD, request.metadata().as_ref());
        let caller = common::caller_deadline(request.metadata());
        let parsed =
            caller.and_then(|caller| Ok((caller, convert::descriptors(request.into_inner())?)));
        let (caller, (domain, descriptors)) = match parsed {
            Ok(parsed) => parsed,
            Err(status) => return Box::pin(std::future::ready(Err(span::failed(&span, status)))),
        };
        Box::pin(async move {
            let decided = self
                .limiter
                .decide_descriptors(&domain, descriptors, caller)
                .await;
            let decided =
                decided.map_err(|refused| span::failed(&span, convert::refusal(&refused)))?;
            match decided.binding() {
                Some(binding) => {
                    if let Some(plan) = &binding.plan {
                        span.record(trace::PLAN, &*plan.name);
                    }
                    span::answered(&span, &binding.decision);
                }
                // It only gave units back.
                None => span::succeeded(&span),
            }
            Ok(Response::new(convert::response(&decided, self.header_form)))
        })
    }
}

#[cfg(test)]
mod fuzz;
