//! What a server says of itself to a new connection: whether it may drop counters, and whether it is another process than
//! before, which has forgotten whatever was not saved or replicated. Neither keeps a decision waiting, and neither fails one.

use std::sync::{Mutex, PoisonError};

use super::connection::Connection;
use super::keeper::CONNECT_MAX;
use crate::clock::monotonic;

/// What was seen of one keeper's servers.
#[derive(Default)]
pub(super) struct Looks {
    last: Mutex<Option<Seen>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// A new one for each start of a server.
    run: String,
    /// What it does when it is full, if it ever is; `None` when it keeps everything or has no bound.
    evicts: Option<String>,
}

impl Looks {
    /// Looks at the server and warns of what is new; whether it is another process than the one before. A server that does
    /// not tell, or does not let this user ask, is none.
    pub(super) async fn at(&self, connection: &Connection) -> bool {
        let Ok(told) = connection.info(monotonic() + CONNECT_MAX).await else { return false };
        let Some(seen) = parse(&told) else { return false };
        let before = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(seen.clone());
        let (server, evicts) = (&connection.peer, seen.evicts.as_deref());
        if let Some(policy) = evicts.filter(|_| before.as_ref().is_none_or(|before| before.evicts != seen.evicts)) {
            tracing::warn!(%server, policy, "this Redis may drop counters when it is full, and a dropped one is a fresh quota; set maxmemory-policy noeviction");
        }
        let replaced = before.is_some_and(|before| before.run != seen.run);
        if replaced {
            tracing::warn!(%server, "another Redis process than before: what the other had not saved or replicated is forgotten");
        }
        replaced
    }
}

/// Reads the answer to INFO.
fn parse(told: &str) -> Option<Seen> {
    let field = |name: &str| told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
    let evicts = field("maxmemory_policy").filter(|policy| bounded && *policy != "noeviction");
    Some(Seen { run: field("run_id")?.to_owned(), evicts: evicts.map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_evicts_when_it_has_a_bound_and_a_policy_to() {
        let told = |bound: &str, policy: &str| {
            parse(&format!("# Server\r\nrun_id:abc\r\n\r\n# Memory\r\nmaxmemory:{bound}\r\nmaxmemory_policy:{policy}\r\n"))
                .unwrap()
                .evicts
        };
        assert_eq!(told("100", "allkeys-lru"), Some("allkeys-lru".to_owned()));
        assert_eq!(told("100", "volatile-ttl"), Some("volatile-ttl".to_owned()), "each of our keys has an expiry");
        assert_eq!((told("0", "allkeys-lru"), told("100", "noeviction")), (None, None));
        assert_eq!(parse("maxmemory:1\r\n"), None);
    }
}
