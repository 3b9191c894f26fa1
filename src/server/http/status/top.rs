//! The heaviest keys, as figures of the page.

use serde_json::{Value, json};

use super::KeyDisplay;
use crate::limiter::{TopBy, TopKey, TopKeys, TopQuery};
use tollgate_core::visible::visible;

/// Keys of each list.
const KEYS_MAX: usize = 20;

/// The keys that were denied most and those that used most; `null` when keys are not counted.
pub(super) async fn figures(top: &TopKeys, keys: KeyDisplay) -> Value {
    let query = |by| TopQuery {
        plan: None,
        by,
        limit: KEYS_MAX,
    };
    // The question names no plan, so the one error is that keys are not counted.
    let (Ok(denials), Ok(cost)) = (
        top.top(&query(TopBy::Denials)).await,
        top.top(&query(TopBy::Cost)).await,
    ) else {
        return Value::Null;
    };
    json!({
        "window_ms": u64::try_from(denials.window.as_millis()).unwrap_or(u64::MAX),
        "replicas": denials.replicas,
        "missing": denials.replicas_missing,
        "alone": denials.this_replica_alone,
        "denials": list(denials.keys, keys),
        "cost": list(cost.keys, keys),
    })
}

fn list(found: Vec<TopKey>, keys: KeyDisplay) -> Vec<Value> {
    let clear = |key: &TopKey| {
        key.key
            .as_deref()
            .filter(|_| keys == KeyDisplay::Clear)
            .map(visible)
    };
    let shown = |key: &TopKey| {
        json!({
            "hash": key.hash.to_string(), "key": clear(key), "plan": &*key.plan, "count": key.count, "error": key.error,
        })
    };
    found.iter().map(shown).collect()
}
