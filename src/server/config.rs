//! The config: file < environment < flags, read through the `config` crate and checked as a whole.
//!
//! All errors are reported at once, each with its path and the right form. The resulting [`Config`] is valid; no later module
//! checks a setting again.

mod calendar;
mod candidate;
mod check;
mod deny_cache;
mod environment;
mod envoy;
mod holds;
mod in_force;
mod listen;
mod overrides;
mod place;
mod plan_names;
mod plans;
pub mod ratelimit;
mod settings;
mod source;
mod status;
mod store;
mod tree;
mod warnings;
mod watch;
mod yaml;

use std::fmt::{self, Write as _};
use std::num::NonZeroUsize;

use crate::http::CheckSettings;
use tollgate_core::plan::PlanSet;

pub use deny_cache::DenyCacheSection;
pub use environment::CONFIG_YAML;
pub use in_force::SettingInForce;
pub use listen::ListenSection;
pub use source::{FILE_BYTES_MAX as CONFIG_BYTES_MAX, Flag, Origin, Sources};
pub use status::{ShownKeys, StatusSection};
pub use store::{Readiness, StoreSection};
pub use watch::ConfigWatch;

/// The plans of a server without a config, as a config file.
pub const EXAMPLE: &str = include_str!("config/example.yaml");

/// A whole, valid config.
#[derive(Debug)]
pub struct Config {
    /// `listen`: where calls are received, and how connections end.
    pub listen: ListenSection,
    /// `store`: where usage is counted.
    pub store: StoreSection,
    /// `deny_cache`: denials that a replica remembers.
    pub deny_cache: DenyCacheSection,
    /// `status`: what operators see of keys.
    pub status: StatusSection,
    /// Threads that serve connections, 1 to 1,024. `None`, written as 0: one per core that the process may use. Default: 0.
    pub workers: Option<NonZeroUsize>,
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
        Self::from_sources(&sources, text)
    }

    /// Reads and checks everything, and lists every setting with its value and where it was written.
    ///
    /// Errors: as for [`Self::load`].
    pub fn load_and_list(sources: &Sources) -> Result<(Self, Vec<SettingInForce>), ConfigErrors> {
        let text = source::text(sources).map(|(text, _)| text);
        let config = Self::from_sources(sources, text.clone())?;
        // The check consumed the tree, so it is built again.
        let root = text
            .ok()
            .and_then(|text| source::merge(&text, sources, &mut Vec::new()).ok());
        Ok((
            config,
            root.map(|root| in_force::list(&root, &sources.origin()))
                .unwrap_or_default(),
        ))
    }

    /// Checks everything. `text` is the file's text, or the error of reading it.
    fn from_sources(
        sources: &Sources,
        text: Result<String, ConfigError>,
    ) -> Result<Self, ConfigErrors> {
        let origin = sources.origin();
        let text = text.map_err(|error| ConfigErrors {
            origin: origin.clone(),
            errors: vec![error],
        })?;
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

    /// Returns `next` for a reload of the process that started with this config. Errors: plans that `next` no longer has, and that settings
    /// name which only a restart takes up.
    pub fn check_reload(&self, next: Self, origin: &Origin) -> Result<Self, ConfigErrors> {
        let mut errors = Vec::new();
        check::check_kept_plans(&self.check, &next.plans, &mut errors);
        if errors.is_empty() {
            return Ok(next);
        }
        Err(ConfigErrors {
            origin: origin.clone(),
            errors,
        })
    }

    /// Paths of the settings that differ, except plans. A process cannot change these while it runs.
    pub fn changed_settings(&self, other: &Self) -> Vec<&'static str> {
        // Destructured by name, so that the compiler rejects a new field that is missing here.
        let Self {
            listen,
            store,
            deny_cache,
            status,
            workers,
            check,
            plans: _,
            warnings: _,
        } = self;
        let mut changed = listen.changed_settings(&other.listen);
        changed.extend(store.changed_settings(&other.store));
        changed.extend((*workers != other.workers).then_some("workers"));
        changed.extend(deny_cache.changed_settings(&other.deny_cache));
        changed.extend(status.changed_settings(&other.status));
        changed.extend(check::changed_settings(check, &other.check));
        changed
    }
}

/// The paths of the settings that differ.
fn paths_of<const N: usize>(settings: [(&'static str, bool); N]) -> Vec<&'static str> {
    settings
        .into_iter()
        .filter_map(|(path, differs)| differs.then_some(path))
        .collect()
}

/// Sets the place of each error. The check consumed the tree, so it is built again; only a wrong config costs that.
fn locate(errors: &mut [ConfigError], text: &str, sources: &Sources) {
    let Ok(root) = source::merge(text, sources, &mut Vec::new()) else {
        return;
    };
    for error in errors.iter_mut().filter(|error| error.place.is_none()) {
        error.place = place::place_of(&root, &error.path);
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
        self.place
            .as_ref()
            .is_some_and(|place| !place::is_line(place))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => Ok(()),
            path => write!(out, "{path} "),
        }?;
        // A message may repeat a part of the file; nothing in it breaks a line of a log, or of a terminal.
        for letter in self.message.chars() {
            match letter.is_control() {
                true => write!(out, "{}", letter.escape_default())?,
                false => out.write_char(letter)?,
            }
        }
        self.place
            .iter()
            .try_for_each(|place| write!(out, " ({place})"))
    }
}

/// All errors of one config.
#[derive(Debug, Clone)]
pub struct ConfigErrors {
    origin: Origin,
    /// At least one, in the order of the file.
    pub errors: Vec<ConfigError>,
}

/// Maximum number of errors in one line.
const ERRORS_IN_LINE_MAX: usize = 10;
/// Longest such line after its first error. It is also sent in a response header, and clients accept 8 KiB of headers.
const LINE_BYTES_MAX: usize = 4 << 10;

impl ConfigErrors {
    /// The first ten errors in one line, for a log. `tollgate check` prints all.
    pub fn in_one_line(&self) -> String {
        let mut line = String::new();
        for (index, error) in self.errors.iter().enumerate() {
            let error = error.to_string();
            let full = index >= ERRORS_IN_LINE_MAX || line.len() + error.len() > LINE_BYTES_MAX;
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
            true => write!(
                out,
                "flags and environment: {} error{plural}",
                self.errors.len()
            )?,
            false => write!(out, "{}: {} error{plural}", self.origin, self.errors.len())?,
        }
        self.errors
            .iter()
            .try_for_each(|error| write!(out, "\n  {error}"))
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod edits;
#[cfg(test)]
mod fuzz;
