//! Reads fields as ratelimit does.

use crate::config::tree::{ErrorList, Node, Table, report};

/// All names of fields. ratelimit takes each of them everywhere, and ignores those that do not belong where they are.
const FIELDS: [&str; 16] = [
    "domain",
    "descriptors",
    "key",
    "value",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
];
/// What YAML 1.1, which ratelimit reads, takes for true and false, in any usual case.
const TRUE: [&str; 4] = ["true", "yes", "on", "y"];
const FALSE: [&str; 4] = ["false", "no", "off", "n"];

/// Settings that have no counterpart in tollgate, collected while the file is read.
pub(super) type Warnings = ErrorList;

/// Takes a field that has a value. A field without one counts as absent, as in ratelimit.
pub(super) fn take(table: &mut Table, name: &'static str) -> Option<Node> {
    table.take(name).filter(|node| !node.is_nil())
}

/// Warns of fields that ratelimit ignores here, and adds an error for each that it does not know.
pub(super) fn finish(mut table: Table, errors: &mut ErrorList, warnings: &mut Warnings) {
    for name in FIELDS {
        if let Some(node) = take(&mut table, name) {
            report(
                warnings,
                &node.path,
                "is left out: ratelimit ignores it here",
            );
        }
    }
    table.finish(errors);
}

/// The text of a field: `Some(None)` if there is none, `None` after adding an error.
pub(super) fn text(
    table: &mut Table,
    name: &'static str,
    errors: &mut ErrorList,
) -> Option<Option<String>> {
    let Some(node) = take(table, name) else {
        return Some(None);
    };
    match node.is_boolean() {
        // Where a text is wanted, `true` is one.
        true => node
            .boolean(errors)
            .map(|boolean| Some(boolean.to_string())),
        false => node.text(errors).map(Some),
    }
}

pub(super) fn required_text(
    table: &mut Table,
    name: &'static str,
    errors: &mut ErrorList,
) -> Option<String> {
    let text = text(table, name, errors)?;
    if text.is_none() {
        let path = table.path.clone();
        report(errors, &path, format!("has no {name}"));
    }
    text
}

pub(super) fn flag(table: &mut Table, name: &'static str, errors: &mut ErrorList) -> bool {
    let Some(node) = take(table, name) else {
        return false;
    };
    let word = node.plain_text().unwrap_or_default();
    let is = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known));
    is(&TRUE) || !is(&FALSE) && node.boolean(errors).unwrap_or(false)
}
