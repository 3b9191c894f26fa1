//! `tollgate top`: asks the admin service for the heaviest keys.

use std::time::Duration;

use serde_json::json;

use super::admin::{AdminToken, signed};
use super::{AskedService, ClientConnection, report};
use crate::grpc::pb;

/// Which keys to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopQuestion {
    /// The plan; `None`: all plans.
    pub plan: Option<String>,
    /// Whether keys are ranked by cost, and not by denials.
    pub by_cost: bool,
    /// Maximum number of keys to list.
    pub limit: u32,
}

/// The heaviest keys of the last minute.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopTable {
    /// The heaviest first.
    pub rows: Vec<TopRow>,
    /// Maximum count of a key that is not listed.
    pub unlisted_max: u64,
    /// Denials or units of all keys.
    pub total: u64,
    /// How far the counts go back.
    pub window: Duration,
    /// Replicas that were counted.
    pub replicas: u32,
    /// Replicas that were not.
    pub replicas_missing: u32,
    /// Whether Redis did not give the counts of other replicas.
    pub this_replica_alone: bool,
    /// Whether the store decides, in one sentence. Empty where the server is older than this client.
    pub store_state: String,
    /// Whether the store decides every request.
    pub store_decides: bool,
}

/// One key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopRow {
    /// The key in clear, if the server shows it.
    pub key: Option<String>,
    /// The key's hash.
    pub key_hash: String,
    /// The plan that counts the key.
    pub plan: String,
    /// Denials or units; never too low.
    pub count: u64,
    /// Maximum by which the count is too high.
    pub error: u64,
}

impl ClientConnection {
    /// The heaviest keys. Errors: a sentence.
    pub async fn top(
        &self,
        question: &TopQuestion,
        token: Option<&AdminToken>,
    ) -> Result<TopTable, String> {
        let TopQuestion {
            plan,
            by_cost,
            limit,
        } = question.clone();
        let by = if by_cost {
            pb::TopBy::Cost
        } else {
            pb::TopBy::Denials
        };
        let request = pb::TopRequest {
            plan: plan.unwrap_or_default(),
            by: by.into(),
            limit,
        };
        let answer = self
            .answer(
                AskedService::Admin,
                self.admin().top(signed(request, token)),
            )
            .await?;
        Ok(TopTable::from_answer(answer))
    }
}

impl TopTable {
    fn from_answer(answer: pb::TopResponse) -> Self {
        let row = |key: pb::TopKey| TopRow {
            key: Some(key.key).filter(|key| !key.is_empty()),
            key_hash: key.key_hash,
            plan: key.plan,
            count: key.count,
            error: key.error,
        };
        Self {
            rows: answer.keys.into_iter().map(row).collect(),
            unlisted_max: answer.unlisted_max,
            total: answer.total,
            window: Duration::from_micros(answer.window.map_or(0, report::us)),
            replicas: answer.replicas,
            replicas_missing: answer.replicas_missing,
            this_replica_alone: answer.this_replica_alone,
            store_state: answer.store_state,
            store_decides: answer.store_decides,
        }
    }

    /// The table as one JSON object, in the words of the proto file.
    pub fn json(&self) -> String {
        let row = |row: &TopRow| json!({ "key": row.key, "key_hash": row.key_hash, "plan": row.plan, "count": row.count, "error": row.error });
        let object = json!({
            "keys": self.rows.iter().map(row).collect::<Vec<_>>(),
            "unlisted_max": self.unlisted_max,
            "total": self.total,
            "window_us": u64::try_from(self.window.as_micros()).unwrap_or(u64::MAX),
            "replicas": self.replicas,
            "replicas_missing": self.replicas_missing,
            "this_replica_alone": self.this_replica_alone,
            "store_state": self.store_state,
            "store_decides": self.store_decides,
        });
        object.to_string()
    }
}
