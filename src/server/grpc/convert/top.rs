//! Converts questions for the heaviest keys, and the answers.

use tonic::Status;

use crate::grpc::convert::duration;
use crate::grpc::pb;
use crate::limiter::{TopAnswer, TopBy, TopError, TopKey, TopQuery};
use tollgate_store::StoreState;

/// Keys that are listed unless the caller says how many.
const LIMIT_DEFAULT: usize = 20;
/// Maximum number of keys that are listed. Their answer takes 40 kB, or 300 kB with the longest keys in clear.
const LIMIT_MAX: usize = 500;

/// Converts a question. Errors: INVALID_ARGUMENT for a limit or an order that there is not.
pub(in crate::grpc) fn top_query(request: pb::TopRequest) -> Result<TopQuery, Status> {
    let by = match pb::TopBy::try_from(request.by) {
        Ok(pb::TopBy::Unspecified | pb::TopBy::Denials) => TopBy::Denials,
        Ok(pb::TopBy::Cost) => TopBy::Cost,
        Err(_) => {
            return Err(Status::invalid_argument(
                "by is TOP_BY_DENIALS or TOP_BY_COST",
            ));
        }
    };
    let limit = match usize::try_from(request.limit) {
        Ok(0) => LIMIT_DEFAULT,
        Ok(limit) if limit <= LIMIT_MAX => limit,
        _ => {
            return Err(Status::invalid_argument(format!(
                "limit is {}; it is 1 to {LIMIT_MAX}",
                request.limit
            )));
        }
    };
    Ok(TopQuery {
        plan: Some(request.plan).filter(|plan| !plan.is_empty()),
        by,
        limit,
    })
}

/// Converts an answer, and adds the state of the store.
pub(in crate::grpc) fn top(answer: TopAnswer, store: &StoreState) -> pb::TopResponse {
    let TopAnswer {
        keys,
        unlisted_max,
        total,
        window,
        replicas,
        replicas_missing,
        this_replica_alone,
    } = answer;
    let key = |TopKey {
                   key,
                   hash,
                   plan,
                   count,
                   error,
               }: TopKey| pb::TopKey {
        key: key.unwrap_or_default(),
        key_hash: hash.to_string(),
        plan: plan.to_string(),
        count,
        error,
    };
    pb::TopResponse {
        keys: keys.into_iter().map(key).collect(),
        unlisted_max,
        total,
        window: Some(duration(
            u64::try_from(window.as_micros()).unwrap_or(u64::MAX),
        )),
        replicas: u32::try_from(replicas).unwrap_or(u32::MAX),
        this_replica_alone,
        replicas_missing: u32::try_from(replicas_missing).unwrap_or(u32::MAX),
        store_state: store.to_string(),
        store_decides: store.decides(),
    }
}

/// Converts the reason why there is no answer.
pub(in crate::grpc) fn no_top(error: &TopError) -> Status {
    match error {
        TopError::Off => Status::failed_precondition(error.to_string()),
        TopError::UnknownPlan(unknown) => Status::not_found(unknown.to_string()),
    }
}
