//! `tollgate check FILE --explain-descriptor …`: which rule of the config decides a descriptor of Envoy, and why.

use std::fmt::Write as _;

use tollgate_core::plan::envoy::{
    DescriptorRule, Domain, Entry, EnvoyRules, Unmatched, key_of_all,
};

/// Explains the descriptor with these entries, each `name=value`. Errors: a sentence.
pub(super) fn explain(
    rules: &EnvoyRules,
    domain: Option<&str>,
    entries: &[String],
) -> Result<String, String> {
    let entries: Vec<Entry> = entries
        .iter()
        .map(|text| entry(text))
        .collect::<Result<_, _>>()?;
    let (name, domain) = find_domain(rules, domain)?;
    let shown: Vec<String> = entries
        .iter()
        .map(|entry| format!("{}={}", entry.name, entry.value))
        .collect();
    let mut text = format!("domain {name}, descriptor [{}]\n", shown.join(", "));
    match domain.find(&entries) {
        Some((rule_index, rule)) => explain_match(&mut text, domain, &entries, rule_index, rule),
        None => explain_unmatched(&mut text, domain, &entries),
    }
    Ok(text.trim_end().to_owned())
}

/// The domain that is named, or the only one.
fn find_domain<'a>(
    rules: &'a EnvoyRules,
    name: Option<&'a str>,
) -> Result<(&'a str, &'a Domain), String> {
    if let Some(name) = name {
        return rules
            .domain(name)
            .map(|domain| (name, domain))
            .map_err(|unknown| unknown.to_string());
    }
    let mut domains = rules.domains();
    match (domains.next(), domains.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => {
            let names: Vec<&str> = rules.domains().map(|(name, _)| name).collect();
            Err(format!(
                "the config has several domains; name one with --domain: {}",
                names.join(", ")
            ))
        }
        (None, _) => Err("the config has no envoy.domains, so no descriptor is decided".to_owned()),
    }
}

fn entry(text: &str) -> Result<Entry, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok(Entry {
            name: name.to_owned(),
            value: value.to_owned(),
        }),
        _ => Err(format!(
            "{text:?} is not an entry; write name=value, such as remote_address=10.0.0.1"
        )),
    }
}

// Writing to a String cannot fail.
fn explain_match(
    text: &mut String,
    domain: &Domain,
    entries: &[Entry],
    rule_index: usize,
    rule: &DescriptorRule,
) {
    let key = rule.counted_key(entries);
    let _ = write!(
        text,
        "  rules[{rule_index}] {rule} decides: plan {}, key {:?}",
        rule.plan,
        key.as_str()
    );
    if key.has_shard() {
        let _ = write!(text, ", shard {:?}", key.shard());
    }
    text.push('\n');
    for (other, less) in domain
        .rules()
        .iter()
        .enumerate()
        .filter(|(other, less)| *other != rule_index && less.matches(entries))
    {
        let _ = writeln!(
            text,
            "  rules[{other}] {less} matches too, and {}",
            reason(less, rule)
        );
    }
}

/// Why a rule that matches does not decide.
fn reason(less: &DescriptorRule, rule: &DescriptorRule) -> String {
    let less = less.specificity();
    let more = rule.specificity();
    if less.given < more.given {
        format!(
            "gives {} of the values where the other gives {}",
            less.given, more.given
        )
    } else if less.full < more.full {
        format!(
            "gives {} of the values in full where the other gives {}",
            less.full, more.full
        )
    } else if less.bytes < more.bytes {
        format!(
            "has {} bytes beside its * where the other has {}",
            less.bytes, more.bytes
        )
    } else if less < more {
        format!(
            "has {} times * where the other has {}",
            less.stars.0, more.stars.0
        )
    } else {
        "comes later".to_owned()
    }
}

fn explain_unmatched(text: &mut String, domain: &Domain, entries: &[Entry]) {
    let _ = match domain.unmatched() {
        Unmatched::Allow => writeln!(
            text,
            "  no rule matches; unmatched is allow: it passes, and nothing is counted"
        ),
        Unmatched::Deny => writeln!(
            text,
            "  no rule matches; unmatched is deny: it does not pass"
        ),
        Unmatched::Plan(plan) => {
            writeln!(
                text,
                "  no rule matches; unmatched is plan {plan}, key {:?}",
                key_of_all("", entries).as_str()
            )
        }
    };
    list_near(text, domain, entries);
}

/// Lists the first rules that have the names of these entries.
fn list_near(text: &mut String, domain: &Domain, entries: &[Entry]) {
    for (rule_index, rule) in domain
        .rules()
        .iter()
        .enumerate()
        .filter(|(_, rule)| rule.has_names(entries))
        .take(NEAR_MAX)
    {
        let _ = writeln!(
            text,
            "  rules[{rule_index}] {rule} has the same names, and other values"
        );
    }
}

/// Maximum number of rules that are told for having the same names.
const NEAR_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_server::config::{Config, Origin, Sources};

    fn told(domains: &str, domain: Option<&str>, entries: &[&str]) -> Result<String, String> {
        let text = format!(
            "plans: {{ free: {{ unlimited: true }} }}\nenvoy: {{ domains: {{ {domains} }} }}"
        );
        let sources = Sources {
            text: Some((Origin::StandardInput, text)),
            ..Sources::default()
        };
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        explain(
            Config::load(sources).unwrap().plans.envoy(),
            domain,
            &entries,
        )
    }

    const RULES: &str = "edge: { rules: [
        { descriptor: [path, user], plan: free }, { descriptor: ['path=/a*', user], plan: free },
        { descriptor: ['path=/api', user], plan: free, key: '{user}' }, { descriptor: ['path=/ap*', user], plan: free },
        { descriptor: [path, user=al], plan: free } ] }";

    #[test]
    fn the_rule_that_decides_is_told_with_those_that_match_too() {
        let expected = "\
domain edge, descriptor [path=/api, user=al]
  rules[2] [path=/api, user] decides: plan free, key \"al\"
  rules[0] [path, user] matches too, and gives 0 of the values where the other gives 1
  rules[1] [path=/a*, user] matches too, and gives 0 of the values in full where the other gives 1
  rules[3] [path=/ap*, user] matches too, and gives 0 of the values in full where the other gives 1
  rules[4] [path, user=al] matches too, and comes later";
        assert_eq!(
            told(RULES, None, &["path=/api", "user=al"]).unwrap(),
            expected
        );
        let prefix = told(RULES, Some("edge"), &["path=/app", "user=bo"]).unwrap();
        assert!(
            prefix.contains("rules[3] [path=/ap*, user] decides: plan free, key \"/app|bo\""),
            "{prefix}"
        );
        let with_shard = RULES.replace("key: '{user}'", "key: all, shard: 'of {user}'");
        let sharded = told(&with_shard, None, &["path=/api", "user=al"]).unwrap();
        assert!(
            sharded.contains("decides: plan free, key \"all\", shard \"of al\"\n"),
            "{sharded}"
        );
        assert!(prefix.contains("rules[1] [path=/a*, user] matches too, and has 2 bytes beside its * where the other has 3"));
    }

    #[test]
    fn a_descriptor_without_a_rule_is_told_what_it_gets() {
        let rules = |unmatched| {
            format!(
                "edge: {{ unmatched: {unmatched}, rules: [ {{ descriptor: [path=/api], plan: free }} ] }}"
            )
        };
        for (unmatched, part) in [
            (
                "allow",
                "no rule matches; unmatched is allow: it passes, and nothing is counted",
            ),
            (
                "deny",
                "no rule matches; unmatched is deny: it does not pass",
            ),
            (
                "free",
                "no rule matches; unmatched is plan free, key \"path=/x\"",
            ),
        ] {
            let told = told(&rules(unmatched), None, &["path=/x"]).unwrap();
            assert!(
                told.contains(part)
                    && told.ends_with("rules[0] [path=/api] has the same names, and other values"),
                "{told}"
            );
        }
    }

    #[test]
    fn what_cannot_be_explained_gets_a_sentence() {
        for (domains, domain, entry, part) in [
            ("", None, "a=b", "the config has no envoy.domains"),
            (
                "edge: {}, inner: {}",
                None,
                "a=b",
                "has several domains; name one with --domain: edge, inner",
            ),
            ("edge: {}", Some("egde"), "a=b", "did you mean \"edge\"?"),
            (
                "edge: {}",
                None,
                "a",
                "\"a\" is not an entry; write name=value",
            ),
            ("edge: {}", None, "=b", "\"=b\" is not an entry"),
        ] {
            let sentence = told(domains, domain, &[entry]).unwrap_err();
            assert!(sentence.contains(part), "{sentence}");
        }
    }
}
