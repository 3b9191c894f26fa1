//! What the rows of a run look like: a Markdown table and a chart.

mod chart;

use crate::harness::{Row, Server, thousands};
pub use chart::chart;

/// Rows in the order they were measured.
#[derive(Default)]
pub struct Report {
    pub rows: Vec<Row>,
}

impl Report {
    /// Adds a row and prints it, so that a long run can be watched.
    pub fn add(&mut self, row: Row) {
        if self.rows.is_empty() {
            println!("{HEAD}");
        }
        self.rows.push(row);
        if let Some(row) = self.rows.last() {
            println!("{}", self.line(row));
            row.complaint
                .iter()
                .for_each(|complaint| eprintln!("{}: {complaint}", row.name));
        }
    }

    /// The cost of a row as a multiple of the echo's in the same shape; `None` when none was measured.
    pub fn ratio(&self, row: &Row) -> Option<f64> {
        let echo = self
            .rows
            .iter()
            .rfind(|echo| echo.server == Server::Echo && echo.shape == row.shape)?;
        Some(row.sum_us() / echo.sum_us())
    }

    pub fn errors(&self) -> u64 {
        self.rows.iter().map(|row| row.errors).sum()
    }

    fn line(&self, row: &Row) -> String {
        let ratio = self
            .ratio(row)
            .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let [p50, p99, p999] = row.latency_us.map(|us| thousands(us.round() as usize));
        let mib = |kib: u64| kib as f64 / 1024.0;
        format!(
            "| {} | {:.2} | {:.2} | {:.2} | {ratio} | {} | {p50} | {p99} | {p999} | {:.3} | {:.0} % | {:.1} / {:.1} | {} |",
            row.name,
            row.server_us,
            row.redis_us,
            row.sum_us(),
            thousands(row.per_second.round() as usize),
            row.script_calls,
            row.by_deny_cache * 100.0,
            mib(row.memory.now_kib),
            mib(row.memory.peak_kib),
            row.errors,
        )
    }
}

/// CPU in microseconds a decision, of the server, of Redis, of both; latency in microseconds a call.
const HEAD: &str = "\
| what | server us | Redis us | sum us | x echo | decisions/s | p50 | p99 | p99.9 | script calls | deny cache | RSS / peak MiB | errors |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|";

/// The middle of some figures; of an even number, the upper one.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
