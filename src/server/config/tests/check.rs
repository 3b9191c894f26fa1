//! The `check` section: its forms, its defaults, and every error in it.

use super::*;

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
    assert_eq!(
        (
            found.key.len(),
            found.key[0].len(),
            found.plan.len(),
            found.ipv6_prefix
        ),
        (2, 2, 2, 56)
    );
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
            found.key.len(),
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
        "check.key[0] is no source of a key; write param:key, header:NAME, client_address, or some of these joined by +",
    ),
    (
        "{ key: ['param:user'] }",
        "check.key[0] is no source of a key",
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
        "check.key[0] is no source of a key",
    ),
    (
        "{ key: [client_address, 'param:key'] }",
        "check.key[1] is never used: the one before it is always there",
    ),
    (
        "{ key: ['a,a,a,a,a,a,a,a,a'] }",
        "check.key[0] is no source",
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
        "check.plan[0] is no source of a plan; write param:plan, header:NAME or default:NAME",
    ),
    (
        "{ plan: ['default:pp'] }",
        "check.plan[0] names the plan \"pp\", which is no plan of this config; did you mean \"p\"?",
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
        "check.trusted_proxies[0] is no network; write one such as 10.0.0.0/8",
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
