//! Converts a config of envoyproxy/ratelimit to one of tollgate.
//!
//! Both choose one limit for each descriptor, and a plan of tollgate stands for each of those limits. They choose differently:
//! ratelimit takes the best entry level by level and never goes back; tollgate takes the most specific rule as a whole.
//! `branches` adds the rules that make both choose alike.

mod branches;
mod descriptors;
mod proof;
mod write;

use super::tree::{ErrorList, Node, report};
use super::{ConfigError, ConfigErrors, Sources, locate, source, yaml};

/// Most rules of a converted config, as many as plans and rules can be served.
const RULES_MAX: usize = crate::plan::PLANS_MAX - 1;

/// A converted config.
#[derive(Debug)]
pub struct Converted {
    /// The config, as YAML.
    pub yaml: String,
    /// What has no counterpart, each with its line.
    pub warnings: Vec<String>,
}

/// Converts the file or text of `sources`. The result is valid: a server would start with it. Errors: every error, with its line.
pub fn convert(sources: &Sources) -> Result<Converted, ConfigErrors> {
    let failed = |errors| ConfigErrors { origin: sources.origin(), errors };
    let text = source::text(sources).map(|(text, _)| text).map_err(|error| failed(vec![error]))?;
    let root = yaml::parse(&text).map_err(failed)?;
    let (mut errors, mut warnings) = (ErrorList::new(), ErrorList::new());
    let domain = descriptors::domain(Node::root(root), &mut errors, &mut warnings);
    let placed = |list: &mut [ConfigError]| locate(list, &text, &Sources::default());
    let refused = |mut errors: ErrorList| {
        placed(&mut errors);
        failed(errors)
    };
    let Some(domain) = domain.filter(|_| errors.is_empty()) else { return Err(refused(errors)) };
    let rules = branches::rules(domain.descriptors, &mut warnings).map_err(|error| failed(vec![error]))?;
    if rules.is_empty() {
        report(&mut errors, "descriptors", "has no rate_limit; there is nothing to convert");
        return Err(refused(errors));
    }
    placed(&mut warnings);
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    let yaml = write::config(&domain.name, &rules, &sources.origin().to_string(), &warnings);
    proof::prove(&yaml, &rules).map_err(refused)?;
    Ok(Converted { yaml, warnings })
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
