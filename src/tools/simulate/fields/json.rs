//! Lines that are objects of JSON. Fields of inner objects are named with a dot between, such as `request.remote_ip`.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Values;

/// Maximum number of fields that a log has names for. Lines of logs have tens of fields.
const NAMES_MAX: usize = 500;
/// Deepest level at which fields have names.
const LEVELS_MAX: usize = 4;

/// Names of the fields that these lines have.
pub(super) fn names(sample: &[&[u8]]) -> Vec<String> {
    let mut names = Vec::new();
    for line in sample {
        let mut found = |name: &str, _: &[u8]| {
            if names.len() < NAMES_MAX && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        };
        // A line that is broken shows the fields before its fault; it is counted when it is replayed.
        let _ = read(line, &mut found);
    }
    names
}

pub(super) fn cut(names: &[String], line: &[u8], values: &mut Values) -> Result<(), &'static str> {
    // Lines of one log have their fields in the same order, so the next name is tried first.
    let mut next = 0;
    let mut put = |name: &str, value: &[u8]| {
        let is_next = names.get(next).is_some_and(|known| known == name);
        if let Some(index) = if is_next {
            Some(next)
        } else {
            names.iter().position(|known| known == name)
        } {
            values.put(index, value);
            next = index + 1;
        }
    };
    read(line, &mut put).map_err(|_| "it is not an object of JSON")
}

fn read(line: &[u8], put: &mut dyn FnMut(&str, &[u8])) -> Result<(), serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let mut path = String::new();
    json.deserialize_map(Level {
        path: &mut path,
        levels: LEVELS_MAX,
        put,
    })?;
    json.end()
}

/// Reads the value whose path is `path`.
struct Level<'a> {
    path: &'a mut String,
    /// Levels that may still be entered.
    levels: usize,
    put: &'a mut dyn FnMut(&str, &[u8]),
}

impl<'de> DeserializeSeed<'de> for Level<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.levels == 0 {
            deserializer.deserialize_ignored_any(IgnoredAny).map(|_| ())
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        (self.put)(self.path, value.as_bytes());
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.visit_str(&value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        // The shortest text that is this number; times up to microseconds are exact.
        self.visit_str(&value.to_string())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.visit_str(if value { "true" } else { "false" })
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.visit_str("")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        while sequence.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let above = self.path.len();
        while let Some(name) = map.next_key::<std::borrow::Cow<'_, str>>()? {
            if above > 0 {
                self.path.push('.');
            }
            self.path.push_str(&name);
            map.next_value_seed(Level {
                path: self.path,
                levels: self.levels - 1,
                put: self.put,
            })?;
            self.path.truncate(above);
        }
        Ok(())
    }
}
