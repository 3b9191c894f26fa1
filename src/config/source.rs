//! Where settings come from, merged into one tree: file, then environment, then flags.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use config::{Environment, File, FileFormat, Value};

use super::{EXAMPLE, Mistake};

/// Largest config file. 10,000 plans with eight limits each are about 8 MB.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Deepest nesting of brackets in a file; a config needs five levels, and what parses it recurses.
const NESTING_MAX: usize = 128;
/// Settings that a variable may name without a level below. Other variables without `__` are not ours: some belong to the
/// command line, and Kubernetes sets TOLLGATE_PORT and more wherever there is a service named tollgate.
const TOP_LEVEL: [&str; 2] = ["TOLLGATE_WORKERS", "TOLLGATE_DENY_CACHE"];

/// What a config is read from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file; without one, the embedded example plans.
    pub file: Option<PathBuf>,
    /// Variables; those that begin with `TOLLGATE_` count, `__` between levels.
    pub environment: Vec<(String, String)>,
    /// Flags: paths such as `store.url`, with values.
    pub overrides: Vec<(String, String)>,
}

/// What a config was read from, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// The embedded example plans.
    Example,
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(out, "{}", path.display()),
            Self::Example => out.write_str("the embedded example plans"),
        }
    }
}

impl Sources {
    /// Where the plans come from.
    pub fn origin(&self) -> Origin {
        self.file.clone().map_or(Origin::Example, Origin::File)
    }
}

/// What the file says. Errors: what keeps it from being read, or is wrong with it as a whole.
pub(super) fn text(sources: &Sources) -> Result<String, Mistake> {
    match &sources.file {
        Some(path) => read_file(path),
        None => Ok(EXAMPLE.to_owned()),
    }
}

/// Merges what the file says with what goes on top. Errors: the first thing that keeps it from being read at all.
pub(super) fn merge(text: &str, sources: &Sources) -> Result<Value, Mistake> {
    let variables = sources.environment.iter().filter(|(name, _)| is_ours(name));
    let ours: HashMap<String, String> = variables.cloned().collect();
    let environment = Environment::with_prefix("TOLLGATE").prefix_separator("_").separator("__").source(Some(ours));
    let mut builder = config::Config::builder().add_source(File::from_str(text, FileFormat::Yaml)).add_source(environment);
    for (path, value) in &sources.overrides {
        builder = builder.set_override(path, value.as_str()).map_err(|_| Mistake {
            path: path.clone(),
            message: "is no path of a setting; write it as store.url or plans.free.shadow".to_owned(),
        })?;
    }
    let merged = builder.build().and_then(config::Config::try_deserialize::<Value>);
    merged.map_err(|error| whole_file(format!("is not valid YAML: {error}")))
}

fn is_ours(name: &str) -> bool {
    let levels = name.strip_prefix("TOLLGATE_").is_some_and(|path| path.contains("__"));
    levels || TOP_LEVEL.contains(&name)
}

fn read_file(path: &PathBuf) -> Result<String, Mistake> {
    let cannot = |error: std::io::Error| whole_file(format!("cannot be read: {error}"));
    let metadata = std::fs::metadata(path).map_err(cannot)?;
    if metadata.is_dir() {
        return Err(whole_file("is a directory; name the file in it".to_owned()));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(whole_file(format!("has {} bytes; a config has at most {FILE_BYTES_MAX}", metadata.len())));
    }
    let mut bytes = Vec::new();
    // What is no plain file may hold more than it says.
    let file = std::fs::File::open(path).map_err(cannot)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(whole_file(format!("goes on for more than {FILE_BYTES_MAX} bytes; no config does")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        whole_file(format!("is not UTF-8: line {line} has a byte that no character begins with"))
    })?;
    if text.trim().is_empty() {
        return Err(whole_file("is empty; a config names at least one plan under `plans:`".to_owned()));
    }
    check_nesting(&text)?;
    Ok(text)
}

/// Refuses what could exhaust the stack of the parser, without parsing. Brackets in comments do not count, those in quotes
/// do; there are never so many of them open at once.
fn check_nesting(text: &str) -> Result<(), Mistake> {
    let mut depth = 0_usize;
    for (index, line) in text.lines().enumerate() {
        let line = line.split(" #").next().filter(|line| !line.trim_start().starts_with('#')).unwrap_or_default();
        let dashes = line.split_whitespace().take_while(|word| *word == "-").count();
        let indent = line.len() - line.trim_start().len();
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        if depth.max(dashes).max(indent / 4) > NESTING_MAX {
            return Err(whole_file(format!("is nested more than {NESTING_MAX} deep at line {}", index + 1)));
        }
    }
    Ok(())
}

fn whole_file(message: String) -> Mistake {
    Mistake { path: String::new(), message }
}
