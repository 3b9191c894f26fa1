//! Loads a converted config as `tollgate check` does, and tells its errors by the descriptors that they come from.

use std::collections::HashSet;

use super::branches::BranchRule;
use crate::config::tree::{ErrorList, join, report, shown_key};
use crate::config::{Config, ConfigError, Origin, Sources};

/// Loads the converted config `yaml`. Returns the errors of a server for each domain, with the path of the descriptor that is the
/// reason. What no domain is the reason for is an error of the last one.
pub(super) fn prove(yaml: &str, domains: &[(&str, &[BranchRule])]) -> Vec<ErrorList> {
    let mut errors = vec![ErrorList::new(); domains.len()];
    let text = Some((Origin::Variable, yaml.to_owned()));
    let Err(refused) = Config::load(Sources {
        text,
        ..Sources::default()
    }) else {
        return errors;
    };
    let mut seen = HashSet::new();
    for error in &refused.errors {
        let begin = |name: &str| join("envoy.domains", &shown_key(name));
        // The name of one may begin with that of another.
        let fits = domains
            .iter()
            .enumerate()
            .filter(|(_, (name, _))| error.path.starts_with(&begin(name)));
        let domain = fits
            .max_by_key(|(_, (name, _))| name.len())
            .map_or(domains.len() - 1, |(domain, _)| domain);
        let (path, sentence) = place_in_input(error, domains[domain].1);
        if seen.insert((domain, path.clone(), sentence.clone())) {
            report(&mut errors[domain], &path, sentence);
        }
    }
    errors
}

/// The path in the file of ratelimit, and a sentence that follows it.
fn place_in_input(
    ConfigError { path, message, .. }: &ConfigError,
    rules: &[BranchRule],
) -> (String, String) {
    let Some((rule_index, part)) = indexed(path, ".rules[") else {
        let origin = if path.starts_with("envoy.domains.") {
            "domain"
        } else {
            "descriptors"
        };
        return (origin.to_owned(), format!("cannot be converted: {message}"));
    };
    let paths: Vec<&str> = rules.get(rule_index).map_or(Vec::new(), |rule| {
        rule.branches.iter().map(|one| one.path).collect()
    });
    place_in_rule(&paths, part, message)
}

/// The same for a part of a rule whose descriptors have these paths.
fn place_in_rule(paths: &[&str], part: &str, message: &str) -> (String, String) {
    let last = paths.last().copied().unwrap_or_default();
    match indexed(part, ".descriptor[") {
        Some((entry_index, _)) => {
            let entry = paths.get(entry_index).copied().unwrap_or(last);
            (
                entry.to_owned(),
                format!("cannot be converted: its entry, written as key=value, {message}"),
            )
        }
        None => (
            last.to_owned(),
            format!(
                "cannot be converted: its rule{} {message}",
                part.replace(".key", "'s key")
            ),
        ),
    }
}

/// The number after the last `begin` in `path`, and what follows its bracket.
fn indexed<'a>(path: &'a str, begin: &str) -> Option<(usize, &'a str)> {
    let (_, rest) = path.rsplit_once(begin)?;
    let (index, rest) = rest.split_once(']')?;
    Some((index.parse().ok()?, rest))
}
