//! The `check` section: its forms, its defaults, and every error in it.

use super::*;
use crate::http::{Source, SubjectPart, SubjectSources, Subjects};

fn check_of(text: &str) -> Result<crate::http::CheckSettings, ConfigErrors> {
    load(&format!("{PLANS}check: {text}\n")).map(|config| config.check)
}

#[test]
fn sources_of_checks_are_read_and_have_defaults() {
    assert_eq!(
        check_of("{}").unwrap(),
        crate::http::CheckSettings::default()
    );
    let found = check_of(
        "{ key: ['header:X-Org+client_address', 'param:key'], plan: ['header:x-plan', 'default:p'],\n\
         \x20 trusted_proxies: [10.0.0.0/8, 'fd00::/8', 192.0.2.1, unix], ipv6_prefix: 56, headers: x-ratelimit }",
    )
    .unwrap();
    let [subject] = found.subjects.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(
        (
            subject.key.len(),
            subject.key[0].len(),
            subject.plan.len(),
            found.ipv6_prefix
        ),
        (2, 2, 2, 56)
    );
    assert_eq!(subject.shard, [Source::parameter("shard")]);
    assert_eq!(
        (
            found.trusted_proxies.networks.len(),
            found.trusted_proxies.unix
        ),
        (3, true)
    );
    let by_environment = [
        ("TOLLGATE_CHECK__KEY", "header:x-key, client_address"),
        ("TOLLGATE_CHECK__IPV6_PREFIX", "48"),
    ];
    let found = load_with(
        PLANS,
        &by_environment,
        &[("check.trusted_proxies", "10.0.0.0/8,::1")],
    )
    .unwrap()
    .check;
    assert_eq!(
        (
            found.subjects.as_slice()[0].key.len(),
            found.ipv6_prefix,
            found.trusted_proxies.networks.len()
        ),
        (2, 48, 2)
    );
}

/// Wrong sections, each with the start of its error.
const CHECK_ERRORS: &[(&str, &str)] = &[
    ("{ key: [] }", "check.key names no source; it has 1 to 8"),
    (
        "{ key: [x] }",
        "check.key[0] is not a source of a key; write param:key, header:NAME, client_address, or some of these joined by +",
    ),
    (
        "{ key: ['param:user'] }",
        "check.key[0] is not a source of a key",
    ),
    (
        "{ key: ['header:'] }",
        "check.key[0] names no header field; a name has 1 to 64 letters",
    ),
    (
        "{ key: ['header:a b'] }",
        "check.key[0] names no header field",
    ),
    (
        "{ key: ['header:x+'] }",
        "check.key[0] is not a source of a key",
    ),
    (
        "{ key: [client_address, 'param:key'] }",
        "check.key[1] is never used: the one before it is always there",
    ),
    (
        "{ key: ['a,a,a,a,a,a,a,a,a'] }",
        "check.key[0] is not a source",
    ),
    (
        "{ key: 'a,a,a,a,a,a,a,a,a' }",
        "check.key has 9 sources; it has 1 to 8",
    ),
    (
        "{ key: ['client_address+client_address+client_address+client_address+client_address+client_address+client_address+client_address+param:key'] }",
        "check.key[0] joins 9 parts; a key has at most 8",
    ),
    (
        "{ plan: ['param:key'] }",
        "check.plan[0] is not a source of a plan; write param:plan, header:NAME or default:NAME",
    ),
    (
        "{ plan: ['default:pp'] }",
        "check.plan[0] names the plan \"pp\", which is not a plan of this config; did you mean \"p\"?",
    ),
    (
        "{ plan: ['default:'] }",
        "check.plan[0] names a plan that is empty; a name has 1 to 64 bytes",
    ),
    (
        "{ plan: ['default:p', 'param:plan'] }",
        "check.plan[1] is never used",
    ),
    (
        "{ trusted_proxies: [10.0.0.1/8] }",
        "check.trusted_proxies[0] has bits of a host in its address; write 10.0.0.0/8",
    ),
    (
        "{ trusted_proxies: [everyone] }",
        "check.trusted_proxies[0] is not a network; write one such as 10.0.0.0/8",
    ),
    (
        "{ trusted_proxies: ['::ffff:10.0.0.0/104'] }",
        "check.trusted_proxies[0] is an IPv4 network written as IPv6",
    ),
    (
        "{ ipv6_prefix: 31 }",
        "check.ipv6_prefix is 31; it is 32 to 128 bits of an IPv6 address",
    ),
    ("{ ipv6_prefix: 129 }", "check.ipv6_prefix is 129"),
    (
        "{ headers: draft }",
        "check.headers is \"draft\"; it must be one of ietf, x-ratelimit, both, none",
    ),
    (
        "{ keys: [] }",
        "check.keys is not a field; did you mean key?",
    ),
];

#[test]
fn errors_in_checks_give_the_right_form() {
    for (text, sentence) in CHECK_ERRORS.iter().copied() {
        let found = errors(&format!("{PLANS}check: {text}\n"));
        assert!(
            found.len() == 1 && found[0].contains(sentence),
            "{text}: {found:?}"
        );
    }
}

#[test]
fn subjects_are_read_with_their_defaults() {
    let found = check_of(
        "{ subjects: [\n\
         \x20 { key: ['header:x-api-key', 'param:user_id+param:org-2'], plan: ['header:x-plan', 'default:p'],\n\
         \x20   cost: ['header:x-cost', 'default:2'], shard: ['header:x-org', 'param:org-2'], optional: true },\n\
         \x20 { key: client_address, plan: 'default:p' } ] }",
    )
    .unwrap();
    let header =
        |name: &str| Source::parse(&format!("header:{name}"), SubjectPart::Key, None).unwrap();
    let expected = vec![
        SubjectSources {
            key: vec![
                vec![header("x-api-key")],
                vec![Source::parameter("user_id"), Source::parameter("org-2")],
            ],
            plan: vec![header("x-plan"), Source::default("p")],
            cost: vec![header("x-cost"), Source::default("2")],
            shard: vec![header("x-org"), Source::parameter("org-2")],
            optional: true,
        },
        SubjectSources {
            key: vec![vec![Source::ClientAddress]],
            plan: vec![Source::default("p")],
            cost: vec![Source::parameter("cost"), Source::default("1")],
            shard: Vec::new(),
            optional: false,
        },
    ];
    assert_eq!(found.subjects, Subjects::Listed(expected));
    let changed = load_with(
        &format!("{PLANS}check: {{ subjects: [ {{ key: client_address, plan: 'default:p' }} ] }}"),
        &[],
        &[("check.subjects[0].optional", "true")],
    );
    assert!(changed.unwrap().check.subjects.as_slice()[0].optional);
}

/// Wrong subjects, each with its error.
const SUBJECT_ERRORS: &[(&str, &str)] = &[
    ("[]", "check.subjects has 0 subjects; 1 to 8"),
    (
        "[{}, {}, {}, {}, {}, {}, {}, {}, {}]",
        "check.subjects has 9 subjects; 1 to 8",
    ),
    (
        "{ key: client_address }",
        "check.subjects is a table; it must be a list",
    ),
    (
        "'client_address'",
        "check.subjects[0] is \"client_address\"; it must be a table of fields",
    ),
    (
        "[ { plan: 'default:p' } ]",
        "check.subjects[0] has no key; list its sources",
    ),
    (
        "[ { key: client_address } ]",
        "check.subjects[0] has no plan; list its sources",
    ),
    (
        "[ { key: client_address, plan: 'default:p' }, { key: 'param:peek', plan: 'default:p' } ]",
        "check.subjects[1].key has param:peek, which has a meaning of its own",
    ),
    (
        "[ { key: client_address, plan: 'default:p', shard: ['header:x', 'param:deny_status'] } ]",
        "check.subjects[0].shard has param:deny_status, which has a meaning of its own",
    ),
    (
        "[ { key: client_address, plan: 'param:requests' } ]",
        "check.subjects[0].plan has param:requests, which has a meaning of its own",
    ),
    (
        "[ { key: [x], plan: 'default:p' } ]",
        "check.subjects[0].key[0] is not a source of a key; write param:NAME, header:NAME, client_address, or some of these joined by +",
    ),
    (
        "[ { key: 'param:Key', plan: 'default:p' } ]",
        "check.subjects[0].key[0] names no parameter; a name has 1 to 32 of a-z, 0-9, _ and -",
    ),
    (
        "[ { key: 'param:abcdefghijklmnopqrstuvwxyz0123456', plan: 'default:p' } ]",
        "check.subjects[0].key[0] names no parameter",
    ),
    (
        "[ { key: 'header:a b', plan: 'default:p' } ]",
        "check.subjects[0].key[0] names no header field",
    ),
    (
        "[ { key: client_address, plan: client_address } ]",
        "check.subjects[0].plan[0] is not a source of a plan; write param:NAME, header:NAME or default:NAME",
    ),
    (
        "[ { key: client_address, plan: 'default:pp' } ]",
        "check.subjects[0].plan[0] names the plan \"pp\", which is not a plan of this config; did you mean \"p\"?",
    ),
    (
        "[ { key: client_address, plan: ['default:p', 'param:plan'] } ]",
        "check.subjects[0].plan[1] is never used: the one before it is always there",
    ),
    (
        "[ { key: client_address, plan: 'default:p', cost: ['default:0'] } ]",
        "check.subjects[0].cost[0] names no cost; write a whole number, 1 or more",
    ),
    (
        "[ { key: client_address, plan: 'default:p', cost: ['default:'] } ]",
        "check.subjects[0].cost[0] names no cost",
    ),
    (
        "[ { key: client_address, plan: 'default:p', cost: [client_address] } ]",
        "check.subjects[0].cost[0] is not a source of a cost; write param:NAME, header:NAME or default:NUMBER",
    ),
    (
        "[ { key: client_address, plan: 'default:p', cost: ['default:1', 'param:cost'] } ]",
        "check.subjects[0].cost[1] is never used",
    ),
    (
        "[ { key: client_address, plan: 'default:p', shard: ['default:s'] } ]",
        "check.subjects[0].shard[0] is not a source of a shard; write param:NAME or header:NAME",
    ),
    (
        "[ { key: client_address, plan: 'default:p', shard: [] } ]",
        "check.subjects[0].shard names no source; it has 1 to 8",
    ),
    (
        "[ { key: client_address, plan: 'default:p', optional: maybe } ]",
        "check.subjects[0].optional is \"maybe\"; it must be true or false",
    ),
    (
        "[ { key: client_address, plan: 'default:p', keys: x } ]",
        "check.subjects[0].keys is not a field; did you mean key?",
    ),
];

#[test]
fn errors_in_subjects_give_the_right_form_and_their_path() {
    for (text, sentence) in SUBJECT_ERRORS.iter().copied() {
        let found = errors(&format!("{PLANS}check: {{ subjects: {text} }}\n"));
        assert!(
            found.len() == 1 && found[0].starts_with(sentence),
            "{text}: {found:?}"
        );
    }
}

#[test]
fn all_errors_of_subjects_are_found_at_once() {
    let found = errors(&format!(
        "{PLANS}check: {{ key: 'param:key', plan: 'default:pp', subjects: [\n\
         \x20 {{ key: ['param:peek+x', 'param:peek'], plan: ['default:pp'] }},\n\
         \x20 {{ plan: y, cost: z, optional: 2 }} ] }}\n"
    ));
    let expected = [
        "check.subjects stands beside check.key; keep one of them",
        "check.subjects stands beside check.plan; keep one of them",
        "check.subjects[0].key[0] is not a source of a key",
        "check.subjects[0].key has param:peek, which has a meaning of its own",
        "check.subjects[1] has no key",
        "check.subjects[1].plan[0] is not a source of a plan",
        "check.subjects[1].cost[0] is not a source of a cost",
        "check.subjects[1].optional is 2; it must be true or false",
    ];
    assert!(
        found.len() == expected.len()
            && found
                .iter()
                .zip(expected)
                .all(|(found, expected)| found.starts_with(expected)),
        "{found:#?}"
    );
    let of_a_variable = load_with(PLANS, &[("TOLLGATE_CHECK__SUBJECTS", "a,b")], &[]);
    let of_a_variable = of_a_variable.unwrap_err().to_string();
    assert!(
        of_a_variable.contains("check.subjects[1] is \"b\"; it must be a table of fields")
            && of_a_variable.contains("variable TOLLGATE_CHECK__SUBJECTS"),
        "{of_a_variable}"
    );
}
