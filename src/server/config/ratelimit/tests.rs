//! Conversion: what is written, told and refused. What is chosen, a model of ratelimit tells: `tests/process/migrate`.

use super::*;
use crate::config::Origin;

fn converted(text: &str) -> Result<Converted, String> {
    let sources = Sources {
        text: Some((Origin::StandardInput, text.to_owned())),
        ..Sources::default()
    };
    convert(&[sources]).map_err(|refused| refused[0].to_string())
}

fn files(texts: &[(&str, &str)]) -> Result<Converted, Vec<String>> {
    let file = |(name, text): &(&str, &str)| Sources {
        text: Some((Origin::File(name.into()), (*text).to_owned())),
        ..Sources::default()
    };
    let files: Vec<Sources> = texts.iter().map(file).collect();
    convert(&files).map_err(|refused| refused.iter().map(ToString::to_string).collect())
}

#[test]
fn every_error_is_reported_with_its_line() {
    let text = "domain: edge
descriptors:
  - key: a
    rate_limit:
      unit: fortnight
      requests_per_unit: 1
  - value: b
  - key: c
    valeu: d
  - { key: d, value: x, share_threshold: true }
  - key: f
    rate_limit: { unlimited: true, unit: day }
  - { key: g, value: '*' }
  - { key: g, value: '*' }
  - { key: h, rate_limit: { requests_per_unit: 1 } }
  - { key: '', detailed_metric: maybe }
";
    let said = converted(text).unwrap_err();
    for words in [
        "standard input: 9 errors",
        "descriptors[0].rate_limit.unit is not a unit; write second, minute, hour, day, week, month or year (line 5)",
        "descriptors[1] has no key (line 7)",
        "descriptors[2].valeu is not a field; did you mean value? (line 9)",
        "descriptors[3].share_threshold needs a value with a *; ratelimit refuses that too (line 10)",
        "descriptors[4].rate_limit.unit is set beside unlimited; remove one of them (line 12)",
        "descriptors[6] has the key and the value of a descriptor before it; ratelimit refuses that too (line 14)",
        "descriptors[7].rate_limit has no unit; write second",
        "descriptors[8].key is empty, which ratelimit refuses too (line 16)",
        "descriptors[8].detailed_metric is \"maybe\"; it must be true or false (line 16)",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    for (text, words) in [
        ("descriptors: []", "has no domain"),
        (
            "domain: ''",
            "domain is empty, which ratelimit refuses too (line 1)",
        ),
        (
            "domain: a\ndescriptors: [ { key: a, rate_limit: { unit: day, requests_per_unit: 99999999999999999 } } ]",
            "quota",
        ),
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
    let of = |domain: &str, descriptors: &str| {
        format!("domain: \"{domain}\"\ndescriptors:\n  - {descriptors}\n")
    };
    let wildcards: Vec<String> = (1..=65)
        .rev()
        .map(|length| format!("{{ key: a, value: '{}*', {limit} }}", "x".repeat(length)))
        .collect();
    let long = "k".repeat(600);
    let short = format!("{{ key: a, {limit} }}");
    for (text, expected) in [
        (
            of(&"d".repeat(300), &short),
            "domain cannot be converted: has a name of 300 bytes",
        ),
        (
            of(
                "d",
                &format!("key: b\n    descriptors:\n      - {{ key: {long}, {limit} }}"),
            ),
            "descriptors[0].descriptors[0] cannot be converted: its entry, written as key=value, has 600 bytes; an entry has at most 512 (line 5)",
        ),
        (
            of("d", &format!("{{ key: a, value: {long}, {limit} }}")),
            "its entry, written as key=value, has 602 bytes",
        ),
        (
            of("d", &wildcards.join("\n  - ")),
            "descriptors[64] cannot be converted: its rule is one form too many",
        ),
    ] {
        let said = converted(&text).unwrap_err();
        assert!(
            said.contains(": 1 error\n") && said.contains(expected),
            "{expected}: {said}"
        );
        // With others, it is told of this file alone.
        let said = files(&[
            ("other.yaml", &of("other", &short)),
            ("this.yaml", &text),
            ("last.yaml", &of("last", &short)),
        ])
        .unwrap_err();
        assert!(
            said.len() == 1
                && said[0].starts_with("this.yaml: 1 error\n")
                && said[0].contains(expected),
            "{expected}: {said:?}"
        );
    }
}

#[test]
fn what_ratelimit_reads_and_does_not_use_is_no_error() {
    let text = "---
domain: true
shadow_mode: on
descriptors:
  - key: yes
    value:
    rate_limit: ~
    unit: week
    descriptors:
      - { key: b, value: true, rate_limit: { unlimited: YES, unit: none, requests_per_unit: 3, shadow_mode: true }, descriptors: }
  - { key: 'a=b', rate_limit: { unit: second, requests_per_unit: 1 } }
";
    let Converted { yaml, warnings } = converted(text).unwrap();
    assert_eq!(
        warnings,
        [
            "descriptors[0].descriptors[0].rate_limit.shadow_mode is left out: ratelimit ignores it here (line 10)",
            "descriptors[0].unit is left out: ratelimit ignores it here (line 8)",
            "descriptors[1].key has =, *, { or }, which no rule of tollgate can name: the descriptor is left out with all that is nested \
             in it, and its requests pass; rename the entry in the proxy (line 11)",
            "shadow_mode is left out: ratelimit ignores it here (line 3)",
        ]
    );
    let expected = "plans:\n  \"true/yes/b_true\": { unlimited: true }\nenvoy:\n  domains:\n    \"true\":\n      unmatched: allow\n      rules:\n        \
                    - { descriptor: [\"yes\", \"b=true\"], plan: \"true/yes/b_true\" }\n";
    assert!(yaml.ends_with(expected), "{yaml}");
    let Converted { yaml, warnings } = converted("domain: d\n").unwrap();
    assert!(yaml.ends_with("      rules: []\n"), "{yaml}");
    assert_eq!(
        warnings,
        ["descriptors has no rate_limit: every request of this domain passes (line 1)"]
    );
}

#[test]
fn several_files_become_one_config_and_a_domain_stands_in_one_of_them() {
    let text = |domain: &str| {
        format!(
            "domain: {domain}\ndescriptors: [ {{ key: a, quota_mode: true, rate_limit: {{ unit: day, requests_per_unit: 1 }} }} ]\n"
        )
    };
    let edge = text("edge");
    let inner = text("inner");
    let Converted { yaml, warnings } =
        files(&[("edge.yaml", &edge), ("inner.yaml", &inner)]).unwrap();
    let plan = |domain: &str| {
        format!(
            "  \"{domain}/a\": {{ limits: [ {{ name: \"day\", quota: 1, window: 1d, algorithm: fixed_window, anchor: clock }} ], shadow: true }}\n"
        )
    };
    let rules = |domain: &str| {
        format!(
            "    \"{domain}\":\n      unmatched: allow\n      rules:\n        - {{ descriptor: [\"a\"], plan: \"{domain}/a\" }}\n"
        )
    };
    let both = [
        plan("edge"),
        plan("inner"),
        "envoy:\n  domains:\n".to_owned(),
        rules("edge"),
        rules("inner"),
    ]
    .concat();
    assert!(
        yaml.ends_with(&both)
            && yaml.starts_with("# Converted from envoyproxy/ratelimit: edge.yaml, inner.yaml\n"),
        "{yaml}"
    );
    assert!(
        warnings.len() == 2
            && warnings[1].starts_with("inner.yaml: descriptors[0].quota_mode becomes shadow"),
        "{warnings:?}"
    );
    let said = files(&[
        ("edge.yaml", &edge),
        ("inner.yaml", &inner),
        ("more.yaml", &edge),
        ("bad.yaml", "domain: x\nkey"),
    ])
    .unwrap_err();
    let twice = "more.yaml: 1 error\n  domain is that of edge.yaml too, which ratelimit refuses unless MERGE_DOMAIN_CONFIG is true; put \
                 the descriptors into one file (line 1)";
    assert!(
        said.len() == 2 && said[0] == twice && said[1].starts_with("bad.yaml: 1 error\n"),
        "{said:?}"
    );
}

/// The counts that ratelimit keeps together: of the values of a shared wildcard, also where one of them has a rule of its own.
#[test]
fn rules_for_one_limit_count_together() {
    let limit = "rate_limit: { unit: day, requests_per_unit";
    let text = format!(
        "domain: d
descriptors:
  - key: a
    value: x*
    share_threshold: true
    descriptors: [ {{ key: a, value: '*y', share_threshold: true, {limit}: 1 }} }}, {{ key: a, {limit}: 2 }} }} ]
  - key: a
    descriptors: [ {{ key: a, value: y, {limit}: 3 }} }} ]
  - {{ key: b, value: '*y', share_threshold: true, {limit}: 4 }} }}
  - {{ key: b, value: yy*, {limit}: 5 }} }}
"
    );
    let yaml = converted(&text).unwrap().yaml;
    for rule in [
        "descriptor: [\"a=x*\", \"a=*y\"], plan: \"d/a_x/a_y\", key: \"all\" }",
        "descriptor: [\"a=x*\", \"a=y\"], plan: \"d/a_x/a_y\", key: \"all\" }",
        "descriptor: [\"a=x*\", \"a\"], plan: \"d/a_x/a\", key: \"{a=2}\" }",
        "descriptor: [\"a\", \"a=y\"], plan: \"d/a/a_y\" }",
        "descriptor: [\"b=*y\"], plan: \"d/b_y\", key: \"all\" }",
        "descriptor: [\"b=yy\"], plan: \"d/b_y\", key: \"all\" }",
        "descriptor: [\"b=yy*y\"], plan: \"d/b_y\", key: \"all\" }",
        "descriptor: [\"b=yy*\"], plan: \"d/b_yy\" }",
    ] {
        assert!(yaml.contains(rule), "{rule}: {yaml}");
    }
}

#[test]
fn what_has_no_counterpart_is_a_warning_and_a_comment() {
    let text = "domain: edge\ndescriptors:\n  - key: a\n    detailed_metric: true\n    rate_limit:\n      unit: DAY\n      name: my limit\n      \
                replaces: [ { name: b } ]\n  - key: b\n    value: x*\n    value_to_metric: true\n    quota_mode: true\n    metadata: { a: [ 1 ] }\n    rate_limit: { unit: hour, requests_per_unit: 3 }\n  \
                - key: b\n    value: xy*\n    rate_limit: { unit: hour, requests_per_unit: 4 }\n";
    let Converted { yaml, warnings } = converted(text).unwrap();
    let expected = [
        "descriptors[0].detailed_metric is left out: metrics of tollgate",
        "descriptors[0].rate_limit.replaces is left out",
        "descriptors[0].rate_limit has no requests_per_unit",
        "descriptors[1].value_to_metric is left out",
        "descriptors[1].quota_mode becomes shadow: requests above the limit pass",
        "descriptors[1].metadata is left out",
        "descriptors[2] never decides, there and here: descriptors[1] is tried before it, and matches all of its values",
    ];
    for words in expected {
        let warning = warnings
            .iter()
            .find(|warning| warning.starts_with(words))
            .unwrap_or_else(|| panic!("{words}: {warnings:?}"));
        assert!(
            warning.contains("(line ") && yaml.contains(&format!("# {warning}\n")),
            "{warning}: {yaml}"
        );
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
        text += &format!(
            "      - {{ key: n, value: v{number}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n"
        );
    }
    for number in 0..200 {
        text += &format!("  - {{ key: k, value: v{number} }}\n");
    }
    let said = converted(&text).unwrap_err();
    assert!(said.contains("needs more than 9999 rules"), "{said}");
}
