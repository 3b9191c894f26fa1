//! Metrics of the process, under the names that all of Prometheus's client libraries use. They are read from `/proc`, which
//! never waits for a disk. Where it cannot be read, they are left out.

use procfs::process::{LimitValue, Process};

use crate::http::exposition::{Exposition, Kind};

pub(super) fn write(text: &mut Exposition) {
    let Ok(process) = Process::myself() else { return };
    if let Ok(stat) = process.stat() {
        let (ticks, cpu_ticks) = (procfs::ticks_per_second(), stat.utime + stat.stime);
        text.single(
            "process_cpu_seconds_total",
            Kind::Counter,
            "CPU time of the process, user and system.",
            seconds(cpu_ticks, ticks),
        );
        text.single(
            "process_resident_memory_bytes",
            Kind::Gauge,
            "Memory of the process that is resident.",
            stat.rss * procfs::page_size(),
        );
        if let Ok(boot_time) = procfs::boot_time_secs() {
            let started = stat.starttime + boot_time * ticks;
            text.single(
                "process_start_time_seconds",
                Kind::Gauge,
                "When the process began, in seconds since 1970.",
                seconds(started, ticks),
            );
        }
    }
    if let Ok(open) = process.fd_count() {
        text.single("process_open_fds", Kind::Gauge, "Open files and sockets of the process.", open);
    }
    if let Ok(LimitValue::Value(most)) = process.limits().map(|limits| limits.max_open_files.soft_limit) {
        text.single("process_max_fds", Kind::Gauge, "Most files and sockets that the process may have open.", most);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a sample is a float")]
fn seconds(ticks: u64, ticks_per_second: u64) -> f64 {
    ticks as f64 / ticks_per_second as f64
}
