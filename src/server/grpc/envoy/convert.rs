//! Converts the messages of Envoy's callers to domain types and back. Only this module knows both.

use tonic::Status;

use super::codec::REQUEST_ENTRIES_MAX;
use super::pb::config::core::v3::HeaderValue;
use super::pb::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor};
use super::pb::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use super::pb::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::pb::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::pb::r#type::v3::RateLimitUnit;
use crate::grpc::convert as common;
use crate::limiter::{BATCH_MAX, Descriptor, DescriptorDecision, EnvoyDecisions, EnvoyRefusal};
use tollgate_core::headers::{HeaderForm, headers, retry_after_s};
use tollgate_core::plan::envoy::{DenialBody, Entry, LimitOverride, RateUnit};
use tollgate_core::plan::{Limit, Rule};

/// Converts a request to its domain and descriptors. Errors: INVALID_ARGUMENT, with what is wrong and what would be right.
pub(super) fn descriptors(request: RateLimitRequest) -> Result<(String, Vec<Descriptor>), Status> {
    let RateLimitRequest {
        domain,
        descriptors,
        hits_addend,
    } = request;
    if domain.is_empty() {
        return Err(Status::invalid_argument(
            "domain is empty: name a domain of envoy.domains in the config",
        ));
    }
    check_counts(descriptors.len(), 0)?;
    // 0 is the value of a field that was not set.
    let units = u64::from(hits_addend.max(1));
    let converted = descriptors.into_iter().enumerate().map(|(index, of)| {
        let wrong =
            |sentence: String| Status::invalid_argument(format!("descriptors[{index}]{sentence}"));
        descriptor(of, units).map_err(wrong)
    });
    Ok((domain, converted.collect::<Result<_, _>>()?))
}

/// Checks the numbers of descriptors and of all their entries. Errors: INVALID_ARGUMENT.
pub(super) fn check_counts(descriptors: usize, entries: usize) -> Result<(), Status> {
    if !(1..=BATCH_MAX).contains(&descriptors) {
        return Err(Status::invalid_argument(format!(
            "the request has {descriptors} descriptors: send 1 to {BATCH_MAX}"
        )));
    }
    if entries > REQUEST_ENTRIES_MAX {
        let sentence =
            format!("the descriptors have {entries} entries: send {REQUEST_ENTRIES_MAX} at most");
        return Err(Status::invalid_argument(sentence));
    }
    Ok(())
}

fn descriptor(descriptor: RateLimitDescriptor, units: u64) -> Result<Descriptor, String> {
    let RateLimitDescriptor {
        entries,
        limit,
        hits_addend,
        is_negative_hits,
    } = descriptor;
    if entries.is_empty() {
        return Err(" has no entries: send at least one".to_owned());
    }
    let entries: Vec<Entry> = entries.into_iter().map(entry).collect();
    if let Some(index) = entries.iter().position(|entry| entry.name.is_empty()) {
        return Err(format!(
            ".entries[{index}].key is empty: send what the value is, such as remote_address"
        ));
    }
    let limit_override = limit.map(limit_override).transpose()?;
    Ok(Descriptor {
        entries,
        units: hits_addend.unwrap_or(units),
        refunds: is_negative_hits,
        limit_override,
    })
}

/// Every value is taken, also one that is empty or no UTF-8: a client chooses it, and an error would let its request pass.
fn entry(entry: rate_limit_descriptor::Entry) -> Entry {
    let text = |bytes| {
        String::from_utf8(bytes)
            .unwrap_or_else(|wrong| String::from_utf8_lossy(wrong.as_bytes()).into_owned())
    };
    Entry {
        name: text(entry.key),
        value: text(entry.value),
    }
}

fn limit_override(
    limit: rate_limit_descriptor::RateLimitOverride,
) -> Result<LimitOverride, String> {
    let unit = match limit.unit() {
        RateLimitUnit::Unknown => {
            return Err(format!(
                ".limit.unit is {}: send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
                limit.unit
            ));
        }
        RateLimitUnit::Second => RateUnit::Second,
        RateLimitUnit::Minute => RateUnit::Minute,
        RateLimitUnit::Hour => RateUnit::Hour,
        RateLimitUnit::Day => RateUnit::Day,
        RateLimitUnit::Week => RateUnit::Week,
        RateLimitUnit::Month => RateUnit::Month,
        RateLimitUnit::Year => RateUnit::Year,
    };
    Ok(LimitOverride {
        quota: limit.requests_per_unit,
        unit,
    })
}

/// The status of a request that got no decisions.
pub(super) fn refusal(refusal: &EnvoyRefusal) -> Status {
    match refusal {
        EnvoyRefusal::NotConfigured => Status::unimplemented(refusal.to_string()),
        EnvoyRefusal::UnknownDomain(unknown) => Status::not_found(unknown.to_string()),
        EnvoyRefusal::TooManyTogether(_) => Status::invalid_argument(refusal.to_string()),
        EnvoyRefusal::Refused(refused) => common::refusal(refused),
    }
}

/// Converts the decisions on all descriptors.
pub(super) fn response(decided: &EnvoyDecisions, form: HeaderForm) -> RateLimitResponse {
    let allowed = decided.allowed();
    let fields = decided
        .binding()
        .map_or_else(Vec::new, |binding| fields(binding, form));
    let raw_body = match decided.body {
        DenialBody::Text if !allowed => body(decided).into_bytes(),
        DenialBody::Text | DenialBody::None => Vec::new(),
    };
    RateLimitResponse {
        overall_code: code(allowed).into(),
        statuses: decided.decisions.iter().map(status).collect(),
        response_headers_to_add: fields,
        raw_body,
    }
}

fn code(allowed: bool) -> Code {
    if allowed { Code::Ok } else { Code::OverLimit }
}

fn status(decided: &DescriptorDecision) -> DescriptorStatus {
    let decision = &decided.decision;
    let is_unlimited = decided
        .plan
        .as_ref()
        .is_none_or(|plan| plan.rule == Rule::Unlimited)
        && !decision.denies();
    let key = decision.key_status();
    let remaining = key
        .remaining
        .unwrap_or(if is_unlimited { u64::MAX } else { 0 });
    DescriptorStatus {
        code: code(!decision.denies()).into(),
        current_limit: current_limit(decided),
        limit_remaining: saturating(remaining),
        duration_until_reset: key.reset_after_us.map(common::duration),
    }
}

/// The limit that binds. A limit that the descriptor brought along is shown as it was sent, even one that denies everything.
fn current_limit(decided: &DescriptorDecision) -> Option<RateLimit> {
    let (name, (quota, unit)) = match (decided.limit_override, decided.decision.binding()) {
        (Some(limit), _) => (LimitOverride::NAME, (u64::from(limit.quota), limit.unit)),
        (None, Some(status)) => {
            let mut limits = decided.plan.iter().flat_map(|plan| plan.limits());
            let limit = limits.find(|limit| *limit.name() == status.name);
            let shown = match limit.and_then(Limit::calendar) {
                Some(calendar) => (status.limit, RateUnit::for_calendar(calendar.unit())),
                None => RateUnit::for_quota(status.limit, status.window_us),
            };
            (&*status.name, shown)
        }
        (None, None) => return None,
    };
    let unit = match unit {
        RateUnit::Second => Unit::Second,
        RateUnit::Minute => Unit::Minute,
        RateUnit::Hour => Unit::Hour,
        RateUnit::Day => Unit::Day,
        RateUnit::Week => Unit::Week,
        RateUnit::Month => Unit::Month,
        RateUnit::Year => Unit::Year,
    };
    Some(RateLimit {
        requests_per_unit: saturating(quota),
        unit: unit.into(),
        name: name.to_owned(),
    })
}

fn saturating(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn fields(binding: &DescriptorDecision, form: HeaderForm) -> Vec<HeaderValue> {
    let Some(plan) = &binding.plan else {
        return Vec::new();
    };
    let fields = headers(&binding.decision, plan, form).into_iter();
    fields
        .map(|(name, value)| HeaderValue {
            key: name.to_owned(),
            value,
        })
        .collect()
}

fn body(decided: &EnvoyDecisions) -> String {
    match decided
        .binding()
        .and_then(|binding| retry_after_s(&binding.decision))
    {
        Some(seconds) => format!("too many requests; try again in {seconds} s\n"),
        None => "too many requests\n".to_owned(),
    }
}
