//! File descriptors: how many this process may have open, and how they are shared out.
//!
//! Every connection takes one. Where a system's limit is low, peers could take all of them, and the process could reach
//! Redis no more, nor read its config. So the limit is raised as far as may be, and some are kept from peers.

use std::num::NonZeroUsize;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept from peers: listeners, standard streams, runtimes, config and certificates, a collector of traces; some 40 in all.
const KEPT: usize = 64;
/// Kept for the connections of one worker to Redis: one to each master of a Cluster of this size, or Sentinels and a server,
/// and one more each while it is connected to anew.
const KEPT_PER_WORKER: usize = 32;
/// What HTTP and admin may have of those that peers share, as one part in so many.
const HTTP_PART: usize = 8;
const ADMIN_PART: usize = 32;

/// Connections that peers may have, beside the servers' own bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionCaps {
    /// Of one worker.
    pub worker: usize,
    /// Of the HTTP listener.
    pub http: usize,
    /// Of the admin listener.
    pub admin: usize,
}

/// Raises this process's soft limit of open files to its hard limit, and tells the limit that holds now. Errors: none; a limit
/// that cannot be raised stays.
pub fn raise_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let holds = if setrlimit(Resource::Nofile, raised).is_ok() { raised } else { limit };
    // None: there is no limit.
    holds.current.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// Shares out `limit` descriptors over so many workers and what is served beside them. Each cap is at least 1: a server that takes
/// no connection at all would be of no use.
pub fn caps(limit: usize, workers: NonZeroUsize) -> ConnectionCaps {
    // Under a limit that is too low for both, peers have half.
    let kept = (KEPT + KEPT_PER_WORKER * workers.get()).min(limit / 2);
    let shared = limit - kept;
    let (http, admin) = (shared / HTTP_PART, shared / ADMIN_PART);
    let worker = (shared - http - admin) / workers.get();
    ConnectionCaps { worker: worker.max(1), http: http.max(1), admin: admin.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limit: usize, workers: usize) -> ConnectionCaps {
        caps(limit, NonZeroUsize::new(workers).unwrap())
    }

    #[test]
    fn what_peers_may_have_leaves_what_the_process_needs() {
        for workers in [1, 2, 8, 64, 1024] {
            for limit in [1024, 4096, 65_536, 1 << 20] {
                let ConnectionCaps { worker, http, admin } = of(limit, workers);
                let all = worker * workers + http + admin;
                let kept = (KEPT + KEPT_PER_WORKER * workers).min(limit / 2);
                assert!(all + kept <= limit || worker == 1, "{limit} for {workers}: {all} and {kept}");
            }
        }
        assert_eq!(of(1024, 2), ConnectionCaps { worker: 378, http: 112, admin: 28 });
    }

    #[test]
    fn a_hopeless_limit_still_lets_somebody_in() {
        assert_eq!(of(10, 8), ConnectionCaps { worker: 1, http: 1, admin: 1 });
        assert_eq!(of(40, 1), ConnectionCaps { worker: 18, http: 2, admin: 1 });
    }

    #[test]
    fn no_limit_is_no_cap() {
        assert!(of(usize::MAX, 1).worker > 1 << 40);
    }
}
