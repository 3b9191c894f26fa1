//! The handlers: check the token, parse, act, write the log and the metrics, answer.

use std::time::Duration;

use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

use super::AdminParts;
use super::calls::AdminMethod;
use crate::grpc::pb::admin_service_server::AdminService;
use crate::grpc::{code, convert, pb};
use crate::limiter::{AdminError, CallerDeadline, OverrideRefusal};
use crate::log_throttle::LogThrottle;
use tollgate_core::key::Key;
use tollgate_core::plan::OverrideSubject;
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
type KeyAndPlan = (Key, String);

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
        method: AdminMethod,
        subject: Option<&KeyAndPlan>,
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
                    code = code::name(code),
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
                code = code::name(code),
                plan,
                key_hash,
                outcome,
                "admin call"
            );
        } else {
            tracing::debug!(
                method = method.name(),
                code = code::name(code),
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
            let (key, plan) = subject.clone()?;
            let caller = caller?;
            let existed = self
                .parts
                .limiter
                .reset(key, &plan, caller)
                .await
                .map_err(|error| convert::not_done(&error))?;
            Ok((pb::ResetResponse { existed }, format!("existed: {existed}")))
        };
        self.finish(AdminMethod::Reset, subject.as_ref().ok(), done.await)
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
            let (key, plan) = subject.clone()?;
            let cost = convert::refund_cost(cost)?;
            let caller = caller?;
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
        self.finish(AdminMethod::Refund, subject.as_ref().ok(), done.await)
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
            let (key, plan) = subject.clone()?;
            let caller = caller?;
            let explained = self
                .parts
                .limiter
                .explain(key, &plan, caller)
                .await
                .map_err(|error| convert::not_done(&error))?;
            let outcome = format!("next: {}", explained.next.outcome.as_str());
            Ok((convert::explained(&explained, &self.parts.stores), outcome))
        };
        self.finish(AdminMethod::Explain, subject.as_ref().ok(), done.await)
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
        self.finish(AdminMethod::Top, None, done.await)
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
        self.finish(AdminMethod::ReloadConfig, None, done.await)
    }

    async fn replicas(
        &self,
        request: Request<pb::ReplicasRequest>,
    ) -> Result<Response<pb::ReplicasResponse>, Status> {
        let done = async {
            self.authenticate(request.metadata()).await?;
            let count = self.parts.limiter.totals().replicas;
            let fixed = self.parts.replicas.is_some();
            let answer = convert::replicas(count, fixed, &self.parts.stores);
            let outcome = format!("replicas: {}", answer.replicas);
            Ok((answer, outcome))
        };
        self.finish(AdminMethod::Replicas, None, done.await)
    }

    async fn set_override(
        &self,
        request: Request<pb::SetOverrideRequest>,
    ) -> Result<Response<pb::SetOverrideResponse>, Status> {
        let caller = convert::caller_deadline(request.metadata());
        let (metadata, _, request) = request.into_parts();
        let new = self
            .authenticate(&metadata)
            .await
            .and_then(|()| convert::new_override(request));
        let subject = new
            .as_ref()
            .ok()
            .map(|new| shown_subject(&new.subject, &new.plan));
        let done = async {
            let new = new?;
            let overrides = self.parts.overrides.clone();
            let set = async move { overrides.set(new).await };
            let entry = in_time(caller?, set).await?;
            let outcome = format!("version: {}", entry.version);
            let answer = pb::SetOverrideResponse {
                entry: Some(convert::plan_override(&entry)),
                shared: self.parts.overrides.are_shared(),
            };
            Ok((answer, outcome))
        };
        self.finish(
            AdminMethod::SetOverride,
            subject.flatten().as_ref(),
            done.await,
        )
    }

    async fn delete_override(
        &self,
        request: Request<pb::DeleteOverrideRequest>,
    ) -> Result<Response<pb::DeleteOverrideResponse>, Status> {
        let caller = convert::caller_deadline(request.metadata());
        let (metadata, _, request) = request.into_parts();
        let asked = self
            .authenticate(&metadata)
            .await
            .and_then(|()| convert::deletion(request));
        let subject = asked
            .as_ref()
            .ok()
            .map(|(plan, subject, _)| shown_subject(subject, plan));
        let done = async {
            let (plan, subject, if_version) = asked?;
            let overrides = self.parts.overrides.clone();
            let deleted = async move { overrides.delete(&plan, subject, if_version).await };
            let (existed, version) = in_time(caller?, deleted).await?;
            let outcome = format!("existed: {existed}, version: {version}");
            Ok((pb::DeleteOverrideResponse { existed, version }, outcome))
        };
        self.finish(
            AdminMethod::DeleteOverride,
            subject.flatten().as_ref(),
            done.await,
        )
    }

    async fn list_overrides(
        &self,
        request: Request<pb::ListOverridesRequest>,
    ) -> Result<Response<pb::ListOverridesResponse>, Status> {
        let done = async {
            self.authenticate(request.metadata()).await?;
            let query = convert::override_query(request.into_inner())?;
            let overrides = self.parts.overrides.clone();
            // Thousands are sorted.
            let list = tokio::task::spawn_blocking(move || overrides.list(&query)).await;
            let list = list.map_err(|error| Status::internal(error.to_string()))?;
            let list = list.map_err(Status::invalid_argument)?;
            let outcome = format!("overrides: {}", list.entries.len());
            Ok((convert::override_list(&list), outcome))
        };
        self.finish(AdminMethod::ListOverrides, None, done.await)
    }
}

/// What the log shows of an override: its key or prefix as a hash, and its plan.
fn shown_subject(subject: &OverrideSubject, plan: &str) -> Option<KeyAndPlan> {
    let key = Key::new(subject.text()).ok()?;
    Some((key, plan.to_owned()))
}

/// The result of a change of overrides, unless the caller's deadline comes first. The change may then still happen.
async fn in_time<T: Send + 'static>(
    caller: Option<CallerDeadline>,
    change: impl Future<Output = Result<T, OverrideRefusal>> + Send + 'static,
) -> Result<T, Status> {
    // A task of its own, since a command to Redis must not be dropped before its answer.
    let change = tokio::spawn(change);
    let changed = match caller {
        Some(caller) => match tokio::time::timeout(caller.left(), change).await {
            Ok(changed) => changed,
            Err(_) => return Err(convert::not_done(&AdminError::CallerDeadline)),
        },
        None => change.await,
    };
    let changed = changed.map_err(|error| Status::internal(error.to_string()))?;
    changed.map_err(|refused| convert::not_changed(&refused))
}
