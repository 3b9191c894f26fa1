//! Settings from environment variables: `TOLLGATE_STORE__URL` is `store.url`. Any other name that begins with `TOLLGATE_` is an
//! error, since users believe that an ignored setting is in force.

use std::net::IpAddr;

use super::ConfigError;
use super::source::Setting;
use super::tree::{ErrorList, add, is_full, shown_key};
use tollgate_core::nearest::nearest;

const PREFIX: &str = "TOLLGATE_";
/// The variable that holds a whole config, in place of a file.
pub const CONFIG_YAML: &str = "TOLLGATE_CONFIG_YAML";
/// Variables that the command line reads.
const OF_COMMAND_LINE: [&str; 4] = [
    "TOLLGATE_CONFIG",
    CONFIG_YAML,
    "TOLLGATE_LOG_LEVEL",
    "TOLLGATE_LOG_FORMAT",
];
/// All settings with a fixed path; names of plans are chosen by the user. A test compares the list with the check.
pub(super) const SETTINGS: [&str; 41] = [
    "listen.grpc",
    "listen.http",
    "listen.metrics",
    "listen.http_hosts",
    "listen.admin",
    "listen.admin_token_file",
    "listen.plaintext",
    "listen.lame_duck",
    "listen.max_connection_age",
    "listen.tls.cert_file",
    "listen.tls.key_file",
    "listen.tls.client_ca_file",
    "listen.tls.client_names",
    "store.url",
    "store.username",
    "store.password_file",
    "store.key_prefix",
    "store.deadline",
    "store.expected_replicas",
    "store.ready",
    "store.tls.ca_file",
    "store.tls.cert_file",
    "store.tls.key_file",
    "store.tls.server_name",
    "deny_cache.entries",
    "status.page",
    "status.keys",
    "status.top",
    "workers",
    "check.key",
    "check.plan",
    "check.subjects",
    "check.trusted_proxies",
    "check.ipv6_prefix",
    "check.headers",
    "default_plan",
    "envoy.body",
    "envoy.joint",
    "envoy.domains",
    "plans",
    "overrides",
];
/// Tables whose names the user chooses, and lists of tables, so that any path below them may be a setting.
const WITH_ANYTHING_BELOW: [&str; 6] = [
    "plans.",
    "overrides.",
    "overrides[",
    "envoy.domains.",
    "check.subjects.",
    "check.subjects[",
];
/// Longest name of a variable that a message repeats as it is. A plan's name, the longest part, has at most 64 letters.
const SHOWN_BYTES_MAX: usize = 128;
/// The place of an error about a variable that is not a setting.
const PLACE: &str = "environment";

/// The settings of these variables, in the order of the variables' names. Errors are added to `errors`.
pub(super) fn settings(variables: &[(String, String)], errors: &mut ErrorList) -> Vec<Setting> {
    let mut ours: Vec<&(String, String)> = variables
        .iter()
        .filter(|(name, value)| is_ours(name) && !is_service_link(name, value))
        .collect();
    ours.sort();
    let mut settings = Vec::new();
    for (name, value) in ours {
        match path_of(name) {
            Some(path) => settings.push(Setting {
                path,
                value: value.clone(),
                place: format!("variable {}", shown(name)),
            }),
            None => report_unknown(name, errors),
        }
    }
    settings
}

/// Reports a variable that is not a setting.
fn report_unknown(name: &str, errors: &mut ErrorList) {
    // Finding the nearest name takes about 100 us, so it is skipped when no error can be added.
    if is_full(errors) {
        return;
    }
    let message = format!(
        "the variable {} is not a setting; {}",
        shown(name),
        suggestion_for(name)
    );
    add(
        errors,
        ConfigError {
            path: String::new(),
            message,
            place: Some(PLACE.to_owned()),
        },
    );
}

/// The name of a variable in a message: on one line and not too long.
fn shown(name: &str) -> String {
    let is_plain = name.len() <= SHOWN_BYTES_MAX
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_plain {
        name.to_owned()
    } else {
        shown_key(name)
    }
}

fn is_ours(name: &str) -> bool {
    let begins = name
        .get(..PREFIX.len())
        .is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX));
    begins && !OF_COMMAND_LINE.contains(&name)
}

/// Whether Kubernetes made this variable for a Service named `tollgate` or `tollgate-…`. Kubernetes sets these in every pod of
/// the namespace. Name and value must both match, so that `TOLLGATE_LISTEN_PORT=8080` does not.
fn is_service_link(name: &str, value: &str) -> bool {
    let Some(rest) = name
        .strip_prefix("TOLLGATE")
        .filter(|rest| rest.starts_with('_'))
    else {
        return false;
    };
    let is_url = |text: &str| {
        text.split_once("://")
            .is_some_and(|(protocol, at)| is_protocol(protocol) && at.contains(':'))
    };
    let end = |end: &str| rest.ends_with(end);
    match port_detail(rest).as_deref() {
        Some([]) => is_url(value),
        Some(["PROTO"]) => is_protocol(value),
        Some(["PORT"]) => is_port(value),
        Some(["ADDR"]) => value.parse::<IpAddr>().is_ok(),
        Some(_) => false,
        None if end("_SERVICE_HOST") => value.parse::<IpAddr>().is_ok(),
        None if end("_SERVICE_PORT") || rest.contains("_SERVICE_PORT_") => is_port(value),
        None => end("_PORT") && is_url(value),
    }
}

/// What follows `_PORT_50051_TCP` in the name of a variable of a port, split at `_`.
fn port_detail(rest: &str) -> Option<Vec<&str>> {
    let (_, after) = rest.rsplit_once("_PORT_")?;
    match after.split('_').collect::<Vec<_>>().as_slice() {
        [port, protocol, detail @ ..]
            if is_port(port) && is_protocol(&protocol.to_ascii_lowercase()) =>
        {
            Some(detail.to_vec())
        }
        _ => None,
    }
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

fn is_protocol(text: &str) -> bool {
    ["tcp", "udp", "sctp"].contains(&text)
}

/// The path for a variable's name: a path with levels, or a setting at the top.
fn path_of(name: &str) -> Option<String> {
    let rest = name
        .strip_prefix(PREFIX)
        .filter(|rest| !rest.bytes().any(|byte| byte.is_ascii_lowercase()))?;
    let path = rest.to_ascii_lowercase().replace("__", ".");
    let sound = path
        .split('.')
        .all(|part| !part.is_empty() && !part.starts_with('_') && !part.ends_with('_'));
    // The text of a variable is neither a table of plans nor a list of overrides.
    (sound && is_setting(&path) && !["plans", "overrides"].contains(&path.as_str())).then_some(path)
}

/// Whether there is a setting at this path, which has no indexes.
pub(super) fn is_setting(path: &str) -> bool {
    SETTINGS.contains(&path)
        || WITH_ANYTHING_BELOW
            .iter()
            .any(|table| path.starts_with(table))
}

/// The settings that a path was probably meant to name. The path itself names none.
pub(super) fn similar_settings(path: &str) -> Vec<String> {
    let flat = |path: &str| path.replace('.', "_");
    let known: Vec<String> = SETTINGS.iter().map(|setting| flat(setting)).collect();
    if let Some(near) = nearest(&flat(path), known.iter().map(String::as_str)) {
        return settings_where(|setting| flat(setting) == near);
    }
    // Settings that end with what was written: it may lack the tables that a setting stands in.
    let same_end = settings_where(|setting| {
        setting
            .strip_suffix(path)
            .is_some_and(|tables| tables.ends_with('.'))
    });
    match path.split_once('.') {
        Some((first, rest))
            if same_end.is_empty() && nearest(first, ["plans"].into_iter()).is_some() =>
        {
            vec![format!("plans.{rest}")]
        }
        _ => same_end,
    }
}

/// The settings whose paths fit.
fn settings_where(fits: impl Fn(&str) -> bool) -> Vec<String> {
    SETTINGS
        .into_iter()
        .filter(|setting| fits(setting))
        .map(str::to_owned)
        .collect()
}

fn suggestion_for(name: &str) -> String {
    let flat = |name: &str| name.to_ascii_uppercase().replace("__", "_");
    let wanted = flat(name);
    if wanted == "TOLLGATE_PLANS" || wanted.starts_with("TOLLGATE_PLANS_") {
        return "a plan's setting is written like TOLLGATE_PLANS__FREE__SHADOW, with __ between levels".to_owned();
    }
    let of_command_line = OF_COMMAND_LINE.iter().map(|name| &name[PREFIX.len()..]);
    if let Some(near) = nearest(
        wanted.get(PREFIX.len()..).unwrap_or_default(),
        of_command_line,
    ) {
        return format!("did you mean {PREFIX}{near}?");
    }
    match similar_variables(name).as_slice() {
        [] => {
            "remove it, or write TOLLGATE_ and a path of a setting with __ between levels, such as TOLLGATE_STORE__URL".to_owned()
        }
        [right, ..] if flat(right) == wanted => format!("write {right}, with __ between levels"),
        all => format!("did you mean {}?", all.join(" or ")),
    }
}

/// The variables that this name was probably meant to be.
fn similar_variables(name: &str) -> Vec<String> {
    let rest = name.get(PREFIX.len()..).unwrap_or_default();
    let path = rest.to_ascii_lowercase().replace("__", ".");
    similar_settings(&path)
        .iter()
        .map(|path| format!("{PREFIX}{}", path.to_ascii_uppercase().replace('.', "__")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(name: &str) -> String {
        let mut errors = Vec::new();
        let variables = [(name.to_owned(), "canary".to_owned())];
        assert!(settings(&variables, &mut errors).is_empty(), "{name}");
        assert_eq!(errors.len(), 1, "{name}");
        assert!(!errors[0].message.contains("canary"));
        errors[0].message.clone()
    }

    #[test]
    fn every_setting_has_one_variable_and_a_name_with_single_underscores_gets_it_suggested() {
        let has_one = |path: &&&str| !["plans", "overrides"].contains(*path);
        for path in SETTINGS.iter().filter(has_one) {
            let right = format!("TOLLGATE_{}", path.to_ascii_uppercase().replace('.', "__"));
            assert_eq!(path_of(&right).as_deref(), Some(*path));
            let single = right.replace("__", "_");
            if single != right {
                assert!(
                    error_of(&single).contains(&format!("write {right}, with __")),
                    "{}",
                    error_of(&single)
                );
            }
            assert!(
                error_of(&right.to_ascii_lowercase()).contains(&right),
                "{right}"
            );
        }
    }

    #[test]
    fn other_names_are_errors_that_give_the_right_form() {
        for (name, part) in [
            ("TOLLGATE_STORE_URI", "did you mean TOLLGATE_STORE__URL?"),
            ("TOLLGATE_WORKER", "did you mean TOLLGATE_WORKERS?"),
            ("TOLLGATE_CONFIGS", "did you mean TOLLGATE_CONFIG?"),
            ("TOLLGATE_LOG__LEVEL", "did you mean TOLLGATE_LOG_LEVEL?"),
            ("TOLLGATE_PLANS_FREE_SHADOW", "TOLLGATE_PLANS__FREE__SHADOW"),
            ("TOLLGATE_STORE", "such as TOLLGATE_STORE__URL"),
            ("TOLLGATE_PLANS", "did you mean"),
            ("TOLLGATE_", "such as TOLLGATE_STORE__URL"),
            ("TOLLGATE___STORE__URL", "write TOLLGATE_STORE__URL"),
            ("TOLLGATE_STORE___URL", "such as TOLLGATE_STORE__URL"),
            ("TOLLGATE_ANYTHING_ELSE", "remove it"),
        ] {
            let message = error_of(name);
            assert!(
                message.contains(&format!("the variable {name} is not a setting; ")),
                "{message}"
            );
            assert!(
                message.contains(part) || name == "TOLLGATE_PLANS" || name.contains("___"),
                "{message}"
            );
        }
    }

    #[test]
    fn variables_of_kubernetes_for_a_service_are_ignored_and_no_others() {
        for (name, value) in [
            ("TOLLGATE_SERVICE_HOST", "10.0.0.1"),
            ("TOLLGATE_SERVICE_HOST", "fd00::1"),
            ("TOLLGATE_SERVICE_PORT", "50051"),
            ("TOLLGATE_SERVICE_PORT_GRPC", "50051"),
            ("TOLLGATE_PORT", "tcp://10.0.0.1:50051"),
            ("TOLLGATE_PORT_50051_TCP", "tcp://10.0.0.1:50051"),
            ("TOLLGATE_PORT_50051_TCP_PROTO", "tcp"),
            ("TOLLGATE_PORT_50051_TCP_PORT", "50051"),
            ("TOLLGATE_PORT_50051_TCP_ADDR", "10.0.0.1"),
            ("TOLLGATE_PORT_53_UDP_ADDR", "fd00::1"),
            ("TOLLGATE_ADMIN_SERVICE_HOST", "10.0.0.1"),
            ("TOLLGATE_ADMIN_PORT_50052_TCP_PORT", "50052"),
            ("TOLLGATE_ADMIN_PORT", "tcp://[fd00::1]:50052"),
        ] {
            assert!(is_service_link(name, value), "{name}");
        }
        for (name, value) in [
            ("TOLLGATE_PORT", "8080"),
            ("TOLLGATE_LISTEN_PORT", "8080"),
            ("TOLLGATE_LISTEN_GRPC", "10.0.0.1:1"),
            ("TOLLGATE_STORE_URL", "tcp://10.0.0.1:6379"),
            ("TOLLGATE_SERVICE_HOST", "redis.internal"),
            ("TOLLGATE_SERVICE_PORT", "http"),
            ("TOLLGATE_PORT_50051_TCP_ADDR", "example.com"),
            ("TOLLGATE_PORT_X_TCP", "tcp://10.0.0.1:50051"),
            ("TOLLGATE_PORT_50051_TCP_OTHER", "tcp"),
            ("TOLLGATES_PORT", "tcp://10.0.0.1:1"),
            ("TOLLGATE_WORKERS", "2"),
        ] {
            assert!(!is_service_link(name, value), "{name}");
        }
    }
}
