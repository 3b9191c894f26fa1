//! Where a value was read.

use config::{Map, Value, ValueKind};

/// Where the value at `path` was read, or else the innermost value around it. Of a table or list, also where a part of it was read
/// that is not from the text.
pub(super) fn place_of(mut value: &Value, path: &str) -> Option<String> {
    let mut rest = path;
    let mut place = value.origin();
    while !rest.is_empty() {
        let found = match &value.kind {
            ValueKind::Table(fields) => field_at(fields, rest),
            ValueKind::Array(values) => element_at(values, rest),
            _ => None,
        };
        let Some((inner, after)) = found else { break };
        (value, rest) = (inner, after.strip_prefix('.').unwrap_or(after));
        place = origin_within(inner).or(place);
    }
    let is_found = !path.is_empty() && rest.is_empty();
    let elsewhere = is_found.then(|| place_beside_text(value)).flatten();
    match (place, elsewhere) {
        (Some(place), Some(elsewhere)) if place != elsewhere => {
            Some(format!("{place}; {elsewhere}"))
        }
        (place, elsewhere) => place.or(elsewhere).map(str::to_owned),
    }
}

/// Where the first part was read that is not from the text.
fn place_beside_text(value: &Value) -> Option<&str> {
    parts_of(value)
        .into_iter()
        .filter_map(origin_within)
        .find(|origin| !is_line(origin))
}

/// Where a value was read. A table that only flags and variables made has no place but that of what is in it.
pub(super) fn origin_within(value: &Value) -> Option<&str> {
    value
        .origin()
        .or_else(|| parts_of(value).into_iter().find_map(origin_within))
}

/// What is in a table, in the order of the names, or in a list.
fn parts_of(value: &Value) -> Vec<&Value> {
    match &value.kind {
        ValueKind::Table(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            fields.into_iter().map(|(_, part)| part).collect()
        }
        ValueKind::Array(values) => values.iter().collect(),
        _ => Vec::new(),
    }
}

/// Whether a place is a line of the text.
pub(super) fn is_line(place: &str) -> bool {
    place.starts_with("line ")
}

/// The field that a path begins with, and the rest of the path. Names may contain dots, so the shortest prefix that exists is
/// taken.
fn field_at<'a, 'p>(fields: &'a Map<String, Value>, path: &'p str) -> Option<(&'a Value, &'p str)> {
    let mut ends = path
        .match_indices(['.', '['])
        .map(|(end, _)| end)
        .chain([path.len()]);
    ends.find_map(|end| Some((fields.get(&path[..end])?, &path[end..])))
}

/// The element that a path begins with, such as `[3]`, and the rest of the path.
fn element_at<'a, 'p>(values: &'a [Value], path: &'p str) -> Option<(&'a Value, &'p str)> {
    let (index, after) = path.strip_prefix('[')?.split_once(']')?;
    Some((values.get(index.parse::<usize>().ok()?)?, after))
}
