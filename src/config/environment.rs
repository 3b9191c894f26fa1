//! Settings from environment variables: `TOLLGATE_STORE__URL` is `store.url`. A name that begins with `TOLLGATE_` and is no
//! setting is a mistake, since a setting that is ignored in silence is one that is thought to be in force.

use std::net::IpAddr;

use super::Mistake;
use super::source::Setting;
use super::tree::{Mistakes, note, shown_key};

const PREFIX: &str = "TOLLGATE_";
/// A whole config, in place of a file.
pub const CONFIG_YAML: &str = "TOLLGATE_CONFIG_YAML";
/// Variables that belong to the command line.
const OF_COMMAND_LINE: [&str; 4] = ["TOLLGATE_CONFIG", CONFIG_YAML, "TOLLGATE_LOG_LEVEL", "TOLLGATE_LOG_FORMAT"];
/// Every setting that has a path of its own; plans have names of the user's. A test holds this to what is checked.
pub(super) const SETTINGS: [&str; 25] = [
    "listen.grpc",
    "listen.http",
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
    "store.tls.ca_file",
    "store.tls.cert_file",
    "store.tls.key_file",
    "store.tls.server_name",
    "deny_cache.entries",
    "workers",
    "default_plan",
    "plans",
];
/// Names further away than this many edits are no help to offer.
const SUGGESTION_EDITS_MAX: usize = 3;

/// Settings of these variables, by their names' order; mistakes are noted.
pub(super) fn settings(variables: &[(String, String)], mistakes: &mut Mistakes) -> Vec<Setting> {
    let mut ours: Vec<&(String, String)> =
        variables.iter().filter(|(name, value)| is_ours(name) && !is_service_link(name, value)).collect();
    ours.sort();
    let mut settings = Vec::new();
    for (name, value) in ours {
        match path_of(name) {
            Some(path) => settings.push(Setting { path, value: value.clone(), place: format!("variable {name}") }),
            None => {
                let message = format!("the variable {} is no setting; {}", shown_key(name), right_for(name));
                note(mistakes, Mistake { path: String::new(), message, place: None });
            }
        }
    }
    settings
}

fn is_ours(name: &str) -> bool {
    let begins = name.get(..PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX));
    begins && !OF_COMMAND_LINE.contains(&name)
}

/// Whether Kubernetes made this variable for a Service called `tollgate`, or `tollgate-` and more: it does so in every pod of
/// the namespace. Both name and value must look like it, so that `TOLLGATE_LISTEN_PORT=8080` is none.
fn is_service_link(name: &str, value: &str) -> bool {
    let Some(rest) = name.strip_prefix("TOLLGATE").filter(|rest| rest.starts_with('_')) else { return false };
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let is_protocol = |text: &str| ["tcp", "udp", "sctp"].contains(&text);
    let is_url = |text: &str| text.split_once("://").is_some_and(|(protocol, at)| is_protocol(protocol) && at.contains(':'));
    let end = |end: &str| rest.ends_with(end);
    // _PORT_50051_TCP and what follows it.
    let (_, after) = rest.rsplit_once("_PORT_").unwrap_or_default();
    let parts: Vec<&str> = after.split('_').collect();
    let detail = match parts.as_slice() {
        [port, protocol, detail @ ..] if is_port(port) && is_protocol(&protocol.to_ascii_lowercase()) => Some(detail),
        _ => None,
    };
    match detail {
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

/// The path that a name stands for: one with levels, or a setting at the top.
fn path_of(name: &str) -> Option<String> {
    let rest = name.strip_prefix(PREFIX).filter(|rest| !rest.bytes().any(|byte| byte.is_ascii_lowercase()))?;
    let path = rest.to_ascii_lowercase().replace("__", ".");
    let sound = path.split('.').all(|part| !part.is_empty() && !part.starts_with('_') && !part.ends_with('_'));
    // A section alone, such as TOLLGATE_STORE, is no setting: it would put a text in the place of its table.
    let known = match path.split_once('.') {
        Some((section, _)) => SETTINGS.iter().any(|setting| setting.split('.').next() == Some(section)),
        None => SETTINGS.contains(&path.as_str()) && path != "plans",
    };
    (sound && known).then_some(path)
}

fn right_for(name: &str) -> String {
    let flat = |name: &str| name.to_ascii_uppercase().replace("__", "_");
    let wanted = flat(name);
    if let Some(right) = OF_COMMAND_LINE.iter().find(|right| **right == wanted) {
        return format!("did you mean {right}?");
    }
    if wanted.starts_with("TOLLGATE_PLANS_") {
        return "a plan's setting is written like TOLLGATE_PLANS__FREE__SHADOW, with __ between levels".to_owned();
    }
    let variable = |path: &&str| format!("{PREFIX}{}", path.to_ascii_uppercase().replace('.', "__"));
    let known = SETTINGS.iter().map(variable).chain(OF_COMMAND_LINE.map(str::to_owned));
    let near = known.map(|known| (strsim::damerau_levenshtein(&flat(&known), &shown_key(&wanted)), known)).min();
    match near {
        Some((0, right)) => format!("write {right}, with __ between levels"),
        Some((edits, right)) if edits <= SUGGESTION_EDITS_MAX => format!("did you mean {right}?"),
        _ => {
            "remove it, or write TOLLGATE_ and a path of a setting with __ between levels, such as TOLLGATE_STORE__URL".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake_of(name: &str) -> String {
        let (mut mistakes, variables) = (Vec::new(), [(name.to_owned(), "canary".to_owned())]);
        assert!(settings(&variables, &mut mistakes).is_empty(), "{name}");
        assert_eq!(mistakes.len(), 1, "{name}");
        assert!(!mistakes[0].message.contains("canary"));
        mistakes[0].message.clone()
    }

    #[test]
    fn every_setting_has_one_variable_and_a_name_with_single_underscores_is_told_which() {
        for path in SETTINGS.iter().filter(|path| **path != "plans") {
            let right = format!("TOLLGATE_{}", path.to_ascii_uppercase().replace('.', "__"));
            assert_eq!(path_of(&right).as_deref(), Some(*path));
            let single = right.replace("__", "_");
            if single != right {
                assert!(mistake_of(&single).contains(&format!("write {right}, with __")), "{}", mistake_of(&single));
            }
            assert!(mistake_of(&right.to_ascii_lowercase()).contains(&right), "{right}");
        }
    }

    #[test]
    fn other_names_are_mistakes_that_say_what_would_be_right() {
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
            let message = mistake_of(name);
            assert!(message.contains(&format!("the variable {name} is no setting; ")), "{message}");
            assert!(message.contains(part) || name == "TOLLGATE_PLANS" || name.contains("___"), "{message}");
        }
    }

    #[test]
    fn what_kubernetes_sets_for_a_service_of_that_name_is_left_alone_and_nothing_else_is() {
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
