//! Writes a config of tollgate.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::branches::Rule;
use super::descriptors::{Amount, Pattern, Value};
use crate::duration::Shown;
use crate::plan::NAME_BYTES_MAX;

/// The plan of descriptors that pass.
const NO_LIMIT: &str = "no-limit";
/// Bytes of a plan's name that are left for a number that tells equal names apart.
const NUMBER_BYTES: usize = 6;

/// The config of one domain. `source` and `warnings` are written as comments.
pub(super) fn config(domain: &str, rules: &[Rule], source: &str, warnings: &[String]) -> String {
    let mut names = Names::default();
    let (mut plans, mut written) = (String::new(), String::new());
    for rule in rules {
        let plan = match &rule.limit {
            None => NO_LIMIT.to_owned(),
            Some(limit) => {
                let name = names.name(domain, &rule.patterns);
                let shadow = if limit.shadow { ", shadow: true" } else { "" };
                let body = match &limit.amount {
                    Amount::Unlimited => "unlimited: true".to_owned(),
                    Amount::Nothing => "blocked: true".to_owned(),
                    Amount::Quota { name, quota, window } => {
                        let window = Shown(*window);
                        format!(
                            "limits: [ {{ name: {}, quota: {quota}, window: {window}, algorithm: fixed_window, anchor: clock }} ]",
                            quoted(name)
                        )
                    }
                };
                // Writing to a text cannot fail.
                let _ = writeln!(plans, "  {}: {{ {body}{shadow} }}", quoted(&name));
                name
            }
        };
        let entries: Vec<String> = rule.patterns.iter().map(|pattern| quoted(&entry(pattern))).collect();
        let key = key(rule).map_or_else(String::new, |key| format!(", key: {}", quoted(&key)));
        let _ = writeln!(written, "        - {{ descriptor: [{}], plan: {}{key} }}", entries.join(", "), quoted(&plan));
    }
    if rules.iter().any(|rule| rule.limit.is_none()) {
        let _ = writeln!(plans, "  {NO_LIMIT}: {{ unlimited: true }}");
    }
    let source: String = source.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let mut text = format!("# Converted from envoyproxy/ratelimit: {source}\n");
    for warning in warnings {
        let _ = writeln!(text, "# {}", warning.replace(['\n', '\r'], " "));
    }
    let _ = write!(
        text,
        "plans:\n{plans}envoy:\n  domains:\n    {}:\n      unmatched: allow\n      rules:\n{written}",
        quoted(domain)
    );
    text
}

/// An entry as a rule writes it.
fn entry(Pattern { key, value }: &Pattern) -> String {
    match value {
        Value::Any => key.clone(),
        Value::Prefix(begin) => format!("{key}={begin}*"),
        Value::Exact(value) => format!("{key}={value}"),
    }
}

/// The key of a rule in which values share one count: the values that do not, or one word. `None`: the default.
fn key(rule: &Rule) -> Option<String> {
    if !rule.shared.contains(&true) {
        return None;
    }
    let own =
        rule.patterns.iter().zip(&rule.shared).filter(|(pattern, shared)| !**shared && !matches!(pattern.value, Value::Exact(_)));
    let names: Vec<String> = own.map(|(pattern, _)| format!("{{{}}}", pattern.key)).collect();
    Some(if names.is_empty() { "all".to_owned() } else { names.join("|") })
}

/// Names of plans, each given once.
#[derive(Default)]
struct Names {
    given: HashSet<String>,
    /// The last number that was tried after a name.
    numbers: HashMap<String, usize>,
}

impl Names {
    /// A name that tells of the domain and the entries.
    fn name(&mut self, domain: &str, patterns: &[Pattern]) -> String {
        let entries = patterns.iter().map(|Pattern { key, value }| match value {
            Value::Any => key.clone(),
            Value::Prefix(value) | Value::Exact(value) => format!("{key}_{value}"),
        });
        let plain = |letter: char| if letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_') { letter } else { '_' };
        let whole = std::iter::once(domain.to_owned()).chain(entries);
        let parts: Vec<String> = whole.map(|part| part.chars().map(plain).collect()).collect();
        let mut name = parts.join("/");
        // All letters are ASCII by now.
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

/// A text in the quotes of YAML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}
