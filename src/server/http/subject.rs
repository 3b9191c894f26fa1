//! Finds the key and the plan of a check: in its parameters, its header fields, or the address of the client.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::HeaderName;

use super::client_address::{Proxies, shown};
use tollgate_core::headers::HeaderForm;
use tollgate_core::plan::check_name;

/// Longest name of a header field in the config. Proxies allow some hundred bytes for name and value.
const HEADER_BYTES_MAX: usize = 64;
/// Most sources of `check.key` or `check.plan`, and most parts of a joined key. Each is looked up for each check.
pub const SOURCES_MAX: usize = 8;

/// How checks are read and answered. Default: key and plan are parameters, no proxy is trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckSettings {
    /// Sources of the key; the first that is there counts. Each has 1 to [`SOURCES_MAX`] parts, and is there when all are.
    pub key: Vec<Vec<KeyPart>>,
    /// Sources of the plan; the first that is there counts.
    pub plan: Vec<PlanSource>,
    /// Peers whose word about the client's address is believed.
    pub trusted_proxies: Proxies,
    /// Leading bits of an IPv6 address that make one client, 32 to 128. An IPv4 address counts as a whole.
    pub ipv6_prefix: u8,
    /// The rate limit fields of answers, also of those over gRPC.
    pub headers: HeaderForm,
}

impl CheckSettings {
    /// Half of the address of a network: a host has all addresses below it. Source: RFC 6177.
    pub const IPV6_PREFIX_DEFAULT: u8 = 64;
}

impl Default for CheckSettings {
    fn default() -> Self {
        Self {
            key: vec![vec![KeyPart::Parameter]],
            plan: vec![PlanSource::Parameter],
            trusted_proxies: Proxies::default(),
            ipv6_prefix: Self::IPV6_PREFIX_DEFAULT,
            headers: HeaderForm::default(),
        }
    }
}

/// A part of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPart {
    /// The parameter `key`.
    Parameter,
    /// The value of a header field.
    Header(HeaderName),
    /// The address of the client.
    ClientAddress,
}

/// Where a plan's name comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanSource {
    /// The parameter `plan`.
    Parameter,
    /// The value of a header field.
    Header(HeaderName),
    /// This name; always there.
    Default(Arc<str>),
}

impl KeyPart {
    /// Parses a source of the key: parts joined by `+`. Errors, also of the functions below: what is wrong and what is right.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        let parts: Vec<&str> = text.split('+').collect();
        if parts.len() > SOURCES_MAX {
            return Err(format!(
                "joins {} parts; a key has at most {SOURCES_MAX}",
                parts.len()
            ));
        }
        parts.into_iter().map(Self::parse).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("header:")) {
            ("param:key", _) => Ok(Self::Parameter),
            ("client_address", _) => Ok(Self::ClientAddress),
            (_, Some(name)) => header_name(name).map(Self::Header),
            _ => {
                Err("is no source of a key; write param:key, header:NAME, client_address, or some of these joined by +"
                    .to_owned())
            }
        }
    }
}

impl PlanSource {
    /// Parses a source of the plan.
    pub fn parse(text: &str) -> Result<Self, String> {
        match (
            text,
            text.strip_prefix("header:"),
            text.strip_prefix("default:"),
        ) {
            ("param:plan", ..) => Ok(Self::Parameter),
            (_, Some(name), _) => header_name(name).map(Self::Header),
            (_, _, Some(name)) => match check_name(name) {
                Ok(()) => Ok(Self::Default(name.into())),
                Err(error) => Err(format!("names a plan that {error}")),
            },
            _ => Err(
                "is no source of a plan; write param:plan, header:NAME or default:NAME".to_owned(),
            ),
        }
    }
}

fn header_name(name: &str) -> Result<HeaderName, String> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .ok()
        .filter(|_| name.len() <= HEADER_BYTES_MAX);
    parsed.ok_or_else(|| {
        format!("names no header field; a name has 1 to {HEADER_BYTES_MAX} letters, digits and dashes, such as header:x-api-key")
    })
}

/// The parts of a request that key and plan are read from.
pub(super) struct RequestParts<'a> {
    /// The parameter `key`, if it was sent.
    pub key: Option<String>,
    /// The parameter `plan`, if it was sent.
    pub plan: Option<String>,
    /// Whether the parameter `shard` was sent. It belongs to a key that is a parameter.
    pub has_shard: bool,
    pub headers: &'a HeaderMap,
    /// The address of the peer; `None` on a Unix socket.
    pub peer: Option<IpAddr>,
}

impl CheckSettings {
    /// Whether a caller may name several requests itself: key and plan are parameters, and nothing else.
    pub(super) fn takes_requests(&self) -> bool {
        let default = Self::default();
        self.key == default.key && self.plan == default.plan
    }

    /// The key and the plan's name, not yet checked for their bounds. Errors: a sentence that says what is wrong and what would
    /// be right.
    pub(super) fn subject(
        &self,
        mut request: RequestParts<'_>,
    ) -> Result<(String, String), String> {
        let takes_key = self
            .key
            .iter()
            .flatten()
            .any(|part| *part == KeyPart::Parameter);
        let takes_plan = self.plan.contains(&PlanSource::Parameter);
        for (name, sent, source, taken) in [
            ("key", request.key.is_some(), "key", takes_key),
            ("plan", request.plan.is_some(), "plan", takes_plan),
            ("shard", request.has_shard, "key", takes_key),
        ] {
            if sent && !taken {
                return Err(format!(
                    "check.{source} of the config has no param:{source}, so this server takes no {name} as a parameter"
                ));
            }
        }
        Ok((self.key(&mut request)?, self.plan(&mut request)?))
    }

    fn key(&self, request: &mut RequestParts<'_>) -> Result<String, String> {
        for source in &self.key {
            // An error of a part comes before the absence of another.
            let found: Vec<Option<String>> = source
                .iter()
                .map(|part| self.part(part, request))
                .collect::<Result<_, _>>()?;
            if let Some(parts) = found.into_iter().collect::<Option<Vec<String>>>() {
                return Ok(joined(parts));
            }
        }
        Err(missing(
            "key",
            self.key.iter().flatten().map(|part| match part {
                KeyPart::Parameter => "the parameter key".to_owned(),
                KeyPart::Header(name) => format!("the header {name}"),
                KeyPart::ClientAddress => "a connection with an address".to_owned(),
            }),
        ))
    }

    fn part(
        &self,
        part: &KeyPart,
        request: &mut RequestParts<'_>,
    ) -> Result<Option<String>, String> {
        match part {
            KeyPart::Parameter => Ok(request.key.clone()),
            KeyPart::Header(name) => header(request.headers, name),
            KeyPart::ClientAddress => {
                let client = self.trusted_proxies.client(request.peer, request.headers)?;
                Ok(client.map(|client| shown(client, self.ipv6_prefix)))
            }
        }
    }

    fn plan(&self, request: &mut RequestParts<'_>) -> Result<String, String> {
        for source in &self.plan {
            let found = match source {
                PlanSource::Parameter => request.plan.take(),
                PlanSource::Header(name) => header(request.headers, name)?,
                PlanSource::Default(name) => Some(String::from(&**name)),
            };
            if let Some(plan) = found {
                return Ok(plan);
            }
        }
        Err(missing(
            "plan",
            self.plan.iter().map(|source| match source {
                PlanSource::Parameter => "the parameter plan".to_owned(),
                PlanSource::Header(name) => format!("the header {name}"),
                // Unreachable, since it is always there.
                PlanSource::Default(name) => format!("the plan {name}"),
            }),
        ))
    }
}

fn missing(what: &str, places: impl Iterator<Item = String>) -> String {
    let places: BTreeSet<String> = places.collect();
    format!(
        "{what} is empty: send {}",
        places.into_iter().collect::<Vec<_>>().join(" or ")
    )
}

/// The value of a header field. `None` when it is missing or empty: a proxy may send an empty field for a missing value.
///
/// Errors: it is there several times, since one of them may be the client's own, or it is not UTF-8.
fn header(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, String> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(format!(
            "the header {name} is given twice; the proxy must send it once"
        ));
    }
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| format!("the header {name} is no UTF-8"))?;
    Ok(Some(text.trim_ascii())
        .filter(|text| !text.is_empty())
        .map(str::to_owned))
}

/// A single part as it is. Several are joined with `+`: within each, `%` and `+` are escaped as in a URL, so that different
/// parts never give one key.
fn joined(mut parts: Vec<String>) -> String {
    if parts.len() == 1 {
        return parts.swap_remove(0);
    }
    parts
        .iter()
        .map(|part| part.replace('%', "%25").replace('+', "%2B"))
        .collect::<Vec<_>>()
        .join("+")
}

#[cfg(test)]
mod tests {
    use super::*;

    const X_USER: HeaderName = HeaderName::from_static("x-user");
    const X_ORG: HeaderName = HeaderName::from_static("x-org");

    fn settings(key: Vec<Vec<KeyPart>>, plan: Vec<PlanSource>) -> CheckSettings {
        CheckSettings {
            key,
            plan,
            ..CheckSettings::default()
        }
    }

    /// Asks with these fields, written as `name: value`, from 192.0.2.1.
    fn subject(
        settings: &CheckSettings,
        key: Option<&str>,
        fields: &[(&str, &[u8])],
    ) -> Result<(String, String), String> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                axum::http::HeaderValue::from_bytes(value).unwrap(),
            );
        }
        let peer = Some("192.0.2.1".parse().unwrap());
        settings.subject(RequestParts {
            key: key.map(str::to_owned),
            plan: None,
            has_shard: false,
            headers: &headers,
            peer,
        })
    }

    fn header_or_address() -> CheckSettings {
        let key = vec![vec![KeyPart::Header(X_USER)], vec![KeyPart::ClientAddress]];
        settings(
            key,
            vec![
                PlanSource::Header(X_ORG),
                PlanSource::Default("free".into()),
            ],
        )
    }

    #[test]
    fn the_first_source_that_is_there_counts() {
        let settings = header_or_address();
        let of = |fields: &[(&str, &[u8])]| subject(&settings, None, fields).unwrap();
        assert_eq!(
            of(&[("x-user", b"ann"), ("x-org", b"paid")]),
            ("ann".to_owned(), "paid".to_owned())
        );
        assert_eq!(of(&[]), ("192.0.2.1".to_owned(), "free".to_owned()));
        assert_eq!(
            of(&[("x-user", b" "), ("x-org", b"")]),
            ("192.0.2.1".to_owned(), "free".to_owned())
        );
        assert_eq!(of(&[("x-user", "é".as_bytes())]).0, "é");
    }

    #[test]
    fn a_field_that_is_there_twice_or_no_utf8_is_an_error_and_no_other_source_replaces_it() {
        let settings = header_or_address();
        for (fields, sentence) in [
            (
                vec![("x-user", &b"ann"[..]), ("x-user", b"ben")],
                "the header x-user is given twice; the proxy must send it once",
            ),
            (vec![("x-user", b"\xff")], "the header x-user is no UTF-8"),
            (
                vec![("x-org", b"a"), ("x-org", b"a")],
                "the header x-org is given twice; the proxy must send it once",
            ),
        ] {
            assert_eq!(subject(&settings, None, &fields).unwrap_err(), sentence);
        }
        let parameter = subject(&settings, Some("ann"), &[]).unwrap_err();
        assert!(
            parameter.starts_with("check.key of the config has no param:key"),
            "{parameter}"
        );
    }

    #[test]
    fn without_any_source_the_answer_names_all_of_them() {
        let key = vec![
            vec![KeyPart::Header(X_ORG), KeyPart::Header(X_USER)],
            vec![KeyPart::Parameter],
        ];
        let settings = settings(key, vec![PlanSource::Parameter]);
        let places = "send the header x-org or the header x-user or the parameter key";
        assert_eq!(
            subject(&settings, None, &[("x-org", b"a")]).unwrap_err(),
            format!("key is empty: {places}")
        );
        assert_eq!(
            subject(&settings, Some("k"), &[]).unwrap_err(),
            "plan is empty: send the parameter plan"
        );
    }

    #[test]
    fn different_parts_never_give_one_key() {
        let settings = settings(
            vec![vec![KeyPart::Header(X_ORG), KeyPart::Header(X_USER)]],
            vec![PlanSource::Default("p".into())],
        );
        let texts = [
            "a", "+", "a+", "+a", "%", "%2B", "a%2Ba", "a+a", "%25", "++",
        ];
        let mut keys = BTreeSet::new();
        for org in texts {
            for user in texts {
                let fields = [("x-org", org.as_bytes()), ("x-user", user.as_bytes())];
                assert!(
                    keys.insert(subject(&settings, None, &fields).unwrap().0),
                    "{org} and {user}"
                );
            }
        }
        let fields: [(&str, &[u8]); 2] = [("x-org", b"acme"), ("x-user", b"a+b")];
        assert_eq!(subject(&settings, None, &fields).unwrap().0, "acme+a%2Bb");
    }
}
