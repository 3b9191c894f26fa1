//! Sources of settings, merged into one tree: a YAML text, then environment, then flags.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use config::{Map, Source, Value, ValueKind};

use super::tree::{ErrorList, add, is_secret};
use super::{ConfigError, EXAMPLE, environment, yaml};
use crate::small_file;

/// Largest config. 10,000 plans with eight limits each take about 8 MB.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Longest path in a flag or variable. A plan's name, the longest part, has at most 64 letters.
const PATH_BYTES_MAX: usize = 256;
/// Most names in such a path.
const PATH_NAMES_MAX: usize = 16;
/// Highest list index in such a path. The longest lists, of addresses or names, are far shorter. Missing elements below an
/// index are created as empty values.
const INDEX_MAX: usize = 255;

/// The sources of a config.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The config file; without one, `text` is used.
    pub file: Option<PathBuf>,
    /// A text that was already read, and its origin. Without one, the embedded example plans are used.
    pub text: Option<(Origin, String)>,
    /// Environment variables. Those that begin with `TOLLGATE_` are read; `__` separates levels.
    pub environment: Vec<(String, String)>,
    /// Flags; of several for one setting the last counts.
    pub flags: Vec<Flag>,
}

/// A setting given by a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The flag as written, without its value, for messages.
    pub name: String,
    /// The path of the setting, such as `store.url`.
    pub path: String,
    /// The value.
    pub value: String,
}

/// The source of a config's text, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// Standard input, read once.
    StandardInput,
    /// The variable `TOLLGATE_CONFIG_YAML`.
    Variable,
    /// The embedded example plans.
    Example,
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(out, "{}", path.display()),
            Self::StandardInput => out.write_str("standard input"),
            Self::Variable => write!(out, "the variable {}", environment::CONFIG_YAML),
            Self::Example => out.write_str("the embedded example plans"),
        }
    }
}

impl Sources {
    /// The origin of the plans.
    pub fn origin(&self) -> Origin {
        match (&self.file, &self.text) {
            (Some(path), _) => Origin::File(path.clone()),
            (None, Some((origin, _))) => origin.clone(),
            (None, None) => Origin::Example,
        }
    }
}

impl Flag {
    /// The flag `--set PATH=VALUE`.
    pub fn set(path: &str, value: &str) -> Self {
        Self { name: "--set".to_owned(), path: path.to_owned(), value: value.to_owned() }
    }
}

/// The text of the config, and when its file was last changed, if known. Errors: the file cannot be read, or is wrong as a
/// whole.
pub(super) fn text(sources: &Sources) -> Result<(String, Option<SystemTime>), ConfigError> {
    let (bytes, modified) = match (&sources.file, &sources.text) {
        (Some(path), _) => {
            let contents = small_file::read(path, FILE_BYTES_MAX).map_err(|error| whole_file(error.to_string()))?;
            (contents.bytes, contents.modified)
        }
        (None, Some((_, text))) if text.len() > FILE_BYTES_MAX => {
            return Err(whole_file(format!("has more than {FILE_BYTES_MAX} bytes")));
        }
        (None, Some((_, text))) => (text.clone().into_bytes(), None),
        (None, None) => (EXAMPLE.as_bytes().to_vec(), None),
    };
    Ok((decode(bytes)?, modified))
}

/// Decodes a text and refuses an empty one. Removes a byte order mark at the beginning, which some editors write.
fn decode(bytes: Vec<u8>) -> Result<String, ConfigError> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        let hint = match error.as_bytes() {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "; it looks like UTF-16, so save it as UTF-8",
            _ => "",
        };
        whole_file(format!("is not UTF-8: line {line} has a byte that no character begins with{hint}"))
    })?;
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    if text.trim().is_empty() {
        return Err(whole_file("is empty; a config names at least one plan under `plans:`".to_owned()));
    }
    Ok(text)
}

/// Merges the text with environment and flags. Wrong names and paths are added to `errors`, and left out of the tree.
///
/// Errors: the text cannot be parsed at all.
pub(super) fn merge(text: &str, sources: &Sources, errors: &mut ErrorList) -> Result<Value, Vec<ConfigError>> {
    let mut root = yaml::parse(text)?;
    match root.kind {
        ValueKind::Table(_) => {}
        // The text has only comments.
        ValueKind::Nil => root.kind = ValueKind::Table(Map::new()),
        // Not a table, so nothing can be merged into it; the check reports it.
        _ => return Ok(root),
    }
    // Not by the crate's builder: it also parses the names in a text as paths, and `a[4000000000]` would take all memory.
    for setting in environment::settings(&sources.environment, errors).into_iter().chain(sources.flags.iter().map(setting)) {
        match check_path(&setting) {
            Ok(()) => setting.collect_to(&mut root).map_err(|_| vec![whole_file("cannot be merged".to_owned())])?,
            Err(error) => add(errors, error),
        }
    }
    Ok(root)
}

fn setting(flag: &Flag) -> Setting {
    let name = &flag.name;
    let place =
        if name == "--set" && may_be_shown(&flag.path) { format!("flag --set {}", flag.path) } else { format!("flag {name}") };
    Setting { path: flag.path.clone(), value: flag.value.clone(), place }
}

/// Whether a message may repeat this path. A path unlike all settings may be a value in the wrong place.
fn may_be_shown(path: &str) -> bool {
    let setting = path.split('[').next().unwrap_or_default();
    environment::SETTINGS.contains(&setting) || path.contains('.') && !is_secret(path)
}

/// A setting that overrides the text.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// Path, such as `store.url` or `plans.free.limits[0].quota`.
    pub path: String,
    pub value: String,
    /// Where it was read, for messages.
    pub place: String,
}

impl Source for Setting {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        let value = Value::new(Some(&self.place), ValueKind::String(self.value.clone()));
        Ok(Map::from([(self.path.clone(), value)]))
    }
}

/// Refuses an invalid path, and an index that would create too many empty values. A path with characters that paths do not have
/// is not repeated: it may be a URL with a password.
fn check_path(setting: &Setting) -> Result<(), ConfigError> {
    let report = |message: &str| {
        let place = Some(setting.place.clone()).filter(|_| has_signs_of_paths(&setting.path));
        Err(ConfigError { path: String::new(), message: message.to_owned(), place })
    };
    let names: Vec<&str> = setting.path.split('.').collect();
    if setting.path.len() > PATH_BYTES_MAX || names.len() > PATH_NAMES_MAX || !names.iter().all(|name| is_name(name)) {
        return report("a flag or variable names no path of a setting; write PATH=VALUE, such as --set store.deadline=50ms");
    }
    let indexes = setting.path.split('[').skip(1).filter_map(|rest| rest.split(']').next());
    if indexes.filter_map(|index| index.parse::<usize>().ok()).any(|index| index > INDEX_MAX) {
        return report(&format!("a path names a place in a list above {INDEX_MAX}; no list is that long"));
    }
    Ok(())
}

fn has_signs_of_paths(path: &str) -> bool {
    path.len() <= PATH_BYTES_MAX && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte))
}

/// Whether the text is a name, optionally with indexes: `limits[0]`.
fn is_name(text: &str) -> bool {
    let (name, mut rest) = text.split_at(text.find('[').unwrap_or(text.len()));
    while let Some((index, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        if index.is_empty() || index.len() > 9 || !index.bytes().all(|byte| byte.is_ascii_digit()) {
            return false;
        }
        rest = after;
    }
    rest.is_empty() && !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// Where the value at `path` was read, or else the innermost value around it.
pub(super) fn place_of<'a>(mut value: &'a Value, path: &str) -> Option<&'a str> {
    let (mut rest, mut place) = (path, value.origin());
    while !rest.is_empty() {
        let found = match &value.kind {
            ValueKind::Table(fields) => field_at(fields, rest),
            ValueKind::Array(values) => element_at(values, rest),
            _ => None,
        };
        let Some((inner, after)) = found else { break };
        (value, rest) = (inner, after.strip_prefix('.').unwrap_or(after));
        place = inner.origin().or(place);
    }
    place
}

/// The field that a path begins with, and the rest of the path. Names may contain dots, so the shortest prefix that exists is
/// taken.
fn field_at<'a, 'p>(fields: &'a Map<String, Value>, path: &'p str) -> Option<(&'a Value, &'p str)> {
    let mut ends = path.match_indices(['.', '[']).map(|(end, _)| end).chain([path.len()]);
    ends.find_map(|end| Some((fields.get(&path[..end])?, &path[end..])))
}

/// The element that a path begins with, such as `[3]`, and the rest of the path.
fn element_at<'a, 'p>(values: &'a [Value], path: &'p str) -> Option<(&'a Value, &'p str)> {
    let (index, after) = path.strip_prefix('[')?.split_once(']')?;
    Some((values.get(index.parse::<usize>().ok()?)?, after))
}

fn whole_file(message: String) -> ConfigError {
    ConfigError { path: String::new(), message, place: None }
}
