//! What is asked of the operating system beyond the standard library, and all that differs between systems.
//!
//! tollgate is made for Linux, and is meant to serve on other Unix systems, such as macOS, too. What those lack stands in
//! `platform/other.rs`, with what happens without it. No other module names a system, or the packages that are used here.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use other as system;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub(crate) use system::limit_unacknowledged;
pub use system::{process_figures, refuse_huge_pages};

/// The flag of `open` by which a pipe without a writer does not block.
pub(crate) const NON_BLOCKING: i32 = libc::O_NONBLOCK;

/// Figures of this process; `None` where the system does not tell them.
#[derive(Debug, Default)]
pub struct ProcessFigures {
    /// CPU time, user and system.
    pub cpu_seconds: Option<f64>,
    /// Memory that is resident.
    pub resident_bytes: Option<u64>,
    /// When the process began, in seconds since 1970.
    pub started_at_seconds: Option<f64>,
    /// Open files and sockets.
    pub open_files: Option<usize>,
}

/// Maximum number of files and sockets that this process may have open now; `None`: no limit.
pub fn open_files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises the soft limit of open files to the hard limit, or as far as the system allows, and returns the limit now in force;
/// `None`: no limit. If it cannot be raised, the old limit stays.
pub fn raise_open_files_max() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let is_raised = |most: &Option<u64>| {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: *most,
                ..limit
            },
        )
        .is_ok()
    };
    let higher = |most: &Option<u64>| {
        most.is_none_or(|most| limit.current.is_some_and(|current| most > current))
    };
    let [first, second] = [limit.maximum, system::OPEN_FILES_MAX.or(limit.maximum)];
    [first, second]
        .into_iter()
        .filter(higher)
        .find(is_raised)
        .unwrap_or(limit.current)
}
