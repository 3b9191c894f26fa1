//! Loads a converted config as `tollgate check` does, and tells its errors by the descriptors that they come from.

use std::collections::HashSet;

use super::branches::Rule;
use crate::config::tree::{ErrorList, report};
use crate::config::{Config, ConfigError, Origin, Sources};

/// Loads the converted config `yaml`. Errors: those of a server, each with the path of the descriptor that is the reason.
pub(super) fn prove(yaml: &str, rules: &[Rule]) -> Result<(), ErrorList> {
    let text = Some((Origin::Variable, yaml.to_owned()));
    let Err(refused) = Config::load(Sources { text, ..Sources::default() }) else { return Ok(()) };
    let (mut errors, mut seen) = (ErrorList::new(), HashSet::new());
    for error in &refused.errors {
        let (path, sentence) = of_input(error, rules);
        if seen.insert((path.clone(), sentence.clone())) {
            report(&mut errors, &path, sentence);
        }
    }
    Err(errors)
}

/// The path in the file of ratelimit, and a sentence that follows it.
fn of_input(ConfigError { path, message, .. }: &ConfigError, rules: &[Rule]) -> (String, String) {
    let Some((rule_index, part)) = indexed(path, ".rules[") else {
        let origin = if path.starts_with("envoy.domains.") { "domain" } else { "descriptors" };
        return (origin.to_owned(), format!("cannot be converted: {message}"));
    };
    let paths = rules.get(rule_index).map_or(&[][..], |rule| &rule.paths);
    let last = paths.last().cloned().unwrap_or_default();
    match indexed(part, ".descriptor[") {
        Some((entry_index, _)) => {
            let entry = paths.get(entry_index).cloned().unwrap_or(last);
            (entry, format!("cannot be converted: its entry, written as key=value, {message}"))
        }
        None if part == ".key" => {
            // What follows tells how to write a rule by hand.
            let what = message.split_once("; ").map_or(message.as_str(), |(what, _)| what);
            (last, format!("cannot be converted with share_threshold: the key of its rule {what}"))
        }
        None => (last, format!("cannot be converted: its rule {message}")),
    }
}

/// The number after the last `begin` in `path`, and what follows its bracket.
fn indexed<'a>(path: &'a str, begin: &str) -> Option<(usize, &'a str)> {
    let (_, rest) = path.rsplit_once(begin)?;
    let (index, rest) = rest.split_once(']')?;
    Some((index.parse().ok()?, rest))
}
