//! `store.url`: which store, checked before anything connects. A password in it never leaves here but to the store.

use std::fmt;

use url::Url;

use crate::store::{CAPACITY_DEFAULT, CAPACITY_MIN};

/// Schemes that the design has and this version does not.
const LATER: [(&str, &str); 7] = [
    ("rediss", "TLS"),
    ("redis-cluster", "Redis Cluster"),
    ("rediss-cluster", "Redis Cluster"),
    ("redis-sentinel", "Redis Sentinel"),
    ("rediss-sentinel", "Redis Sentinel"),
    ("valkey", "the valkey scheme (redis:// works with Valkey)"),
    ("valkeys", "TLS"),
];
const RIGHT: &str = "write memory:, redis://host:6379, redis://user:password@host:6379/0 or redis+unix:///path/to/redis.sock";

/// Where the counters are kept.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:` or `memory:?capacity=64MiB`: in this process, at most so many bytes.
    Memory {
        /// Bytes, at least 1 MiB. Default: 64 MiB.
        capacity: u64,
    },
    /// `redis://…` or `redis+unix://…`, with whatever password it carries; see [`StoreUrl::secret`].
    Redis(Url),
}

impl Default for StoreUrl {
    fn default() -> Self {
        Self::Memory { capacity: CAPACITY_DEFAULT }
    }
}

impl StoreUrl {
    /// Understands a URL. Errors: a sentence that does not repeat it, as it may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("is no URL ({error}); {RIGHT}"))?;
        match url.scheme() {
            "memory" => memory(&url),
            "redis" => redis(url),
            "redis+unix" if url.path().len() > 1 && !url.cannot_be_a_base() => Ok(Self::Redis(url)),
            "redis+unix" => Err(format!("names no socket; {RIGHT}")),
            scheme => Err(match LATER.iter().find(|later| later.0 == scheme) {
                Some((_, what)) => {
                    format!("needs {what}, which version {} does not have yet; {RIGHT}", env!("CARGO_PKG_VERSION"))
                }
                None => format!("has a scheme that is no store's; {RIGHT}"),
            }),
        }
    }

    /// The whole URL with its password, for the store's client alone.
    pub fn secret(&self) -> &str {
        match self {
            Self::Memory { .. } => "memory:",
            Self::Redis(url) => url.as_str(),
        }
    }
}

/// Without user, password and parameters: fit for logs.
impl fmt::Display for StoreUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { .. } => out.write_str("memory:"),
            Self::Redis(url) => {
                let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
                write!(out, "{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or(""), url.path())
            }
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
            return Err(format!("has a parameter {name:?}; memory: knows capacity, such as memory:?capacity=64MiB"));
        }
        capacity = bytes(&value).filter(|bytes| *bytes >= CAPACITY_MIN).ok_or_else(|| {
            format!("has the capacity {value:?}; write at least 1MiB, as a whole number of KiB, MiB or GiB, such as 64MiB")
        })?;
    }
    if !url.path().is_empty() || url.has_host() {
        return Err("names more than memory: ; it is memory: or memory:?capacity=64MiB".to_owned());
    }
    Ok(StoreUrl::Memory { capacity })
}

fn bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (digits, unit) = units.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))?;
    digits.trim_end().parse::<u64>().ok()?.checked_mul(unit)
}

fn redis(url: Url) -> Result<StoreUrl, String> {
    if url.host_str().unwrap_or("").is_empty() {
        return Err(format!("names no host; {RIGHT}"));
    }
    let database = url.path().trim_start_matches('/');
    if !database.is_empty() && database.parse::<u8>().is_err() {
        return Err("has a path that is no number of a database, 0 to 255; ".to_owned() + RIGHT);
    }
    if url.query().is_some() {
        return Err(format!("has parameters, and none are known here; {RIGHT}"));
    }
    Ok(StoreUrl::Redis(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_takes_a_capacity() {
        assert_eq!(StoreUrl::parse("memory:"), Ok(StoreUrl::default()));
        assert_eq!(StoreUrl::parse("memory:?capacity=1MiB"), Ok(StoreUrl::Memory { capacity: 1 << 20 }));
        for bad in
            ["memory:?capacity=1KiB", "memory:?capacity=64", "memory:?capacity=-1MiB", "memory:?size=1", "memory:x", "memory://h"]
        {
            assert!(StoreUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn redis_needs_a_host() {
        for good in
            ["redis://localhost", "redis://:secret@10.0.0.1:6380/3", "redis://user:secret@[::1]:6379", "redis+unix:///run/r.sock"]
        {
            assert!(StoreUrl::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "redis",
            "redis:",
            "redis://",
            "redis://h:99999",
            "redis://h/x",
            "redis://h/256",
            "http://h",
            "localhost:6379",
            "redis://h?a=1",
            "redis+unix://",
            "\u{7f}",
        ] {
            assert!(StoreUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_comes_later_is_said_so() {
        assert!(StoreUrl::parse("rediss://h").unwrap_err().contains("does not have yet"));
        assert!(StoreUrl::parse("redis-cluster://h").unwrap_err().contains("Redis Cluster"));
    }

    #[test]
    fn a_password_is_never_shown() {
        let url = StoreUrl::parse("redis://canary-user:canary-pass@h:1/2").unwrap();
        assert_eq!(url.to_string(), "redis://h:1/2");
        assert!(!format!("{url:?}").contains("canary"));
        assert!(url.secret().contains("canary-pass"));
        assert!(!StoreUrl::parse("redis://canary:canary@h:bad").unwrap_err().contains("canary"));
    }
}
