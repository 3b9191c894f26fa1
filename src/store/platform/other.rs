//! Other Unix systems, such as macOS: they lack what Linux offers here, or offer it to unsafe code alone.

use std::time::Duration;

use fred::types::config::TcpConfig;

use super::ProcessFigures;

/// macOS refuses a soft limit above its own, whatever the hard limit is. This many are always accepted (`OPEN_MAX`).
pub(super) const OPEN_FILES_MAX: Option<u64> = Some(10_240);

/// They give no huge pages unasked.
pub fn refuse_huge_pages() {}

/// They wait for minutes for a host that has vanished. Decisions do not: each has its deadline, and the connection manager replaces
/// a connection that is silent.
pub(crate) fn limit_unacknowledged(_tcp: &mut TcpConfig, _longest: Duration) {}

/// None are told.
pub fn process_figures() -> ProcessFigures {
    ProcessFigures::default()
}
