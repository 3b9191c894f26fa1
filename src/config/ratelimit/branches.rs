//! From nested descriptors to rules that choose as ratelimit does.
//!
//! At each level, ratelimit takes the descriptor of the whole value, else the first wildcard that matches, else the one without a
//! value. From then on only what is nested in it counts, even if nothing in it matches. So a more specific descriptor hides
//! its less specific siblings, with all that is nested in them. A rule of tollgate competes as a whole, so what is hidden gets
//! a rule of its own: below the more specific descriptor, with the limit that ratelimit would find there, or with none.

use super::RULES_MAX;
use super::descriptors::{Descriptor, Pattern, RateLimit, Value};
use crate::config::ConfigError;
use crate::config::tree::{ErrorList, report};

/// One rule: what each entry must be, and the limit; without one, the descriptor passes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Where the file has the descriptor of each entry.
    pub(super) paths: Vec<String>,
    pub(super) patterns: Vec<Pattern>,
    /// For each entry, whether its values share one count.
    pub(super) shared: Vec<bool>,
    pub(super) limit: Option<RateLimit>,
}

/// A descriptor, and whether it hides a limit of a less specific one.
#[derive(Clone)]
struct Branch {
    path: String,
    pattern: Pattern,
    limit: Option<RateLimit>,
    shared: bool,
    hides: bool,
    nested: Vec<Branch>,
}

/// The rules of all descriptors. Errors: there would be too many rules.
pub(super) fn rules(descriptors: Vec<Descriptor>, warnings: &mut ErrorList) -> Result<Vec<Rule>, ConfigError> {
    let mut budget = RULES_MAX;
    let mut rules = Vec::new();
    let branches = descriptors.into_iter().map(Branch::of).collect();
    add_rules(branches, &mut Vec::new(), &mut rules, &mut budget, warnings).map_err(|TooMany| {
        let message = format!("needs more than {RULES_MAX} rules; split it into several domains");
        ConfigError { path: String::new(), message, place: None }
    })?;
    Ok(rules)
}

struct TooMany;

impl Branch {
    fn of(descriptor: Descriptor) -> Self {
        let Descriptor { path, pattern, limit, shared, nested } = descriptor;
        Self { path, pattern, limit, shared, hides: false, nested: nested.into_iter().map(Self::of).collect() }
    }

    /// Number of descriptors in this one, itself included.
    fn size(&self) -> usize {
        1 + self.nested.iter().map(Self::size).sum::<usize>()
    }
}

impl Pattern {
    /// Bytes of a wildcard's beginning; 0 without a wildcard.
    fn prefix_bytes(&self) -> usize {
        if let Value::Prefix(begin) = &self.value { begin.len() } else { 0 }
    }

    /// Whether every entry that `other` matches is matched by this too, and more.
    fn is_wider_than(&self, other: &Self) -> bool {
        self.key == other.key
            && match (&self.value, &other.value) {
                (Value::Any, Value::Any) | (Value::Exact(_), _) | (Value::Prefix(_), Value::Any) => false,
                (Value::Any, _) => true,
                (Value::Prefix(begin), Value::Exact(value)) => value.starts_with(begin.as_str()),
                (Value::Prefix(begin), Value::Prefix(longer)) => longer.len() > begin.len() && longer.starts_with(begin.as_str()),
            }
    }
}

/// Adds the rules of descriptors in one list. `above` are those that the list is nested in, the outermost first.
fn add_rules(
    siblings: Vec<Branch>,
    above: &mut Vec<Branch>,
    rules: &mut Vec<Rule>,
    budget: &mut usize,
    warnings: &mut ErrorList,
) -> Result<(), TooMany> {
    warn_of_order(&siblings, warnings);
    // Few siblings are wide, and each is compared with all others.
    let wide: Vec<&Branch> = siblings.iter().filter(|branch| !matches!(branch.pattern.value, Value::Exact(_))).collect();
    for own in &siblings {
        let mut own = own.clone();
        for hidden in wide.iter().filter(|other| other.pattern.is_wider_than(&own.pattern)) {
            own.hides |= own.limit.is_none() && (hidden.limit.is_some() || hidden.hides);
            hide(&mut own.nested, &hidden.nested, budget)?;
        }
        let nested = std::mem::take(&mut own.nested);
        let decides = own.limit.is_some() || own.hides;
        above.push(own);
        if decides {
            *budget = budget.checked_sub(1).ok_or(TooMany)?;
            let last = above.last().and_then(|last| last.limit.clone());
            let (patterns, shared) = above.iter().map(|branch| (branch.pattern.clone(), branch.shared)).unzip();
            let paths = above.iter().map(|branch| branch.path.clone()).collect();
            rules.push(Rule { paths, patterns, shared, limit: last });
        }
        add_rules(nested, above, rules, budget, warnings)?;
        above.pop();
    }
    Ok(())
}

/// Gives every descriptor of `hidden` an equal among `own`, with what ratelimit would find for it there. Descriptors without a limit are
/// included, since they hide others in turn.
fn hide(own: &mut Vec<Branch>, hidden: &[Branch], budget: &mut usize) -> Result<(), TooMany> {
    for hidden in hidden {
        let index = match own.iter().position(|branch| branch.pattern == hidden.pattern) {
            Some(index) => index,
            None => {
                let wider = own.iter().filter(|branch| branch.pattern.is_wider_than(&hidden.pattern));
                let found = wider.max_by_key(|branch| branch.pattern.prefix_bytes());
                // Counted before it is copied, so that memory is bounded too.
                *budget = budget.checked_sub(found.map_or(1, Branch::size)).ok_or(TooMany)?;
                let found = found_for(found, hidden);
                own.push(found);
                own.len() - 1
            }
        };
        let found = &mut own[index];
        found.hides |= found.limit.is_none() && (hidden.limit.is_some() || hidden.hides);
        hide(&mut found.nested, &hidden.nested, budget)?;
    }
    Ok(())
}

/// What ratelimit finds for entries of this pattern: the descriptor that matches them, or nothing.
fn found_for(found: Option<&Branch>, hidden: &Branch) -> Branch {
    let (path, pattern) = (hidden.path.clone(), hidden.pattern.clone());
    match found {
        Some(found) => Branch { path, pattern, ..found.clone() },
        None => Branch { path, pattern, limit: None, shared: false, hides: false, nested: Vec::new() },
    }
}

/// Of several wildcards that match, ratelimit takes the first and tollgate the longest.
fn warn_of_order(siblings: &[Branch], warnings: &mut ErrorList) {
    let wildcards: Vec<&Branch> = siblings.iter().filter(|branch| branch.pattern.prefix_bytes() > 0).collect();
    for (index, own) in wildcards.iter().enumerate() {
        if wildcards[..index].iter().any(|other| other.pattern.is_wider_than(&own.pattern)) {
            let why = "is matched by a shorter wildcard before it, which ratelimit takes; here the longer one decides";
            report(warnings, &format!("{}.value", own.path), why);
        }
    }
}
