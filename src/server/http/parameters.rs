//! Parses the parameters of a check, from its query and its body. Parsing is strict: a typing error that was ignored would
//! be charged as something else.

mod json;

use std::net::IpAddr;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::call::{CallPath, ParameterNames};
use super::sources::{is_parameter_name, whole_number};
use super::subject::{CheckSettings, RequestParts, Subjects};
use crate::limiter::RequestId;
use tollgate_core::algorithm::Mode;
use tollgate_core::algorithm::holds::IfUnknown;
use tollgate_core::duration;
use tollgate_core::joint::REQUESTS_MAX;
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::{check_requested_name, check_used};
use tollgate_store::Check;

/// The parameters of a check.
#[derive(Debug)]
pub(super) struct Parameters {
    pub asked: RequestedChecks,
    /// The status of a denial, 400 to 599. Default: 429. nginx's `auth_request` takes 401 and 403 for a denial, and any
    /// other for a fault of its own.
    pub deny_status: StatusCode,
}

/// What is to be decided.
#[derive(Debug)]
pub(super) enum RequestedChecks {
    /// One request, and its id.
    Single(Check<String>, Option<RequestId>),
    /// Requests that pass together or not at all.
    Joint(JointChecks),
}

/// The parameters of a call about a hold, or of a record.
#[derive(Debug)]
pub(super) struct HoldParameters {
    /// Whom it is about, and what it costs: 1 where the call has no cost.
    pub check: Check<String>,
    /// Its id. `None` for a record alone.
    pub id: Option<RequestId>,
    /// The lease that it asks for.
    pub ttl: Option<Duration>,
    /// Units that were used.
    pub actual: Option<u64>,
    /// What a settle does where no hold is open.
    pub if_unknown: IfUnknown,
    /// See [`Parameters::deny_status`].
    pub deny_status: StatusCode,
}

/// Checks that are decided together.
#[derive(Debug)]
pub(super) struct JointChecks {
    pub checks: Vec<Check<String>>,
    /// What each is called in messages, such as `requests[1]`.
    pub names: Vec<String>,
}

/// One of the requests of a joint decision, as it was given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestFields {
    pub key: String,
    pub plan: String,
    pub cost: Option<u64>,
    pub shard: Option<String>,
}

/// The requests of a joint decision, in their order.
#[derive(Debug)]
struct RequestList(Vec<RequestFields>);

/// The given parameters. Those of the check itself have the right types; no bounds are checked yet.
#[derive(Debug, Default)]
pub(super) struct ParameterFields {
    pub given: Given,
    deny_status: Option<u16>,
    peek: Option<bool>,
    /// Only in JSON.
    requests: Option<RequestList>,
    /// Every name of the JSON, also one whose value is null.
    names: Vec<String>,
}

/// Parameters that the config names as sources, and those about holds, as they were given; each once.
#[derive(Debug, Default)]
pub(super) struct Given(Vec<(String, ParameterValue)>);

/// The value of a parameter.
#[derive(Debug)]
enum ParameterValue {
    /// In a query or a form, which have texts alone.
    Untyped(String),
    /// A text in JSON.
    Text(String),
    /// A whole number in JSON.
    Number(u64),
}

impl Given {
    fn get(&self, name: &str) -> Option<&ParameterValue> {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value)
    }

    /// The parameter as a text. Errors, also of the function below: it has another type.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(ParameterValue::Untyped(text) | ParameterValue::Text(text)) => {
                Ok(Some(text.clone()))
            }
            Some(ParameterValue::Number(number)) => {
                Err(format!("{name} is the number {number}; send it as a text"))
            }
        }
    }

    /// The parameter as a whole number.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(ParameterValue::Number(number)) => Ok(Some(*number)),
            Some(ParameterValue::Untyped(text)) => parse_cost(name, text).map(Some),
            Some(ParameterValue::Text(text)) => Err(format!(
                "{name} is the text {text:?}, expected u64: a whole number without quotes"
            )),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
}

/// The meaning of `+` in a text of `name=value` pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plus {
    /// Itself, as RFC 3986 says for a query. A proxy copies data of its caller there unescaped, such as an e-mail address
    /// with a `+`.
    Literal,
    /// A space, as HTML forms encode it.
    Space,
}

impl ParameterFields {
    /// Reads a query. `names` say which parameters there are. Errors, also of the functions below: a sentence that says what
    /// is wrong and what would be right.
    pub(super) fn from_query(query: &str, names: ParameterNames<'_>) -> Result<Self, String> {
        Self::from_pairs(query, Plus::Literal, names)
    }

    /// Reads a body of type `application/x-www-form-urlencoded`.
    pub(super) fn from_form(body: &[u8], names: ParameterNames<'_>) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|_| "the form is not UTF-8".to_owned())?;
        Self::from_pairs(text, Plus::Space, names)
    }

    /// Reads a body of type `application/json`.
    pub(super) fn from_json(body: &[u8], names: ParameterNames<'_>) -> Result<Self, String> {
        json::parse(body, names)
    }

    /// Combines two sets of parameters. Errors: a parameter is in both.
    pub(super) fn merged(mut self, other: Self) -> Result<Self, String> {
        for (name, value) in other.given.0 {
            self.add(&name, value)?;
        }
        Ok(Self {
            given: self.given,
            deny_status: at_most_one("deny_status", self.deny_status, other.deny_status)?,
            peek: at_most_one("peek", self.peek, other.peek)?,
            requests: at_most_one("requests", self.requests, other.requests)?,
            names: other.names,
        })
    }

    fn from_pairs(text: &str, plus: Plus, names: ParameterNames<'_>) -> Result<Self, String> {
        let mut fields = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = || decode(name, value, plus);
            match name {
                _ if !names.takes(name) => return Err(not_taken(name, names)),
                "deny_status" => {
                    let status = Some(parse_status(&value()?)?);
                    fields.deny_status = at_most_one(name, fields.deny_status, status)?;
                }
                "peek" => {
                    fields.peek = at_most_one(name, fields.peek, Some(parse_peek(&value()?)?))?
                }
                _ => fields.add(name, ParameterValue::Untyped(value()?))?,
            }
        }
        Ok(fields)
    }

    fn add(&mut self, name: &str, value: ParameterValue) -> Result<(), String> {
        if self.given.has(name) {
            return Err(given_twice(name));
        }
        self.given.0.push((name.to_owned(), value));
        Ok(())
    }

    /// Finds the subjects as `settings` say, and checks the bounds of everything. `peer` is the address of the peer; `None` on a
    /// Unix socket.
    pub(super) fn check(
        mut self,
        settings: &CheckSettings,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<Parameters, String> {
        let deny_status = self.deny_status()?;
        let mode = if self.peek == Some(true) {
            Mode::Peek
        } else {
            Mode::Charge
        };
        let id = self.id()?;
        if id.is_some() && mode == Mode::Peek {
            return Err("request_id stands beside peek, which charges nothing".to_owned());
        }
        let of_one = |asked| match (asked, &id) {
            (RequestedChecks::Joint(_), Some(_)) => Err("request_id stands beside requests: \
                a joint decision takes none"
                .to_owned()),
            (asked, _) => Ok(asked),
        };
        let asked = match self.requests.take() {
            Some(RequestList(requests)) => joint(self.named_requests(requests, settings)?, mode)?,
            None => {
                let parameters = &self.given;
                let found = settings.requests(RequestParts {
                    parameters,
                    headers,
                    peer,
                    has_cost: true,
                })?;
                match <[NamedRequest; 1]>::try_from(found) {
                    Ok([only]) if settings.subjects.as_slice().len() == 1 => {
                        RequestedChecks::Single(only.check(mode)?, id.clone())
                    }
                    Ok([only]) => joint(vec![only], mode)?,
                    Err(found) => joint(found, mode)?,
                }
            }
        };
        let asked = of_one(asked)?;
        Ok(Parameters { asked, deny_status })
    }

    /// Finds the one subject of a call about a hold, or of a record, and checks the bounds of everything. `from` is the request's header
    /// fields and the address of the peer.
    pub(super) fn hold(
        self,
        call: CallPath,
        settings: &CheckSettings,
        (headers, peer): (&HeaderMap, Option<IpAddr>),
    ) -> Result<HoldParameters, String> {
        check_one_subject(settings, call)?;
        let found = settings.requests(RequestParts {
            parameters: &self.given,
            headers,
            peer,
            has_cost: call.has_cost(),
        })?;
        let id = match (self.id()?, call) {
            (None, CallPath::Record) => None,
            (None, _) => Some(RequestId::new("")?),
            (id, _) => id,
        };
        let actual = self.given.number("actual")?;
        check_costs(&found, call)?;
        actual.map_or(Ok(()), |actual| check_used("actual", actual))?;
        let subject = found.into_iter().next().ok_or("the request has no key")?;
        Ok(HoldParameters {
            id,
            ttl: self.ttl()?,
            actual,
            if_unknown: self.if_unknown()?,
            deny_status: self.deny_status()?,
            check: subject.check(Mode::Charge)?,
        })
    }

    fn id(&self) -> Result<Option<RequestId>, String> {
        let id = self.given.text("request_id")?;
        id.map(|id| RequestId::new(&id)).transpose()
    }

    fn ttl(&self) -> Result<Option<Duration>, String> {
        let ttl = self.given.text("ttl")?;
        let parse = |ttl: String| duration::parse(&ttl).map_err(|error| format!("ttl: {error}"));
        ttl.map(parse).transpose()
    }

    fn if_unknown(&self) -> Result<IfUnknown, String> {
        match self.given.text("if_unknown")?.as_deref() {
            None | Some("charge") => Ok(IfUnknown::Charge),
            Some("ignore") => Ok(IfUnknown::Ignore),
            Some(_) => Err("if_unknown is another word than charge or ignore".to_owned()),
        }
    }

    fn deny_status(&self) -> Result<StatusCode, String> {
        self.deny_status
            .map_or(Ok(StatusCode::TOO_MANY_REQUESTS), deny_status)
    }

    /// The requests, which are all that is asked for.
    fn named_requests(
        &self,
        requests: Vec<RequestFields>,
        settings: &CheckSettings,
    ) -> Result<Vec<NamedRequest>, String> {
        if let Some((name, _)) = self.given.0.first() {
            return Err(format!("requests stands beside {name}; send one of them"));
        }
        if !settings.subjects.take_requests() {
            let whom = match settings.subjects {
                Subjects::One(_) => "check.key or check.plan of the config reads no parameter",
                Subjects::Listed(_) => "check.subjects of the config says who is counted",
            };
            return Err(format!("{whom}, so this server takes no requests"));
        }
        if !(1..=REQUESTS_MAX).contains(&requests.len()) {
            let count = requests.len();
            return Err(format!(
                "requests has {count} of them; send 1 to {REQUESTS_MAX}"
            ));
        }
        let named = |(index, fields)| NamedRequest {
            name: format!("requests[{index}]"),
            fields,
        };
        Ok(requests.into_iter().enumerate().map(named).collect())
    }
}

/// Refuses a call about one subject where the config names several.
fn check_one_subject(settings: &CheckSettings, call: CallPath) -> Result<(), String> {
    if settings.subjects.as_slice().len() > 1 {
        let path = call.path();
        return Err(format!(
            "check.subjects of the config names several subjects, and {path} is about one: call it by gRPC"
        ));
    }
    Ok(())
}

fn check_costs(requests: &[NamedRequest], call: CallPath) -> Result<(), String> {
    for cost in requests.iter().filter_map(|request| request.fields.cost) {
        if cost == 0 {
            return Err("cost is 0: send 1 or more, or leave it out for 1".to_owned());
        }
        if call == CallPath::Record {
            check_used("cost", cost)?;
        }
    }
    Ok(())
}

/// A request with its name in messages, such as `requests[1]`; it has none where it is the only one there may be.
pub(super) struct NamedRequest {
    pub name: String,
    pub fields: RequestFields,
}

fn joint(requests: Vec<NamedRequest>, mode: Mode) -> Result<RequestedChecks, String> {
    let names = requests
        .iter()
        .map(|request| request.name.clone())
        .collect();
    let checks = requests.into_iter().map(|request| request.check(mode));
    Ok(RequestedChecks::Joint(JointChecks {
        checks: checks.collect::<Result<_, _>>()?,
        names,
    }))
}

impl NamedRequest {
    /// Checks the bounds.
    fn check(self, mode: Mode) -> Result<Check<String>, String> {
        let Self { name, fields } = self;
        let dot = if name.is_empty() { "" } else { "." };
        fields
            .check(mode)
            .map_err(|error| format!("{name}{dot}{error}"))
    }
}

impl RequestFields {
    /// Checks the bounds. Errors: a sentence that begins with the name of the field.
    fn check(self, mode: Mode) -> Result<Check<String>, String> {
        let shard = self.shard.unwrap_or_default();
        let key = Key::new(self.key).and_then(|key| key.in_shard(&shard));
        let key = key.map_err(|error| error.to_string())?;
        check_requested_name(&self.plan)?;
        let cost = self.cost.map_or(Ok(Cost::ONE), Cost::new);
        let cost = cost.map_err(|_| {
            "cost is 0: leave it out for 1, or say peek=true to ask without charging".to_owned()
        })?;
        Ok(Check {
            key,
            plan: self.plan,
            cost,
            mode,
        })
    }
}

fn at_most_one<T>(name: &str, one: Option<T>, other: Option<T>) -> Result<Option<T>, String> {
    match (one, other) {
        (Some(_), Some(_)) => Err(given_twice(name)),
        (one, other) => Ok(one.or(other)),
    }
}

fn given_twice(name: &str) -> String {
    format!("{name} is given twice")
}

/// What is wrong with a parameter that no source names. It is repeated only if it could be the name of one.
fn not_taken(name: &str, names: ParameterNames<'_>) -> String {
    names.not_taken(name).unwrap_or_else(|| {
        let shown = if is_parameter_name(name) {
            format!(", {name}")
        } else {
            String::new()
        };
        let known = names.known();
        format!("the request has an unknown parameter{shown}; there are {known}")
    })
}

/// Decodes percent escapes. The result must be UTF-8: a key that was repaired would be counted together with another key.
fn decode(name: &str, text: &str, plus: Plus) -> Result<String, String> {
    let escaped = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !text.split('%').skip(1).all(escaped) {
        return Err(format!(
            "{name} has a % that two hexadecimal digits do not follow; write %25 for the sign itself"
        ));
    }
    let spaced = if plus == Plus::Space {
        text.replace('+', " ")
    } else {
        text.to_owned()
    };
    let decoded = percent_decode_str(&spaced)
        .decode_utf8()
        .map_err(|_| format!("{name} is not UTF-8"))?;
    Ok(decoded.into_owned())
}

/// Parses the cost that stands at a place, for messages.
pub(super) fn parse_cost(place: &str, text: &str) -> Result<u64, String> {
    whole_number(text)
        .ok_or_else(|| format!("{place} is {text:?}; it must be a whole number, 1 or more"))
}

fn parse_status(text: &str) -> Result<u16, String> {
    let status = whole_number(text).and_then(|code| u16::try_from(code).ok());
    status.ok_or_else(|| format!("deny_status is {text:?}; it must be 400 to 599"))
}

fn parse_peek(text: &str) -> Result<bool, String> {
    text.parse()
        .map_err(|_| format!("peek is {text:?}; it must be true or false"))
}

fn deny_status(code: u16) -> Result<StatusCode, String> {
    let status = StatusCode::from_u16(code).ok();
    let status = status.filter(|status| status.is_client_error() || status.is_server_error());
    status.ok_or_else(|| format!("deny_status is \"{code}\"; it must be 400 to 599"))
}

#[cfg(test)]
mod tests;
