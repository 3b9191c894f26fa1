//! `store.url`: the choice of store, checked before anything connects.

use std::fmt;

use url::Url;

use tollgate_store::{CAPACITY_DEFAULT, CAPACITY_MIN, RedisTarget};

/// The store of the counters.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:` or `memory:?capacity=64MiB`: in this process, with at most this many bytes.
    Memory {
        /// Bytes, at least 1 MiB. Default: 64 MiB.
        capacity: u64,
    },
    /// `redis://…` and its variants.
    Redis(Box<RedisTarget>),
}

impl Default for StoreUrl {
    fn default() -> Self {
        Self::Memory {
            capacity: CAPACITY_DEFAULT,
        }
    }
}

impl StoreUrl {
    /// Parses a URL. Errors: a sentence that does not repeat the URL, since it may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        match Url::parse(text) {
            Ok(url) if url.scheme() == "memory" => memory(&url),
            // The Redis parser also words the errors of texts that are not URLs; `memory:` is added to them.
            _ => RedisTarget::parse(text)
                .map(|target| Self::Redis(Box::new(target)))
                .map_err(|error| error.replace("write redis://", "write memory:, redis://")),
        }
    }

    /// The settings that differ.
    pub(super) fn changed_settings(&self, other: &Self) -> Vec<&'static str> {
        match (self, other) {
            (Self::Redis(this), Self::Redis(other)) => this.changed_settings(other),
            _ if self == other => Vec::new(),
            _ => vec!["store.url"],
        }
    }
}

/// Without user, password and parameters, so that logs can show it.
impl fmt::Display for StoreUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { .. } => out.write_str("memory:"),
            Self::Redis(target) => write!(out, "{target}"),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "StoreUrl({self})")
    }
}

fn memory(url: &Url) -> Result<StoreUrl, String> {
    let mut capacity = CAPACITY_DEFAULT;
    for (name, value) in url.query_pairs() {
        if name != "capacity" {
            return Err(
                "has a parameter that memory: does not know; it knows capacity, such as memory:?capacity=64MiB".to_owned()
            );
        }
        capacity = parse_bytes(&value)
            .filter(|bytes| *bytes >= CAPACITY_MIN)
            .ok_or("has a capacity that is none; write at least 1MiB, as a whole number of KiB, MiB or GiB, such as 64MiB")?;
    }
    if !url.path().is_empty() || url.has_host() {
        return Err("names more than memory: ; it is memory: or memory:?capacity=64MiB".to_owned());
    }
    Ok(StoreUrl::Memory { capacity })
}

fn parse_bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (digits, unit) = units
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))?;
    digits.trim_end().parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_takes_a_capacity() {
        assert_eq!(StoreUrl::parse("memory:"), Ok(StoreUrl::default()));
        assert_eq!(
            StoreUrl::parse("memory:?capacity=1MiB"),
            Ok(StoreUrl::Memory { capacity: 1 << 20 })
        );
        for bad in [
            "memory:?capacity=1KiB",
            "memory:?capacity=64",
            "memory:?capacity=-1MiB",
            "memory:?size=1",
            "memory:x",
            "memory://h",
        ] {
            assert!(StoreUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_error_gives_the_right_form_of_both_kinds() {
        for bad in [
            "",
            "redis",
            "redis://",
            "http://h",
            "localhost:6379",
            "\u{7f}",
        ] {
            let error = StoreUrl::parse(bad).unwrap_err();
            for right in ["write memory:, ", "redis://host:6379, "] {
                assert!(error.contains(right), "{bad}: {error}");
            }
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let url = StoreUrl::parse("redis://canary-user:canary-pass@h:1/2").unwrap();
        assert_eq!(url.to_string(), "redis://h:1/2");
        assert!(!format!("{url:?}").contains("canary"));
    }
}
