//! `tollgate convert`: a config of another rate limiter, as one of tollgate.

use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;

use super::terminal::{fail, print, tell};
use crate::config::ratelimit;

/// What a config is converted from.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum From {
    /// envoyproxy/ratelimit.
    Ratelimit,
}

pub(super) fn convert(from: From, file: &Path) -> ExitCode {
    let sources = match super::base(Some(file), None) {
        Ok(sources) => sources,
        Err(sentence) => return fail(1, &sentence),
    };
    let From::Ratelimit = from;
    match ratelimit::convert(&sources) {
        Ok(converted) => {
            for warning in &converted.warnings {
                tell(&format!("warning: {warning}"));
            }
            print(converted.yaml.trim_end()).map_or_else(|code| code, |()| ExitCode::SUCCESS)
        }
        Err(errors) => {
            tell(&errors.to_string());
            ExitCode::FAILURE
        }
    }
}
