//! Reads limits of calendar windows, such as `{ quota: 1000000, window: month, zone: Europe/Berlin, starts: 15 }`.

use std::sync::Arc;
use std::time::Duration;

use super::plans::{block, field_of, group, report_limit, required, with_block};
use super::tree::{ErrorList, Node, Quoted, Table, is_full, report};
use tollgate_core::plan::{
    Algorithm, Anchor, Calendar, CalendarUnit, Limit, MONTH_STARTS_MAX, WEEKDAYS, Zone,
};

const FIXED: Algorithm = Algorithm::FixedWindow {
    anchor: Anchor::Clock,
};
/// The fields that only calendar windows have.
const OWN_FIELDS: [&str; 2] = ["zone", "starts"];

/// The unit of a limit whose window is a calendar's, with its default first day. `None` for any other window.
pub(super) fn unit(table: &Table) -> Option<CalendarUnit> {
    match table.text("window")? {
        "day" => Some(CalendarUnit::Day),
        "week" => Some(CalendarUnit::Week { starts: 1 }),
        "month" => Some(CalendarUnit::Month { starts: 1 }),
        _ => None,
    }
}

/// A limit of calendar windows, from the fields of its table.
pub(super) fn limit(mut table: Table, unit: CalendarUnit, errors: &mut ErrorList) -> Option<Limit> {
    let path = table.path.clone();
    let errors_before = errors.len();
    table.take("window");
    if let Some(node) = table.take("algorithm") {
        check_algorithm(node, errors);
    }
    let quota = required(&mut table, "quota", errors).and_then(|node| node.number(errors));
    let name = table.read("name", group, errors);
    let zone = table.read_or("zone", Zone::UTC, zone, errors);
    let start = |node: Node, errors: &mut ErrorList| with_start(unit, node, errors);
    let unit = table.read_or("starts", unit, start, errors);
    refuse_other_fields(&mut table, errors);
    let block = block(&mut table, errors);
    table.finish(errors);
    Limit::check(quota, None, Some(FIXED))
        .iter()
        .for_each(|error| report_limit(&path, error, errors));
    if errors.len() > errors_before {
        return None;
    }
    let calendar = Calendar::new(unit?, zone?);
    let default = || format!("{}/{}", FIXED.name(), calendar.unit().name());
    let name: Arc<str> = name?.unwrap_or_else(default).into();
    let limit = Limit::by_calendar(name, quota?, calendar).ok()?;
    with_block(limit, (&path, block?), errors)
}

/// Reports fields that a limit with calendar windows cannot have.
fn refuse_other_fields(table: &mut Table, errors: &mut ErrorList) {
    if let Some(node) = table.take("anchor") {
        let problem = "belongs to windows of a fixed length; remove it";
        report(errors, &node.path, problem);
    }
    for field in [("precision", "sliding_window"), ("burst", "token_bucket")] {
        field_of(table, Some(FIXED), field, errors);
    }
}

/// A window of a fixed length. A word may be meant for a calendar's.
pub(super) fn fixed_window(node: Node, errors: &mut ErrorList) -> Option<Duration> {
    match node.plain_text() {
        Some(text) if is_word(&text) => {
            let text = Quoted(&text);
            let problem = format!(
                "is {text}, which is not a duration; write 10s, 1m, 1h, or day, week, month"
            );
            report(errors, &node.path, problem);
            None
        }
        _ => node.duration(errors),
    }
}

/// Takes the fields of a calendar's windows out of a limit of another window, and reports them if that window is right.
pub(super) fn refuse_own_fields(table: &mut Table, is_fixed: bool, errors: &mut ErrorList) {
    for node in OWN_FIELDS
        .map(|field| table.take(field))
        .into_iter()
        .flatten()
    {
        if is_fixed {
            report(errors, &node.path, "belongs to calendar windows; remove it");
        }
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(char::is_alphabetic)
}

fn check_algorithm(node: Node, errors: &mut ErrorList) {
    let path = node.path.clone();
    let chosen = node.choice(&super::plans::algorithms(), errors);
    if let Some(other) = chosen.filter(|chosen| chosen.name() != FIXED.name()) {
        let other = other.name();
        let problem = format!("is {other}; a calendar window is counted by fixed_window");
        report(errors, &path, problem);
    }
}

fn zone(node: Node, errors: &mut ErrorList) -> Option<Zone> {
    let path = node.path.clone();
    let name = node.text(errors)?;
    let zone = Zone::find(&name);
    // To find the nearest of so many names takes a while, so it is left out where no error can be added.
    if zone.is_none() && !is_full(errors) {
        let right = Zone::nearest(&name).map_or_else(
            || "write a name of the tz database, such as Europe/Berlin".to_owned(),
            |near| format!("did you mean {near:?}?"),
        );
        let name = Quoted(&name);
        report(
            errors,
            &path,
            format!("is {name}, which is not a time zone; {right}"),
        );
    }
    zone
}

/// The unit with the first day that this field names.
fn with_start(unit: CalendarUnit, node: Node, errors: &mut ErrorList) -> Option<CalendarUnit> {
    let right = match unit {
        CalendarUnit::Day => {
            report(errors, &node.path, "belongs to week and month; remove it");
            return None;
        }
        CalendarUnit::Week { .. } => "a week starts on monday to sunday".to_owned(),
        CalendarUnit::Month { .. } => format!("a month starts on day 1 to {MONTH_STARTS_MAX}"),
    };
    let text = node.plain_text().unwrap_or_default();
    let found = match unit {
        CalendarUnit::Week { .. } => (1..)
            .zip(WEEKDAYS)
            .find(|(_, name)| *name == text)
            .map(|(starts, _)| CalendarUnit::Week { starts }),
        _ => text
            .parse()
            .ok()
            .filter(|day: &u8| day.to_string() == text && (1..=MONTH_STARTS_MAX).contains(day))
            .map(|starts| CalendarUnit::Month { starts }),
    };
    if found.is_none() {
        node.report_value(&right, errors);
    }
    found
}
