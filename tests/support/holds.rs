//! Calls about holds, as tests of the maths and of both stores make them.

use std::sync::Arc;

use tollgate::algorithm::holds::{HoldCall, IfUnknown};
use tollgate::key::Key;
use tollgate::plan::Plan;
use tollgate::store::HoldCheck;

pub fn ask(plan: &Arc<Plan>, key: &str, (id, call): (&str, HoldCall)) -> HoldCheck {
    HoldCheck {
        key: Key::new(key).unwrap(),
        plan: plan.clone(),
        id: id.into(),
        call,
    }
}

pub fn reserve(cost: u64, seconds: u64) -> HoldCall {
    HoldCall::Reserve {
        cost,
        ttl_us: seconds * 1_000_000,
    }
}

pub fn settle(actual: u64) -> HoldCall {
    HoldCall::Settle {
        actual: Some(actual),
        if_unknown: IfUnknown::Charge,
    }
}
