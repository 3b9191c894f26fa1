//! Writes a config of tollgate.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::branches::{Branch, BranchRule};
use super::limits::Amount;
use super::pattern::{MatchedValue, Pattern};
use tollgate_core::duration::Shown;
use tollgate_core::plan::NAME_BYTES_MAX;

/// The plan of descriptors that pass.
const NO_LIMIT: &str = "no-limit";
/// Bytes of a plan's name that are left for a number that tells equal names apart.
const NUMBER_BYTES: usize = 6;

/// The config of these domains. `source` and `warnings` are written as comments.
pub(super) fn config(
    domains: &[(&str, &[BranchRule])],
    source: &str,
    warnings: &[String],
) -> String {
    let mut plans = Plans::default();
    let mut written = String::new();
    for (domain, rules) in domains {
        plans.of_domain.clear();
        let list = if rules.is_empty() { " []" } else { "" };
        // Writing to a text cannot fail.
        let _ = writeln!(
            written,
            "    {}:\n      unmatched: allow\n      rules:{list}",
            quoted(domain)
        );
        for rule in *rules {
            let plan = plans.plan(domain, rule);
            write_rule(&mut written, rule, &plan);
        }
    }
    let comments = comments(source, warnings);
    let plans = plans.written();
    format!("{comments}plans:\n{plans}envoy:\n  domains:\n{written}")
}

fn comments(source: &str, warnings: &[String]) -> String {
    let source: String = source
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    let mut text = format!("# Converted from envoyproxy/ratelimit: {source}\n");
    for warning in warnings {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "# {}", warning.replace(['\n', '\r'], " "));
    }
    text
}

fn write_rule(written: &mut String, rule: &BranchRule, plan: &str) {
    let entries: Vec<String> = rule
        .branches
        .iter()
        .map(|branch| quoted(&entry(&branch.pattern)))
        .collect();
    let key = key(rule).map_or_else(String::new, |key| format!(", key: {}", quoted(&key)));
    // Writing to a text cannot fail.
    let _ = writeln!(
        written,
        "        - {{ descriptor: [{}], plan: {}{key} }}",
        entries.join(", "),
        quoted(plan)
    );
}

/// An entry as a rule writes it.
fn entry(pattern: &Pattern) -> String {
    match &pattern.value {
        MatchedValue::Any => pattern.key.clone(),
        MatchedValue::Wildcard(value, _) | MatchedValue::Exact(value) => {
            format!("{}={value}", pattern.key)
        }
    }
}

/// The key of a rule: the values that ratelimit counts apart, or one word if it counts all together. `None`: the default, which is
/// the same.
fn key(rule: &BranchRule) -> Option<String> {
    rule.limit()?;
    let branches = &rule.branches;
    let is_counted = |branch: &Branch| {
        branch
            .found
            .is_some_and(|found| !found.shared && !found.pattern.is_exact())
    };
    let are_shared = branches
        .iter()
        .any(|branch| branch.found.is_some_and(|found| found.shared));
    if !branches.iter().any(|branch| is_counted(branch)) {
        return are_shared.then(|| "all".to_owned());
    }
    if branches
        .iter()
        .all(|branch| is_counted(branch) != branch.pattern.is_exact())
    {
        return None;
    }
    let names = branches
        .iter()
        .enumerate()
        .filter(|(_, branch)| is_counted(branch));
    let names = names.map(|(index, _)| name_in_key(branches, index));
    Some(names.collect::<Vec<String>>().join("|"))
}

/// The name of an entry in a key; with its place among the entries of that name, if there are several.
fn name_in_key(branches: &[&Branch], index: usize) -> String {
    let name = &branches[index].pattern.key;
    let count = |branches: &[&Branch]| {
        branches
            .iter()
            .filter(|other| other.pattern.key == *name)
            .count()
    };
    match count(branches) {
        1 => format!("{{{name}}}"),
        _ => format!("{{{name}={}}}", count(&branches[..=index])),
    }
}

/// One plan for each limit of a file: rules for the same one count together.
#[derive(Default)]
struct Plans<'a> {
    names: ConvertedNames,
    /// Names of the plans of one domain, by the paths of their descriptors.
    of_domain: HashMap<&'a str, String>,
    written: String,
    /// Whether some descriptors pass.
    passes: bool,
}

impl<'a> Plans<'a> {
    /// The name of a rule's plan, which is written at its first rule.
    fn plan(&mut self, domain: &str, rule: &BranchRule<'_, 'a>) -> String {
        let found = rule.branches.last().and_then(|branch| branch.found);
        let Some((found, limit)) = found.and_then(|found| Some((found, found.limit.as_ref()?)))
        else {
            self.passes = true;
            return NO_LIMIT.to_owned();
        };
        if let Some(name) = self.of_domain.get(&*found.path) {
            return name.clone();
        }
        let name = self.names.name(
            domain,
            rule.branches
                .iter()
                .filter_map(|branch| Some(&branch.found?.pattern)),
        );
        let shadow = if limit.shadow { ", shadow: true" } else { "" };
        let body = body(&limit.amount);
        // Writing to a text cannot fail.
        let _ = writeln!(self.written, "  {}: {{ {body}{shadow} }}", quoted(&name));
        self.of_domain.insert(&found.path, name.clone());
        name
    }

    /// All plans; at least one, which a config needs.
    fn written(mut self) -> String {
        if self.passes || self.written.is_empty() {
            let _ = writeln!(self.written, "  {NO_LIMIT}: {{ unlimited: true }}");
        }
        self.written
    }
}

/// The fields of a plan that lets this amount pass.
fn body(amount: &Amount) -> String {
    match amount {
        Amount::Unlimited => "unlimited: true".to_owned(),
        Amount::Nothing => "blocked: true".to_owned(),
        Amount::Quota {
            name,
            quota,
            window,
        } => {
            let name = quoted(name);
            let window = Shown(*window);
            format!(
                "limits: [ {{ name: {name}, quota: {quota}, window: {window}, algorithm: fixed_window, anchor: clock }} ]"
            )
        }
    }
}

/// Names of plans, each given once.
#[derive(Default)]
struct ConvertedNames {
    given: HashSet<String>,
    /// The last number that was tried after a name.
    numbers: HashMap<String, usize>,
}

impl ConvertedNames {
    /// A name that tells of the domain and the entries.
    fn name<'p>(&mut self, domain: &str, patterns: impl Iterator<Item = &'p Pattern>) -> String {
        let entries = patterns.map(|Pattern { key, value }| match value {
            MatchedValue::Any => key.clone(),
            MatchedValue::Wildcard(value, _) | MatchedValue::Exact(value) => {
                format!("{key}_{}", value.replace('*', ""))
            }
        });
        let whole = std::iter::once(domain.to_owned()).chain(entries);
        let parts: Vec<String> = whole
            .map(|part| part.chars().map(in_name).collect())
            .collect();
        let mut name = parts.join("/");
        // All letters are ASCII by now, so none is cut in two.
        name.truncate(NAME_BYTES_MAX - NUMBER_BYTES);
        let mut free = name.clone();
        let number = self.numbers.entry(name.clone()).or_insert(1);
        while !self.given.insert(free.clone()) {
            *number += 1;
            free = format!("{name}-{number}");
        }
        free
    }
}

/// The letter, or what stands for it in a name.
fn in_name(letter: char) -> char {
    if letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_') {
        letter
    } else {
        '_'
    }
}

/// A text in the quotes of YAML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter
                if letter.is_control()
                    || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{feff}') =>
            {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}
