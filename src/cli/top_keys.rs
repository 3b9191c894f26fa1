//! Starts the count of the heaviest keys, and the task that moves it on.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::config::{ShownKeys, StatusSection};
use crate::limiter::{Limiter, TopKeys, TopSettings};

/// How often the task looks whether it is time for a new slot.
const EVERY: Duration = Duration::from_secs(1);

/// Makes the limiters that are made from now on count keys, unless that is off.
pub(super) fn count(limiter: &Limiter<()>, status: &StatusSection) {
    match status.keys {
        ShownKeys::Off => {}
        ShownKeys::Hash | ShownKeys::Clear => limiter.count_keys(TopSettings { keys_max: status.top }),
    }
}

/// Starts the task for the keys of all limiters beside this one.
pub(super) fn start(limiter: &Arc<Limiter<()>>) -> TopKeys {
    let top = TopKeys::new(limiter.clone());
    if top.is_on() {
        tokio::spawn(run(top.clone()));
    }
    top
}

async fn run(top: TopKeys) {
    loop {
        sleep(EVERY).await;
        top.advance();
    }
}
