//! Which rule decides, and the keys that it gives, by tables and against a search through all rules.

mod keys;
mod patterns;

use keys::key_of;
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn rule(patterns: &[&str]) -> DescriptorRule {
    let patterns: Vec<EntryPattern> = patterns
        .iter()
        .map(|text| EntryPattern::parse(text).unwrap())
        .collect();
    DescriptorRule {
        key: KeyTemplate::for_open_values(&patterns),
        patterns,
        plan: "p".into(),
        shard: None,
    }
}

fn domain(rules: &[&[&str]]) -> Domain {
    Domain::new(
        Unmatched::Allow,
        rules.iter().map(|patterns| rule(patterns)).collect(),
    )
    .unwrap()
}

fn entries(texts: &[&str]) -> Vec<Entry> {
    let entry = |text: &&str| {
        let (name, value) = text.split_once('=').unwrap();
        Entry {
            name: name.to_owned(),
            value: value.to_owned(),
        }
    };
    texts.iter().map(entry).collect()
}

#[test]
fn the_most_specific_rule_decides_and_of_equals_the_first() {
    let rules: [&[&str]; 9] = [
        &["path"],
        &["path=/api*"],
        &["path=/api/v1*"],
        &["path=/api/v1/login"],
        &["path", "user"],
        &["path=/api*", "user"],
        &["path", "user=bob"],
        &["path=/api/v1/login", "user"],
        &["path=/*", "user=b*"],
    ];
    let domain = domain(&rules);
    for (descriptor, decides) in [
        (&["path=/"][..], Some(0)),
        (&["path=/api"], Some(1)),
        (&["path=/api/v1"], Some(2)),
        (&["path=/api/v1/login"], Some(3)),
        (&["path=/api/v1/login/"], Some(2)),
        (&["path="], Some(0)),
        (&["path=/", "user=al"], Some(4)),
        (&["path=/api", "user=al"], Some(5)),
        // Given in full beats a prefix, and two prefixes beat one value that is given in full.
        (&["path=x/api", "user=bob"], Some(6)),
        (&["path=/api", "user=bob"], Some(8)),
        (&["path=/api/v1/login", "user=al"], Some(7)),
        // Another number, another order, another name.
        (&["path=/api", "user=bob", "more=1"], None),
        (&["user=bob", "path=/api"], None),
        (&["Path=/api"], None),
        (&[], None),
    ] {
        assert_eq!(
            domain
                .find(&entries(descriptor))
                .map(|(rule_index, _)| rule_index),
            decides,
            "{descriptor:?}"
        );
    }
    // Both give one value in full: the first decides, whichever is first.
    let tied: [&[&str]; 2] = [&["a", "b=1"], &["a=1", "b"]];
    for rules in [tied, [tied[1], tied[0]]] {
        assert_eq!(
            self::domain(&rules)
                .find(&entries(&["a=1", "b=1"]))
                .unwrap()
                .0,
            0,
            "{rules:?}"
        );
    }
}

#[test]
fn an_unknown_domain_names_the_nearest_where_that_is_cheap() {
    let of = |count: usize| {
        EnvoyRules::new(
            DenialBody::None,
            (0..count).map(|index| (format!("edge{index}"), domain(&[]))),
        )
    };
    assert_eq!(
        of(3).domain("edeg1").unwrap_err().to_string(),
        "domain \"edeg1\" is not in the config; did you mean \"edge1\"?"
    );
    for (rules, name) in [
        (of(3), "something"),
        (of(257), "edeg1"),
        (of(3), &"e".repeat(65)),
    ] {
        assert!(
            rules
                .domain(name)
                .unwrap_err()
                .to_string()
                .ends_with("is not in the config; name one of envoy.domains")
        );
    }
}

#[test]
fn a_quota_is_told_in_the_unit_of_its_window_or_the_next_longer_one() {
    const S: u64 = 1_000_000;
    const DAY_US: u64 = 24 * 3_600 * S;
    for (quota, window_us, told) in [
        (100, 60 * S, (100, RateUnit::Minute)),
        (100, 10 * S, (600, RateUnit::Minute)),
        (1, 90 * S, (40, RateUnit::Hour)),
        (10, 7 * S, (85, RateUnit::Minute)),
        (5, S / 1_000, (5_000, RateUnit::Second)),
        (5, 7 * DAY_US, (5, RateUnit::Week)),
        (5, 8 * DAY_US, (18, RateUnit::Month)),
        (5, 31 * DAY_US, (58, RateUnit::Year)),
        (366, 366 * DAY_US, (365, RateUnit::Year)),
        (1, 366 * DAY_US, (1, RateUnit::Year)),
        (
            1_000_000_000_000,
            S / 1_000,
            (1_000_000_000_000_000, RateUnit::Second),
        ),
    ] {
        assert_eq!(
            RateUnit::for_quota(quota, window_us),
            told,
            "{quota} per {window_us}"
        );
    }
}

#[test]
fn an_override_is_counted_apart_for_each_unit_and_not_for_each_quota() {
    let group = |quota, unit| {
        LimitOverride { quota, unit }
            .plan(None)
            .counts_as
            .to_string()
    };
    let groups: Vec<String> = RateUnit::ALL
        .into_iter()
        .map(|unit| group(1, unit))
        .collect();
    assert_eq!(
        groups,
        [
            "+second", "+minute", "+hour", "+day", "+week", "+month", "+year"
        ]
    );
    let limit = |quota, unit| {
        LimitOverride { quota, unit }
            .plan(None)
            .limits()
            .first()
            .cloned()
    };
    for unit in RateUnit::ALL {
        let small = limit(1, unit).unwrap();
        let large = limit(u32::MAX, unit).unwrap();
        assert_eq!(
            (small.fingerprint(), small.window_us()),
            (large.fingerprint(), large.window_us())
        );
        assert_eq!(u128::from(small.window_us()), unit.window().as_micros());
    }
    assert_eq!(
        LimitOverride {
            quota: 0,
            unit: RateUnit::Day
        }
        .plan(None)
        .rule,
        crate::plan::Rule::Blocked
    );
}

proptest! {
    #[test]
    fn the_index_finds_what_a_search_through_all_rules_finds(
        rules in prop::collection::vec(prop::collection::vec(pattern(), 1..4), 1..30),
        descriptors in prop::collection::vec(prop::collection::vec(("[ab]", "[xy]{0,4}"), 0..4), 20),
    ) {
        let mut rules: Vec<DescriptorRule> =
            rules.iter().map(|patterns| rule(&patterns.iter().map(String::as_str).collect::<Vec<_>>())).collect();
        let mut seen = Vec::new();
        rules.retain(|rule| {
            let is_new = !seen.contains(&rule.patterns);
            seen.push(rule.patterns.clone());
            is_new
        });
        let domain = Domain::new(Unmatched::Allow, rules.clone()).unwrap();
        for descriptor in descriptors {
            let entries: Vec<Entry> = descriptor.into_iter().map(|(name, value)| Entry { name, value }).collect();
            prop_assert_eq!(domain.find(&entries).map(|(rule_index, _)| rule_index), by_search(&rules, &entries), "{:?}", entries);
        }
    }

    #[test]
    fn different_values_have_different_keys(values in prop::collection::vec(("[a|:\\\\=]{0,3}", "[a|:\\\\=]{0,3}"), 60)) {
        for template in [None, Some("{x}:{y}"), Some("a{x}a|{y}|"), Some("{x}aa{y}")] {
            let mut keys: HashMap<String, (String, String)> = HashMap::new();
            for (x, y) in &values {
                let descriptor = [format!("x={x}"), format!("y={y}")];
                let key = key_of(&["x", "y"], template, &[&descriptor[0], &descriptor[1]]);
                let before = keys.insert(key, (x.clone(), y.clone()));
                prop_assert!(before.is_none_or(|before| before == (x.clone(), y.clone())), "{:?} {} {}", template, x, y);
            }
        }
    }
}

#[test]
fn different_values_are_different_shards_and_an_empty_one_is_none() {
    let patterns: Vec<EntryPattern> = ["a", "b"]
        .map(|text| EntryPattern::parse(text).unwrap())
        .into();
    let rule = DescriptorRule {
        key: KeyTemplate::parse("all", &patterns).unwrap(),
        shard: Some(KeyTemplate::parse_shard("{a}:{b}", &patterns).unwrap()),
        plan: "p".into(),
        patterns,
    };
    let long = "x".repeat(40);
    let longer = "x".repeat(90);
    let texts = ["", "x", ":", "x:", ":x", "\\", "{x}", &long, &longer];
    let mut keys = std::collections::BTreeSet::new();
    for a in texts {
        for b in texts {
            let key = rule.counted_key(&entries(&[&format!("a={a}"), &format!("b={b}")]));
            assert!(key.shard().len() <= 64 && key.as_str() == "all");
            assert!(keys.insert(key), "{a} and {b}");
        }
    }
    let one = DescriptorRule {
        shard: Some(KeyTemplate::parse_shard("{a}", &rule.patterns).unwrap()),
        ..rule
    };
    assert!(!one.counted_key(&entries(&["a=", "b=x"])).has_shard());
}

/// What decides, by looking at every rule.
fn by_search(rules: &[DescriptorRule], entries: &[Entry]) -> Option<usize> {
    let specificity = |rule: &DescriptorRule| {
        let texts: Vec<String> = rule.patterns.iter().map(ToString::to_string).collect();
        let given = texts.iter().filter(|text| text.contains('=')).count();
        let wildcards: Vec<&str> = texts
            .iter()
            .filter(|text| text.contains('*'))
            .map(|text| text.split_once('=').unwrap().1)
            .collect();
        let stars: usize = wildcards.iter().map(|text| text.matches('*').count()).sum();
        (
            given,
            given - wildcards.len(),
            wildcards.iter().map(|text| text.len()).sum::<usize>() - stars,
            std::cmp::Reverse(stars),
        )
    };
    let matching = rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| rule.matches(entries));
    matching
        .max_by_key(|(rule_index, rule)| (specificity(rule), std::cmp::Reverse(*rule_index)))
        .map(|(rule_index, _)| rule_index)
}

fn pattern() -> impl Strategy<Value = String> {
    let name = prop_oneof![Just("a"), Just("b")];
    let value = prop_oneof![
        Just(String::new()),
        "=[xy]{1,3}",
        "=[xy]{1,3}\\*",
        "=\\*[xy]{1,2}",
        "=[xy]\\*[xy](\\*[xy]?)?"
    ];
    (name, value).prop_map(|(name, value)| format!("{name}{value}"))
}
