//! Lists overrides of both sources.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::{Overrides, RuntimeOverrides, codec, sort_key};
use tollgate_core::plan::{OverrideSource, OverrideSubject, PlanOverride, PlanSet};

/// Number of overrides on one page, if no other is asked for.
pub(super) const PAGE_SIZE_DEFAULT: usize = 100;
/// Maximum number of overrides on one page.
pub(super) const PAGE_SIZE_MAX: usize = 1_000;

/// What to list.
#[derive(Debug, Clone, Default)]
pub struct OverrideQuery {
    /// Name of the plan; empty for all.
    pub plan: String,
    /// With a plan: the key whose overrides to list, the one in force first.
    pub matching_key: Option<String>,
    /// Overrides on a page; 0 for [`PAGE_SIZE_DEFAULT`].
    pub page_size: usize,
    /// Where the page begins, as the page before it told; empty for the first.
    pub page_token: String,
}

/// A page of overrides.
#[derive(Debug, Clone)]
pub struct OverrideList {
    /// Each with the reason why it has no effect, if it has none. `None` in place of an override: it cannot be read.
    pub entries: Vec<ListedOverride>,
    /// Where the next page begins; empty after the last.
    pub next_page_token: String,
    /// The version of what is set at runtime.
    pub version: u64,
    /// How long ago the store confirmed it.
    pub age: Duration,
}

/// An override in a list.
#[derive(Debug, Clone)]
pub struct ListedOverride {
    /// Name of its plan.
    pub plan: String,
    /// Whose limits are other ones.
    pub subject: OverrideSubject,
    /// The override; `None` if it cannot be read.
    pub entry: Option<Arc<PlanOverride>>,
    /// Why it has no effect; empty if it has one.
    pub problem: String,
}

impl ListedOverride {
    fn source(&self) -> OverrideSource {
        let entry = self.entry.as_ref();
        entry.map_or(OverrideSource::Runtime, |entry| entry.source)
    }

    /// Its place in a list: by plan, keys before prefixes, by bytes, runtime before file.
    fn place(&self) -> ((&str, bool, &[u8]), OverrideSource) {
        (sort_key(&self.plan, &self.subject), self.source())
    }

    /// The place as a text. Names of plans hold no colon.
    fn token(&self) -> String {
        let ((plan, is_prefix, _), source) = self.place();
        let kind = if is_prefix { 'p' } else { 'k' };
        let source = source.as_str();
        let text = self.subject.text();
        format!("{plan}:{kind}:{source}:{text}")
    }
}

impl Overrides {
    /// Lists what is not expired. Errors: a sentence about the query.
    pub fn list(&self, query: &OverrideQuery) -> Result<OverrideList, String> {
        let limiter = &self.0.limiter;
        let snapshot = limiter.snapshot();
        let known = limiter.runtime_overrides();
        let now_us = limiter.overrides_now_us();
        let plans = snapshot.plans();
        let size = match query.page_size {
            0 => PAGE_SIZE_DEFAULT,
            size @ 1..=PAGE_SIZE_MAX => size,
            size => {
                return Err(format!(
                    "page_size is {size}; it is 1 to {PAGE_SIZE_MAX}, or 0 for {PAGE_SIZE_DEFAULT}"
                ));
            }
        };
        let listed = listed(query, plans, (&known, now_us));
        let mut rest = after_token(listed, &query.page_token)?;
        let more = rest.len() > size;
        rest.truncate(size);
        let next = rest.last().filter(|_| more).map(ListedOverride::token);
        let confirmed = limiter.common.registry().store_clock;
        let now = limiter.common.clock.monotonic();
        let age = confirmed.map(|(_, at)| now.saturating_duration_since(at));
        Ok(OverrideList {
            entries: rest,
            next_page_token: next.unwrap_or_default(),
            version: known.version.number,
            age: age.filter(|_| self.are_shared()).unwrap_or_default(),
        })
    }
}

/// All that is not expired and that the query asks for, in the order of a list.
fn listed(
    query: &OverrideQuery,
    plans: &PlanSet,
    (known, now_us): (&RuntimeOverrides, u64),
) -> Vec<ListedOverride> {
    let of_file = plans.overrides().iter();
    let entries = known.entries.iter().chain(of_file);
    let live = entries.filter(|entry| !entry.is_expired(now_us));
    let listed = live.map(|entry| ListedOverride {
        plan: entry.plan.to_string(),
        subject: entry.subject.clone(),
        problem: entry
            .plan_in(plans)
            .err()
            .map_or_else(String::new, |error| error.to_string()),
        entry: Some(entry.clone()),
    });
    let unreadable = known.unreadable.iter().map(|unreadable| {
        let name = &unreadable.record.name;
        let parts = codec::parts_of(name);
        let (plan, subject) = parts.unwrap_or_else(|| {
            (
                "",
                OverrideSubject::Key(String::from_utf8_lossy(name).into()),
            )
        });
        ListedOverride {
            plan: plan.to_owned(),
            subject,
            entry: None,
            problem: unreadable.problem.clone(),
        }
    });
    let asked = |listed: &ListedOverride| {
        let of_plan = query.plan.is_empty() || query.plan == listed.plan;
        let of_key = |key: &String| listed.subject.matches(key);
        of_plan && query.matching_key.as_ref().is_none_or(of_key)
    };
    let mut listed: Vec<ListedOverride> = listed.chain(unreadable).filter(asked).collect();
    listed.sort_by(|a, b| a.place().cmp(&b.place()));
    if query.matching_key.is_some() {
        // Those without effect come last. Before them a key comes before prefixes, and a long prefix before short ones.
        listed.sort_by_key(|listed| {
            let ((_, is_prefix, text), _) = listed.place();
            (!listed.problem.is_empty(), is_prefix, Reverse(text.len()))
        });
    }
    listed
}

/// What follows the place of a token. Where that is no longer listed, what would have followed it.
fn after_token(listed: Vec<ListedOverride>, token: &str) -> Result<Vec<ListedOverride>, String> {
    if token.is_empty() {
        return Ok(listed);
    }
    if let Some(place) = listed.iter().position(|listed| listed.token() == token) {
        return Ok(listed.into_iter().skip(place + 1).collect());
    }
    let wrong = || "page_token is none that this server gave; begin without one".to_owned();
    let mut parts = token.splitn(4, ':');
    let plan = parts.next();
    let kind = parts.next();
    let source = parts.next();
    let text = parts.next();
    let (Some(plan), Some(kind @ ("k" | "p")), Some(source), Some(text)) =
        (plan, kind, source, text)
    else {
        return Err(wrong());
    };
    let sources = OverrideSource::ALL;
    let source = sources
        .into_iter()
        .find(|known| known.as_str() == source)
        .ok_or_else(wrong)?;
    let place = ((plan, kind == "p", text.as_bytes()), source);
    Ok(listed
        .into_iter()
        .filter(|listed| listed.place() > place)
        .collect())
}
