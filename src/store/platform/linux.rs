//! Linux.

use std::time::Duration;

use fred::types::config::TcpConfig;
use procfs::process::Process;

use super::ProcessFigures;

/// A hard limit is always accepted as soft limit.
pub(super) const OPEN_FILES_MAX: Option<u64> = None;

/// Where the system gives huge pages unasked, the allocator's heaps would take 2 MiB for a few bytes. An old kernel refuses this,
/// which costs memory only.
pub fn refuse_huge_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Ends a connection to Redis whose bytes stay unacknowledged for so long. Otherwise the kernel would wait about a quarter of an hour
/// for a host that has vanished.
pub(crate) fn limit_unacknowledged(tcp: &mut TcpConfig, longest: Duration) {
    tcp.user_timeout = Some(longest);
}

/// Read from `/proc`, which never waits for a disk.
#[expect(clippy::cast_precision_loss, reason = "a sample is a float")]
pub fn process_figures() -> ProcessFigures {
    let Ok(process) = Process::myself() else {
        return ProcessFigures::default();
    };
    let stat = process.stat().ok();
    let boot_time = procfs::boot_time_secs().ok();
    let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
    ProcessFigures {
        cpu_seconds: stat.as_ref().map(|stat| seconds(stat.utime + stat.stime)),
        resident_bytes: stat.as_ref().map(|stat| stat.rss * procfs::page_size()),
        started_at_seconds: stat
            .zip(boot_time)
            .map(|(stat, boot_time)| boot_time as f64 + seconds(stat.starttime)),
        open_files: process.fd_count().ok(),
    }
}
