//! Where settings come from, merged into one tree: a YAML text, then environment, then flags.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use config::{Map, Source, Value, ValueKind};

use super::tree::{Mistakes, note};
use super::{EXAMPLE, Mistake, environment, yaml};
use crate::small_file;

/// Largest config. 10,000 plans with eight limits each are about 8 MB.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Longest path of a setting that a flag or variable names: a plan's name has 64 letters at most.
const PATH_BYTES_MAX: usize = 256;
/// Most names in such a path.
const PATH_NAMES_MAX: usize = 16;
/// Highest place in a list that may be named. The longest lists, of addresses or names, are far shorter; what is missing
/// before a place is made up as empty values.
const INDEX_MAX: usize = 255;

/// What a config is read from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file; without one, `text`.
    pub file: Option<PathBuf>,
    /// A text that is there already, and where it came from; without one, the embedded example plans.
    pub text: Option<(Origin, String)>,
    /// Variables; those that begin with `TOLLGATE_` count, `__` between levels.
    pub environment: Vec<(String, String)>,
    /// Flags, the last of which counts.
    pub flags: Vec<Flag>,
}

/// A setting that a flag gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The flag as it was written, without its value, for messages.
    pub name: String,
    /// The path of the setting, such as `store.url`.
    pub path: String,
    /// What it is set to.
    pub value: String,
}

/// What a config was read from, for messages.
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
    /// Where the plans come from.
    pub fn origin(&self) -> Origin {
        match (&self.file, &self.text) {
            (Some(path), _) => Origin::File(path.clone()),
            (None, Some((origin, _))) => origin.clone(),
            (None, None) => Origin::Example,
        }
    }
}

impl Flag {
    /// `--set PATH=VALUE`.
    pub fn set(path: &str, value: &str) -> Self {
        Self { name: "--set".to_owned(), path: path.to_owned(), value: value.to_owned() }
    }
}

/// What the file says. Errors: what keeps it from being read, or is wrong with it as a whole.
/// With it, when it was last changed, if it is a file that tells.
pub(super) fn text(sources: &Sources) -> Result<(String, Option<SystemTime>), Mistake> {
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

/// Bytes as a text that says something. A byte order mark at the beginning, which some editors write, is left out.
fn decode(bytes: Vec<u8>) -> Result<String, Mistake> {
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

/// Merges what the text says with what goes on top; mistakes of names and paths are noted, and left out of the tree.
///
/// Errors: what keeps the text from being read at all.
pub(super) fn merge(text: &str, sources: &Sources, mistakes: &mut Mistakes) -> Result<Value, Vec<Mistake>> {
    let mut root = yaml::parse(text)?;
    match root.kind {
        ValueKind::Table(_) => {}
        // Comments alone.
        ValueKind::Nil => root.kind = ValueKind::Table(Map::new()),
        // There is nothing that it could be merged with.
        _ => return Ok(root),
    }
    // Not by the package's builder, which reads the names of a text as paths too: `a[4000000000]` would take all memory.
    for setting in environment::settings(&sources.environment, mistakes).into_iter().chain(sources.flags.iter().map(setting)) {
        match check_path(&setting) {
            Ok(()) => setting.collect_to(&mut root).map_err(|_| vec![whole_file("cannot be merged".to_owned())])?,
            Err(mistake) => note(mistakes, mistake),
        }
    }
    Ok(root)
}

fn setting(flag: &Flag) -> Setting {
    let name = &flag.name;
    let place = if name == "--set" { format!("flag --set {}", flag.path) } else { format!("flag {name}") };
    Setting { path: flag.path.clone(), value: flag.value.clone(), place }
}

/// One setting that goes on top of the text.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// As `store.url` or `plans.free.limits[0].quota`.
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

/// Refuses what is no path, and a place in a list that would be made by as many empty values. No path is repeated that has
/// other signs than paths have: it may be a URL, password and all.
fn check_path(setting: &Setting) -> Result<(), Mistake> {
    let wrong = |message: &str| {
        let place = Some(setting.place.clone()).filter(|_| has_signs_of_paths(&setting.path));
        Err(Mistake { path: String::new(), message: message.to_owned(), place })
    };
    let names: Vec<&str> = setting.path.split('.').collect();
    if setting.path.len() > PATH_BYTES_MAX || names.len() > PATH_NAMES_MAX || !names.iter().all(|name| is_name(name)) {
        return wrong("a flag or variable names no path of a setting; write PATH=VALUE, such as --set store.deadline=50ms");
    }
    let indexes = setting.path.split('[').skip(1).filter_map(|rest| rest.split(']').next());
    if indexes.filter_map(|index| index.parse::<usize>().ok()).any(|index| index > INDEX_MAX) {
        return wrong(&format!("a path names a place in a list above {INDEX_MAX}; no list is that long"));
    }
    Ok(())
}

fn has_signs_of_paths(path: &str) -> bool {
    path.len() <= PATH_BYTES_MAX && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte))
}

/// A name, with places in lists after it: `limits[0]`.
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

/// Where what stands at `path` was read, or what it stands in.
pub(super) fn place_of<'a>(mut value: &'a Value, path: &str) -> Option<&'a str> {
    let (mut rest, mut place) = (path, value.origin());
    'down: while !rest.is_empty() {
        match &value.kind {
            ValueKind::Table(fields) => {
                // Names may have dots of their own, so the shortest that is there is the one that is meant.
                let ends = rest.match_indices(['.', '[']).map(|(end, _)| end).chain([rest.len()]);
                for end in ends {
                    if let Some(found) = fields.get(&rest[..end]) {
                        (value, rest) = (found, rest[end..].strip_prefix('.').unwrap_or(&rest[end..]));
                        place = found.origin().or(place);
                        continue 'down;
                    }
                }
                break;
            }
            ValueKind::Array(values) => {
                let Some((index, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) else { break };
                let Some(found) = index.parse::<usize>().ok().and_then(|index| values.get(index)) else { break };
                (value, rest) = (found, after.strip_prefix('.').unwrap_or(after));
                place = found.origin().or(place);
            }
            _ => break,
        }
    }
    place
}

fn whole_file(message: String) -> Mistake {
    Mistake { path: String::new(), message, place: None }
}
