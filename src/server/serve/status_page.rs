//! What the status page of a server is made of.

use std::sync::Arc;

use super::stores::StoreLimiter;
use crate::config::{Config, ShownKeys};
use crate::grpc::TokenFile;
use crate::http::{ConfigChanges, ConfigOutcome, ExplainKey, StatusSources};
use crate::limiter::{Limiter, TopKeys};
use tollgate_store::clock::{Clock, SystemClock};

/// Whether the page is asked for, and a listener is there to serve it.
pub(super) fn is_served(config: &Config) -> bool {
    config.status.page && config.listen.http.is_some()
}

/// The sources of the page, unless it is off, and the changes of the config that they tell, which begin with the start.
/// `operators` explains keys.
pub(super) fn sources(
    config: &Config,
    limiter: &Arc<Limiter<()>>,
    operators: Option<StoreLimiter>,
    (token, top): (Option<TokenFile>, TopKeys),
) -> (Option<StatusSources>, ConfigChanges) {
    let changes = ConfigChanges::default();
    let snapshot = limiter.snapshot();
    let text = format!(
        "{} plans; config {}",
        snapshot.plans().len(),
        snapshot.config_hash()
    );
    changes.record(SystemClock.now_us(), ConfigOutcome::Started, &text);
    let sources = operators
        .filter(|_| is_served(config))
        .map(|operators| StatusSources {
            store: config.store.url.to_string(),
            explain: ExplainKey::new(operators),
            token: token.filter(|_| config.status.keys == ShownKeys::Clear),
            top,
            config_changes: changes.clone(),
        });
    (sources, changes)
}
