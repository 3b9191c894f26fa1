//! The config: file < environment < flags, read through the `config` crate and checked as a whole.
//!
//! All errors are reported at once, each with its path and the right form. The resulting [`Config`] is valid; no later module
//! checks a setting again.

mod check;
mod environment;
mod envoy;
mod listen;
mod plans;
pub mod ratelimit;
mod settings;
mod source;
mod store;
mod store_url;
mod tree;
mod warnings;
mod watch;
mod yaml;

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::http::CheckSettings;
use crate::plan::PlanSet;
use crate::server::Address;
use crate::tls;

pub use environment::CONFIG_YAML;
pub use source::{FILE_BYTES_MAX as CONFIG_BYTES_MAX, Flag, Origin, Sources};
pub use store_url::StoreUrl;
pub use watch::Watch;

/// The plans of a server without a config, as a config file.
pub const EXAMPLE: &str = include_str!("config/example.yaml");

/// A whole, valid config.
#[derive(Debug)]
pub struct Config {
    /// Addresses of the gRPC services. Default: `127.0.0.1:50051`.
    pub listen_grpc: Vec<Address>,
    /// Address of the check endpoint, health and metrics over HTTP. `None`, written as "": no HTTP. Default: none, because any
    /// fixed port may be taken by the application beside a sidecar, or by a second replica on the host.
    pub listen_http: Option<Address>,
    /// Address of metrics and health alone, over HTTP, so that whoever may scrape cannot ask for decisions. HTTP then has no
    /// metrics. `None`, written as "": HTTP has them, where it is served. Default: none.
    pub listen_metrics: Option<Address>,
    /// Address of the admin service: loopback, or a Unix socket that only its owner can use. `None`, written as "": no admin
    /// service. Default: none.
    pub listen_admin: Option<Address>,
    /// File of the token that admin calls must carry. Required on loopback, optional on a Unix socket. Default: none.
    pub admin_token_file: Option<PathBuf>,
    /// TLS for every TCP address without `plaintext:`. Default: none. Then only loopback addresses are valid, unless
    /// `listen.plaintext` is true.
    pub listen_tls: Option<tls::Settings>,
    /// Time from the stop signal during which everything is served, but health reports not ready, so that load balancers move
    /// away. 0 to 3 s. Default: 2 s.
    pub listen_lame_duck: Duration,
    /// Age at which a gRPC connection is told to close, 1 s to 365 days, plus or minus a tenth. `None`, written as 0s: never.
    /// Default: never.
    pub listen_max_connection_age: Option<Duration>,
    /// Store of the counters. Default: `memory:`.
    pub store_url: StoreUrl,
    /// Longest that a decision waits for the store, 1 ms to 10 s. Default: 25 ms. A healthy Redis nearby needs far less, and
    /// the request that waits loses little.
    pub store_deadline: Duration,
    /// Replicas that share the quotas while the store cannot decide, 1 to 10,000. `None`, written as `auto`: as many as
    /// announce themselves in the store. Default: `auto`.
    pub expected_replicas: Option<u64>,
    /// Threads that serve connections, 1 to 1,024. `None`, written as 0: one per core that the process may use. Default: 0.
    pub workers: Option<NonZeroUsize>,
    /// Denials that a replica remembers, 0 (none) to 10,000,000. Default: 65,536; see [`crate::limiter::DENY_CACHE_DEFAULT`].
    pub deny_cache_entries: usize,
    /// How checks over HTTP are read and answered. Default: key and plan are parameters.
    pub check: CheckSettings,
    /// The plans to enforce; at least one. With them the rules for Envoy's descriptors, by which plans are found too.
    pub plans: PlanSet,
    /// Warnings: sentences about settings that are valid but probably not intended.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads and checks everything.
    ///
    /// Errors: all errors in file, environment and flags.
    pub fn load(sources: Sources) -> Result<Self, ConfigErrors> {
        let text = source::text(&sources).map(|(text, _)| text);
        Self::of(&sources, text)
    }

    /// Checks everything. `text` is the file's text, or the error of reading it.
    fn of(sources: &Sources, text: Result<String, ConfigError>) -> Result<Self, ConfigErrors> {
        let origin = sources.origin();
        let text = text.map_err(|error| ConfigErrors { origin: origin.clone(), errors: vec![error] })?;
        let mut errors = Vec::new();
        let root = match source::merge(&text, sources, &mut errors) {
            Ok(root) => root,
            Err(of_text) => {
                errors.splice(0..0, of_text);
                return Err(ConfigErrors { origin, errors });
            }
        };
        let config = settings::check(root, &mut errors);
        match config {
            Some(config) if errors.is_empty() => Ok(config),
            _ => {
                locate(&mut errors, &text, sources);
                Err(ConfigErrors { origin, errors })
            }
        }
    }

    /// Paths of the settings that differ, except plans. A process cannot change these while it runs.
    pub fn settings_unlike(&self, other: &Self) -> Vec<&'static str> {
        // Destructured by name, so that the compiler rejects a new field that is missing here.
        let Self {
            listen_grpc,
            listen_http,
            listen_metrics,
            listen_admin,
            admin_token_file,
            listen_tls,
            listen_lame_duck,
            listen_max_connection_age,
            store_url,
            store_deadline,
            expected_replicas,
            workers,
            deny_cache_entries,
            check,
            plans: _,
            warnings: _,
        } = self;
        let unlike = [
            ("listen.grpc", *listen_grpc != other.listen_grpc),
            ("listen.http", *listen_http != other.listen_http),
            ("listen.metrics", *listen_metrics != other.listen_metrics),
            ("listen.admin", *listen_admin != other.listen_admin),
            ("listen.admin_token_file", *admin_token_file != other.admin_token_file),
            ("listen.tls", *listen_tls != other.listen_tls),
            ("listen.lame_duck", *listen_lame_duck != other.listen_lame_duck),
            ("listen.max_connection_age", *listen_max_connection_age != other.listen_max_connection_age),
            ("store.deadline", *store_deadline != other.store_deadline),
            ("store.expected_replicas", *expected_replicas != other.expected_replicas),
            ("workers", *workers != other.workers),
            ("deny_cache.entries", *deny_cache_entries != other.deny_cache_entries),
            ("check.key", check.key != other.check.key),
            ("check.plan", check.plan != other.check.plan),
            ("check.trusted_proxies", check.trusted_proxies != other.check.trusted_proxies),
            ("check.ipv6_prefix", check.ipv6_prefix != other.check.ipv6_prefix),
            ("check.headers", check.headers != other.check.headers),
        ];
        let unlike = unlike.into_iter().filter_map(|(path, unlike)| unlike.then_some(path));
        store_url.unlike(&other.store_url).into_iter().chain(unlike).collect()
    }
}

/// Sets the place of each error. The check consumed the tree, so it is built again; only a wrong config costs that.
fn locate(errors: &mut [ConfigError], text: &str, sources: &Sources) {
    let Ok(root) = source::merge(text, sources, &mut Vec::new()) else { return };
    for error in errors.iter_mut().filter(|error| error.place.is_none()) {
        error.place = source::place_of(&root, &error.path).map(str::to_owned);
    }
}

/// One error: its path, what is wrong, and the right form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConfigError {
    /// Path of the field, such as `plans.free.limits[0].quota`; empty for the whole file.
    pub path: String,
    /// A sentence about the error; it follows the path.
    pub message: String,
    /// Where the value was read, if known: `line 3`, `flag --set store.url` or `variable TOLLGATE_STORE__URL`.
    pub place: Option<String>,
}

impl ConfigError {
    /// Whether the value came from a flag or a variable, and not from the file.
    fn is_elsewhere(&self) -> bool {
        self.message.starts_with("the variable ") || self.place.as_ref().is_some_and(|place| !place.starts_with("line "))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => out.write_str(&self.message),
            path => write!(out, "{path} {}", self.message),
        }?;
        self.place.iter().try_for_each(|place| write!(out, " ({place})"))
    }
}

/// All errors of one config.
#[derive(Debug, Clone)]
pub struct ConfigErrors {
    origin: Origin,
    /// At least one, in the order of the file.
    pub errors: Vec<ConfigError>,
}

/// Most errors in one line.
const MISTAKES_IN_LINE_MAX: usize = 10;
/// Longest such line after its first error. It is also sent in a response header, and clients accept 8 KiB of headers.
const LINE_BYTES_MAX: usize = 4 << 10;

impl ConfigErrors {
    /// The first ten errors in one line, for a log. `tollgate check` prints all.
    pub fn in_one_line(&self) -> String {
        let mut line = String::new();
        for (index, error) in self.errors.iter().enumerate() {
            let error = error.to_string();
            let full = index >= MISTAKES_IN_LINE_MAX || line.len() + error.len() > LINE_BYTES_MAX;
            if index > 0 && full {
                return format!("{line}; and {} more", self.errors.len() - index);
            }
            line += if index > 0 { "; " } else { "" };
            line += &error;
        }
        line
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.errors.len() == 1 { "" } else { "s" };
        match self.errors.iter().all(ConfigError::is_elsewhere) {
            true => write!(out, "flags and environment: {} mistake{plural}", self.errors.len())?,
            false => write!(out, "{}: {} mistake{plural}", self.origin, self.errors.len())?,
        }
        self.errors.iter().try_for_each(|error| write!(out, "\n  {error}"))
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod fuzz;
