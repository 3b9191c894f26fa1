//! The query of a check, to a question: strictly, since a slip that were let pass would be charged as something else.

use std::borrow::Cow;

use axum::http::StatusCode;
use percent_encoding::percent_decode_str;

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

const NAMES: [&str; 4] = ["key", "plan", "cost", "deny_status"];

/// Reads the query. Errors: a sentence with what is wrong and what would be right.
pub(super) fn parse(query: &str, mode: Mode) -> Result<Parameters, String> {
    let [key, plan, cost, deny_status] = fields(query)?;
    let key = Key::new(key.unwrap_or_default()).map_err(|error| error.to_string())?;
    let plan = plan.unwrap_or_default();
    match plan.len() {
        0 => return Err("plan is empty: name a plan of the config".to_owned()),
        1..=NAME_BYTES_MAX => {}
        bytes => return Err(format!("plan has {bytes} bytes: a plan's name has at most {NAME_BYTES_MAX}")),
    }
    let cost = cost.map_or(Ok(Cost::ONE), |text| parse_cost(&text))?;
    let deny_status = deny_status.map_or(Ok(StatusCode::TOO_MANY_REQUESTS), |text| parse_status(&text))?;
    Ok(Parameters { question: Question { key, plan: plan.into_owned(), cost, mode }, deny_status })
}

/// The value of each of [`NAMES`], if it is there.
fn fields(query: &str) -> Result<[Option<Cow<'_, str>>; NAMES.len()], String> {
    let mut fields = [const { None }; NAMES.len()];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(place) = NAMES.iter().position(|known| *known == name) else {
            return Err(format!("the query names a parameter that there is not; there are {}", NAMES.join(", ")));
        };
        if fields[place].replace(decode(value).ok_or_else(|| format!("{name} is no UTF-8"))?).is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    Ok(fields)
}

/// As forms write it: `+` is a space, `%` begins a byte. `None`: what comes out is no UTF-8, and a key that were patched up
/// would be counted with another.
fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('+') {
        return percent_decode_str(text).decode_utf8().ok();
    }
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(|text| text.into_owned().into())
}

fn parse_cost(text: &str) -> Result<Cost, String> {
    let units = digits(text).ok_or_else(|| format!("cost is {text:?}; it must be a whole number, 1 or more"))?;
    Cost::new(units).map_err(|_| "cost is 0: leave it out for 1, or send HEAD to ask without charging".to_owned())
}

fn parse_status(text: &str) -> Result<StatusCode, String> {
    let status = digits(text).and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok());
    let status = status.filter(|status| status.is_client_error() || status.is_server_error());
    status.ok_or_else(|| format!("deny_status is {text:?}; it must be 400 to 599"))
}

/// Digits alone: `parse` would take a sign too.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_charge(query: &str) -> Result<Parameters, String> {
        parse(query, Mode::Charge)
    }

    #[test]
    fn a_query_is_read_as_forms_write_it() {
        let found = parse_charge("plan=free&&key=a+b%2Bc%26%C3%A9&cost=7&deny_status=403&").unwrap();
        assert_eq!((found.question.key.as_str(), &*found.question.plan), ("a b+c&é", "free"));
        assert_eq!((found.question.cost.units(), found.deny_status.as_u16()), (7, 403));
        let defaults = parse_charge("key=%25&plan=p").unwrap();
        assert_eq!((defaults.question.key.as_str(), defaults.question.cost), ("%", Cost::ONE));
        assert_eq!(defaults.deny_status, StatusCode::TOO_MANY_REQUESTS);
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
            ("key=a&plan=p&costs=5", "there are key, plan, cost, deny_status"),
            ("key=a&key=b&plan=p", "key is there twice"),
        ] {
            let found = parse_charge(query).unwrap_err();
            assert!(found.contains(sentence), "{query}: {found}");
        }
        assert!(parse_charge(&format!("key={}&plan={}", long(512), long(64))).is_ok());
    }

    #[test]
    fn fuzz_queries() {
        const WORDS: [&str; 16] =
            ["key=", "plan=", "cost=", "deny_status=", "&", "=", "+", "%", "%ff", "%41", "0", "9", "403", "a", "é", ";"];
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let query: String = bytes.iter().map(|byte| WORDS[usize::from(*byte) % WORDS.len()]).collect();
            match parse_charge(&query) {
                Ok(found) => assert!(!found.question.plan.is_empty() && found.question.plan.len() <= NAME_BYTES_MAX, "{query}"),
                Err(sentence) => assert!(!sentence.is_empty(), "{query}"),
            }
        });
    }
}
