//! The settings in force: each with its value as it was written, and where that was. Secrets are hidden.

use config::{Map, Value, ValueKind};
use url::Url;

use super::environment::SETTINGS;
use super::place::is_line;
use super::source::Origin;
use super::tree::{join, shown_key};

/// Stands for a secret.
const HIDDEN: &str = "***";
/// The origin of a setting that nobody wrote.
const DEFAULT: &str = "default";

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingInForce {
    /// Its path, such as `store.url` or `plans.free.limits[0].quota`.
    pub path: String,
    /// Its value as it may be written after `--set`. `None`: there is none.
    pub value: Option<String>,
    /// Where the value was written: `default`, a line of the config, a variable or a flag.
    pub origin: String,
}

/// Every setting of a valid config, in the order of [`SETTINGS`]; within `plans` and domains in the order of the names. `text` is
/// where the lines are.
pub(super) fn list(root: &Value, text: &Origin) -> Vec<SettingInForce> {
    let mut listed = Vec::new();
    for path in SETTINGS {
        let before = listed.len();
        if let Some(value) = value_at(root, path) {
            add(value, path, text, &mut listed);
        }
        if listed.len() == before && !is_replaced(root, path) {
            let value = default_of(path).map(str::to_owned);
            listed.push(SettingInForce {
                path: path.to_owned(),
                value,
                origin: DEFAULT.to_owned(),
            });
        }
    }
    listed
}

/// Whether another setting is in force in the place of this one, whose default is not then.
fn is_replaced(root: &Value, path: &str) -> bool {
    ["check.key", "check.plan"].contains(&path) && value_at(root, "check.subjects").is_some()
}

/// The defaults as they would be written. A test compares them with docs/configuration.md, and another that page with the program.
fn default_of(path: &str) -> Option<&'static str> {
    Some(match path {
        "listen.grpc" => "127.0.0.1:50051",
        "listen.lame_duck" => "2s",
        "listen.max_connection_age" => "0s",
        "listen.plaintext" | "status.page" | "envoy.joint" => "false",
        "listen.http"
        | "listen.metrics"
        | "listen.admin"
        | "listen.admin_token_file"
        | "store.key_prefix"
        | "default_plan" => "",
        "store.url" => "memory:",
        "store.deadline" => "25ms",
        "store.expected_replicas" => "auto",
        "store.ready" => "always",
        "deny_cache.entries" => "65536",
        "status.keys" => "hash",
        "status.top" => "1000",
        "workers" => "0",
        "check.key" => "param:key",
        "check.plan" => "param:plan",
        "check.ipv6_prefix" => "64",
        "check.headers" => "ietf",
        "envoy.body" => "none",
        _ => return None,
    })
}

fn value_at<'a>(root: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(root, |value, name| match &value.kind {
            ValueKind::Table(fields) => fields.get(name),
            _ => None,
        })
}

/// Adds every value in this one. A list of texts is one value.
fn add(value: &Value, path: &str, text: &Origin, listed: &mut Vec<SettingInForce>) {
    match &value.kind {
        ValueKind::Table(fields) => {
            for (name, field) in sorted(fields) {
                add(field, &join(path, &shown_key(name)), text, listed);
            }
        }
        ValueKind::Array(values) if !values.iter().all(is_scalar) => {
            for (index, value) in values.iter().enumerate() {
                add(value, &format!("{path}[{index}]"), text, listed);
            }
        }
        ValueKind::Nil => {}
        _ => listed.push(SettingInForce {
            path: path.to_owned(),
            value: Some(written(value)),
            origin: origin(&places(value), text),
        }),
    }
}

fn sorted(fields: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut fields: Vec<_> = fields.iter().collect();
    fields.sort_by_key(|(name, _)| *name);
    fields
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value.kind, ValueKind::Table(_) | ValueKind::Array(_))
}

/// Where the value was written. Elements of a list that flags replaced have places of their own.
fn places(value: &Value) -> Vec<&str> {
    let elements = match &value.kind {
        ValueKind::Array(values) => &values[..],
        _ => &[],
    };
    let elsewhere = elements
        .iter()
        .filter_map(Value::origin)
        .filter(|place| !is_line(place));
    let mut places: Vec<&str> = value.origin().into_iter().chain(elsewhere).collect();
    places.dedup();
    places
}

fn origin(places: &[&str], text: &Origin) -> String {
    let named = |place: &&str| {
        if is_line(place) {
            format!("{text}, {place}")
        } else {
            (*place).to_owned()
        }
    };
    places.iter().map(named).collect::<Vec<_>>().join("; ")
}

fn written(value: &Value) -> String {
    match &value.kind {
        ValueKind::String(text) => without_secrets(text),
        ValueKind::Boolean(boolean) => boolean.to_string(),
        ValueKind::Array(values) => values.iter().map(written).collect::<Vec<_>>().join(","),
        _ => String::new(),
    }
}

/// The text without the passwords of a URL: that of the user, and those in parameters.
fn without_secrets(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else {
        return text.to_owned();
    };
    let is_secret = |name: &str| name.to_ascii_lowercase().contains("password");
    let in_parameters = url.query_pairs().any(|(name, _)| is_secret(&name));
    if url.password().is_none() && !in_parameters {
        return text.to_owned();
    }
    if in_parameters {
        let hidden = |(name, value): (String, String)| {
            if is_secret(&name) {
                (name, HIDDEN.to_owned())
            } else {
                (name, value)
            }
        };
        let parameters: Vec<_> = url.query_pairs().into_owned().map(hidden).collect();
        url.query_pairs_mut().clear().extend_pairs(parameters);
    }
    // A URL whose password cannot be replaced is not shown.
    if url.password().is_some() && url.set_password(Some(HIDDEN)).is_err() {
        return HIDDEN.to_owned();
    }
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_a_url_are_hidden_and_nothing_else_changes() {
        for (text, shown) in [
            ("redis://h", "redis://h"),
            ("redis://u:canary@h:1/2", "redis://u:***@h:1/2"),
            ("rediss://:canary@h", "rediss://:***@h"),
            (
                "redis-sentinel://u:canary@h?sentinelServiceName=a&sentinelPassword=canary",
                "redis-sentinel://u:***@h?sentinelServiceName=a&sentinelPassword=***",
            ),
            ("memory:?capacity=64MiB", "memory:?capacity=64MiB"),
            ("127.0.0.1:50051", "127.0.0.1:50051"),
            ("header:x-plan", "header:x-plan"),
        ] {
            assert_eq!(without_secrets(text), shown, "{text}");
        }
    }
}
