//! Starts the count of the heaviest keys, and the task that moves it on and publishes it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::advice_on_rights;
use crate::config::{ShownKeys, StatusSection};
use crate::limiter::{Limiter, TopKeys, TopSettings, TopStores};
use tollgate_store::random::{self, jittered};
use tollgate_store::{StoreError, StoreRegistry};

/// How often counts are published, and about how often replicas look whether it is time for a new slot.
const EVERY: Duration = Duration::from_secs(1);
/// Random part of each pause, as a fraction, so that replicas do not stay in step.
const JITTER: f64 = 0.1;

/// Makes the limiters that are made from now on count keys, unless that is off.
pub(super) fn count(limiter: &Limiter<()>, status: &StatusSection) {
    match status.keys {
        ShownKeys::Off => {}
        shown => limiter.count_keys(TopSettings {
            keys_max: status.top,
            in_clear: shown == ShownKeys::Clear,
        }),
    }
}

/// Starts the task for the keys of all limiters beside this one. Lists of other replicas are read by `read`.
pub(super) fn start(
    limiter: &Arc<Limiter<()>>,
    stores: &StoreRegistry,
    read: StoreRegistry,
) -> TopKeys {
    let publish = stores.clone();
    let top = TopKeys::new(limiter.clone(), TopStores { publish, read });
    if top.is_on() {
        tokio::spawn(run(top.clone()));
    }
    top
}

async fn run(top: TopKeys) {
    let mut warned = false;
    loop {
        sleep(jittered(EVERY, JITTER, random::bits())).await;
        match top.advance().await {
            Ok(()) => warned = false,
            Err(error @ (StoreError::Refused(_) | StoreError::InvalidReply(_))) if !warned => {
                warned = true;
                let advice = advice_on_rights(&error);
                tracing::warn!(%error, "replicas cannot tell each other their heaviest keys{advice}");
            }
            // The store itself logs that Redis is out of reach.
            Err(error) => tracing::debug!(%error, "Redis did not take the list of heaviest keys"),
        }
    }
}
