//! Sources of settings, merged into one tree: a YAML text, then environment, then flags.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use config::{Map, Source, Value, ValueKind};

use super::tree::{ErrorList, add, is_secret};
use super::{ConfigError, EXAMPLE, environment, yaml};
use tollgate_store::small_file;

/// Largest config. 10,000 plans with eight limits each take about 8 MB.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Longest path in a flag or variable. A plan's name, the longest part, has at most 64 letters.
const PATH_BYTES_MAX: usize = 256;
/// Maximum number of names in such a path.
const PATH_NAMES_MAX: usize = 16;
/// The error about a text that is not a path.
const WRITE_A_PATH: &str = "a flag or variable names no path of a setting; write PATH=VALUE, such as --set store.deadline=50ms";
/// The flag that sets any path.
const SET: &str = "--set";
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
    /// The value. `None`: there is none, which is an error.
    pub value: Option<String>,
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
        Self {
            name: SET.to_owned(),
            path: path.to_owned(),
            value: Some(value.to_owned()),
        }
    }

    /// The flag `--set` with what follows it. Without a `=` it has no value.
    pub fn for_set(text: &str) -> Self {
        match text.split_once('=') {
            Some((path, value)) => Self::set(path, value),
            None => Self {
                name: SET.to_owned(),
                path: text.to_owned(),
                value: None,
            },
        }
    }
}

/// The text of the config, and when its file was last changed, if known. Errors: the file cannot be read, or is wrong as a
/// whole.
pub(super) fn text(sources: &Sources) -> Result<(String, Option<SystemTime>), ConfigError> {
    let (bytes, modified) = match (&sources.file, &sources.text) {
        (Some(path), _) => {
            let contents = small_file::read(path, FILE_BYTES_MAX)
                .map_err(|error| whole_file(error.to_string()))?;
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
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        let hint = match error.as_bytes() {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "; it looks like UTF-16, so save it as UTF-8",
            _ => "",
        };
        whole_file(format!(
            "is not UTF-8: line {line} has a byte that no character begins with{hint}"
        ))
    })?;
    let text = text
        .strip_prefix('\u{feff}')
        .map(str::to_owned)
        .unwrap_or(text);
    if text.trim().is_empty() {
        return Err(whole_file(
            "is empty; a config names at least one plan under `plans:`".to_owned(),
        ));
    }
    Ok(text)
}

/// Merges the text with environment and flags. Wrong names and paths are added to `errors`, and left out of the tree.
///
/// Errors: the text cannot be parsed at all.
pub(super) fn merge(
    text: &str,
    sources: &Sources,
    errors: &mut ErrorList,
) -> Result<Value, Vec<ConfigError>> {
    let mut root = yaml::parse(text)?;
    match root.kind {
        ValueKind::Table(_) => {}
        // The text has only comments.
        ValueKind::Nil => root.kind = ValueKind::Table(Map::new()),
        // Not a table, so nothing can be merged into it; the check reports it.
        _ => return Ok(root),
    }
    // Not by the crate's builder: it also parses the names in a text as paths, and `a[4000000000]` would take all memory.
    let of_environment = environment::settings(&sources.environment, errors);
    for setting in of_environment
        .into_iter()
        .map(Ok)
        .chain(sources.flags.iter().map(setting))
    {
        match setting.and_then(check_path) {
            Ok(setting) => setting
                .collect_to(&mut root)
                .map_err(|_| vec![whole_file("cannot be merged".to_owned())])?,
            Err(error) => add(errors, error),
        }
    }
    Ok(root)
}

/// The setting of a flag. Errors: it has no value, or names no setting.
fn setting(flag: &Flag) -> Result<Setting, ConfigError> {
    let Flag { name, path, .. } = flag;
    let is_shown = name == SET && may_be_shown(path);
    let place = if is_shown {
        format!("flag {SET} {path}")
    } else {
        format!("flag {name}")
    };
    let shown_path = if is_shown { path } else { "" };
    match value_of_flag(flag, is_shown) {
        Ok(value) => Ok(Setting {
            path: path.clone(),
            value,
            place,
        }),
        Err(message) => Err(ConfigError {
            path: shown_path.to_owned(),
            message,
            place: Some(place),
        }),
    }
}

/// The value of a flag. Errors: it has no value, or names no setting; the message repeats the path only if it `is_shown`.
fn value_of_flag(flag: &Flag, is_shown: bool) -> Result<String, String> {
    let path = &flag.path;
    let is_unknown = || has_form_of_path(path) && !environment::is_setting(&without_indexes(path));
    match &flag.value {
        None if is_shown => Err(format!("has no value; write {SET} {path}=VALUE")),
        Some(_) if is_shown && is_unknown() => Err(unknown(path)),
        Some(value) if !is_unknown() => Ok(value.clone()),
        _ => Err(WRITE_A_PATH.to_owned()),
    }
}

/// Why a path is not a setting, and which one was probably meant.
fn unknown(path: &str) -> String {
    let path = without_indexes(path);
    let meant = environment::similar_settings(&path);
    if !meant.is_empty() {
        return format!("is not a setting; did you mean {}?", meant.join(" or "));
    }
    let table = format!("{path}.");
    let below = |end| {
        environment::SETTINGS
            .into_iter()
            .filter(|setting| setting.starts_with(&table[..=end]))
            .collect::<Vec<_>>()
    };
    match table
        .match_indices('.')
        .map(|(end, _)| below(end))
        .rfind(|below| !below.is_empty())
    {
        Some(below) => format!("is not a setting; there are {}", below.join(", ")),
        None => "is not a setting; `tollgate check --print` lists all".to_owned(),
    }
}

/// Whether a message may repeat this path. A path unlike all settings may be a value in the wrong place.
fn may_be_shown(path: &str) -> bool {
    let words = path
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'.'));
    has_form_of_path(path)
        && (words
            || environment::is_setting(&without_indexes(path))
            || path.contains('.') && !is_secret(path))
}

/// The path without its indexes: `limits[0].quota` is `limits.quota`.
fn without_indexes(path: &str) -> String {
    path.split('[')
        .enumerate()
        .map(|(place, part)| {
            part.split_once(']')
                .filter(|_| place > 0)
                .map_or(part, |(_, after)| after)
        })
        .collect()
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
fn check_path(setting: Setting) -> Result<Setting, ConfigError> {
    let report = |message: &str| {
        Err(ConfigError {
            path: String::new(),
            message: message.to_owned(),
            place: Some(setting.place.clone()),
        })
    };
    if !has_form_of_path(&setting.path) {
        return report(WRITE_A_PATH);
    }
    let indexes = setting
        .path
        .split('[')
        .skip(1)
        .filter_map(|rest| rest.split(']').next());
    if indexes
        .filter_map(|index| index.parse::<usize>().ok())
        .any(|index| index > INDEX_MAX)
    {
        return report(&format!(
            "a path names a place in a list above {INDEX_MAX}; no list is that long"
        ));
    }
    Ok(setting)
}

/// Whether the text has the form of a path, whatever it names.
fn has_form_of_path(path: &str) -> bool {
    let names = || path.split('.');
    path.len() <= PATH_BYTES_MAX && names().count() <= PATH_NAMES_MAX && names().all(is_name)
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
    rest.is_empty()
        && !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn whole_file(message: String) -> ConfigError {
    ConfigError {
        path: String::new(),
        message,
        place: None,
    }
}
