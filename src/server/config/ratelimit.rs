//! Converts configs of envoyproxy/ratelimit, one domain each, to one of tollgate.
//!
//! Both choose one limit for each descriptor, and a plan of tollgate stands for each of those limits. They choose differently:
//! ratelimit takes the best entry level by level and never goes back; tollgate takes the most specific rule as a whole.
//! `branches` adds the rules that make both choose alike.

mod branches;
mod descriptors;
mod fields;
mod limits;
mod pattern;
mod proof;
mod write;

use self::branches::{Branch, BranchRule, TooMany};
use self::descriptors::ConfiguredDomain;
use super::tree::{ErrorList, Node, report};
use super::{ConfigError, ConfigErrors, Sources, locate, source, yaml};

/// Maximum number of rules of a converted config, as many as plans and rules can be served.
const RULES_MAX: usize = tollgate_core::plan::PLANS_MAX - 1;

/// A converted config.
#[derive(Debug)]
pub struct Converted {
    /// The config, as YAML.
    pub yaml: String,
    /// What has no counterpart, each with its line.
    pub warnings: Vec<String>,
}

/// A file that was read.
struct File<'s> {
    sources: &'s Sources,
    text: String,
    domain: ConfiguredDomain,
    warnings: ErrorList,
}

/// Converts the files or texts of `files`. The result is valid: a server would start with it. Errors: every error of each file,
/// with its line.
pub fn convert(files: &[Sources]) -> Result<Converted, Vec<ConfigErrors>> {
    let read = read_all(files)?;
    let warnings: Vec<String> = read
        .iter()
        .flat_map(|file| file.warnings(read.len() > 1))
        .collect();
    let branches: Vec<Vec<Branch>> =
        each(&read, |file| branches::branches(&file.domain.descriptors))?;
    let mut branches = branches.iter();
    let rules: Vec<Vec<BranchRule>> = each(&read, |_| {
        branches::rules(branches.next().map_or(&[][..], Vec::as_slice))
    })?;
    let names = read.iter().map(|file| file.domain.name.as_str());
    let domains: Vec<(&str, &[BranchRule])> = names.zip(rules.iter().map(Vec::as_slice)).collect();
    let sources: Vec<String> = files
        .iter()
        .map(|sources| sources.origin().to_string())
        .collect();
    let yaml = write::config(&domains, &sources.join(", "), &warnings);
    check_proof(&read, proof::prove(&yaml, &domains))?;
    Ok(Converted { yaml, warnings })
}

/// Reads the files. Errors: those of each file, and a domain that two of them have.
fn read_all(files: &[Sources]) -> Result<Vec<File<'_>>, Vec<ConfigErrors>> {
    let mut refused = Vec::new();
    let mut read = Vec::<File>::new();
    for sources in files {
        let file = File::read(sources).and_then(|file| {
            let mut others = read.iter();
            match others.find(|other| other.domain.name == file.domain.name) {
                Some(other) => Err(file.is_domain_of(other)),
                None => Ok(file),
            }
        });
        match file {
            Ok(file) => read.push(file),
            Err(errors) => refused.push(errors),
        }
    }
    if refused.is_empty() {
        Ok(read)
    } else {
        Err(refused)
    }
}

/// Errors: those of each file that a server would refuse, of which `errors` has a list for each file.
fn check_proof(files: &[File], errors: Vec<ErrorList>) -> Result<(), Vec<ConfigErrors>> {
    let refused: Vec<ConfigErrors> = files
        .iter()
        .zip(errors)
        .filter(|(_, errors)| !errors.is_empty())
        .map(|(file, errors)| file.refused(errors))
        .collect();
    if refused.is_empty() {
        Ok(())
    } else {
        Err(refused)
    }
}

/// What is made of each file. Errors: for a file it would be too much.
fn each<'f, 's, T>(
    files: &'f [File<'s>],
    mut of: impl FnMut(&'f File<'s>) -> Result<T, TooMany>,
) -> Result<Vec<T>, Vec<ConfigErrors>> {
    let made = files
        .iter()
        .map(|file| of(file).map_err(|TooMany| vec![file.needs_too_many_rules()]));
    made.collect()
}

impl<'s> File<'s> {
    fn read(sources: &'s Sources) -> Result<Self, ConfigErrors> {
        let failed = |errors| ConfigErrors {
            origin: sources.origin(),
            errors,
        };
        let text = source::text(sources)
            .map(|(text, _)| text)
            .map_err(|error| failed(vec![error]))?;
        let root = yaml::parse(&text).map_err(failed)?;
        let mut errors = ErrorList::new();
        let mut warnings = ErrorList::new();
        let domain = descriptors::domain(Node::root(root), &mut errors, &mut warnings);
        match domain.filter(|_| errors.is_empty()) {
            Some(domain) => Ok(Self {
                sources,
                text,
                domain,
                warnings,
            }),
            None => {
                locate(&mut errors, &text, &Sources::default());
                Err(failed(errors))
            }
        }
    }

    /// The warnings, with the file's name where there are several.
    fn warnings(&self, are_several: bool) -> impl Iterator<Item = String> {
        let mut warnings = self.warnings.clone();
        locate(&mut warnings, &self.text, &Sources::default());
        let origin = if are_several {
            format!("{}: ", self.sources.origin())
        } else {
            String::new()
        };
        warnings
            .into_iter()
            .map(move |warning| format!("{origin}{warning}"))
    }

    fn is_domain_of(&self, other: &Self) -> ConfigErrors {
        let mut errors = ErrorList::new();
        let why = format!(
            "is that of {} too, which ratelimit refuses unless MERGE_DOMAIN_CONFIG is true; put the descriptors into one file",
            other.sources.origin()
        );
        report(&mut errors, "domain", why);
        self.refused(errors)
    }

    fn needs_too_many_rules(&self) -> ConfigErrors {
        let message = format!("needs more than {RULES_MAX} rules; split it into several domains");
        self.refused(vec![ConfigError {
            path: String::new(),
            message,
            place: None,
        }])
    }

    fn refused(&self, mut errors: ErrorList) -> ConfigErrors {
        locate(&mut errors, &self.text, &Sources::default());
        ConfigErrors {
            origin: self.sources.origin(),
            errors,
        }
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
