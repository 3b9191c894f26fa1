//! What a check asks for, from its query and its body, to a question: strictly, since a slip that were let pass would be
//! charged as something else.

use axum::http::StatusCode;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use crate::algorithm::Mode;
use crate::key::{Cost, Key};
use crate::limiter::Question;
use crate::plan::NAME_BYTES_MAX;

/// What a check asks for.
#[derive(Debug)]
pub(super) struct Parameters {
    pub question: Question,
    /// The status of a denial: an error of the client's or the server's, 400 to 599. Default: 429. nginx's `auth_request`
    /// takes 401 and 403 for a denial, and any other for a fault of its own.
    pub deny_status: StatusCode,
}

/// The parameters that were given, each of its type and not yet within its bounds.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fields {
    key: Option<String>,
    plan: Option<String>,
    cost: Option<u64>,
    deny_status: Option<u16>,
    peek: Option<bool>,
}

const NAMES: &str = "key, plan, cost, deny_status, peek";

/// What a `+` is in a text of `name=value` pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plus {
    /// Itself, as RFC 3986 has it of a query: a proxy puts what it knows of its caller there as it is, such as an address of
    /// mail with a `+` in it.
    Plus,
    /// A space, as HTML's forms write it.
    Space,
}

impl Fields {
    /// Reads a query. Errors, here and below: a sentence with what is wrong and what would be right.
    pub(super) fn of_query(query: &str) -> Result<Self, String> {
        Self::of_pairs(query, Plus::Plus)
    }

    /// Reads a body of type `application/x-www-form-urlencoded`.
    pub(super) fn of_form(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|_| "the form is no UTF-8".to_owned())?;
        Self::of_pairs(text, Plus::Space)
    }

    /// Reads a body of type `application/json`.
    pub(super) fn of_json(body: &[u8]) -> Result<Self, String> {
        // serde would take a list for the fields in their order.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err(format!("the body is not the JSON of a check: send an object with {NAMES}"));
        }
        serde_json::from_slice(body).map_err(|error| format!("the body is not the JSON of a check: {error}; there are {NAMES}"))
    }

    /// These and those together.
    pub(super) fn and(self, other: Self) -> Result<Self, String> {
        Ok(Self {
            key: either("key", self.key, other.key)?,
            plan: either("plan", self.plan, other.plan)?,
            cost: either("cost", self.cost, other.cost)?,
            deny_status: either("deny_status", self.deny_status, other.deny_status)?,
            peek: either("peek", self.peek, other.peek)?,
        })
    }

    fn of_pairs(text: &str, plus: Plus) -> Result<Self, String> {
        let mut fields = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = || decode(name, value, plus);
            let found = match name {
                "key" => Self { key: Some(value()?), ..Self::default() },
                "plan" => Self { plan: Some(value()?), ..Self::default() },
                "cost" => Self { cost: Some(parse_cost(&value()?)?), ..Self::default() },
                "deny_status" => Self { deny_status: Some(parse_status(&value()?)?), ..Self::default() },
                "peek" => Self { peek: Some(parse_peek(&value()?)?), ..Self::default() },
                _ => return Err(format!("the request names a parameter that there is not; there are {NAMES}")),
            };
            fields = fields.and(found)?;
        }
        Ok(fields)
    }

    /// Checks every bound.
    pub(super) fn check(self) -> Result<Parameters, String> {
        let key = Key::new(self.key.unwrap_or_default()).map_err(|error| error.to_string())?;
        let plan = self.plan.unwrap_or_default();
        match plan.len() {
            0 => return Err("plan is empty: name a plan of the config".to_owned()),
            1..=NAME_BYTES_MAX => {}
            bytes => return Err(format!("plan has {bytes} bytes: a plan's name has at most {NAME_BYTES_MAX}")),
        }
        let cost = self.cost.map_or(Ok(Cost::ONE), Cost::new);
        let cost = cost.map_err(|_| "cost is 0: leave it out for 1, or say peek=true to ask without charging".to_owned())?;
        let mode = if self.peek == Some(true) { Mode::Peek } else { Mode::Charge };
        let deny_status = self.deny_status.map_or(Ok(StatusCode::TOO_MANY_REQUESTS), deny_status)?;
        Ok(Parameters { question: Question { key, plan, cost, mode }, deny_status })
    }
}

fn either<T>(name: &str, one: Option<T>, other: Option<T>) -> Result<Option<T>, String> {
    match (one, other) {
        (Some(_), Some(_)) => Err(format!("{name} is there twice")),
        (one, other) => Ok(one.or(other)),
    }
}

/// A `%` begins a byte. What comes out must be UTF-8: a key that were patched up would be counted with another.
fn decode(name: &str, text: &str, plus: Plus) -> Result<String, String> {
    let escaped = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !text.split('%').skip(1).all(escaped) {
        return Err(format!("{name} has a % that two hexadecimal digits do not follow; write %25 for the sign itself"));
    }
    let spaced = if plus == Plus::Space { text.replace('+', " ") } else { text.to_owned() };
    let decoded = percent_decode_str(&spaced).decode_utf8().map_err(|_| format!("{name} is no UTF-8"))?;
    Ok(decoded.into_owned())
}

fn parse_cost(text: &str) -> Result<u64, String> {
    digits(text).ok_or_else(|| format!("cost is {text:?}; it must be a whole number, 1 or more"))
}

fn parse_status(text: &str) -> Result<u16, String> {
    let status = digits(text).and_then(|code| u16::try_from(code).ok());
    status.ok_or_else(|| format!("deny_status is {text:?}; it must be 400 to 599"))
}

fn parse_peek(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("peek is {text:?}; it must be true or false"))
}

fn deny_status(code: u16) -> Result<StatusCode, String> {
    let status = StatusCode::from_u16(code).ok();
    let status = status.filter(|status| status.is_client_error() || status.is_server_error());
    status.ok_or_else(|| format!("deny_status is \"{code}\"; it must be 400 to 599"))
}

/// Digits alone: `parse` would take a sign too.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_query(query: &str) -> Result<Parameters, String> {
        Fields::of_query(query)?.check()
    }

    #[test]
    fn a_query_keeps_its_plus_and_a_form_writes_a_space_by_it() {
        let text = "plan=free&&key=a+b%2Bc%26%C3%A9%20d&cost=7&deny_status=403&";
        let found = of_query(text).unwrap();
        assert_eq!((found.question.key.as_str(), &*found.question.plan), ("a+b+c&é d", "free"));
        assert_eq!((found.question.cost.units(), found.deny_status.as_u16()), (7, 403));
        let form = Fields::of_form(text.as_bytes()).unwrap().check().unwrap();
        assert_eq!(form.question.key.as_str(), "a b+c&é d");
        let defaults = of_query("key=%25&plan=p").unwrap();
        assert_eq!((defaults.question.key.as_str(), defaults.question.cost), ("%", Cost::ONE));
        assert_eq!((defaults.deny_status, defaults.question.mode), (StatusCode::TOO_MANY_REQUESTS, Mode::Charge));
        assert_eq!(of_query("key=a&plan=p&peek=true").unwrap().question.mode, Mode::Peek);
        assert_eq!(of_query("key=a&plan=p&peek=false").unwrap().question.mode, Mode::Charge);
    }

    #[test]
    fn json_says_the_same_by_its_own_types() {
        let json = |text: &str| Fields::of_json(text.as_bytes()).and_then(Fields::check);
        let found = json(r#"{"key": "a+b %zz é", "plan": "free", "cost": 7, "deny_status": 403, "peek": true}"#).unwrap();
        assert_eq!((found.question.key.as_str(), &*found.question.plan), ("a+b %zz é", "free"));
        assert_eq!((found.question.cost.units(), found.deny_status.as_u16(), found.question.mode), (7, 403, Mode::Peek));
        assert_eq!(json(r#"{"key":"a","plan":"p","cost":null}"#).unwrap().question.cost, Cost::ONE);
        for (text, sentence) in [
            ("", "the body is not the JSON of a check"),
            ("[]", "send an object"),
            (r#"["a", "p", null, null, null]"#, "send an object"),
            (r#"{"key":"a"}"#, "plan is empty"),
            (r#"{"key":"a","plan":"p","cost":"7"}"#, "expected u64"),
            (r#"{"key":"a","plan":"p","cost":-1}"#, "expected u64"),
            (r#"{"key":"a","plan":"p","cost":1.0}"#, "expected u64"),
            (r#"{"key":"a","plan":"p","cost":0}"#, "cost is 0"),
            (r#"{"key":"a","plan":"p","deny_status":200}"#, "deny_status is \"200\"; it must be 400 to 599"),
            (r#"{"key":"a","key":"b","plan":"p"}"#, "duplicate field `key`"),
            (r#"{"key":"a","plan":"p","costs":1}"#, "unknown field `costs`"),
            (r#"{"key":"\ud800","plan":"p"}"#, "the body is not the JSON of a check"),
            (r#"{"key":"a","plan":"p"} x"#, "trailing characters"),
        ] {
            let found = json(text).unwrap_err();
            assert!(found.contains(sentence), "{text}: {found}");
        }
        assert!(json(&"[".repeat(4_096)).is_err());
    }

    #[test]
    fn what_the_query_and_the_body_both_say_is_there_twice() {
        let of = |query, body: &str| Fields::of_query(query)?.and(Fields::of_json(body.as_bytes())?)?.check();
        let found = of("plan=p&deny_status=403", r#"{"key":"a"}"#).unwrap();
        assert_eq!((found.question.key.as_str(), &*found.question.plan, found.deny_status.as_u16()), ("a", "p", 403));
        assert_eq!(of("plan=p&key=b", r#"{"key":"a"}"#).unwrap_err(), "key is there twice");
    }

    #[test]
    fn every_slip_is_a_sentence() {
        let long = |bytes| "x".repeat(bytes);
        for (query, sentence) in [
            ("", "key is empty"),
            ("key=a", "plan is empty"),
            ("plan=p", "key is empty"),
            ("key=&plan=p", "key is empty"),
            (&format!("key={}&plan=p", long(513)), "key has 513 bytes"),
            (&format!("key=a&plan={}", long(65)), "plan has 65 bytes"),
            ("key=%ff&plan=p", "key is no UTF-8"),
            ("key=+%ff&plan=p", "key is no UTF-8"),
            ("key=%zz&plan=p", "key has a % that two hexadecimal digits do not follow; write %25"),
            ("key=%&plan=p", "key has a %"),
            ("key=a%4&plan=p", "key has a %"),
            ("key=%%41&plan=p", "key has a %"),
            ("key=%+1&plan=p", "key has a %"),
            ("key=a&plan=p%g0", "plan has a %"),
            ("key=a&plan=p&cost=0", "cost is 0"),
            ("key=a&plan=p&cost=", "cost is \"\""),
            ("key=a&plan=p&cost=-1", "cost is \"-1\""),
            ("key=a&plan=p&cost=%2B1", "cost is \"+1\""),
            ("key=a&plan=p&cost=1.5", "cost is \"1.5\""),
            ("key=a&plan=p&cost=18446744073709551616", "whole number"),
            ("key=a&plan=p&deny_status=200", "deny_status is \"200\"; it must be 400 to 599"),
            ("key=a&plan=p&deny_status=399", "400 to 599"),
            ("key=a&plan=p&deny_status=600", "400 to 599"),
            ("key=a&plan=p&deny_status=65965", "400 to 599"),
            ("key=a&plan=p&peek=yes", "peek is \"yes\"; it must be true or false"),
            ("key=a&plan=p&peek", "peek is \"\""),
            ("key=a&plan=p&costs=5", "there are key, plan, cost, deny_status, peek"),
            ("key=a&key=b&plan=p", "key is there twice"),
        ] {
            let found = of_query(query).unwrap_err();
            assert!(found.contains(sentence), "{query}: {found}");
        }
        assert!(of_query(&format!("key={}&plan={}", long(512), long(64))).is_ok());
    }

    #[test]
    fn fuzz_queries() {
        const WORDS: [&str; 17] =
            ["key=", "plan=", "cost=", "deny_status=", "peek=", "&", "=", "+", "%", "%ff", "%41", "0", "9", "403", "a", "é", ";"];
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let query: String = bytes.iter().map(|byte| WORDS[usize::from(*byte) % WORDS.len()]).collect();
            let _ = Fields::of_json(bytes);
            for found in [of_query(&query), Fields::of_form(query.as_bytes()).and_then(Fields::check)] {
                match found {
                    Ok(found) => assert!((1..=NAME_BYTES_MAX).contains(&found.question.plan.len()), "{query}"),
                    Err(sentence) => assert!(!sentence.is_empty(), "{query}"),
                }
            }
        });
    }
}
