//! Keeps up with the overrides that are set at runtime, by a task of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::advice_on_rights;
use crate::limiter::{Limiter, Overrides};
use tollgate_store::random::{self, jittered};
use tollgate_store::{StoreError, StoreRegistry};

/// How often the store is asked whether overrides changed, and expired ones are passed over. A change is in force everywhere in twice
/// that time.
const EVERY: Duration = Duration::from_millis(500);
/// Random part of each pause, as a fraction, so that replicas do not stay in step.
const JITTER: f64 = 0.1;
/// Begins what Redis says of a key that is not a hash.
const OF_ANOTHER_TYPE: &str = "WRONGTYPE";
/// How many times `store.deadline` a process that starts waits for the overrides, before it is ready without them.
const START_DEADLINES: u32 = 4;
/// Longest such wait. Nothing is served meanwhile, so it does not grow with the deadline. A connection over TLS and a reading take about
/// eight ways to Redis and back, which are 25 ms each.
const START_MAX: Duration = Duration::from_millis(200);

/// Reads the overrides before the first decision, and starts the task. Where the store does not answer, those of the file hold.
pub(super) async fn start(
    limiter: &Arc<Limiter<()>>,
    stores: StoreRegistry,
    deadline: Duration,
) -> Overrides {
    let overrides = Overrides::new(limiter.clone(), stores.clone());
    let time_limit = (deadline * START_DEADLINES).min(START_MAX);
    let first = async {
        stores.connected(time_limit).await;
        overrides.keep_up(time_limit).await
    };
    let read = tokio::time::timeout(time_limit, first).await;
    let read = read.unwrap_or(Err(StoreError::Deadline(time_limit)));
    if let Err(error) = &read {
        tracing::warn!(%error, "the overrides that are set at runtime are not known; those of the config hold until they are");
    }
    tokio::spawn(run(overrides.clone(), read.is_ok()));
    overrides
}

/// Says why the overrides cannot be read, and what helps.
fn warn(error: &StoreError) {
    if matches!(error, StoreError::Refused(why) if why.contains(OF_ANOTHER_TYPE)) {
        tracing::warn!(%error, "replicas cannot read overrides; the last ones hold; in Redis a key of another type has the name of their hash: delete or rename it");
    } else {
        let advice = advice_on_rights(error);
        tracing::warn!(%error, "replicas cannot read overrides; the last ones hold{advice}");
    }
}

async fn run(overrides: Overrides, mut known: bool) {
    let mut warned = false;
    loop {
        sleep(jittered(EVERY, JITTER, random::bits())).await;
        match Box::pin(overrides.keep_up_in_time()).await {
            Ok(()) => {
                if !std::mem::replace(&mut known, true) {
                    tracing::info!("the overrides that are set at runtime are known");
                }
                warned = false;
            }
            Err(error @ (StoreError::Refused(_) | StoreError::InvalidReply(_))) if !warned => {
                warned = true;
                warn(&error);
            }
            // The store itself logs that Redis is out of reach.
            Err(error) => tracing::debug!(%error, "Redis did not tell the overrides"),
        }
    }
}
