//! Reads the limits of a plan.

use std::time::Duration;

use super::group;
use crate::config::calendar;
use crate::config::holds;
use crate::config::tree::{ErrorList, Node, Quoted, Table, report};
use tollgate_core::plan::{
    Algorithm, Anchor, BURST_MAX, Concurrency, LIMITS_MAX, Limit, LimitError,
};

const ANCHORS: [(&str, Anchor); 2] = [
    ("clock", Anchor::Clock),
    ("first_request", Anchor::FirstRequest),
];

/// Algorithms by their names in the config, with the values of fields that may be left out. The first is the default.
pub(in crate::config) fn algorithms() -> Vec<(&'static str, Algorithm)> {
    let mut named: Vec<_> = Algorithm::EVERY
        .iter()
        .map(|algorithm| (algorithm.name(), *algorithm))
        .collect();
    named.dedup_by_key(|(name, _)| *name);
    named
}

/// The limits of a plan: those of units, and the one of open holds, if there is one.
pub(super) struct PlanLimits {
    pub(super) rates: Vec<Limit>,
    pub(super) slots: Option<Concurrency>,
}

pub(super) fn limits(node: Node, errors: &mut ErrorList) -> Option<PlanLimits> {
    let path = node.path.clone();
    let tables = tables(node, errors)?;
    let mut slots = Vec::new();
    let mut rates = Vec::new();
    let mut errors_in_slots = false;
    for (place, table) in tables.into_iter().enumerate() {
        match table {
            Some(table) if holds::is_concurrency(&table) => {
                let limit = holds::concurrency(table, place, errors);
                errors_in_slots |= limit.is_none();
                slots.extend(limit);
                rates.push(None);
            }
            table => rates.push(Some(table.and_then(|table| limit(table, errors)))),
        }
    }
    report_slots(&path, (&slots, &rates), errors);
    let of_units: Vec<Option<Limit>> = rates.iter().cloned().map(Option::flatten).collect();
    report_duplicates(&path, &of_units, errors);
    // A place of a concurrency limit is `None`, and a limit with errors `Some(None)`.
    let rates: Option<Vec<Limit>> = rates.into_iter().flatten().collect();
    (!errors_in_slots && slots.len() < 2).then_some(PlanLimits {
        rates: rates?,
        slots: slots.pop(),
    })
}

/// The table of each limit; `None` for one that is not a table.
fn tables(node: Node, errors: &mut ErrorList) -> Option<Vec<Option<Table>>> {
    let path = node.path.clone();
    let not_so_many = |count| format!("has {count} limits; a plan has 1 to {LIMITS_MAX}");
    // Each limit is compared with all before it, so their number must be bounded.
    let nodes = node.list(LIMITS_MAX, not_so_many, errors)?;
    if nodes.is_empty() {
        report(errors, &path, not_so_many(0));
    }
    Some(nodes.into_iter().map(|node| node.table(errors)).collect())
}

/// Reports a second concurrency limit, and one with the name of another limit.
fn report_slots(
    path: &str,
    (slots, rates): (&[Concurrency], &[Option<Option<Limit>>]),
    errors: &mut ErrorList,
) {
    for second in slots.iter().skip(1) {
        let problem = "is a second concurrency limit; a plan has one";
        report(errors, &format!("{path}[{}]", second.place()), problem);
    }
    let mut names = rates.iter().flatten().flatten().map(Limit::name);
    if let Some(slots) = slots
        .first()
        .filter(|slots| names.any(|name| name == slots.name()))
    {
        let problem = format!(
            "is named {} like another limit; give each limit a name of its own",
            Quoted(slots.name())
        );
        report(errors, &format!("{path}[{}]", slots.place()), problem);
    }
}

/// Reports limits with the name, or with the count, of one before them. Limits with errors are `None`.
fn report_duplicates(path: &str, limits: &[Option<Limit>], errors: &mut ErrorList) {
    for (index, limit) in limits.iter().enumerate() {
        let (limit_path, Some(limit)) = (format!("{path}[{index}]"), limit) else {
            continue;
        };
        let before = || limits[..index].iter().flatten();
        if before().any(|other| other.name() == limit.name()) {
            report(
                errors,
                &limit_path,
                format!(
                    "is named {} like one before it; give each limit a name of its own",
                    Quoted(limit.name())
                ),
            );
        }
        if before().any(|other| other.fingerprint() == limit.fingerprint()) {
            report(
                errors,
                &limit_path,
                "has the algorithm and window of one before it, so both would be one count; keep the stricter, or change a window",
            );
        }
    }
}

fn limit(mut table: Table, errors: &mut ErrorList) -> Option<Limit> {
    let path = table.path.clone();
    if let Some(unit) = calendar::unit(&table) {
        return calendar::limit(table, unit, errors);
    }
    let fields = LimitFields::read(&mut table, errors);
    table.finish(errors);
    fields.limit(&path, errors)
}

/// The fields of a limit of a fixed window as they were read: `None` for one with an error.
struct LimitFields {
    kind: Option<Algorithm>,
    quota: Option<u64>,
    window: Option<Duration>,
    /// The window as it was written.
    window_text: Option<String>,
    name: Option<Option<String>>,
    own: OwnFields,
    block: Option<Option<Duration>>,
}

impl LimitFields {
    fn read(table: &mut Table, errors: &mut ErrorList) -> Self {
        let named = algorithms();
        let kind = table.choice_or("algorithm", named[0].1, &named, errors);
        let quota = required(table, "quota", errors).and_then(|node| node.number(errors));
        let window_node = required(table, "window", errors);
        let window_text = window_node.as_ref().and_then(Node::plain_text);
        let window = window_node.and_then(|node| calendar::fixed_window(node, errors));
        calendar::refuse_own_fields(table, window.is_some(), errors);
        Self {
            kind,
            quota,
            window,
            window_text,
            name: table.read("name", group, errors),
            own: OwnFields::read(table, kind, errors),
            block: block(table, errors),
        }
    }

    /// The limit of these fields, whose values are checked. `None` after adding at least one error.
    fn limit(self, path: &str, errors: &mut ErrorList) -> Option<Limit> {
        let algorithm = self
            .kind
            .and_then(|kind| self.own.algorithm(kind, self.quota));
        let mut refused = Limit::check(self.quota, self.window, algorithm);
        if algorithm.is_none() {
            refused.extend(self.own.refused());
        }
        report_limits(path, &refused, errors);
        if !refused.is_empty() {
            return None;
        }
        let name = match self.name? {
            Some(name) => name,
            None => default_name(self.kind?, self.window_text),
        };
        let limit = Limit::new(name, self.quota?, self.window?, algorithm?);
        let limit = limit.map(|limit| match self.own.burst {
            Some(None) => limit.with_burst_of_quota(),
            _ => limit,
        });
        let limit = limit.map_err(|refused| report_limits(path, &refused, errors));
        with_block(limit.ok()?, (path, self.block?), errors)
    }
}

/// The name of a limit that has none. Limits of the same window have different algorithms, so it contains the algorithm.
fn default_name(kind: Algorithm, window_text: Option<String>) -> String {
    let window = window_text.unwrap_or_default().replace(' ', "");
    format!("{}/{window}", kind.name())
}

/// How long a denial blocks the key, if it does. The outer `None` is an error.
pub(in crate::config) fn block(
    table: &mut Table,
    errors: &mut ErrorList,
) -> Option<Option<Duration>> {
    table
        .take("block")
        .map_or(Some(None), |node| node.duration(errors).map(Some))
}

/// The limit with its block, if it has one.
pub(in crate::config) fn with_block(
    limit: Limit,
    (path, block): (&str, Option<Duration>),
    errors: &mut ErrorList,
) -> Option<Limit> {
    let Some(block) = block else {
        return Some(limit);
    };
    let limit = limit.with_block(block);
    limit
        .map_err(|error| report_limit(path, &error, errors))
        .ok()
}

/// The fields that belong to one algorithm each. The outer `None` is an error, the inner one a field that is not there.
struct OwnFields {
    anchor: Option<Option<Anchor>>,
    precision: Option<Option<u8>>,
    burst: Option<Option<u64>>,
}

impl OwnFields {
    /// Reads them. Where the algorithm is not known, none of them is out of place.
    fn read(table: &mut Table, kind: Option<Algorithm>, errors: &mut ErrorList) -> Self {
        let mut own =
            |field, of, errors: &mut ErrorList| field_of(table, kind, (field, of), errors);
        let anchor = own("anchor", "fixed_window", errors);
        let precision = own("precision", "sliding_window", errors);
        let burst = own("burst", "token_bucket", errors);
        let number = |node: Option<Node>, errors: &mut ErrorList| {
            node.map_or(Some(None), |node| node.number(errors).map(Some))
        };
        Self {
            anchor: anchor.map_or(Some(None), |node| node.choice(&ANCHORS, errors).map(Some)),
            // A number above u8 is out of range in any case.
            precision: number(precision, errors)
                .map(|precision| precision.map(|it| u8::try_from(it).unwrap_or(u8::MAX))),
            burst: number(burst, errors),
        }
    }

    /// The algorithm of this kind with its own fields. `None` where one of them is wrong.
    fn algorithm(&self, kind: Algorithm, quota: Option<u64>) -> Option<Algorithm> {
        Some(match kind {
            Algorithm::FixedWindow { anchor } => Algorithm::FixedWindow {
                anchor: self.anchor?.unwrap_or(anchor),
            },
            Algorithm::SlidingWindow { precision } => Algorithm::SlidingWindow {
                precision: self.precision?.unwrap_or(precision),
            },
            // A quota out of range is reported as such, and not as a burst that nobody wrote.
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
                burst: self
                    .burst?
                    .or(quota.map(|quota| quota.clamp(1, BURST_MAX)))?,
            },
            without_own_fields => without_own_fields,
        })
    }

    /// What is wrong with the fields alone, where the algorithm has an error.
    fn refused(&self) -> impl Iterator<Item = LimitError> {
        let precision = self.precision.flatten();
        let precision = precision.map(|precision| Algorithm::SlidingWindow { precision });
        let burst = self.burst.flatten();
        let burst = burst.map(|burst| Algorithm::TokenBucket { burst });
        let algorithms = precision.into_iter().chain(burst);
        algorithms.flat_map(|algorithm| Limit::check(None, None, Some(algorithm)))
    }
}

/// A field of one algorithm only. With any other algorithm it is an error.
pub(in crate::config) fn field_of(
    table: &mut Table,
    kind: Option<Algorithm>,
    (field, of): (&'static str, &str),
    errors: &mut ErrorList,
) -> Option<Node> {
    let node = table.take(field)?;
    if kind.is_some_and(|kind| kind.name() != of) {
        report(
            errors,
            &node.path,
            format!("belongs to {of} only; remove it or change the algorithm"),
        );
        return None;
    }
    Some(node)
}

pub(in crate::config) fn required(
    table: &mut Table,
    field: &'static str,
    errors: &mut ErrorList,
) -> Option<Node> {
    let node = table.take(field);
    if node.is_none() {
        report(
            errors,
            &table.path,
            format!(
                "has no {field}; a limit needs quota and window, such as {{ quota: 100, window: 1m }}"
            ),
        );
    }
    node
}

fn report_limits(path: &str, refused: &[LimitError], errors: &mut ErrorList) {
    for error in refused {
        report_limit(path, error, errors);
    }
}

pub(in crate::config) fn report_limit(path: &str, error: &LimitError, errors: &mut ErrorList) {
    let field = match error {
        LimitError::Quota(_) => "quota",
        LimitError::Window(_) => "window",
        LimitError::Precision(_) => "precision",
        LimitError::Burst(_) => "burst",
        LimitError::Block(_) => "block",
    };
    report(errors, &format!("{path}.{field}"), error.to_string());
}
