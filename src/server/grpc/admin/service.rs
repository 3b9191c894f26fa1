//! The handlers: check the token, parse, act, write the log and the metrics, answer.

use std::time::Duration;

use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

use super::AdminParts;
use super::calls::{Method, word};
use crate::grpc::pb::admin_service_server::AdminService;
use crate::grpc::{convert, pb};
use crate::log_throttle::LogThrottle;
use tollgate_core::key::Key;
use tollgate_store::Store;
use tollgate_store::clock::monotonic;

/// Shortest time between two log lines about refused calls, so that their callers cannot fill the log.
const REFUSALS_EVERY: Duration = Duration::from_secs(10);

/// `AdminService` over a limiter.
pub(super) struct Admin<S> {
    parts: AdminParts<S>,
    /// Throttles the log of calls with a wrong token.
    refused: LogThrottle,
    /// Throttles the log of calls while the token file cannot be used.
    no_token: LogThrottle,
}

/// A key and a plan name.
type Subject = (Key, String);

impl<S: Store> Admin<S> {
    pub(super) fn new(parts: AdminParts<S>) -> Self {
        let throttle = || LogThrottle::new(REFUSALS_EVERY);
        Self {
            parts,
            refused: throttle(),
            no_token: throttle(),
        }
    }

    /// Checks the caller's token. Errors: UNAUTHENTICATED, with the same text for every fault of the caller.
    async fn authenticate(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let Some(file) = &self.parts.token else {
            return Ok(());
        };
        let offered = metadata
            .get("authorization")
            .map(|value| value.as_bytes())
            .unwrap_or_default();
        match file.admits_bearer(offered).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Status::unauthenticated(
                "send the admin token: authorization: Bearer TOKEN",
            )),
            Err(sentence) => {
                if let Some(calls) = self.no_token.due(monotonic()) {
                    tracing::error!(
                        error = sentence,
                        calls,
                        "admin calls are refused: the token file cannot be used"
                    );
                }
                Err(Status::unauthenticated(
                    "this server has no admin token at the moment; its log says why",
                ))
            }
        }
    }

    /// Logs and counts a call, and returns its answer. The subject is unknown when the token was wrong or the request
    /// invalid.
    fn finish<T>(
        &self,
        method: Method,
        subject: Option<&Subject>,
        done: Result<(T, String), Status>,
    ) -> Result<Response<T>, Status> {
        let (code, outcome) = match &done {
            Ok((_, outcome)) => (Code::Ok, outcome.as_str()),
            Err(status) => (status.code(), status.message()),
        };
        self.parts.calls.count(method, code);
        if code == Code::Unauthenticated {
            if let Some(calls) = self.refused.due(monotonic()) {
                tracing::info!(
                    method = method.name(),
                    code = word(code),
                    calls,
                    outcome,
                    "admin calls were refused"
                );
            }
            return done.map(|(answer, _)| Response::new(answer));
        }
        let key_hash = subject.map(|(key, _)| self.parts.limiter.key_hash(key).to_string());
        let plan = subject.map(|(_, plan)| plan.as_str());
        // A page that is open asks each second.
        if method.changes() {
            tracing::info!(
                method = method.name(),
                code = word(code),
                plan,
                key_hash,
                outcome,
                "admin call"
            );
        } else {
            tracing::debug!(
                method = method.name(),
                code = word(code),
                plan,
                key_hash,
                outcome,
                "admin call"
            );
        }
        done.map(|(answer, _)| Response::new(answer))
    }
}

#[tonic::async_trait]
impl<S: Store> AdminService for Admin<S> {
    async fn reset(
        &self,
        request: Request<pb::ResetRequest>,
    ) -> Result<Response<pb::ResetResponse>, Status> {
        let caller = convert::caller_deadline(request.metadata());
        let (metadata, _, pb::ResetRequest { key, plan, shard }) = request.into_parts();
        let subject = self
            .authenticate(&metadata)
            .await
            .and_then(|()| convert::subject(key, shard, plan));
        let done = async {
            let ((key, plan), caller) = (subject.clone()?, caller?);
            let existed = self
                .parts
                .limiter
                .reset(key, &plan, caller)
                .await
                .map_err(|error| convert::not_done(&error))?;
            Ok((pb::ResetResponse { existed }, format!("existed: {existed}")))
        };
        self.finish(Method::Reset, subject.as_ref().ok(), done.await)
    }

    async fn refund(
        &self,
        request: Request<pb::RefundRequest>,
    ) -> Result<Response<pb::RefundResponse>, Status> {
        let caller = convert::caller_deadline(request.metadata());
        let (
            metadata,
            _,
            pb::RefundRequest {
                key,
                plan,
                cost,
                shard,
            },
        ) = request.into_parts();
        let subject = self
            .authenticate(&metadata)
            .await
            .and_then(|()| convert::subject(key, shard, plan));
        let done = async {
            let ((key, plan), cost, caller) =
                (subject.clone()?, convert::refund_cost(cost)?, caller?);
            let refunded = self
                .parts
                .limiter
                .refund(key, &plan, cost, caller)
                .await
                .map_err(|error| convert::not_done(&error))?;
            Ok((
                convert::refunded(&refunded),
                format!("refunded: {} of {}", refunded.units(), cost.units()),
            ))
        };
        self.finish(Method::Refund, subject.as_ref().ok(), done.await)
    }

    async fn explain(
        &self,
        request: Request<pb::ExplainRequest>,
    ) -> Result<Response<pb::ExplainResponse>, Status> {
        let caller = convert::caller_deadline(request.metadata());
        let (metadata, _, pb::ExplainRequest { key, plan, shard }) = request.into_parts();
        let subject = self
            .authenticate(&metadata)
            .await
            .and_then(|()| convert::subject(key, shard, plan));
        let done = async {
            let ((key, plan), caller) = (subject.clone()?, caller?);
            let explained = self
                .parts
                .limiter
                .explain(key, &plan, caller)
                .await
                .map_err(|error| convert::not_done(&error))?;
            let outcome = format!("next: {}", explained.next.outcome.as_str());
            Ok((convert::explained(&explained, &self.parts.stores), outcome))
        };
        self.finish(Method::Explain, subject.as_ref().ok(), done.await)
    }

    async fn top(
        &self,
        request: Request<pb::TopRequest>,
    ) -> Result<Response<pb::TopResponse>, Status> {
        let done = async {
            self.authenticate(request.metadata()).await?;
            let query = convert::top_query(request.into_inner())?;
            let answer = self
                .parts
                .top
                .top(&query)
                .await
                .map_err(|error| convert::no_top(&error))?;
            let outcome = format!("keys: {}", answer.keys.len());
            let store = self.parts.limiter.store_state(&self.parts.stores);
            Ok((convert::top(answer, &store), outcome))
        };
        self.finish(Method::Top, None, done.await)
    }

    async fn reload_config(
        &self,
        request: Request<pb::ReloadConfigRequest>,
    ) -> Result<Response<pb::ReloadConfigResponse>, Status> {
        let done = async {
            self.authenticate(request.metadata()).await?;
            let answer = convert::reloaded(self.parts.reloader.reload().await)?;
            let outcome = format!("config_hash: {}", answer.config_hash);
            Ok((answer, outcome))
        };
        self.finish(Method::ReloadConfig, None, done.await)
    }

    async fn replicas(
        &self,
        request: Request<pb::ReplicasRequest>,
    ) -> Result<Response<pb::ReplicasResponse>, Status> {
        let done = async {
            self.authenticate(request.metadata()).await?;
            let (count, fixed) = (
                self.parts.limiter.totals().replicas,
                self.parts.replicas.is_some(),
            );
            let answer = convert::replicas(count, fixed, &self.parts.stores);
            let outcome = format!("replicas: {}", answer.replicas);
            Ok((answer, outcome))
        };
        self.finish(Method::Replicas, None, done.await)
    }
}
