//! Converts overrides and questions about them, and the answers.

use std::sync::Arc;

use tonic::Status;

use super::duration;
use crate::grpc::pb;
use crate::limiter::{
    AdminError, ListedOverride, NewOverride, OverrideList, OverrideQuery, OverrideRefusal,
};
use tollgate_core::key::KEY_BYTES_MAX;
use tollgate_core::plan::{
    LIMITS_MAX, LimitQuota, NAME_BYTES_MAX, OverrideEffect, OverrideFault, OverrideSource,
    OverrideSubject, PlanOverride, REASON_BYTES_MAX, check_requested_name,
};
use tollgate_store::Expiry;

const MICROS: u64 = 1_000_000;
/// Longest token of a page: a plan's name, a key, and what is between them.
const PAGE_TOKEN_BYTES_MAX: usize = NAME_BYTES_MAX + KEY_BYTES_MAX + 16;

fn invalid(sentence: impl Into<String>) -> Status {
    Status::invalid_argument(sentence)
}

/// Converts an override to set. Errors: INVALID_ARGUMENT.
pub(in crate::grpc) fn new_override(
    request: pb::SetOverrideRequest,
) -> Result<NewOverride, Status> {
    use pb::plan_override::{Effect, Subject};
    let entry = request.entry.ok_or_else(|| invalid("entry is missing"))?;
    check_requested_name(&entry.plan).map_err(invalid)?;
    let subject = match entry.subject {
        None => return Err(invalid("entry has no key and no key_prefix; send one")),
        Some(Subject::Key(text)) => OverrideSubject::Key(text.into()),
        Some(Subject::KeyPrefix(text)) => OverrideSubject::Prefix(text.into()),
    };
    check_subject(&subject)?;
    let effect = match entry.effect {
        None => return Err(invalid("entry has no effect; send use_plan or quotas")),
        Some(Effect::UsePlan(name)) => {
            check_requested_name(&name)
                .map_err(|sentence| invalid(format!("use_plan: {sentence}")))?;
            OverrideEffect::UsePlan(name.into())
        }
        Some(Effect::Quotas(quotas)) => {
            if quotas.limits.len() > LIMITS_MAX {
                let sentence = format!(
                    "quotas has {} limits; a plan has 1 to {LIMITS_MAX}",
                    quotas.limits.len()
                );
                return Err(invalid(sentence));
            }
            OverrideEffect::Quotas(quotas.limits.into_iter().map(limit_quota).collect())
        }
    };
    if entry.reason.len() > REASON_BYTES_MAX {
        let sentence = format!(
            "reason has {} bytes; at most {REASON_BYTES_MAX}",
            entry.reason.len()
        );
        return Err(invalid(sentence));
    }
    let expiry = match (entry.expires_at, request.expires_after) {
        (None, None) => Expiry::Never,
        (Some(at), None) => Expiry::At(micros("expires_at", at.seconds, at.nanos)?),
        (None, Some(after)) => Expiry::After(micros("expires_after", after.seconds, after.nanos)?),
        (Some(_), Some(_)) => {
            return Err(invalid(
                "entry has expires_at, and expires_after is sent; send one",
            ));
        }
    };
    Ok(NewOverride {
        plan: entry.plan,
        subject,
        effect,
        expiry,
        reason: entry.reason,
        if_version: request.if_version,
    })
}

fn check_subject(subject: &OverrideSubject) -> Result<(), Status> {
    let field = subject.field();
    subject
        .check()
        .map_err(|problem| invalid(format!("{field} {problem}")))
}

fn limit_quota(limit: pb::LimitQuota) -> LimitQuota {
    LimitQuota {
        name: Some(limit.name)
            .filter(|name| !name.is_empty())
            .map(Arc::from),
        quota: limit.quota,
        burst: limit.burst,
    }
}

/// A time or a duration in microseconds, rounded up. Errors: it is not above zero, or above what a store can keep.
fn micros(field: &str, seconds: i64, nanos: i32) -> Result<u64, Status> {
    /// Ten thousand years. Redis counts exactly up to 28 times as much.
    const SECONDS_MAX: u64 = 10_000 * 366 * 24 * 3_600;
    let out_of_range = || {
        invalid(format!(
            "{field} is out of range; it lies in the future, within ten thousand years"
        ))
    };
    let seconds = u64::try_from(seconds);
    let nanos = u64::try_from(nanos);
    let (Ok(seconds), Ok(nanos)) = (seconds, nanos) else {
        return Err(out_of_range());
    };
    if seconds > SECONDS_MAX || nanos >= 1_000_000_000 || (seconds, nanos) == (0, 0) {
        return Err(out_of_range());
    }
    Ok(seconds * MICROS + nanos.div_ceil(1_000))
}

/// Converts the plan and the subject of an override to delete, and its version. Errors: INVALID_ARGUMENT.
pub(in crate::grpc) fn deletion(
    request: pb::DeleteOverrideRequest,
) -> Result<(String, OverrideSubject, Option<u64>), Status> {
    use pb::delete_override_request::Subject;
    check_requested_name(&request.plan).map_err(invalid)?;
    let subject = match request.subject {
        None => {
            return Err(invalid(
                "the request has no key and no key_prefix; send one",
            ));
        }
        Some(Subject::Key(text)) => OverrideSubject::Key(text.into()),
        Some(Subject::KeyPrefix(text)) => OverrideSubject::Prefix(text.into()),
    };
    check_subject(&subject)?;
    Ok((request.plan, subject, request.if_version))
}

/// Converts a question for a list. Errors: INVALID_ARGUMENT.
pub(in crate::grpc) fn override_query(
    request: pb::ListOverridesRequest,
) -> Result<OverrideQuery, Status> {
    let pb::ListOverridesRequest {
        plan,
        matching_key,
        page_size,
        page_token,
    } = request;
    if !matching_key.is_empty() && plan.is_empty() {
        return Err(invalid("matching_key needs a plan; send both"));
    }
    if page_token.len() > PAGE_TOKEN_BYTES_MAX {
        return Err(invalid(
            "page_token is none that this server gave; begin without one",
        ));
    }
    Ok(OverrideQuery {
        plan,
        matching_key: Some(matching_key).filter(|key| !key.is_empty()),
        // A size that does not fit is too large in any case.
        page_size: usize::try_from(page_size).unwrap_or(usize::MAX),
        page_token,
    })
}

/// Converts a page of overrides.
pub(in crate::grpc) fn override_list(list: &OverrideList) -> pb::ListOverridesResponse {
    let age_us = u64::try_from(list.age.as_micros()).unwrap_or(u64::MAX);
    pb::ListOverridesResponse {
        entries: list.entries.iter().map(listed).collect(),
        next_page_token: list.next_page_token.clone(),
        version: list.version,
        age: Some(duration(age_us)),
    }
}

fn listed(listed: &ListedOverride) -> pb::PlanOverride {
    let converted = match &listed.entry {
        Some(entry) => plan_override(entry),
        None => pb::PlanOverride {
            plan: listed.plan.clone(),
            subject: Some(subject(&listed.subject)),
            source: pb::OverrideSource::Runtime.into(),
            ..pb::PlanOverride::default()
        },
    };
    pb::PlanOverride {
        problem: listed.problem.clone(),
        ..converted
    }
}

fn subject(subject: &OverrideSubject) -> pb::plan_override::Subject {
    use pb::plan_override::Subject;
    match subject {
        OverrideSubject::Key(text) => Subject::Key(text.to_string()),
        OverrideSubject::Prefix(text) => Subject::KeyPrefix(text.to_string()),
    }
}

/// Converts an override.
pub(in crate::grpc) fn plan_override(entry: &PlanOverride) -> pb::PlanOverride {
    use pb::plan_override::Effect;
    let effect = match &entry.effect {
        OverrideEffect::UsePlan(name) => Effect::UsePlan(name.to_string()),
        OverrideEffect::Quotas(quotas) => {
            let limit = |quota: &LimitQuota| pb::LimitQuota {
                name: quota.name.as_deref().unwrap_or_default().to_owned(),
                quota: quota.quota,
                burst: quota.burst,
            };
            Effect::Quotas(pb::LimitQuotas {
                limits: quotas.iter().map(limit).collect(),
            })
        }
    };
    let source = match entry.source {
        OverrideSource::File => pb::OverrideSource::File,
        OverrideSource::Runtime => pb::OverrideSource::Runtime,
    };
    pb::PlanOverride {
        plan: entry.plan.to_string(),
        subject: Some(subject(&entry.subject)),
        effect: Some(effect),
        expires_at: entry.expires_at_us.map(timestamp),
        reason: entry.reason.to_string(),
        source: source.into(),
        version: entry.version,
        set_at: Some(entry.set_at_us)
            .filter(|at_us| *at_us > 0)
            .map(timestamp),
        problem: String::new(),
    }
}

fn timestamp(us: u64) -> prost_types::Timestamp {
    let prost_types::Duration { seconds, nanos } = duration(us);
    prost_types::Timestamp { seconds, nanos }
}

/// The status of a change of overrides that was not made.
pub(in crate::grpc) fn not_changed(refused: &OverrideRefusal) -> Status {
    let sentence = refused.to_string();
    match refused {
        OverrideRefusal::UnknownPlan { .. } => Status::not_found(sentence),
        OverrideRefusal::WithoutEffect(error) => match error.fault {
            OverrideFault::NotFound => Status::not_found(sentence),
            OverrideFault::Unfit => Status::failed_precondition(sentence),
            OverrideFault::Invalid => invalid(sentence),
        },
        OverrideRefusal::Invalid(_) => invalid(sentence),
        OverrideRefusal::Version { .. } => Status::aborted(sentence),
        OverrideRefusal::Full(_) | OverrideRefusal::OfFile => Status::failed_precondition(sentence),
        OverrideRefusal::Store(error) => super::not_done(&AdminError::Store(error.clone())),
    }
}
