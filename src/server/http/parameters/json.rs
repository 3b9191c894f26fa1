//! The parameters of a check in a JSON object.

use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{ParameterFields, ParameterValue, RequestFields, RequestList, is_parameter_name};
use crate::http::call::{CallPath, ParameterNames};

/// The field that has the requests of a joint decision. An error in one of them begins with its place.
const REQUESTS: &str = "requests";

/// Reads the object. Errors: a sentence that says what is wrong and what would be right.
pub(super) fn parse(body: &[u8], names: ParameterNames<'_>) -> Result<ParameterFields, String> {
    let what = match names.call {
        CallPath::Check => "a check",
        call => call.path(),
    };
    let not_json = |why: &str| {
        let known = names.known();
        format!("the body is not the JSON of {what}: {why} {known}")
    };
    // serde would also accept a list of the fields in their order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(not_json("send an object with"));
    }
    let fields: ParameterFields = serde_json::from_slice(body).map_err(|error| {
        let why = error.to_string();
        match why.starts_with(REQUESTS) {
            true => format!("the body is not the JSON of {what}: {why}"),
            false => not_json(&format!("{why}; there are")),
        }
    })?;
    let is_unknown = |name: &&String| !names.takes_in_json(name);
    let Some(unknown) = fields.names.iter().find(is_unknown) else {
        return Ok(fields);
    };
    Err(names.not_taken(unknown).unwrap_or_else(|| {
        let shown = Some(unknown.as_str()).filter(|name| is_parameter_name(name));
        let shown = shown.map_or_else(String::new, |name| format!(" `{name}`"));
        not_json(&format!("unknown field{shown}; there are"))
    }))
}

impl<'de> Deserialize<'de> for ParameterFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = ParameterFields;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<ParameterFields, A::Error> {
        let mut fields = ParameterFields::default();
        while let Some(name) = object.next_key::<String>()? {
            // Also one whose value is null, which is none.
            if fields.names.contains(&name) {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            match name.as_str() {
                "deny_status" => fields.deny_status = object.next_value()?,
                "peek" => fields.peek = object.next_value()?,
                REQUESTS => fields.requests = object.next_value()?,
                _ => {
                    let value: Option<ParameterValue> = object.next_value()?;
                    fields
                        .given
                        .0
                        .extend(value.map(|value| (name.clone(), value)));
                }
            }
            fields.names.push(name);
        }
        Ok(fields)
    }
}

impl<'de> Deserialize<'de> for RequestList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(RequestsVisitor)
    }
}

struct RequestsVisitor;

impl<'de> Visitor<'de> for RequestsVisitor {
    type Value = RequestList;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RequestList, A::Error> {
        let mut requests = Vec::new();
        loop {
            let index = requests.len();
            let at_index = |error| A::Error::custom(format_args!("{REQUESTS}[{index}]: {error}"));
            match list.next_element().map_err(at_index)? {
                Some(RequestObject(request)) => requests.push(request),
                None => return Ok(RequestList(requests)),
            }
        }
    }
}

/// One of them: an object, and no list of its values in their order.
struct RequestObject(RequestFields);

impl<'de> Deserialize<'de> for RequestObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RequestVisitor)
    }
}

struct RequestVisitor;

impl<'de> Visitor<'de> for RequestVisitor {
    type Value = RequestObject;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with key and plan")
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<RequestObject, A::Error> {
        RequestFields::deserialize(MapAccessDeserializer::new(object)).map(RequestObject)
    }
}

impl<'de> Deserialize<'de> for ParameterValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = ParameterValue;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("u64, or a text")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<ParameterValue, E> {
        Ok(ParameterValue::Number(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ParameterValue, E> {
        Ok(ParameterValue::Text(text.to_owned()))
    }
}
