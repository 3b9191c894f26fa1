//! Reads INFO of a server on a new connection. It warns if the server may evict counters, or if it is a different process
//! than before.
//!
//! A different process has lost the counters that were not saved or replicated. Decisions neither wait for INFO nor depend on it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use fred::error::Error;

use super::Connection;
use super::manager::CONNECT_MAX;
use super::outage_log::is_repeated;
use crate::clock::monotonic;

/// Holds what the last server of one connection manager reported.
#[derive(Default)]
pub(in crate::redis) struct ServerInfo {
    last: Mutex<Option<Seen>>,
    /// Whether it was logged that the user may not ask.
    warned: AtomicBool,
}

/// What INFO says of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// The server's `run_id`, which is new at each start.
    run: String,
    /// Its eviction policy (`maxmemory-policy`); `None` when it never evicts keys or has no memory limit.
    evicts: Option<String>,
}

impl ServerInfo {
    /// Reads the server's INFO and logs warnings for changes. Returns whether it is another process than the one before. Returns
    /// false if the server does not answer, or does not allow this user to ask.
    pub(in crate::redis) async fn check(&self, connection: &Connection) -> bool {
        let info = match connection.info(monotonic() + CONNECT_MAX).await {
            Ok(info) => info,
            Err(error) => {
                self.warn_if_not_allowed(connection, &error);
                return false;
            }
        };
        let Some(seen) = parse(&info) else {
            return false;
        };
        let before = self
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(seen.clone());
        let server = &connection.peer;
        let is_known = |before: &Seen| before.evicts == seen.evicts;
        if !before.as_ref().is_some_and(is_known) {
            warn_if_it_evicts(server, seen.evicts.as_deref());
        }
        let replaced = before.is_some_and(|before| before.run != seen.run);
        if replaced {
            warn_of_another_process(server);
        }
        replaced
    }

    /// Warns once if the user may not ask for INFO.
    fn warn_if_not_allowed(&self, connection: &Connection, error: &Error) {
        let server = &connection.peer;
        if !error.details().starts_with("NOPERM") || self.warned.swap(true, Ordering::Relaxed) {
            return;
        }
        if !is_repeated(format!("{server}: INFO")) {
            tracing::warn!(%server, "the Redis user may not call INFO, so two things go unnoticed: a Redis that may drop counters when it is full, and another Redis process than before (tollgate_store_replaced_total); give it +info");
        }
    }
}

fn warn_if_it_evicts(server: &impl fmt::Display, policy: Option<&str>) {
    if let Some(policy) = policy {
        tracing::warn!(%server, policy, "this Redis may drop counters when it is full, and a dropped one is a fresh quota; set maxmemory-policy noeviction");
    }
}

/// Logs that another process has the keys of the one before.
pub(super) fn warn_of_another_process(server: &impl fmt::Display) {
    tracing::warn!(%server, "another Redis process than before: what the other had not saved or replicated is forgotten");
}

/// Reads the answer to INFO.
fn parse(info: &str) -> Option<Seen> {
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
    let evicts = field("maxmemory_policy").filter(|policy| bounded && *policy != "noeviction");
    Some(Seen {
        run: field("run_id")?.to_owned(),
        evicts: evicts.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_evicts_when_it_has_a_bound_and_a_policy_to() {
        let info = |bound: &str, policy: &str| {
            parse(&format!("# Server\r\nrun_id:abc\r\n\r\n# Memory\r\nmaxmemory:{bound}\r\nmaxmemory_policy:{policy}\r\n"))
                .unwrap()
                .evicts
        };
        assert_eq!(info("100", "allkeys-lru"), Some("allkeys-lru".to_owned()));
        assert_eq!(
            info("100", "volatile-ttl"),
            Some("volatile-ttl".to_owned()),
            "each of our keys has an expiry"
        );
        assert_eq!(
            (info("0", "allkeys-lru"), info("100", "noeviction")),
            (None, None)
        );
        assert_eq!(parse("maxmemory:1\r\n"), None);
    }
}
