//! File descriptors: how many this process may have open, and how they are shared out.
//!
//! Every connection takes one. On a system with a low limit, peers could take all of them. The process could then no longer
//! reach Redis or read its config. So the soft limit is raised as far as possible, and some descriptors are kept from peers.

use std::num::NonZeroUsize;

use tollgate_store::platform;

/// Kept from peers: listeners, standard streams, runtimes, config and certificate files, the trace exporter; about 40 in all.
const RESERVED: usize = 64;
/// Kept for one worker's connections to Redis: one to each master of a Cluster of this size, or to Sentinels and a server.
/// While a connection is replaced, it takes one more.
const RESERVED_PER_WORKER: usize = 32;
/// HTTP gets one part in eight of the descriptors that peers share, admin and metrics one in 32 each.
const HTTP_DIVISOR: usize = 8;
const ADMIN_DIVISOR: usize = 32;
const METRICS_DIVISOR: usize = 32;

/// Maximum number of connections that peers may have, apart from the servers' own bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionCaps {
    /// Per worker.
    pub worker: usize,
    /// On the HTTP listener.
    pub http: usize,
    /// On the admin listener.
    pub admin: usize,
    /// On the listener of metrics alone.
    pub metrics: usize,
}

/// Raises the process's soft limit of open files to its hard limit, and returns the limit now in force. If it cannot be raised,
/// the old limit stays.
pub fn raise_limit() -> usize {
    // `None` means no limit.
    platform::raise_open_files_max().map_or(usize::MAX, |most| {
        usize::try_from(most).unwrap_or(usize::MAX)
    })
}

/// Shares out `limit` descriptors over the workers and the other listeners. Each cap is at least 1, since a server without any
/// connection is useless.
pub fn connection_caps(limit: usize, workers: NonZeroUsize) -> ConnectionCaps {
    // When the limit is too low for both, peers get half.
    let kept = (RESERVED + RESERVED_PER_WORKER * workers.get()).min(limit / 2);
    let shared = limit - kept;
    let http = shared / HTTP_DIVISOR;
    let admin = shared / ADMIN_DIVISOR;
    let metrics = shared / METRICS_DIVISOR;
    let worker = (shared - http - admin - metrics) / workers.get();
    ConnectionCaps {
        worker: worker.max(1),
        http: http.max(1),
        admin: admin.max(1),
        metrics: metrics.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps_for(limit: usize, workers: usize) -> ConnectionCaps {
        connection_caps(limit, NonZeroUsize::new(workers).unwrap())
    }

    #[test]
    fn caps_of_peers_leave_the_descriptors_that_the_process_needs() {
        for workers in [1, 2, 8, 64, 1024] {
            for limit in [1024, 4096, 65_536, 1 << 20] {
                let ConnectionCaps {
                    worker,
                    http,
                    admin,
                    metrics,
                } = caps_for(limit, workers);
                let all = worker * workers + http + admin + metrics;
                let kept = (RESERVED + RESERVED_PER_WORKER * workers).min(limit / 2);
                assert!(
                    all + kept <= limit || worker == 1,
                    "{limit} for {workers}: {all} and {kept}"
                );
            }
        }
        assert_eq!(
            caps_for(1024, 2),
            ConnectionCaps {
                worker: 364,
                http: 112,
                admin: 28,
                metrics: 28
            }
        );
    }

    #[test]
    fn a_hopeless_limit_still_allows_a_connection() {
        assert_eq!(
            caps_for(10, 8),
            ConnectionCaps {
                worker: 1,
                http: 1,
                admin: 1,
                metrics: 1
            }
        );
        assert_eq!(
            caps_for(40, 1),
            ConnectionCaps {
                worker: 18,
                http: 2,
                admin: 1,
                metrics: 1
            }
        );
    }

    #[test]
    fn no_limit_is_no_cap() {
        assert!(caps_for(usize::MAX, 1).worker > 1 << 40);
    }
}
