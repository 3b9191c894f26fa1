//! Metrics of the process, under the names that all of Prometheus's client libraries use. Those that the system does not tell are left
//! out.

use crate::http::exposition::{Exposition, MetricKind};
use tollgate_store::platform::{self, ProcessFigures};

pub(super) fn write(text: &mut Exposition) {
    let ProcessFigures {
        cpu_seconds,
        resident_bytes,
        started_at_seconds,
        open_files,
    } = platform::process_figures();
    if let Some(seconds) = cpu_seconds {
        text.single(
            "process_cpu_seconds_total",
            MetricKind::Counter,
            "CPU time of the process, user and system.",
            seconds,
        );
    }
    if let Some(bytes) = resident_bytes {
        text.single(
            "process_resident_memory_bytes",
            MetricKind::Gauge,
            "Memory of the process that is resident.",
            bytes,
        );
    }
    if let Some(seconds) = started_at_seconds {
        let help = "When the process began, in seconds since 1970.";
        text.single(
            "process_start_time_seconds",
            MetricKind::Gauge,
            help,
            seconds,
        );
    }
    if let Some(open) = open_files {
        text.single(
            "process_open_fds",
            MetricKind::Gauge,
            "Open files and sockets of the process.",
            open,
        );
    }
    if let Some(most) = platform::open_files_max() {
        text.single(
            "process_max_fds",
            MetricKind::Gauge,
            "Most files and sockets that the process may have open.",
            most,
        );
    }
}
