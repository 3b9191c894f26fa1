//! The config: file < environment < flags, read through the `config` crate, checked as a whole.
//!
//! Every mistake is reported at once, each with its path and with what would be right. What comes out ([`Config`]) is
//! valid; nothing after this module checks a setting again.

mod environment;
mod listen;
mod plans;
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

use crate::grpc::Address;
use crate::plan::PlanSet;
use crate::tls;

pub use environment::CONFIG_YAML;
pub use source::{FILE_BYTES_MAX as CONFIG_BYTES_MAX, Flag, Origin, Sources};
pub use store_url::StoreUrl;
pub use watch::Watch;

/// The plans that a server without a config enforces, as a config file.
pub const EXAMPLE: &str = include_str!("config/example.yaml");

/// A whole, valid config.
#[derive(Debug)]
pub struct Config {
    /// Where the gRPC services are served. Default: `127.0.0.1:50051`.
    pub listen_grpc: Vec<Address>,
    /// Where the check endpoint, health and metrics are served over HTTP; written as "", and `None` here: nowhere. Default:
    /// nowhere, since whatever port it were, the application beside a sidecar, or a second replica on a host, may need it.
    pub listen_http: Option<Address>,
    /// Where the admin service is served: a Unix socket, which is its owner's alone, or loopback; written as "", and `None`
    /// here: nowhere. Default: nowhere.
    pub listen_admin: Option<Address>,
    /// The file of the token that admin calls must carry, which loopback needs and a Unix socket may have. Default: none.
    pub admin_token_file: Option<PathBuf>,
    /// What encrypts every TCP address that does not say `plaintext:`. Default: nothing does, and then only addresses of
    /// loopback are valid, unless `listen.plaintext` is true.
    pub listen_tls: Option<tls::Settings>,
    /// How long, from the signal to stop on, everything is served as before but health, so that whoever looks at it leaves,
    /// 0 to 3 s. Default: 2 s.
    pub listen_lame_duck: Duration,
    /// After how long a gRPC connection is told to go away, give or take a tenth, 1 s to 365 days; written as 0s, and `None`
    /// here: never. Default: never.
    pub listen_max_connection_age: Option<Duration>,
    /// Where the counters are kept. Default: `memory:`.
    pub store_url: StoreUrl,
    /// The longest that a decision waits for the store, 1 ms to 10 s. Default: 25 ms, which a healthy Redis nearby keeps
    /// with room to spare and which is still little against the request that waits for it.
    pub store_deadline: Duration,
    /// Replicas that share the quotas while the store cannot decide, 1 to 10,000; written as `auto`, and `None` here: as many as
    /// tell each other through the store. Default: `auto`.
    pub expected_replicas: Option<u64>,
    /// Threads that serve connections, 1 to 1,024; written as 0, and `None` here: one per core that the process may use.
    /// Default: 0.
    pub workers: Option<NonZeroUsize>,
    /// Denials that a replica remembers, 0 (none) to 10,000,000. Default: 65,536; see [`crate::limiter::DENY_CACHE_DEFAULT`].
    pub deny_cache_entries: usize,
    /// What is enforced; at least one plan.
    pub plans: PlanSet,
    /// Sentences about what is valid, and most likely not what was meant.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads and checks everything.
    ///
    /// Errors: every mistake of file, environment and flags.
    pub fn load(sources: Sources) -> Result<Self, Mistakes> {
        let text = source::text(&sources).map(|(text, _)| text);
        Self::of(&sources, text)
    }

    /// Checks everything, the file being what was read of it.
    fn of(sources: &Sources, text: Result<String, Mistake>) -> Result<Self, Mistakes> {
        let origin = sources.origin();
        let text = text.map_err(|mistake| Mistakes { origin: origin.clone(), mistakes: vec![mistake] })?;
        let mut mistakes = Vec::new();
        let root = match source::merge(&text, sources, &mut mistakes) {
            Ok(root) => root,
            Err(of_text) => {
                mistakes.splice(0..0, of_text);
                return Err(Mistakes { origin, mistakes });
            }
        };
        let config = settings::check(root, &mut mistakes);
        match config {
            Some(config) if mistakes.is_empty() => Ok(config),
            _ => {
                locate(&mut mistakes, &text, sources);
                Err(Mistakes { origin, mistakes })
            }
        }
    }

    /// Paths of the settings that are not the same in both, plans aside: what a process cannot change while it runs.
    pub fn settings_unlike(&self, other: &Self) -> Vec<&'static str> {
        // Named one by one, so that a new field is not forgotten here.
        let Self {
            listen_grpc,
            listen_http,
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
            plans: _,
            warnings: _,
        } = self;
        let unlike = [
            ("listen.grpc", *listen_grpc != other.listen_grpc),
            ("listen.http", *listen_http != other.listen_http),
            ("listen.admin", *listen_admin != other.listen_admin),
            ("listen.admin_token_file", *admin_token_file != other.admin_token_file),
            ("listen.tls", *listen_tls != other.listen_tls),
            ("listen.lame_duck", *listen_lame_duck != other.listen_lame_duck),
            ("listen.max_connection_age", *listen_max_connection_age != other.listen_max_connection_age),
            ("store.deadline", *store_deadline != other.store_deadline),
            ("store.expected_replicas", *expected_replicas != other.expected_replicas),
            ("workers", *workers != other.workers),
            ("deny_cache.entries", *deny_cache_entries != other.deny_cache_entries),
        ];
        let unlike = unlike.into_iter().filter_map(|(path, unlike)| unlike.then_some(path));
        store_url.unlike(&other.store_url).into_iter().chain(unlike).collect()
    }
}

/// Notes of each mistake where it was read. The tree was used up by the check, so it is made once more: only a config that is
/// wrong costs that.
fn locate(mistakes: &mut [Mistake], text: &str, sources: &Sources) {
    let Ok(root) = source::merge(text, sources, &mut Vec::new()) else { return };
    for mistake in mistakes.iter_mut().filter(|mistake| mistake.place.is_none()) {
        mistake.place = source::place_of(&root, &mistake.path).map(str::to_owned);
    }
}

/// One mistake: where, what is wrong, what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Path of the field, such as `plans.free.limits[0].quota`; empty for the file as a whole.
    pub path: String,
    /// A sentence about it.
    pub message: String,
    /// Where it was read, such as `line 3`, `flag --set store.url` or `variable TOLLGATE_STORE__URL`, where that is known.
    pub place: Option<String>,
}

impl Mistake {
    /// Whether it was read from a flag or a variable, and so is not one of the file.
    fn is_elsewhere(&self) -> bool {
        self.message.starts_with("the variable ") || self.place.as_ref().is_some_and(|place| !place.starts_with("line "))
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => out.write_str(&self.message),
            path => write!(out, "{path} {}", self.message),
        }?;
        self.place.iter().try_for_each(|place| write!(out, " ({place})"))
    }
}

/// Every mistake of one config.
#[derive(Debug, Clone)]
pub struct Mistakes {
    origin: Origin,
    /// At least one, in the order of the file.
    pub mistakes: Vec<Mistake>,
}

/// Most mistakes told in one line.
const MISTAKES_IN_LINE_MAX: usize = 10;
/// Longest such line, after its first mistake: it is also told in a header of an answer, of which clients take 8 KiB.
const LINE_BYTES_MAX: usize = 4 << 10;

impl Mistakes {
    /// The first ten, in a line for a log; `tollgate check` tells all.
    pub fn in_one_line(&self) -> String {
        let mut line = String::new();
        for (index, mistake) in self.mistakes.iter().enumerate() {
            let mistake = mistake.to_string();
            let full = index >= MISTAKES_IN_LINE_MAX || line.len() + mistake.len() > LINE_BYTES_MAX;
            if index > 0 && full {
                return format!("{line}; and {} more", self.mistakes.len() - index);
            }
            line += if index > 0 { "; " } else { "" };
            line += &mistake;
        }
        line
    }
}

impl std::error::Error for Mistakes {}

impl fmt::Display for Mistakes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.mistakes.len() == 1 { "" } else { "s" };
        match self.mistakes.iter().all(Mistake::is_elsewhere) {
            true => write!(out, "flags and environment: {} mistake{plural}", self.mistakes.len())?,
            false => write!(out, "{}: {} mistake{plural}", self.origin, self.mistakes.len())?,
        }
        self.mistakes.iter().try_for_each(|mistake| write!(out, "\n  {mistake}"))
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod fuzz;
