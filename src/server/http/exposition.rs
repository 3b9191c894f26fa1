//! Writes the Prometheus text format, version 0.0.4. Knows nothing of what is measured.
//!
//! The libraries for it (`prometheus`, `prometheus-client`, `metrics`) also keep the counters, each shared by all threads
//! or found by its labels on every use. Ours are kept by worker and plan, so only the writing is left.

use std::fmt::{Display, Write as _};

/// The type of a metric family.
#[derive(Clone, Copy)]
pub(super) enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
}

/// The text, written family by family.
#[derive(Default)]
pub(super) struct Exposition(String);

impl Exposition {
    /// Begins a family; its samples must follow. `help` is one line of plain text.
    pub(super) fn family(&mut self, name: &str, kind: MetricKind, help: &str) {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes one sample.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{open}{label}=\"");
            self.0.extend(text.chars().flat_map(escaped));
            self.0.push('"');
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }

    /// Writes a family of one sample.
    pub(super) fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Returns the text.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

fn escaped(letter: char) -> impl Iterator<Item = char> {
    let (first, second) = match letter {
        '\\' => ('\\', Some('\\')),
        '"' => ('\\', Some('"')),
        '\n' => ('\\', Some('n')),
        other => (other, None),
    };
    std::iter::once(first).chain(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut text = Exposition::default();
        text.family("a_total", MetricKind::Counter, "Of a.");
        text.sample("a_total", &[("x", "1"), ("y", "\"\\\n{é}")], 3);
        text.single("b", MetricKind::Gauge, "Of b.", 0.25);
        let expected = "# HELP a_total Of a.\n# TYPE a_total counter\na_total{x=\"1\",y=\"\\\"\\\\\\n{é}\"} 3\n\
                        # HELP b Of b.\n# TYPE b gauge\nb 0.25\n";
        assert_eq!(text.finish(), expected);
    }
}
