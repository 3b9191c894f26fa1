//! Metrics of overrides. No key, prefix or reason is a label.

use std::time::Instant;

use crate::http::exposition::{Exposition, MetricKind};
use crate::limiter::Totals;
use tollgate_core::plan::OverrideSource;
use tollgate_store::clock::monotonic;

const KINDS: [&str; 2] = ["exact", "prefix"];

pub(super) fn write(text: &mut Exposition, totals: &Totals) {
    const NUMBER: &str = "tollgate_overrides";
    let figures = &totals.overrides;
    let help = "Overrides that are not expired: of keys (exact) and of prefixes, by who set them.";
    text.family(NUMBER, MetricKind::Gauge, help);
    for (source, counts) in OverrideSource::ALL.iter().zip(figures.counts) {
        for (kind, count) in KINDS.iter().zip(counts) {
            let labels = [("source", source.as_str()), ("kind", kind)];
            text.sample(NUMBER, &labels, count);
        }
    }
    text.single(
        "tollgate_overrides_without_effect",
        MetricKind::Gauge,
        "Of these, overrides whose plan or limit is not in the config, or that cannot be read.",
        figures.without_effect,
    );
    text.single(
        "tollgate_overrides_version",
        MetricKind::Gauge,
        "The version of the overrides that the admin service has set, equal on replicas that decide by the same ones.",
        figures.version,
    );
    write_age(text, figures.confirmed_at);
}

fn write_age(text: &mut Exposition, confirmed_at: Option<Instant>) {
    let age = confirmed_at.map_or(f64::INFINITY, |at| {
        monotonic().saturating_duration_since(at).as_secs_f64()
    });
    let shown = if age.is_finite() {
        age.to_string()
    } else {
        "+Inf".to_owned()
    };
    text.single(
        "tollgate_overrides_age_seconds",
        MetricKind::Gauge,
        "Time since the store confirmed that version; +Inf before it did.",
        shown,
    );
}
