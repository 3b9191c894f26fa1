//! Checks the `envoy` table: which plan decides which descriptor of Envoy's Rate Limit Service.

use std::sync::Arc;

use super::plan_names::PlanNames;
use super::tree::{ErrorList, Node, Table, report};
use tollgate_core::plan::envoy::{
    DOMAIN_BYTES_MAX, DOMAINS_MAX, DenialBody, DescriptorRule, Domain, ENTRIES_MAX, EntryPattern,
    EnvoyRules, FORMS_MAX, KeyTemplate, RULES_MAX, RuleError, Unmatched,
};

const BODIES: [(&str, DenialBody); 2] = [("none", DenialBody::None), ("text", DenialBody::Text)];

/// Checks all domains. Returns `None` after adding at least one error.
pub(super) fn check(
    node: Option<Node>,
    plans: &PlanNames,
    errors: &mut ErrorList,
) -> Option<EnvoyRules> {
    let Some(node) = node else {
        return Some(EnvoyRules::default());
    };
    let mut table = node.table(errors)?;
    let body = table.choice_or("body", DenialBody::default(), &BODIES, errors);
    let joint = table.read_or("joint", false, Node::boolean, errors);
    let domains = table
        .take("domains")
        .map_or(Some(Vec::new()), |node| domains(node, plans, errors));
    table.finish(errors);
    Some(EnvoyRules::new(body?, domains?).with_joint(joint?))
}

fn domains(node: Node, plans: &PlanNames, errors: &mut ErrorList) -> Option<Vec<(String, Domain)>> {
    let path = node.path.clone();
    let domains = node.table(errors)?.take_all();
    let count = domains.len();
    if count > DOMAINS_MAX {
        let problem = format!("has {count} domains; at most {DOMAINS_MAX} are served");
        report(errors, &path, problem);
        return None;
    }
    let checked: Vec<_> = domains
        .into_iter()
        .map(|(name, node)| {
            let domain = domain(&name, node, plans, errors)?;
            Some((name, domain))
        })
        .collect();
    let checked: Vec<(String, Domain)> = checked.into_iter().collect::<Option<_>>()?;
    let rules: usize = checked.iter().map(|(_, domain)| domain.rules().len()).sum();
    if rules > RULES_MAX {
        let problem =
            format!("have {rules} rules; at most {RULES_MAX} are served, over all domains");
        report(errors, &path, problem);
        return None;
    }
    Some(checked)
}

fn domain(name: &str, node: Node, plans: &PlanNames, errors: &mut ErrorList) -> Option<Domain> {
    let path = node.path.clone();
    let bytes = name.len();
    if !(1..=DOMAIN_BYTES_MAX).contains(&bytes) {
        let problem = format!("has a name of {bytes} bytes; a domain has 1 to {DOMAIN_BYTES_MAX}");
        report(errors, &path, problem);
    }
    let mut table = node.table(errors)?;
    let unmatched = table
        .take("unmatched")
        .map_or(Some(Unmatched::default()), |node| {
            unmatched(node, plans, errors)
        });
    let rules = table
        .take("rules")
        .map_or(Some(Vec::new()), |node| rules(node, plans, errors));
    table.finish(errors);
    domain_of_rules(&path, unmatched?, rules?, errors)
}

/// The domain, if all its rules are sound and each may be reached.
fn domain_of_rules(
    path: &str,
    unmatched: Unmatched,
    rules: Vec<(usize, Option<DescriptorRule>)>,
    errors: &mut ErrorList,
) -> Option<Domain> {
    let indexes: Vec<usize> = rules.iter().map(|(rule_index, _)| *rule_index).collect();
    let count = rules.len();
    let checked = Domain::new(
        unmatched,
        rules.into_iter().filter_map(|(_, rule)| rule).collect(),
    );
    match checked {
        Ok(domain) if domain.rules().len() == count => Some(domain),
        Ok(_) => None,
        Err(unreachable) => {
            for (rule_index, error) in unreachable {
                report(
                    errors,
                    &format!("{path}.rules[{}]", indexes[rule_index]),
                    sentence(error, &indexes),
                );
            }
            None
        }
    }
}

fn sentence(error: RuleError, indexes: &[usize]) -> String {
    match error {
        RuleError::SameAs(other) => {
            format!(
                "is never reached: rules[{}] has the same descriptor; remove one of them",
                indexes[other]
            )
        }
        RuleError::TooManyForms => format!(
            "is one form too many of these entries: at most {FORMS_MAX} combinations of lengths before and after a *, and of texts \
             between two, are searched; make them equally long, or give values in full"
        ),
    }
}

fn unmatched(node: Node, plans: &PlanNames, errors: &mut ErrorList) -> Option<Unmatched> {
    let path = node.path.clone();
    match node.text(errors)?.as_str() {
        "allow" => Some(Unmatched::Allow),
        "deny" => Some(Unmatched::Deny),
        name => plan(
            name,
            (&path, "; write allow, deny or the name of a plan"),
            plans,
            errors,
        )
        .map(Unmatched::Plan),
    }
}

/// The rules that are sound, each with its index; those with errors are `None`, so that the others are compared nevertheless.
fn rules(
    node: Node,
    plans: &PlanNames,
    errors: &mut ErrorList,
) -> Option<Vec<(usize, Option<DescriptorRule>)>> {
    let too_many =
        |count| format!("has {count} rules; at most {RULES_MAX} are served, over all domains");
    let nodes = node.list(RULES_MAX, too_many, errors)?;
    let checked: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .map(|(rule_index, node)| (rule_index, rule(node, plans, errors)))
        .collect();
    // What is compared are the sound ones, by their indices among themselves.
    let (sound, broken): (Vec<_>, Vec<_>) =
        checked.into_iter().partition(|(_, rule)| rule.is_some());
    Some(sound.into_iter().chain(broken).collect())
}

fn rule(node: Node, plans: &PlanNames, errors: &mut ErrorList) -> Option<DescriptorRule> {
    let mut table = node.table(errors)?;
    let patterns = patterns_of_rule(&mut table, errors);
    let plan = plan_of_rule(&mut table, plans, errors);
    let key = match (table.take("key"), &patterns) {
        (Some(node), Some(patterns)) => template(node, patterns, KeyTemplate::parse, errors),
        (Some(_), None) => None,
        (None, patterns) => patterns.as_deref().map(KeyTemplate::for_open_values),
    };
    let shard = match (table.take("shard"), &patterns) {
        (Some(node), Some(patterns)) => {
            template(node, patterns, KeyTemplate::parse_shard, errors).map(Some)
        }
        (_, _) => Some(None),
    };
    table.finish(errors);
    Some(DescriptorRule {
        patterns: patterns?,
        plan: plan?,
        key: key?,
        shard: shard?,
    })
}

fn patterns_of_rule(rule: &mut Table, errors: &mut ErrorList) -> Option<Vec<EntryPattern>> {
    let Some(node) = rule.take("descriptor") else {
        let problem =
            "has no descriptor; list its entries, such as descriptor: [\"remote_address\"]";
        report(errors, &rule.path, problem);
        return None;
    };
    patterns(node, errors)
}

fn plan_of_rule(rule: &mut Table, plans: &PlanNames, errors: &mut ErrorList) -> Option<Arc<str>> {
    let Some(node) = rule.take("plan") else {
        let problem = "has no plan; name the plan that decides";
        report(errors, &rule.path, problem);
        return None;
    };
    let path = node.path.clone();
    let name = node.text(errors)?;
    plan(&name, (&path, ""), plans, errors)
}

fn patterns(node: Node, errors: &mut ErrorList) -> Option<Vec<EntryPattern>> {
    let path = node.path.clone();
    let not_so_many = |count| format!("has {count} entries; a descriptor has 1 to {ENTRIES_MAX}");
    let nodes = node.list(ENTRIES_MAX, not_so_many, errors)?;
    if nodes.is_empty() {
        report(errors, &path, not_so_many(0));
        return None;
    }
    let checked: Vec<Option<EntryPattern>> = nodes
        .into_iter()
        .map(|node| pattern(node, errors))
        .collect();
    checked.into_iter().collect()
}

fn pattern(node: Node, errors: &mut ErrorList) -> Option<EntryPattern> {
    let path = node.path.clone();
    let text = node.text(errors)?;
    EntryPattern::parse(&text)
        .map_err(|error| report(errors, &path, error))
        .ok()
}

fn template(
    node: Node,
    patterns: &[EntryPattern],
    parse: impl Fn(&str, &[EntryPattern]) -> Result<KeyTemplate, String>,
    errors: &mut ErrorList,
) -> Option<KeyTemplate> {
    let path = node.path.clone();
    let text = node.text(errors)?;
    parse(&text, patterns)
        .map_err(|error| report(errors, &path, error))
        .ok()
}

/// The name of a plan, if there is one of this name. `right` says what else is right where no name is near.
fn plan(
    name: &str,
    (path, right): (&str, &str),
    plans: &PlanNames,
    errors: &mut ErrorList,
) -> Option<Arc<str>> {
    plans
        .check_without_slots(name, (path, right), errors)
        .then(|| name.into())
}
