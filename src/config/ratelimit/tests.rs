//! Conversion, held to what ratelimit would choose: by a model of its search, over all descriptors of a small world.

use super::branches::{Rule, rules};
use super::descriptors::{Amount, Descriptor, Pattern, RateLimit, Value};
use super::*;
use crate::config::Origin;
use proptest::prelude::*;

fn converted(text: &str) -> Result<Converted, String> {
    let sources = Sources { text: Some((Origin::StandardInput, text.to_owned())), ..Sources::default() };
    convert(&sources).map_err(|errors| errors.to_string())
}

#[test]
fn every_error_is_reported_with_its_line() {
    let text = "domain: edge\ndescriptors:\n  - key: a\n    rate_limit:\n      unit: fortnight\n      requests_per_unit: 1\n  - value: b\n  - \
                key: c\n    valeu: d\n  - key: c\n    value: a*b\n  - key: d=e\n  - key: f\n    rate_limit: { unlimited: true, unit: day }\n";
    let said = converted(text).unwrap_err();
    for words in [
        "standard input: 6 errors",
        "descriptors[0].rate_limit.unit is no unit; write second, minute, hour, day, week, month or year (line 5)",
        "descriptors[1] has no key (line 7)",
        "descriptors[2].valeu is not a field; did you mean value? (line 9)",
        "descriptors[3].value has a * before its end",
        "descriptors[4].key is empty or has =",
        "descriptors[5].rate_limit.unit is set beside unlimited",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    for (text, words) in [
        ("descriptors: []", "domain"),
        ("domain: a", "nothing to convert"),
        ("domain: a\ndescriptors: [ { key: a }, { key: a } ]", "has the key and the value of a descriptor before it"),
        ("domain: a\ndescriptors: [ { key: a, rate_limit: { unit: day, requests_per_unit: 99999999999999999 } } ]", "quota"),
        ("domain: [", "is not valid YAML"),
    ] {
        let said = converted(text).unwrap_err();
        assert!(said.contains(words), "{text}: {said}");
    }
}

/// What tollgate cannot serve is told of the file that has it, not of the result.
#[test]
fn what_a_server_would_refuse_is_not_converted() {
    let limit = "rate_limit: { unit: minute, requests_per_unit: 2 }";
    let of = |domain: &str, descriptors: &str| format!("domain: \"{domain}\"\ndescriptors:\n  - {descriptors}\n");
    let wildcards: Vec<String> =
        (1..=65).map(|length| format!("{{ key: a, value: '{}*', {limit} }}", "x".repeat(length))).collect();
    let (long, short) = ("k".repeat(600), format!("{{ key: a, {limit} }}"));
    for (text, expected) in [
        (of("", &short), "domain cannot be converted: has a name of 0 bytes; a domain has 1 to 256 (line 1)"),
        (of(&"d".repeat(300), &short), "domain cannot be converted: has a name of 300 bytes"),
        (
            of("d", &format!("key: b\n    descriptors:\n      - {{ key: {long}, {limit} }}")),
            "descriptors[0].descriptors[0] cannot be converted: its entry, written as key=value, has 600 bytes; an entry has at most 512 (line 5)",
        ),
        (of("d", &format!("{{ key: a, value: {long}, {limit} }}")), "its entry, written as key=value, has 602 bytes"),
        (
            of("d", &format!("{{ key: a, value: 'x*', share_threshold: true, descriptors: [ {short} ] }}")),
            "descriptors[0].descriptors[0] cannot be converted with share_threshold: the key of its rule has {a}, and 2 entries have this name (line 3)",
        ),
        (of("d", &wildcards.join("\n  - ")), "descriptors[64] cannot be converted: its rule is one form too many"),
        (of("d", "{ key: a }"), "descriptors has no rate_limit; there is nothing to convert (line 3)"),
    ] {
        let said = converted(&text).unwrap_err();
        assert!(said.contains(": 1 error\n") && said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn what_has_no_counterpart_is_a_warning_and_a_comment() {
    let text = "domain: edge\ndescriptors:\n  - key: a\n    detailed_metric: true\n    rate_limit:\n      unit: DAY\n      name: my limit\n      \
                replaces: [ { name: b } ]\n  - key: b\n    value: x*\n    value_to_metric: true\n    quota_mode: true\n    rate_limit: { unit: hour, requests_per_unit: 3 }\n  \
                - key: b\n    value: xy*\n    rate_limit: { unit: hour, requests_per_unit: 4 }\n";
    let Converted { yaml, warnings } = converted(text).unwrap();
    let expected = [
        "descriptors[0].detailed_metric is left out: metrics of tollgate",
        "descriptors[0].rate_limit.replaces is left out",
        "descriptors[0].rate_limit has no requests_per_unit",
        "descriptors[1].value_to_metric is left out",
        "descriptors[1].quota_mode is left out",
        "descriptors[2].value is matched by a shorter wildcard before it",
    ];
    for words in expected {
        let warning =
            warnings.iter().find(|warning| warning.starts_with(words)).unwrap_or_else(|| panic!("{words}: {warnings:?}"));
        assert!(warning.contains("(line ") && yaml.contains(&format!("# {warning}\n")), "{warning}: {yaml}");
    }
    assert!(yaml.contains("  \"edge/a\": { blocked: true }\n"), "{yaml}");
}

#[test]
fn names_are_those_of_the_file_and_never_twice() {
    let text = "domain: a b\ndescriptors:\n  - { key: k, value: 'x y', rate_limit: { unit: second, requests_per_unit: 1 } }\n  - { key: k, value: x_y, \
                rate_limit: { unlimited: true } }\n  - { key: k, value: \"say \\\"\\\\\\\"\", shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 2, name: n } }\n";
    let yaml = converted(text).unwrap().yaml;
    for line in [
        "  \"a_b/k_x_y\": { limits: [ { name: \"second\", quota: 1, window: 1s, algorithm: fixed_window, anchor: clock } ] }\n",
        "  \"a_b/k_x_y-2\": { unlimited: true }\n",
        "limits: [ { name: \"n\", quota: 2, window: 1m, algorithm: fixed_window, anchor: clock } ], shadow: true }\n",
        "    \"a b\":\n      unmatched: allow\n      rules:\n        - { descriptor: [\"k=x y\"], plan: \"a_b/k_x_y\" }\n",
        "        - { descriptor: [\"k=say \\\"\\\\\\\"\"], plan: ",
    ] {
        assert!(yaml.contains(line), "{line}{yaml}");
    }
}

#[test]
fn a_file_that_needs_too_many_rules_is_refused_before_they_are_made() {
    let mut text = "domain: a\ndescriptors:\n  - key: k\n    descriptors:\n".to_owned();
    for number in 0..200 {
        text += &format!("      - {{ key: n, value: v{number}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n");
    }
    for number in 0..200 {
        text += &format!("  - {{ key: k, value: v{number} }}\n");
    }
    let said = converted(&text).unwrap_err();
    assert!(said.contains("needs more than 9999 rules"), "{said}");
}

/// Numbers tell limits apart, so that the model's choice can be compared.
fn limit(number: u64) -> RateLimit {
    let window = std::time::Duration::from_secs(60);
    RateLimit { amount: Amount::Quota { name: "minute".to_owned(), quota: number, window }, shadow: false }
}

const KEYS: [&str; 2] = ["a", "b"];
/// Every value is matched by a wildcard, or by two, or by none.
const VALUES: [&str; 4] = ["x", "xy", "xyz", "z"];

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => Just(Value::Any),
        1 => proptest::sample::select(&["x", "xy"][..]).prop_map(|begin| Value::Prefix(begin.to_owned())),
        2 => proptest::sample::select(&VALUES[..]).prop_map(|value| Value::Exact(value.to_owned())),
    ]
}

fn any_descriptors(levels: u32) -> BoxedStrategy<Vec<Descriptor>> {
    let nested = if levels > 1 { any_descriptors(levels - 1) } else { Just(Vec::new()).boxed() };
    let one = (proptest::sample::select(&KEYS[..]), any_value(), proptest::option::of(1..1_000_000_u64), nested);
    let one = one.prop_map(|(key, value, number, nested)| {
        let pattern = Pattern { key: key.to_owned(), value };
        Descriptor { path: String::new(), pattern, limit: number.map(limit), shared: false, nested }
    });
    let unique = |all: Vec<Descriptor>| {
        let mut kept = Vec::<Descriptor>::new();
        for one in all {
            if kept.iter().all(|other| other.pattern != one.pattern) {
                kept.push(one);
            }
        }
        // The longest wildcard first: of the other order the conversion warns.
        let length = |value: &Value| if let Value::Prefix(begin) = value { begin.len() } else { 0 };
        kept.sort_by_key(|one| std::cmp::Reverse(length(&one.pattern.value)));
        kept
    };
    proptest::collection::vec(one, 0..5).prop_map(unique).boxed()
}

fn matches(pattern: &Pattern, (key, value): (&str, &str)) -> bool {
    pattern.key == key
        && match &pattern.value {
            Value::Any => true,
            Value::Prefix(begin) => value.starts_with(begin.as_str()),
            Value::Exact(exact) => value == exact,
        }
}

/// As ratelimit searches: the whole value, else the first wildcard, else the key alone; then only below that.
fn reference<'a>(mut level: &'a [Descriptor], entries: &[(&str, &str)]) -> Option<&'a RateLimit> {
    let mut found = None;
    for (index, entry) in entries.iter().enumerate() {
        let rank = |one: &&Descriptor| match one.pattern.value {
            Value::Exact(_) => 0,
            Value::Prefix(_) => 1,
            Value::Any => 2,
        };
        let next = level.iter().filter(|one| matches(&one.pattern, *entry)).min_by_key(rank)?;
        found = next.limit.as_ref().filter(|_| index == entries.len() - 1);
        level = &next.nested;
    }
    found
}

/// As tollgate searches; see the contract of `envoy.domains`.
fn chosen<'a>(rules: &'a [Rule], entries: &[(&str, &str)]) -> Option<&'a RateLimit> {
    let fits = |rule: &&Rule| {
        rule.patterns.len() == entries.len() && rule.patterns.iter().zip(entries).all(|(pattern, entry)| matches(pattern, *entry))
    };
    let rank = |rule: &Rule| {
        let given = rule.patterns.iter().filter(|pattern| pattern.value != Value::Any).count();
        let exact = rule.patterns.iter().filter(|pattern| matches!(pattern.value, Value::Exact(_))).count();
        let begin = |pattern: &Pattern| if let Value::Prefix(begin) = &pattern.value { begin.len() } else { 0 };
        (given, exact, rule.patterns.iter().map(begin).sum::<usize>())
    };
    let mut best: Option<&Rule> = None;
    for rule in rules.iter().filter(fits) {
        if best.is_none_or(|best| rank(rule) > rank(best)) {
            best = Some(rule);
        }
    }
    best?.limit.as_ref()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_rules_choose_what_ratelimit_chooses(descriptors in any_descriptors(3)) {
        let Ok(made) = rules(descriptors.clone(), &mut Vec::new()) else { return Ok(()) };
        let mut patterns = std::collections::HashSet::new();
        prop_assert!(made.iter().all(|rule| rule.paths.len() == rule.patterns.len()));
        prop_assert!(made.iter().all(|rule| patterns.insert(rule.patterns.clone())), "two rules have the same descriptor");
        let entries: Vec<(&str, &str)> = KEYS.iter().flat_map(|key| VALUES.iter().map(move |value| (*key, *value))).collect();
        let mut asked: Vec<Vec<(&str, &str)>> = entries.iter().map(|entry| vec![*entry]).collect();
        for level in 1..3 {
            let longer = asked.iter().filter(|one| one.len() == level).flat_map(|one| entries.iter().map(move |entry| [&one[..], &[*entry]].concat()));
            let longer: Vec<_> = longer.collect();
            asked.extend(longer);
        }
        for descriptor in asked {
            prop_assert_eq!(chosen(&made, &descriptor), reference(&descriptors, &descriptor), "{:?}", descriptor);
        }
    }
}
