//! What a replay found, added up over all keys.

mod chart;
mod hours;
mod json;
mod limits;
mod lines;
mod page;
mod text;

use std::ops::Range;
use std::time::Duration;

use super::replay::{
    HOUR_US, Hour, Hours, NEED_UNKNOWN, PlanReplay, Replay, RequestSpacing, Variant, WORST_MAX,
};
use tollgate_core::plan::{Algorithm, Limit, Plan, Rule};

pub use chart::svg;
pub use json::json;
pub use page::html;
pub use text::{remarks, text};

/// Of a thousand keys, how many the suggested quota may deny something: 0.1 %.
pub const KEYS_DENIED_PER_MILLE: usize = 1;

/// Widest name of a config in a heading.
const CONFIG_WIDTH_MAX: usize = 18;

/// What was replayed, in which variants.
#[derive(Debug, Clone, Default)]
pub struct LogSummary {
    /// The log's name.
    pub name: String,
    /// All its lines but empty ones, and the first of a CSV.
    pub lines: u64,
    /// Lines that are not requests.
    pub unreadable: u64,
    /// The first of these: line number and reason.
    pub first_unreadable: Vec<(u64, String)>,
    /// Lines whose key is empty.
    pub without_key: u64,
    /// Lines whose cost is 0.
    pub without_cost: u64,
    /// Lines whose plan is not in the config.
    pub without_plan: u64,
    /// The first such plan.
    pub first_without_plan: Option<String>,
    /// Lines that came so late that they were moved in time.
    pub late: u64,
    /// The earliest and the latest time, in microseconds since 1970.
    pub times_us: Option<(u64, u64)>,
    /// Maximum number of keys that were held.
    pub keys_max: usize,
    /// What the key of a request is, as on the command line.
    pub key: String,
    /// When it was replayed, in microseconds since 1970.
    pub made_us: u64,
}

/// One column of the report.
#[derive(Debug, Clone)]
pub struct VariantName {
    /// The config's name.
    pub config: String,
    /// How requests with the same time, a whole second, were spaced. `None` if the times of the log are finer.
    pub spacing: Option<RequestSpacing>,
}

/// All that is reported.
#[derive(Debug)]
pub struct Report {
    /// What was read.
    pub log: LogSummary,
    /// The columns; the lists of counts below have a number for each.
    pub variants: Vec<VariantName>,
    /// Requests that were replayed.
    pub requests: u64,
    /// Requests of keys that were one too many to hold.
    pub beyond: u64,
    /// Of the requests, those that were denied.
    pub denied: Vec<u64>,
    /// Keys, counted for each plan.
    pub keys: u64,
    /// Keys of which at least one request was denied.
    pub keys_denied: Vec<u64>,
    /// Requests that an override of the config decided.
    pub overridden: Vec<u64>,
    /// The plans that decided requests.
    pub plans: Vec<PlanReport>,
    /// The keys with the most denials.
    pub worst: Vec<WorstKey>,
    /// Requests by hour, or by day when there are too many hours.
    pub hours: Vec<Hour>,
    /// Length of these rows.
    pub hour_us: u64,
}

/// One plan of the report.
#[derive(Debug)]
pub struct PlanReport {
    /// Its name.
    pub name: String,
    /// Keys that it decided for.
    pub keys: u64,
    /// Its limits in each variant.
    pub variants: Vec<Vec<LimitReport>>,
    /// What it does in each variant: `limited`, `unlimited` or `blocked`.
    pub rules: Vec<&'static str>,
}

/// One limit in one variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitReport {
    /// The limit of the config. The suggested quota of a `token_bucket` whose burst is not its quota is at this burst.
    pub limit: Limit,
    /// Requests that it denied.
    pub denied: u64,
    /// The smallest quota at which this limit alone would have denied requests of at most 0.1 % of the keys. `None`: larger than a
    /// limit of this kind can be, or the burst is too small at any quota.
    pub smallest: Option<u64>,
    /// Keys that it would have denied something then.
    pub keys_denied_then: u64,
}

/// One of the keys with the most denials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorstKey {
    /// Its plan.
    pub plan: String,
    /// The key, with what is not UTF-8 replaced.
    pub key: String,
    /// All its requests.
    pub requests: u64,
    /// How many of them each variant denied.
    pub denied: Vec<u64>,
}

impl Report {
    /// Adds up the parts of a replay. `names` has the plans in the order in which the parts have them.
    pub fn new(
        log: LogSummary,
        variants: Vec<VariantName>,
        names: &[String],
        parts: &[Replay],
    ) -> Self {
        let (hours, hour_us) = hours(parts);
        let sum = |row: &dyn Fn(&Hour) -> u64| hours.iter().map(row).sum::<u64>();
        let plans: Vec<PlanReport> = names
            .iter()
            .enumerate()
            .filter_map(|(plan, name)| plan_report(parts, plan, name))
            .collect();
        Self {
            requests: sum(&|row| row.requests),
            beyond: parts.iter().map(|part| part.beyond).sum(),
            denied: (0..variants.len())
                .map(|variant| sum(&|row| row.denied[variant]))
                .collect(),
            keys: plans.iter().map(|plan| plan.keys).sum(),
            keys_denied: sums(parts, variants.len(), keys_denied),
            overridden: sums(parts, variants.len(), |variant| {
                variant.decided_by_overrides
            }),
            worst: worst(parts, names),
            plans,
            hours,
            hour_us,
            log,
            variants,
        }
    }

    /// The name of a variant.
    fn heading(&self, variant: usize) -> String {
        let VariantName { config, spacing } = &self.variants[variant];
        let config = lines::end(config, CONFIG_WIDTH_MAX);
        match (self.ranges_by_config().len() > 1, spacing_name(*spacing)) {
            (true, Some(spacing)) => format!("{config}, {spacing}"),
            (false, Some(spacing)) => spacing.to_owned(),
            (_, None) => config,
        }
    }

    /// The variants that tables by key and by time have in a terminal, which are two at most, each with its heading. With two
    /// configs and two spacings they are those in bursts.
    fn columns(&self) -> Vec<(usize, String)> {
        let spacing = |variant: usize| {
            spacing_name(self.variants[variant].spacing)
                .unwrap_or_default()
                .to_owned()
        };
        let config = |variant: usize| {
            format!(
                "by {}",
                lines::end(&self.variants[variant].config, CONFIG_WIDTH_MAX)
            )
        };
        match self.ranges_by_config().as_slice() {
            [only] => only
                .clone()
                .map(|variant| (variant, spacing(variant)))
                .collect(),
            several => several
                .iter()
                .map(|variants| (variants.start, config(variants.start)))
                .collect(),
        }
    }

    /// Whether each config is replayed at both spacings.
    fn is_in_whole_seconds(&self) -> bool {
        self.variants
            .iter()
            .any(|variant| variant.spacing.is_some())
    }

    /// For each config, its variants.
    fn ranges_by_config(&self) -> Vec<Range<usize>> {
        let spacings = if self.is_in_whole_seconds() { 2 } else { 1 };
        (0..self.variants.len())
            .step_by(spacings)
            .map(|first| first..(first + spacings).min(self.variants.len()))
            .collect()
    }
}

impl LimitReport {
    /// The burst of a `token_bucket`. None where it equals the quota, and for other algorithms.
    pub fn burst(&self) -> Option<u64> {
        match self.limit.algorithm() {
            Algorithm::TokenBucket { burst } => {
                Some(burst).filter(|burst| *burst != self.limit.quota())
            }
            _ => None,
        }
    }
}

fn spacing_name(spacing: Option<RequestSpacing>) -> Option<&'static str> {
    spacing.map(|spacing| match spacing {
        RequestSpacing::AsStamped => "in bursts",
        RequestSpacing::Evenly => "evenly",
    })
}

/// A number with commas: `1,234,567`.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A part of a whole in percent.
#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

fn hours(parts: &[Replay]) -> (Vec<Hour>, u64) {
    let step_us = parts
        .iter()
        .map(|part| part.hours.step_us)
        .max()
        .unwrap_or(HOUR_US);
    let mut rows: Vec<Hour> = Vec::new();
    for part in parts {
        let mut part: Hours = part.hours.clone();
        if part.step_us < step_us {
            part.merge_into_days();
        }
        rows.append(&mut part.rows);
    }
    rows.sort_by_key(|row| row.start_us);
    let mut sums: Vec<Hour> = Vec::new();
    for row in rows {
        match sums.last_mut() {
            Some(sum) if sum.start_us == row.start_us => sum.add(&row),
            _ => sums.push(row),
        }
    }
    (sums, step_us)
}

/// For each variant, a number of it, added up over all plans and parts.
fn sums(parts: &[Replay], variants: usize, number: impl Fn(&Variant) -> u64) -> Vec<u64> {
    let sum = |variant: usize| {
        let plans = parts.iter().flat_map(|part| &part.plans);
        let of_plans = plans.filter_map(|plan| plan.variants.get(variant));
        of_plans.map(&number).sum()
    };
    (0..variants).map(sum).collect()
}

fn keys_denied(variant: &Variant) -> u64 {
    variant.denied.iter().filter(|denied| **denied > 0).count() as u64
}

fn plan_report(parts: &[Replay], plan: usize, name: &str) -> Option<PlanReport> {
    let parts: Vec<_> = parts
        .iter()
        .filter_map(|part| part.plans.get(plan))
        .collect();
    let keys = parts.iter().map(|part| part.requests.len() as u64).sum();
    let variants = &parts.first()?.variants;
    let of_variant = |variant: usize| {
        limits_of(
            &parts
                .iter()
                .map(|part| &part.variants[variant])
                .collect::<Vec<_>>(),
        )
    };
    (keys > 0).then(|| PlanReport {
        name: name.to_owned(),
        keys,
        variants: (0..variants.len()).map(of_variant).collect(),
        rules: variants
            .iter()
            .map(|variant| rule_name(&variant.plan))
            .collect(),
    })
}

fn rule_name(plan: &Plan) -> &'static str {
    match plan.rule {
        Rule::Limits(_) => "limited",
        Rule::Unlimited => "unlimited",
        Rule::Blocked => "blocked",
    }
}

fn limits_of(variants: &[&Variant]) -> Vec<LimitReport> {
    let Some(plan) = variants.first().map(|variant| variant.plan.clone()) else {
        return Vec::new();
    };
    let count = plan.limits().len();
    let report = |(index, limit): (usize, &Limit)| {
        let needs = variants.iter().flat_map(|variant| {
            let by_key = variant.needs.iter().skip(index).step_by(count).enumerate();
            let own = by_key.filter(|(key, _)| variant.overridden.get(key) != Some(&true));
            own.map(|(_, need)| *need)
        });
        let (smallest, keys_denied_then) = smallest(needs.collect());
        LimitReport {
            limit: limit.clone(),
            denied: variants
                .iter()
                .map(|variant| variant.denied_by[index])
                .sum(),
            smallest: smallest.and_then(|quota| valid_from(limit, quota)),
            keys_denied_then,
        }
    };
    plan.limits().iter().enumerate().map(report).collect()
}

/// The smallest quota from this one on that a limit of this kind can have. A `token_bucket` gives a unit per whole microsecond,
/// so it cannot have each.
fn valid_from(limit: &Limit, quota: u64) -> Option<u64> {
    let Algorithm::TokenBucket { burst } = limit.algorithm() else {
        return Some(quota);
    };
    let is_valid = |quota: u64| {
        let burst = if burst == limit.quota() { quota } else { burst };
        Limit::new(
            limit.name().clone(),
            quota,
            Duration::from_micros(limit.window_us()),
            Algorithm::TokenBucket { burst },
        )
        .is_ok()
    };
    // The next larger rate in whole microseconds.
    let next = limit
        .window_us()
        .div_ceil(quota)
        .checked_sub(1)
        .filter(|emission_us| *emission_us > 0);
    let next = next.map(|emission_us| limit.window_us().div_ceil(emission_us));
    std::iter::once(quota)
        .chain(next)
        .find(|quota| is_valid(*quota))
}

/// The smallest quota at which at most 0.1 % of keys need more, and how many do.
fn smallest(mut needs: Vec<u64>) -> (Option<u64>, u64) {
    let allowed = needs.len() * KEYS_DENIED_PER_MILLE / 1_000;
    if needs.is_empty() {
        return (None, 0);
    }
    let (more, quota, _) = needs.select_nth_unstable_by(allowed, |a, b| b.cmp(a));
    let quota = *quota;
    let denied = more.iter().filter(|need| **need > quota).count() as u64;
    (Some(quota).filter(|quota| *quota != NEED_UNKNOWN), denied)
}

/// The worst keys over all variants. A key that is among the first by its greatest count in any variant is among the first of that
/// variant, so the lists of the variants hold them all.
fn worst(parts: &[Replay], names: &[String]) -> Vec<WorstKey> {
    let mut keys = Vec::new();
    for part in parts {
        for (plan, name) in part.plans.iter().zip(names) {
            keys.extend(worst_of_plan(plan, name));
        }
    }
    let most = |key: &WorstKey| key.denied.iter().max().copied();
    keys.sort_by(|a, b| (most(b), &a.key, &a.plan).cmp(&(most(a), &b.key, &b.plan)));
    keys.truncate(WORST_MAX);
    keys
}

/// The worst keys of each variant, each key once.
fn worst_of_plan(plan: &PlanReplay, name: &str) -> Vec<WorstKey> {
    let variants = plan.variants.iter();
    let mut listed: Vec<_> = variants.flat_map(|variant| variant.worst.keys()).collect();
    listed.sort();
    listed.dedup();
    let worst = |(index, key): &(usize, Box<[u8]>)| WorstKey {
        plan: name.to_owned(),
        key: String::from_utf8_lossy(key).into_owned(),
        requests: plan.requests[*index].into(),
        denied: plan
            .variants
            .iter()
            .map(|variant| variant.denied[*index].into())
            .collect(),
    };
    listed.into_iter().map(worst).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_smallest_quota_leaves_at_most_one_key_in_a_thousand(needs in proptest::collection::vec(1..50_u64, 1..4000)) {
            let over = |quota: u64| needs.iter().filter(|need| **need > quota).count();
            let expected = (1..50).find(|quota| over(*quota) * 1_000 <= needs.len());
            let found = smallest(needs.clone());
            prop_assert_eq!(found, (expected, over(expected.unwrap()) as u64));
        }
    }

    #[test]
    fn numbers_have_commas_between_thousands() {
        assert_eq!(
            [0, 7, 999, 1_000, 1_234_567].map(count),
            ["0", "7", "999", "1,000", "1,234,567"]
        );
    }

    #[test]
    fn a_need_that_no_limit_can_have_is_none() {
        assert_eq!(smallest(vec![NEED_UNKNOWN, 1]), (None, 0));
        assert_eq!(smallest(vec![]), (None, 0));
    }
}
