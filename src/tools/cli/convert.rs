//! `tollgate convert`: configs of another rate limiter, as one of tollgate.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;

use super::terminal::{fail, print, tell};
use tollgate_core::plan::envoy::DOMAINS_MAX;
use tollgate_server::config::{Sources, ratelimit};

/// What a config is converted from.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum From {
    /// envoyproxy/ratelimit.
    Ratelimit,
}

pub(super) fn convert(from: From, files: &[PathBuf]) -> ExitCode {
    let From::Ratelimit = from;
    let sources = match all_sources(files) {
        Ok(sources) => sources,
        Err(sentence) => return fail(1, &sentence),
    };
    match ratelimit::convert(&sources) {
        Ok(converted) => {
            for warning in &converted.warnings {
                tell(&format!("warning: {warning}"));
            }
            print(converted.yaml.trim_end()).map_or_else(|code| code, |()| ExitCode::SUCCESS)
        }
        Err(refused) => {
            for errors in refused {
                tell(&errors.to_string());
            }
            ExitCode::FAILURE
        }
    }
}

/// The files that are named, and those of the folders. Errors: a sentence.
fn all_sources(paths: &[PathBuf]) -> Result<Vec<Sources>, String> {
    let mut all = Vec::new();
    for path in paths {
        all.extend(sources(path)?);
    }
    // Each file has a domain.
    if all.len() > DOMAINS_MAX {
        return Err(format!(
            "there are {} files; at most {DOMAINS_MAX} are converted",
            all.len()
        ));
    }
    Ok(all)
}

/// A file, or those of a folder whose names end in `.yaml` or `.yml` and do not begin with a dot, in the order of their names.
fn sources(path: &Path) -> Result<Vec<Sources>, String> {
    if !path.is_dir() {
        return Ok(vec![super::base(Some(path), None)?]);
    }
    let read = std::fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut files: Vec<PathBuf> =
        read.map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    files.retain(|path| is_config(path));
    files.sort();
    if files.is_empty() {
        return Err(format!(
            "{} has no file whose name ends in .yaml or .yml",
            path.display()
        ));
    }
    Ok(files
        .into_iter()
        .map(|file| Sources {
            file: Some(file),
            ..Sources::default()
        })
        .collect())
}

fn is_config(path: &Path) -> bool {
    let is_hidden = path
        .file_name()
        .is_none_or(|name| name.to_string_lossy().starts_with('.'));
    !is_hidden
        && path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml")
}
