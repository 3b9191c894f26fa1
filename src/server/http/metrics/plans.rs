//! Metrics of single plans beside their decisions: what their limits are, how near to them requests come, and what a candidate
//! would do.

use crate::http::exposition::{Exposition, MetricKind};
use crate::limiter::{HOLD_EVENTS, HOLD_UNITS, HoldFigures, PlanCounter, Totals};
use tollgate_core::decision::Outcome;
use tollgate_core::plan::{Limit, Plan};

/// With more limits than this in all plans, no limit is written. Two samples for each are 200 KiB then.
const LIMITS_MAX: usize = 1_000;

pub(super) fn write(text: &mut Exposition, totals: &Totals) {
    counters(text, totals);
    candidates(text, totals);
    blocks(text, totals);
    holds(text, totals);
    write_limit_gauges(text, totals);
}

/// Writes also those that are 0, so that the first block is seen as an increase.
fn blocks(text: &mut Exposition, totals: &Totals) {
    const NAME: &str = "tollgate_blocks_total";
    let plans = || totals.snapshot().plans().iter();
    let blocking = |plan: &'_ Plan| -> usize {
        let limits = plan.limits().iter();
        limits.filter(|limit| limit.block_us() > 0).count()
    };
    text.family(
        NAME,
        MetricKind::Counter,
        "Blocks that a denied request began, by plan and limit.",
    );
    if plans().map(|plan| blocking(plan)).sum::<usize>() > LIMITS_MAX {
        return;
    }
    for plan in plans() {
        let limits = plan.limits().iter().filter(|limit| limit.block_us() > 0);
        for limit in limits {
            let begun = totals.blocks(&plan.name, limit.name());
            text.sample(NAME, &labels(plan, limit), begun);
        }
    }
}

/// Only of plans whose holds were used, since most have none.
fn holds(text: &mut Exposition, totals: &Totals) {
    const EVENTS: &str = "tollgate_holds_total";
    const UNITS: &str = "tollgate_hold_units_total";
    let used = || {
        let plans = totals.snapshot().plans().iter();
        let figures = plans.map(|plan| (plan, totals.holds(&plan.name)));
        figures.filter(|(_, figures)| *figures != HoldFigures::default())
    };
    let help = "What became of holds, by plan and event.";
    text.family(EVENTS, MetricKind::Counter, help);
    for (plan, figures) in used() {
        for (event, count) in HOLD_EVENTS.iter().zip(figures.events) {
            text.sample(EVENTS, &[("plan", &plan.name), ("event", event)], count);
        }
    }
    let help = "Units that holds gave back, that settles charged beyond them, and that records charged, by plan.";
    text.family(UNITS, MetricKind::Counter, help);
    for (plan, figures) in used() {
        for (kind, units) in HOLD_UNITS.iter().zip(figures.units) {
            text.sample(UNITS, &[("plan", &plan.name), ("kind", kind)], units);
        }
    }
    hold_streams(text, totals);
}

fn hold_streams(text: &mut Exposition, totals: &Totals) {
    let [streams, held] = totals.hold_streams;
    let help = "Streams of holds that are open now.";
    text.single("tollgate_hold_streams", MetricKind::Gauge, help, streams);
    let help = "Holds that are renewed for open streams.";
    text.single("tollgate_stream_holds", MetricKind::Gauge, help, held);
}

/// Of plans that have limits.
fn counters(text: &mut Exposition, totals: &Totals) {
    for counter in PlanCounter::ALL {
        let (name, help) = counter.metric();
        text.family(name, MetricKind::Counter, help);
        let plans = totals.snapshot().plans().iter().enumerate();
        for (plan_index, plan) in plans.filter(|(_, plan)| !plan.limits().is_empty()) {
            let count = totals.count_of_plan(plan_index, counter);
            text.sample(name, &[("plan", &plan.name)], count);
        }
    }
}

/// Writes all four combinations, so that the first one is seen as an increase.
fn candidates(text: &mut Exposition, totals: &Totals) {
    const NAME: &str = "tollgate_candidate_decisions_total";
    text.family(
        NAME,
        MetricKind::Counter,
        "Requests that a plan and its candidate decided, by the outcome of each; the candidate's is not enforced.",
    );
    for (plan_index, plan) in totals.snapshot().plans().iter().enumerate() {
        let Some(candidate) = &plan.candidate else {
            continue;
        };
        for (allowed, by_candidate) in [(true, true), (true, false), (false, true), (false, false)]
        {
            let plans = [("plan", &*plan.name), ("candidate", &*candidate.name)];
            let outcomes = [
                ("outcome", outcome(allowed)),
                ("candidate_outcome", outcome(by_candidate)),
            ];
            let labels = [plans, outcomes].concat();
            text.sample(
                NAME,
                &labels,
                totals.candidate_decisions(plan_index, allowed, by_candidate),
            );
        }
    }
}

fn outcome(allowed: bool) -> &'static str {
    if allowed {
        Outcome::Allowed.as_str()
    } else {
        Outcome::Denied.as_str()
    }
}

/// Silent if the plans have more than [`LIMITS_MAX`] limits together.
fn write_limit_gauges(text: &mut Exposition, totals: &Totals) {
    let plans = || totals.snapshot().plans().iter();
    if plans().map(|plan| plan.limits().len()).sum::<usize>() > LIMITS_MAX {
        return;
    }
    let limits = || plans().flat_map(|plan| plan.limits().iter().map(move |limit| (plan, limit)));
    let name = "tollgate_plan_limit_quota";
    let help = "Units that a limit of a plan allows per window.";
    text.family(name, MetricKind::Gauge, help);
    for (plan, limit) in limits() {
        text.sample(name, &labels(plan, limit), limit.quota());
    }
    let name = "tollgate_plan_limit_window_seconds";
    let help = "Length of the window of a limit of a plan. Of calendar windows, the usual length: 1, 7 or 30 days.";
    text.family(name, MetricKind::Gauge, help);
    for (plan, limit) in limits() {
        let window = super::seconds(usual_window_us(limit) * 1_000);
        text.sample(name, &labels(plan, limit), window);
    }
}

fn usual_window_us(limit: &Limit) -> u64 {
    limit
        .calendar()
        .map_or(limit.window_us(), |calendar| calendar.unit().usual_us())
}

fn labels<'a>(plan: &'a Plan, limit: &'a Limit) -> [(&'static str, &'a str); 2] {
    [("plan", &plan.name), ("limit", limit.name())]
}
