//! Checks the `envoy` table: which plan decides which descriptor of Envoy's Rate Limit Service.

use std::sync::Arc;

use super::plan_names::PlanNames;
use super::tree::{ErrorList, Node, report};
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
    let body = table
        .take("body")
        .map_or(Some(DenialBody::default()), |node| {
            node.choice(&BODIES, errors)
        });
    let joint = table
        .take("joint")
        .map_or(Some(false), |node| node.boolean(errors));
    let domains = table
        .take("domains")
        .map_or(Some(Vec::new()), |node| domains(node, plans, errors));
    table.finish(errors);
    Some(EnvoyRules::new(body?, domains?).with_joint(joint?))
}

fn domains(node: Node, plans: &PlanNames, errors: &mut ErrorList) -> Option<Vec<(String, Domain)>> {
    let path = node.path.clone();
    let domains = node.table(errors)?.take_all();
    if domains.len() > DOMAINS_MAX {
        report(
            errors,
            &path,
            format!(
                "has {} domains; at most {DOMAINS_MAX} are served",
                domains.len()
            ),
        );
        return None;
    }
    let checked: Vec<_> = domains
        .into_iter()
        .map(|(name, node)| Some((domain(&name, node, plans, errors)?, name)))
        .collect();
    let checked: Vec<(Domain, String)> = checked.into_iter().collect::<Option<_>>()?;
    let rules: usize = checked.iter().map(|(domain, _)| domain.rules().len()).sum();
    if rules > RULES_MAX {
        report(
            errors,
            &path,
            format!("have {rules} rules; at most {RULES_MAX} are served, over all domains"),
        );
        return None;
    }
    Some(
        checked
            .into_iter()
            .map(|(domain, name)| (name, domain))
            .collect(),
    )
}

fn domain(name: &str, node: Node, plans: &PlanNames, errors: &mut ErrorList) -> Option<Domain> {
    let path = node.path.clone();
    if !(1..=DOMAIN_BYTES_MAX).contains(&name.len()) {
        report(
            errors,
            &path,
            format!(
                "has a name of {} bytes; a domain has 1 to {DOMAIN_BYTES_MAX}",
                name.len()
            ),
        );
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
    let (unmatched, rules) = (unmatched?, rules?);
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
    let path = node.path.clone();
    let mut table = node.table(errors)?;
    let patterns = match table.take("descriptor") {
        Some(node) => patterns(node, errors),
        None => {
            report(
                errors,
                &path,
                "has no descriptor; list its entries, such as descriptor: [\"remote_address\"]",
            );
            None
        }
    };
    let plan = match table.take("plan") {
        Some(node) => {
            let path = node.path.clone();
            node.text(errors)
                .and_then(|name| plan(&name, (&path, ""), plans, errors))
        }
        None => {
            report(errors, &path, "has no plan; name the plan that decides");
            None
        }
    };
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
