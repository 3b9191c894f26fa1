//! Finds whom a check counts: the key, plan, cost and shard of each subject, in its parameters, its header fields, or the address
//! of the client.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header::HeaderName;

use super::client_address::{Proxies, shown};
use super::parameters::{Given, NamedRequest, RequestFields, parse_cost};
use super::sources::Source;
use tollgate_core::headers::HeaderForm;

/// How checks are read and answered. Default: key and plan are parameters, no proxy is trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckSettings {
    /// Who is counted by a check.
    pub subjects: Subjects,
    /// Peers whose word about the client's address is believed.
    pub trusted_proxies: Proxies,
    /// Leading bits of an IPv6 address that make one client, 32 to 128. An IPv4 address counts as a whole.
    pub ipv6_prefix: u8,
    /// The rate limit fields of answers, also of those over gRPC.
    pub headers: HeaderForm,
}

/// Who is counted by a check. All subjects pass together, or none is charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subjects {
    /// The one subject of `check.key` and `check.plan`.
    One(Box<SubjectSources>),
    /// Those of `check.subjects`; 1 to [`tollgate_core::joint::REQUESTS_MAX`].
    Listed(Vec<SubjectSources>),
}

/// Where the parts of a subject come from. Of several sources, the first that is there counts; 1 to
/// [`super::sources::SOURCES_MAX`] of each part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectSources {
    /// Sources of the key. Each has 1 to [`super::sources::SOURCES_MAX`] parts, and is there when all are.
    pub key: Vec<Vec<Source>>,
    /// Sources of the plan's name.
    pub plan: Vec<Source>,
    /// Sources of the cost.
    pub cost: Vec<Source>,
    /// Sources of the key's shard, which may be missing. There may be none.
    pub shard: Vec<Source>,
    /// Whether a check without this key is decided by the others.
    pub optional: bool,
}

impl CheckSettings {
    /// Half of the address of a network: a host has all addresses below it. Source: RFC 6177.
    pub const IPV6_PREFIX_DEFAULT: u8 = 64;
}

impl Default for CheckSettings {
    fn default() -> Self {
        Self {
            subjects: Subjects::default(),
            trusted_proxies: Proxies::default(),
            ipv6_prefix: Self::IPV6_PREFIX_DEFAULT,
            headers: HeaderForm::default(),
        }
    }
}

impl Default for Subjects {
    fn default() -> Self {
        let key = Source::parameter("key");
        let plan = Source::parameter("plan");
        Self::one(vec![vec![key]], vec![plan])
    }
}

impl Subjects {
    /// The single subject that `check.key` and `check.plan` configure. If its key may come from a parameter, the parameter `shard`
    /// names its shard.
    pub fn one(key: Vec<Vec<Source>>, plan: Vec<Source>) -> Self {
        let has_parameter = key.iter().flatten().any(Source::is_parameter);
        Self::One(Box::new(SubjectSources {
            key,
            plan,
            cost: SubjectSources::default_cost(),
            shard: has_parameter
                .then(|| Source::parameter("shard"))
                .into_iter()
                .collect(),
            optional: false,
        }))
    }

    /// All of them, in their order.
    pub fn as_slice(&self) -> &[SubjectSources] {
        match self {
            Self::One(subject) => std::slice::from_ref(&**subject),
            Self::Listed(subjects) => subjects,
        }
    }

    /// The path in the config of the subject of this index.
    pub fn path(&self, index: usize) -> String {
        match self {
            Self::One(_) => "check".to_owned(),
            Self::Listed(_) => format!("check.subjects[{index}]"),
        }
    }

    /// The name of the subject of this index in messages to callers; empty if it is the only one there may be.
    fn name(&self, index: usize) -> String {
        match self {
            Self::One(_) => String::new(),
            Self::Listed(_) => format!("subjects[{index}]"),
        }
    }

    /// Whether a caller may name several requests itself: key and plan are parameters, and nothing else.
    pub(super) fn take_requests(&self) -> bool {
        *self == Self::default()
    }

    /// Whether some source names this parameter; of a cost only if the call has one.
    pub(super) fn takes(&self, parameter: &str, has_cost: bool) -> bool {
        let is_named =
            |source: &Source| matches!(source, Source::Parameter(name) if **name == *parameter);
        let mut subjects = self.as_slice().iter();
        subjects.any(|subject| {
            let named = subject.all_but_shard(has_cost).chain(&subject.shard);
            named.into_iter().any(is_named)
        })
    }

    /// All parameters, for the answer to a call with another one: those of a call stand before shards.
    pub(super) fn parameters<'a>(&'a self, of_call: &[&'a str], has_cost: bool) -> Vec<&'a str> {
        fn name(source: &Source) -> Option<&str> {
            match source {
                Source::Parameter(name) => Some(name),
                _ => None,
            }
        }
        let subjects = self.as_slice().iter();
        let shards = subjects.clone().flat_map(|subject| &subject.shard);
        let others = subjects.flat_map(|subject| subject.all_but_shard(has_cost));
        let others = others.filter_map(name).chain(of_call.iter().copied());
        let mut known: Vec<&str> = Vec::new();
        for name in others.chain(shards.filter_map(name)) {
            if !known.contains(&name) {
                known.push(name);
            }
        }
        known
    }

    /// Why a parameter is not taken that most servers take.
    pub(super) fn not_taken(&self, parameter: &str) -> Option<String> {
        let Self::One(_) = self else {
            return None;
        };
        let source = match parameter {
            "key" | "shard" => "key",
            "plan" => "plan",
            _ => return None,
        };
        Some(format!(
            "check.{source} of the config has no param:{source}, so this server takes no {parameter} as a parameter"
        ))
    }
}

impl SubjectSources {
    /// The parameter `cost`, or one unit.
    pub fn default_cost() -> Vec<Source> {
        vec![Source::parameter("cost"), Source::default("1")]
    }

    fn all_but_shard(&self, has_cost: bool) -> impl Iterator<Item = &Source> {
        let cost = self.cost.iter().filter(move |_| has_cost);
        self.key.iter().flatten().chain(&self.plan).chain(cost)
    }
}

/// The parts of a request that subjects are read from.
#[derive(Clone, Copy)]
pub(super) struct RequestParts<'a> {
    pub parameters: &'a Given,
    pub headers: &'a HeaderMap,
    /// The address of the peer; `None` on a Unix socket.
    pub peer: Option<IpAddr>,
    /// Whether units are asked for.
    pub has_cost: bool,
}

impl CheckSettings {
    /// What is asked for each subject that the request has, not yet checked for bounds. At least one.
    ///
    /// Errors: a sentence that says what is wrong and what would be right.
    pub(super) fn requests(&self, request: RequestParts<'_>) -> Result<Vec<NamedRequest>, String> {
        let mut found = Vec::new();
        for (index, subject) in self.subjects.as_slice().iter().enumerate() {
            let name = self.subjects.name(index);
            let none = |part: &str, sources: Vec<&Source>| {
                let dot = if name.is_empty() { "" } else { "." };
                format!("{name}{dot}{part} is empty: {}", send(sources))
            };
            let Some((key, source)) = self.key(subject, request)? else {
                if subject.optional {
                    continue;
                }
                return Err(none("key", subject.key.iter().flatten().collect()));
            };
            let plan = self.first(&subject.plan, request)?;
            let shard = self.first(&subject.shard, request)?;
            let is_given = source.iter().any(Source::is_parameter);
            if shard.is_some() && !is_given && matches!(self.subjects, Subjects::One(_)) {
                let key = send(source.iter().collect());
                return Err(format!(
                    "shard belongs to a key that is a parameter; the key of this request is in another place: {key}, and no shard"
                ));
            }
            let cost = if request.has_cost {
                let cost = self.cost(&subject.cost, request)?;
                Some(cost.ok_or_else(|| none("cost", subject.cost.iter().collect()))?)
            } else {
                None
            };
            let fields = RequestFields {
                key,
                plan: plan.ok_or_else(|| none("plan", subject.plan.iter().collect()))?,
                cost,
                shard,
            };
            found.push(NamedRequest { name, fields });
        }
        if found.is_empty() {
            let keys = self.subjects.as_slice().iter();
            let sources = keys.flat_map(|subject| subject.key.iter().flatten());
            return Err(format!(
                "the request has none of the keys: {}",
                send(sources.collect())
            ));
        }
        Ok(found)
    }

    /// The key, and the parts of the source that it came from.
    fn key<'a>(
        &self,
        subject: &'a SubjectSources,
        request: RequestParts<'_>,
    ) -> Result<Option<(String, &'a [Source])>, String> {
        for source in &subject.key {
            // An error of a part comes before the absence of another.
            let found: Vec<Option<String>> = source
                .iter()
                .map(|part| self.text(part, request))
                .collect::<Result<_, _>>()?;
            if let Some(parts) = found.into_iter().collect::<Option<Vec<String>>>() {
                return Ok(Some((joined(parts), source)));
            }
        }
        Ok(None)
    }

    /// The text of the first source that is there.
    fn first(
        &self,
        sources: &[Source],
        request: RequestParts<'_>,
    ) -> Result<Option<String>, String> {
        for source in sources {
            if let Some(found) = self.text(source, request)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn text(&self, source: &Source, request: RequestParts<'_>) -> Result<Option<String>, String> {
        match source {
            Source::Parameter(name) => request.parameters.text(name),
            Source::Header(name) => header(request.headers, name),
            Source::ClientAddress => {
                let client = self.trusted_proxies.client(request.peer, request.headers)?;
                Ok(client.map(|client| shown(client, self.ipv6_prefix)))
            }
            Source::Default(text) => Ok(Some(String::from(&**text))),
        }
    }

    /// The units of the first source that is there.
    fn cost(&self, sources: &[Source], request: RequestParts<'_>) -> Result<Option<u64>, String> {
        for source in sources {
            let found = match source {
                Source::Parameter(name) => request.parameters.number(name)?,
                _ => {
                    let text = self.text(source, request)?;
                    let parse = |text: String| parse_cost(&source.place(), &text);
                    text.map(parse).transpose()?
                }
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

fn send(sources: Vec<&Source>) -> String {
    let places: BTreeSet<String> = sources.into_iter().map(Source::place).collect();
    let places: Vec<String> = places.into_iter().collect();
    format!("send {}", places.join(" or "))
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
        .map_err(|_| format!("the header {name} is not UTF-8"))?;
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
mod tests;
