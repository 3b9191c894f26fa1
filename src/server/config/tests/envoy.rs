//! The `envoy` table: each error is found, all at once, with its path and the right form.

use super::*;
use tollgate_core::plan::envoy::{DenialBody, ENTRIES_MAX, Entry, RULES_MAX, Unmatched};

const FREE: &str =
    "plans: { free: { limits: [ { quota: 1, window: 1s } ] }, paid: { unlimited: true } }\n";

fn domains(domains: &str) -> String {
    format!("{FREE}envoy: {{ domains: {{ {domains} }} }}")
}

/// The one error of a domain `d` with these fields.
fn error_in(domain: &str) -> String {
    let found = errors(&domains(&format!("d: {{ {domain} }}")));
    assert_eq!(found.len(), 1, "{domain}: {found:?}");
    found[0].clone()
}

#[test]
fn rules_are_read_as_they_are_meant() {
    let config = load(&format!(
        "{FREE}envoy:
  body: text
  joint: true
  domains:
    edge:
      unmatched: paid
      rules:
        - {{ descriptor: [remote_address], plan: free }}
        - {{ descriptor: [path=/login, user], plan: paid, key: 'login:{{user}}', shard: 'of {{user}}' }}
    inner: {{ unmatched: deny }}
    open: {{}}
"
    ));
    let config = config.unwrap();
    let envoy = config.plans.envoy();
    assert_eq!((envoy.body, envoy.joint), (DenialBody::Text, true));
    let unmatched = |name| envoy.domain(name).unwrap().unmatched().clone();
    assert_eq!(
        (unmatched("edge"), unmatched("inner")),
        (Unmatched::Plan("paid".into()), Unmatched::Deny)
    );
    assert_eq!(unmatched("open"), Unmatched::Allow);
    let entry = |name: &str, value: &str| Entry {
        name: name.into(),
        value: value.into(),
    };
    let login = [entry("path", "/login"), entry("user", "al")];
    let (place, rule) = envoy.domain("edge").unwrap().find(&login).unwrap();
    assert_eq!(
        (place, &*rule.plan, rule.key.key(&login).as_str()),
        (1, "paid", "login:al")
    );
    let key = rule.counted_key(&login);
    assert_eq!((key.as_str(), key.shard()), ("login:al", "of al"));
    let (_, rule) = envoy
        .domain("edge")
        .unwrap()
        .find(&[entry("remote_address", "10.0.0.1")])
        .unwrap();
    assert_eq!(
        (
            &*rule.plan,
            rule.key
                .key(&[entry("remote_address", "10.0.0.1")])
                .as_str()
        ),
        ("free", "10.0.0.1")
    );
    assert!(load(FREE).unwrap().plans.envoy().is_empty());
}

#[test]
fn every_error_of_rules_is_reported_with_its_path_and_the_right_form() {
    for (domain, wrong) in [
        (
            "unmatched: fre",
            "envoy.domains.d.unmatched is \"fre\", which is not a plan of this config; did you mean \"free\"?",
        ),
        (
            "unmatched: block",
            "is \"block\", which is not a plan of this config; write allow, deny or the name of a plan",
        ),
        (
            "rule: []",
            "envoy.domains.d.rule is not a field; did you mean rules?",
        ),
        (
            "rules: [ { plan: free } ]",
            "envoy.domains.d.rules[0] has no descriptor; list its entries",
        ),
        (
            "rules: [ { descriptor: [a] } ]",
            "envoy.domains.d.rules[0] has no plan; name the plan that decides",
        ),
        (
            "rules: [ { descriptor: [], plan: free } ]",
            "rules[0].descriptor has 0 entries; a descriptor has 1 to 16",
        ),
        (
            "rules: [ { descriptor: [a=], plan: free } ]",
            "envoy.domains.d.rules[0].descriptor[0] gives no value after its =; write",
        ),
        (
            "rules: [ { descriptor: [a, 5: x], plan: free } ]",
            "rules[0].descriptor[1] is a table; it must be a text",
        ),
        (
            "rules: [ { descriptor: [a], plan: pad } ]",
            "rules[0].plan is \"pad\", which is not a plan of this config; did you mean \"paid\"?",
        ),
        (
            "rules: [ { descriptor: [a], plan: free, key: '{b}' } ]",
            "rules[0].key has {b}, which no entry fills; there are {a}",
        ),
        (
            "rules: [ { descriptor: [a], plan: free, kee: x } ]",
            "rules[0].kee is not a field; did you mean key?",
        ),
        (
            "rules: [ { descriptor: [a=1], plan: free }, { descriptor: [b], plan: free }, { descriptor: [a=1], plan: paid } ]",
            "envoy.domains.d.rules[2] is never reached: rules[0] has the same descriptor; remove one of them",
        ),
    ] {
        let found = error_in(domain);
        assert!(found.contains(wrong), "{domain}: {found}");
    }
    let body = errors(&format!("{FREE}envoy: {{ body: html }}"));
    assert_eq!(
        body,
        ["envoy.body is \"html\"; it must be one of none, text"]
    );
    assert!(errors(&domains("'': {}"))[0].contains("has a name of 0 bytes; a domain has 1 to 256"));
}

#[test]
fn errors_of_joint_and_of_shards_are_reported_with_the_right_form() {
    for (domain, wrong) in [
        (
            "rules: [ { descriptor: [a], plan: free, shard: '{b}' } ]",
            "envoy.domains.d.rules[0].shard has {b}, which no entry fills; there are {a}",
        ),
        (
            r#"rules: [ { descriptor: [a], plan: free, shard: "{b\n}" } ]"#,
            r"envoy.domains.d.rules[0].shard has {b\n}, which no entry fills",
        ),
        (
            "rules: [ { descriptor: [a], plan: free, shard: '' } ]",
            "envoy.domains.d.rules[0].shard is empty; leave it out for no shard",
        ),
        (
            "rules: [ { descriptor: [a], plan: free, shard: 'sssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss{a}s' } ]",
            "envoy.domains.d.rules[0].shard has 65 bytes; at most 64 are a shard",
        ),
        (
            "rules: [ { descriptor: [a], plan: free, shard: 'a}' } ]",
            "envoy.domains.d.rules[0].shard has a } without a {",
        ),
    ] {
        let found = error_in(domain);
        assert!(found.contains(wrong), "{domain}: {found}");
    }
    let joint = errors(&format!("{FREE}envoy: {{ joint: both }}"));
    assert_eq!(joint, ["envoy.joint is \"both\"; it must be true or false"]);
}

#[test]
fn errors_of_rules_stand_beside_all_others() {
    let found = errors(
        "plans: { free: { limits: [ { quota: 0, window: 1s } ] } }\nworkers: x\nenvoy: { domains: { d: { unmatched: other, rules: [\n\
         { descriptor: [a], plan: free }, { descriptor: ['='], plan: free }, { descriptor: [a], plan: any, key: '{' } ] } } }",
    );
    let paths: Vec<&str> = found
        .iter()
        .map(|error| error.split(' ').next().unwrap())
        .collect();
    let expected = [
        "workers",
        "plans.free.limits[0].quota",
        "envoy.domains.d.unmatched",
        "envoy.domains.d.rules[1].descriptor[0]",
        "envoy.domains.d.rules[2].plan",
        "envoy.domains.d.rules[2].key",
    ];
    assert_eq!(paths, expected, "{found:#?}");
}

#[test]
fn domains_rules_and_entries_have_bounds() {
    let many = |count: usize| {
        (0..count)
            .map(|name| format!("d{name}: {{}}, "))
            .collect::<String>()
    };
    assert!(load(&domains(&many(1_000))).is_ok());
    assert_eq!(
        errors(&domains(&many(1_001))),
        ["envoy.domains has 1001 domains; at most 1000 are served"]
    );
    let rules = |count: usize| {
        (0..count)
            .map(|value| format!("{{descriptor: [a={value}], plan: free}},"))
            .collect::<String>()
    };
    assert!(load(&domains(&format!("d: {{ rules: [{}] }}", rules(RULES_MAX)))).is_ok());
    let most = "at most 10000 are served, over all domains";
    let one = errors(&domains(&format!(
        "d: {{ rules: [{}] }}",
        rules(RULES_MAX + 1)
    )));
    assert_eq!(
        one,
        [format!("envoy.domains.d.rules has 10001 rules; {most}")]
    );
    let two = errors(&domains(&format!(
        "d: {{ rules: [{}] }}, e: {{ rules: [{}] }}",
        rules(6_000),
        rules(4_001)
    )));
    assert_eq!(two, [format!("envoy.domains have 10001 rules; {most}")]);
    let entries = |count: usize| {
        (0..count)
            .map(|name| format!("e{name},"))
            .collect::<String>()
    };
    let rule = |count| {
        domains(&format!(
            "d: {{ rules: [ {{ descriptor: [{}], plan: free }} ] }}",
            entries(count)
        ))
    };
    assert!(load(&rule(ENTRIES_MAX)).is_ok());
    assert!(
        errors(&rule(ENTRIES_MAX + 1))[0]
            .contains("descriptor has 17 entries; a descriptor has 1 to 16")
    );
}

#[test]
fn the_hash_of_a_config_tells_its_rules() {
    let canonical = |text: &str| load(text).unwrap().plans.canonical();
    let one = domains("d: { rules: [ { descriptor: [a], plan: free } ] }");
    assert_ne!(canonical(FREE), canonical(&one));
    assert_ne!(canonical(&one), canonical(&one.replace("[a]", "[b]")));
    assert_ne!(canonical(&one), canonical(&one.replace("d: {", "e: {")));
    assert_ne!(
        canonical(&one),
        canonical(&one.replace("plan: free }", "plan: free, shard: a }"))
    );
    assert_ne!(
        canonical(&one),
        canonical(&one.replace("envoy: {", "envoy: { joint: true,"))
    );
    assert_eq!(canonical(FREE), canonical(&format!("{FREE}envoy: {{}}")));
}
