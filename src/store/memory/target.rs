//! `memory:`, the address of the embedded store.

use std::fmt;

use url::Url;

use super::{CAPACITY_DEFAULT, CAPACITY_MIN};

/// How large the embedded store may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryTarget {
    /// Bytes, at least [`CAPACITY_MIN`]. Default: [`CAPACITY_DEFAULT`].
    pub capacity: u64,
}

impl Default for MemoryTarget {
    fn default() -> Self {
        Self {
            capacity: CAPACITY_DEFAULT,
        }
    }
}

impl MemoryTarget {
    /// The scheme of its URLs.
    pub(crate) const SCHEME: &str = "memory";

    /// Reads a URL of this scheme: `memory:`, or `memory:?capacity=64MiB`. Errors: a sentence that does not repeat the URL.
    pub(crate) fn from_url(url: &Url) -> Result<Self, String> {
        let mut target = Self::default();
        for (name, value) in url.query_pairs() {
            if name != "capacity" {
                return Err(
                    "has a parameter that memory: does not know; it knows capacity, such as memory:?capacity=64MiB".to_owned()
                );
            }
            target.capacity = parse_bytes(&value)
                .filter(|bytes| *bytes >= CAPACITY_MIN)
                .ok_or("has a capacity that is none; write at least 1MiB, as a whole number of KiB, MiB or GiB, such as 64MiB")?;
        }
        if !url.path().is_empty() || url.has_host() {
            return Err(
                "names more than memory: ; it is memory: or memory:?capacity=64MiB".to_owned(),
            );
        }
        Ok(target)
    }
}

/// Without the capacity.
impl fmt::Display for MemoryTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:", Self::SCHEME)
    }
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

    fn parse(text: &str) -> Result<MemoryTarget, String> {
        MemoryTarget::from_url(&Url::parse(text).unwrap())
    }

    #[test]
    fn memory_takes_a_capacity() {
        assert_eq!(parse("memory:"), Ok(MemoryTarget::default()));
        let capacity = 1 << 20;
        assert_eq!(
            parse("memory:?capacity=1MiB"),
            Ok(MemoryTarget { capacity })
        );
        for bad in [
            "memory:?capacity=1KiB",
            "memory:?capacity=64",
            "memory:?capacity=-1MiB",
            "memory:?size=1",
            "memory:x",
            "memory://h",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
