//! Reserves a hold that is its stream's from then on.

use tonic::Status;

use super::Tag;
use crate::grpc::holds::Stated;
use crate::grpc::service::Service;
use crate::grpc::{convert, pb};
use crate::limiter::leases::{Ask, LeaseName, NewLease};
use tollgate_core::algorithm::holds::{LeaseCall, LeaseEvent};
use tollgate_store::Store;

/// Reserves, and makes the hold the stream's.
pub(super) async fn reserve<S: Store>(
    service: &Service<S>,
    stated: Stated,
    tag: Tag,
) -> Result<(pb::ReserveResponse, Option<NewLease<Tag>>), Status> {
    let key = stated.check.key.clone();
    let id = stated.id.clone();
    let ttl = stated.ttl;
    let (reserved, mut response) = service.reserve_stated(stated, None).await?;
    let mut told_at = service.limiter.lease_time();
    let Some(expires_in_us) = reserved.expires_in_us else {
        return Ok((response, None));
    };
    let ttl_us = reserved.plan.holds.lease_us(ttl).unwrap_or(expires_in_us);
    let is_new = !reserved.decision.is_repeated;
    let ask = Ask {
        key: key.clone(),
        decided_by: reserved.plan.clone(),
        id: id.clone(),
        call: LeaseCall::Take { ttl_us, is_new },
    };
    let ends = match service.limiter.take_lease(ask).await {
        Ok(LeaseEvent::Open {
            expires_us,
            expires_in_us,
        }) => {
            if !is_new {
                response.expires_after = Some(convert::duration(expires_in_us));
            }
            told_at = service.limiter.lease_time();
            (Some(expires_us), expires_in_us)
        }
        // It is held, so it is tried again until its lease ends.
        Err(_) => (None, expires_in_us),
        // It ended meanwhile.
        Ok(LeaseEvent::Ended | LeaseEvent::Lost(_)) => {
            response.held = false;
            response.expires_after = None;
            return Ok((response, None));
        }
    };
    let name = LeaseName {
        counts_as: reserved.plan.counts_as.clone(),
        key,
        id,
    };
    let lease = NewLease {
        name,
        decided_by: reserved.plan.clone(),
        ttl_us,
        is_new,
        ends,
        told_at,
        tag,
    };
    Ok((response, Some(lease)))
}
