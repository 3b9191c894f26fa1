//! The parameters of a check in a JSON object.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::{ParameterFields, ParameterValue, is_parameter_name};
use crate::http::call::{CallPath, ParameterNames};

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
    let fields: ParameterFields =
        serde_json::from_slice(body).map_err(|error| not_json(&format!("{error}; there are")))?;
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
                "requests" => fields.requests = object.next_value()?,
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
