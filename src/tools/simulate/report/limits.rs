//! What the report says of a limit: what it is, and which quota would be enough. Text and page share it.

use std::cmp::Ordering;

use super::{LimitReport, PlanReport, Report, count};

/// Why no quota is enough.
const NONE: &str = "No quota that such a limit can have is enough for 99.9 % of the keys.";
const NONE_AT_THIS_BURST: &str = "No quota is found at this burst: it is too small for more than 0.1 % of the keys, or too large for so small a quota.";

/// One limit of one config, as each spacing of time replayed it.
#[derive(Debug)]
pub(super) struct LimitRows<'a> {
    pub(super) config: &'a str,
    pub(super) plan: &'a PlanReport,
    /// Variants of the config, each with what the limit did there. Empty for a plan without limits.
    pub(super) variants: Vec<(usize, &'a LimitReport)>,
    /// `unlimited` or `blocked`, for a plan without limits.
    pub(super) rule: &'static str,
}

/// All limits of all plans, in the order of the configs.
pub(super) fn rows(report: &Report) -> Vec<LimitRows<'_>> {
    let mut rows = Vec::new();
    for plan in &report.plans {
        for variants in report.ranges_by_config() {
            let config = report.variants[variants.start].config.as_str();
            let rule = plan.rules[variants.start];
            let row = |variants| LimitRows {
                config,
                plan,
                variants,
                rule,
            };
            let of = |index: usize| {
                variants
                    .clone()
                    .map(|variant| (variant, &plan.variants[variant][index]))
                    .collect()
            };
            match plan.variants[variants.start].len() {
                0 => rows.push(row(Vec::new())),
                limits => rows.extend((0..limits).map(of).map(row)),
            }
        }
    }
    rows
}

impl LimitRows<'_> {
    /// What the limit is, such as `limit minute: 100 in 1m by sliding_window`.
    pub(super) fn described(&self) -> String {
        match self.variants.first() {
            Some((_, first)) => format!("limit {}: {}", first.limit.name(), described(first)),
            None => self.rule.to_owned(),
        }
    }

    /// Which quota would be enough, and how the one of the config compares: sentences for somebody who sees the report first.
    pub(super) fn verdict(&self) -> Option<String> {
        // Of the ways that requests may be spaced, the one that needs the greatest quota.
        let need =
            |limit: &LimitReport| (limit.smallest.unwrap_or(u64::MAX), limit.keys_denied_then);
        let most = self
            .variants
            .iter()
            .map(|(_, limit)| *limit)
            .max_by_key(|limit| need(limit))?;
        let Some(smallest) = most.smallest else {
            return Some(no_quota(most).to_owned());
        };
        let enough = self.enough(smallest, most.keys_denied_then);
        Some(format!("{enough} {}", compared(most, smallest)))
    }

    /// What the smallest quota that is enough would deny.
    fn enough(&self, smallest: u64, keys_denied: u64) -> String {
        let quota = count(smallest);
        match keys_denied {
            0 => format!("A quota of {quota} would deny nothing to any key."),
            _ => format!(
                "A quota of {quota} would deny something to {} of the {} keys, which is at most 0.1 %.",
                count(keys_denied),
                count(self.plan.keys)
            ),
        }
    }
}

/// How the quota of the config compares with the smallest that is enough.
fn compared(limit: &LimitReport, smallest: u64) -> String {
    let is = count(limit.limit.quota());
    match (smallest.cmp(&limit.limit.quota()), limit.keys_denied_then) {
        (Ordering::Less, 0) => format!("The quota of {is} is higher than any key needs."),
        (Ordering::Less, _) => {
            format!("The quota of {is} is higher, so it denies nothing to any other key.")
        }
        (Ordering::Equal, _) => "It is the quota of the config.".to_owned(),
        (Ordering::Greater, _) => {
            format!("The quota of {is} is lower, so it denies something to more keys.")
        }
    }
}

/// Why no quota is enough.
fn no_quota(limit: &LimitReport) -> &'static str {
    if limit.burst().is_some() {
        NONE_AT_THIS_BURST
    } else {
        NONE
    }
}

/// The numbers of a limit, such as `100 in 1m by token_bucket, burst 20`.
pub(super) fn described(report: &LimitReport) -> String {
    let limit = &report.limit;
    let window = report.limit.window_text();
    let burst = report
        .burst()
        .map_or_else(String::new, |burst| format!(", burst {}", count(burst)));
    format!(
        "{} in {window} by {}{burst}",
        count(limit.quota()),
        limit.algorithm().name()
    )
}

/// The smallest quota that is enough, as a cell of a table.
pub(super) fn smallest_quota_cell(limit: &LimitReport) -> String {
    let none = if limit.burst().is_some() {
        "none at this burst"
    } else {
        "none"
    };
    limit.smallest.map_or_else(|| none.to_owned(), count)
}
