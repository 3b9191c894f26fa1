//! Units of time, as Envoy counts by them.

use std::sync::Arc;
use std::time::Duration;

use crate::plan::{Algorithm, CalendarUnit, Limit, OnStoreFailure, PRECISION_DEFAULT, Plan, Rule};

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateUnit {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// Seven days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

const DAY_S: u64 = 24 * 60 * 60;

impl RateUnit {
    /// All units, the shortest first.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// Its length.
    pub fn window(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => DAY_S,
            Self::Week => 7 * DAY_S,
            Self::Month => 30 * DAY_S,
            Self::Year => 365 * DAY_S,
        })
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The unit of a calendar's windows.
    pub fn for_calendar(unit: CalendarUnit) -> Self {
        match unit {
            CalendarUnit::Day => Self::Day,
            CalendarUnit::Week { .. } => Self::Week,
            CalendarUnit::Month { .. } => Self::Month,
        }
    }

    /// A quota per window as a quota per unit: of the unit that is as long, or else of the next longer one, scaled and rounded
    /// down. A window above a year is scaled to a year. At least 1.
    pub fn for_quota(quota: u64, window_us: u64) -> (u64, Self) {
        let length_us = |unit: Self| u128::from(unit.window().as_secs()) * 1_000_000;
        let unit = Self::ALL
            .into_iter()
            .find(|unit| length_us(*unit) >= u128::from(window_us))
            .unwrap_or(Self::Year);
        let scaled = u128::from(quota) * length_us(unit) / u128::from(window_us.max(1));
        (u64::try_from(scaled).unwrap_or(u64::MAX).max(1), unit)
    }
}

/// A limit that a caller brings along, in place of the plan of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitOverride {
    /// Units per unit of time; 0 denies everything.
    pub quota: u32,
    /// The unit of time.
    pub unit: RateUnit,
}

impl LimitOverride {
    /// The name of the limit in answers.
    pub const NAME: &'static str = "override";

    /// The groups that such limits count in, in the place of plans of a group.
    pub fn groups_beside(group: &str) -> impl Iterator<Item = Arc<str>> {
        RateUnit::ALL
            .into_iter()
            .map(move |unit| group_beside(group, unit))
    }

    /// The plan of this limit, apart from `plan`, whose place it takes: a sliding window that is counted for this unit alone.
    /// Shadow mode and what is done while the store cannot decide stay those of `plan`.
    ///
    /// Nothing is kept for it but the counters in the store, whose names do not have the quota in them. So a caller that changes
    /// its quota with every request has one counter for each key and unit.
    pub fn plan(self, plan: Option<&Plan>) -> Plan {
        let group = plan.map_or("", |plan| &*plan.counts_as);
        let sliding = Algorithm::SlidingWindow {
            precision: PRECISION_DEFAULT,
        };
        let limit = Limit::new(
            Self::NAME,
            u64::from(self.quota),
            self.unit.window(),
            sliding,
        );
        let name = plan.map_or_else(|| Self::NAME.into(), |plan| plan.name.clone());
        // Only a quota of 0 is refused.
        let rule = limit.map_or(Rule::Blocked, |limit| Rule::limits([limit]));
        Plan {
            counts_as: group_beside(group, self.unit),
            shadow: plan.is_some_and(|plan| plan.shadow),
            on_store_failure: plan.map_or(OnStoreFailure::default(), |plan| plan.on_store_failure),
            ..Plan::new(name, rule)
        }
    }
}

/// The group of limits of this unit in the place of plans of a group. No name in a config has a plus sign.
fn group_beside(group: &str, unit: RateUnit) -> Arc<str> {
    format!("{group}+{}", unit.as_str()).into()
}
