//! The rules that say by which plan, and under which key, a descriptor of Envoy's Rate Limit Service is decided.
//!
//! Pure: rules and a descriptor in, a plan's name and a key out. Whether a plan of that name exists is checked by the config.
//! A rule matches a descriptor that has exactly its entries, in its order. Of several, the most specific one decides; see
//! [`Domain::find`].

mod index;
mod key_template;
mod pattern;
mod unit;
mod wildcard;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::key::Key;
use crate::nearest::nearest;
use index::Index;
pub use index::{FORMS_MAX, RuleError, Specificity};
pub use key_template::{KeyTemplate, key_of_all};
pub use pattern::{EntryPattern, PATTERN_BYTES_MAX};
pub use unit::{LimitOverride, RateUnit};
pub use wildcard::Wildcard;

/// Maximum number of domains in one config. A proxy has one, or one for each of its listeners.
pub const DOMAINS_MAX: usize = 1_000;
/// Maximum number of rules in one config, over all domains: as many as plans.
pub const RULES_MAX: usize = 10_000;
/// Maximum number of entries in the descriptor of a rule. Each comes from an action in a route of the proxy, which seldom has
/// more than five.
pub const ENTRIES_MAX: usize = 16;
/// Longest name of a domain, in bytes.
pub const DOMAIN_BYTES_MAX: usize = 256;

/// One entry of a descriptor: something that the proxy knows of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is, such as `remote_address`.
    pub name: String,
    /// Its value; may be empty, as a header field may be.
    pub value: String,
}

/// All domains of one config.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EnvoyRules {
    /// The body that a client gets with a denial.
    pub body: DenialBody,
    /// Whether the descriptors of one request pass together, or none is charged.
    pub joint: bool,
    domains: BTreeMap<String, Domain>,
}

/// The body of a denial, which the proxy sends to its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DenialBody {
    /// None. A proxy puts a body into the status message of a gRPC call, where nobody looks for one.
    #[default]
    None,
    /// A sentence.
    Text,
}

/// The rules of one domain.
#[derive(Clone)]
pub struct Domain {
    unmatched: Unmatched,
    rules: Vec<DescriptorRule>,
    index: Index,
}

/// The answer to a descriptor that no rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Unmatched {
    /// It passes, and nothing is counted.
    #[default]
    Allow,
    /// It does not pass.
    Deny,
    /// The plan of this name decides, with all entries as the key.
    Plan(Arc<str>),
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescriptorRule {
    /// What each entry must be; 1 to [`ENTRIES_MAX`].
    pub patterns: Vec<EntryPattern>,
    /// Name of the plan that decides.
    pub plan: Arc<str>,
    /// Whom the plan counts.
    pub key: KeyTemplate,
    /// The shard of that key; `None` is none.
    pub shard: Option<KeyTemplate>,
}

/// A request named a domain that the config does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownDomain {
    /// The name in the request.
    pub name: String,
    /// The nearest name, if it is near enough to be a typing error.
    pub nearest: Option<String>,
}

impl EnvoyRules {
    /// The rules of these domains.
    pub fn new(body: DenialBody, domains: impl IntoIterator<Item = (String, Domain)>) -> Self {
        Self {
            body,
            joint: false,
            domains: domains.into_iter().collect(),
        }
    }

    /// The same rules, by which the descriptors of one request are decided together or each by itself.
    pub fn with_joint(self, joint: bool) -> Self {
        Self { joint, ..self }
    }

    /// Whether there are no domains, so that the service is not offered.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// The domain of this name. Errors: [`UnknownDomain`].
    pub fn domain(&self, name: &str) -> Result<&Domain, UnknownDomain> {
        self.domains.get(name).ok_or_else(|| {
            let nearest = nearest(name, self.domains.keys().map(String::as_str)).map(str::to_owned);
            UnknownDomain {
                name: name.to_owned(),
                nearest,
            }
        })
    }

    /// All domains in the order of their names.
    pub fn domains(&self) -> impl Iterator<Item = (&str, &Domain)> {
        self.domains
            .iter()
            .map(|(name, domain)| (name.as_str(), domain))
    }
}

impl Domain {
    /// Checks that each rule can be reached, and prepares the search.
    ///
    /// Errors: the rules that cannot be kept, by their indices.
    pub fn new(
        unmatched: Unmatched,
        rules: Vec<DescriptorRule>,
    ) -> Result<Self, Vec<(usize, RuleError)>> {
        let index = Index::new(&rules)?;
        Ok(Self {
            unmatched,
            rules,
            index,
        })
    }

    /// The answer to a descriptor that no rule matches.
    #[inline]
    pub fn unmatched(&self) -> &Unmatched {
        &self.unmatched
    }

    /// All rules in the order of the config.
    pub fn rules(&self) -> &[DescriptorRule] {
        &self.rules
    }

    /// The rule that decides a descriptor with these entries, and its index. Of two rules the more specific one decides, see
    /// [`Specificity`]; of equals the first.
    ///
    /// The work does not depend on the number of rules: at most [`FORMS_MAX`] look-ups in hash tables.
    #[inline]
    pub fn find(&self, entries: &[Entry]) -> Option<(usize, &DescriptorRule)> {
        let rule_index = self.index.find(&self.rules, entries)?;
        Some((rule_index, &self.rules[rule_index]))
    }
}

impl DescriptorRule {
    /// Whom the plan counts of a descriptor with these entries, which the rule matches.
    pub fn counted_key(&self, entries: &[Entry]) -> Key {
        let key = self.key.key(entries);
        match &self.shard {
            None => key,
            Some(shard) => key.in_any_shard(shard.text(entries)),
        }
    }

    /// How specific the rule is.
    pub fn specificity(&self) -> Specificity {
        Specificity::for_rule(self)
    }

    /// Whether the rule has the names of these entries, in their order.
    pub fn has_names(&self, entries: &[Entry]) -> bool {
        self.patterns
            .iter()
            .map(|pattern| &*pattern.name)
            .eq(entries.iter().map(|entry| entry.name.as_str()))
    }

    /// Whether the rule matches a descriptor with these entries.
    pub fn matches(&self, entries: &[Entry]) -> bool {
        self.patterns.len() == entries.len()
            && self
                .patterns
                .iter()
                .zip(entries)
                .all(|(pattern, entry)| pattern.matches(entry))
    }
}

impl fmt::Display for DescriptorRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns: Vec<String> = self.patterns.iter().map(ToString::to_string).collect();
        write!(out, "[{}]", patterns.join(", "))
    }
}

/// Without the index, which follows from the rules.
impl fmt::Debug for Domain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Domain")
            .field("unmatched", &self.unmatched)
            .field("rules", &self.rules)
            .finish()
    }
}

impl PartialEq for Domain {
    fn eq(&self, other: &Self) -> bool {
        (&self.unmatched, &self.rules) == (&other.unmatched, &other.rules)
    }
}

impl std::error::Error for UnknownDomain {}

impl fmt::Display for UnknownDomain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "domain {:?} is not in the config", self.name)?;
        match &self.nearest {
            Some(nearest) => write!(out, "; did you mean {nearest:?}?"),
            None => write!(out, "; name one of envoy.domains"),
        }
    }
}

#[cfg(test)]
mod tests;
