//! How a config is written: places of errors, the form of names, numbers and texts, and values that must not be repeated.

use super::*;

#[test]
fn an_error_says_where_the_value_was_read() {
    let found = load_with(
        "plans:\n  p:\n    limits:\n      - quota: 0\n        window: 1m\nworkers: 2000\n",
        &[("TOLLGATE_DENY_CACHE__ENTRIES", "-1")],
        &[("listen.lame_duck", "9s"), ("plans.q.shadow", "maybe")],
    );
    let found = found.unwrap_err();
    let mut places: Vec<String> = found
        .errors
        .iter()
        .map(|error| error.place.clone().unwrap())
        .collect();
    places.sort();
    let expected = [
        "flag --set listen.lame_duck",
        "flag --set plans.q.shadow",
        "line 4",
        "line 6",
        "variable TOLLGATE_DENY_CACHE__ENTRIES",
    ];
    assert!(
        expected
            .iter()
            .all(|place| places.contains(&(*place).to_owned())),
        "{places:?}"
    );
    assert!(
        found.to_string().contains(
            "\n  plans.p.limits[0].quota is 0; a quota is at least 1 (to let nothing pass, use `blocked: true`) (line 4)"
        )
    );
    let elsewhere = Config::load(Sources {
        flags: vec![Flag::set("workers", "many")],
        ..Sources::default()
    })
    .unwrap_err()
    .to_string();
    assert_eq!(
        elsewhere,
        "flags and environment: 1 error\n  workers is \"many\"; it must be a whole number in digits alone, such as 1000 (flag --set workers)"
    );
}

#[test]
fn a_variable_that_would_be_ignored_is_an_error() {
    for name in [
        "TOLLGATE_STORE_URL",
        "TOLLGATE_STOER__URL",
        "TOLLGATE_ANYTHING",
        "tollgate_store__url",
    ] {
        let found = load_with(PLANS, &[(name, "canary")], &[]).unwrap_err();
        assert_eq!(found.errors.len(), 1, "{found}");
        assert!(
            found
                .to_string()
                .contains(&format!("the variable {name} is not a setting; "))
                && !found.to_string().contains("canary")
        );
    }
    let links = [
        ("TOLLGATE_PORT", "tcp://10.0.0.1:50051"),
        ("TOLLGATE_SERVICE_HOST", "10.0.0.1"),
        ("TOLLGATE_PORT_50051_TCP_ADDR", "10.0.0.1"),
        ("TOLLGATE_ADMIN_SERVICE_PORT_GRPC", "50051"),
        ("TOLLGATE_CONFIG", "/etc/tollgate.yaml"),
        ("TOLLGATE_LOG_LEVEL", "info"),
    ];
    assert!(load_with(PLANS, &links, &[]).is_ok());
}

#[test]
fn numbers_are_written_in_one_way() {
    for (number, right) in [
        ("010", "a whole number without a 0 before it"),
        ("00", "a whole number without a 0 before it"),
        ("1e3", "a whole number in digits alone, such as 1000"),
        ("1_000", "a whole number in digits alone"),
        ("0x10", "a whole number in digits alone"),
        ("+5", "a whole number in digits alone"),
        ("5.0", "a whole number in digits alone"),
        (
            "18446744073709551616",
            "a whole number of 19 digits at most",
        ),
    ] {
        let limit = format!("{{ quota: {number}, window: 1m }}");
        assert_eq!(
            error_of(&limit)
                .split_once("it must be ")
                .unwrap()
                .1
                .split(" (")
                .next()
                .unwrap()
                .get(..right.len()),
            Some(right),
            "{number}"
        );
    }
    assert_eq!(
        load("plans: { p: { limits: [ { quota: '7', window: 1m } ] } }")
            .unwrap()
            .plans
            .get("p")
            .unwrap()
            .limits()[0]
            .quota(),
        7
    );
}

#[test]
fn names_are_written_once_however_they_are_spelt() {
    for (plans, path) in [
        (
            "{ 1: { blocked: true }, '1': { unlimited: true } }",
            "plans.1",
        ),
        (
            "{ a: { blocked: true }, \"\\x61\": { unlimited: true } }",
            "plans.a",
        ),
        ("{ a: { blocked: true, blocked: true } }", "plans.a.blocked"),
        (
            "{ a: { limits: [ { quota: 1, quota: 2, window: 1s } ] } }",
            "plans.a.limits[0].quota",
        ),
    ] {
        let found = errors(&format!("plans: {plans}"));
        assert!(
            found.len() == 1
                && found[0].starts_with(&format!("{path} occurs twice, the first time at line 1")),
            "{found:?}"
        );
    }
    // All of them at once.
    assert_eq!(
        errors("plans: { a: { blocked: true }, a: {}, a: {} }\nplans: {}").len(),
        3
    );
}

#[test]
fn a_text_is_read_as_it_was_saved() {
    for text in [
        format!("\u{feff}{PLANS}"),
        PLANS.replace('\n', "\r\n"),
        format!("---\n{PLANS}...\n"),
        format!("%YAML 1.2\n---\n{PLANS}"),
    ] {
        assert!(load(&text).is_ok(), "{text:?}");
    }
    let found = load_bytes(&[0xff, 0xfe, b'p', 0], &[], &[])
        .unwrap_err()
        .to_string();
    assert!(
        found.contains("it looks like UTF-16, so save it as UTF-8"),
        "{found}"
    );
    for (letter, text) in [
        ('\0', "U+0000"),
        ('\u{1b}', "U+001B"),
        ('\u{85}', "U+0085"),
        ('\u{feff}', "U+FEFF"),
    ] {
        let found = errors(&format!("{PLANS}{letter}nonsense: ["));
        assert!(
            found.len() == 1 && found[0].contains(&format!("has the control character {text}")),
            "{found:?}"
        );
    }
    let found = errors("plans: { \"a\\nb\": { blocked: true } }");
    assert!(
        found[0].starts_with("plans.\"a\\nb\" is not a name of a plan"),
        "{found:?}"
    );
}

#[test]
fn aliases_repeat_values_within_bounds() {
    let shared = "plans:\n  a: &a { limits: [ { quota: 7, window: 1m } ] }\n  b: *a\n";
    assert_eq!(
        load(shared).unwrap().plans.get("b").unwrap().limits()[0].quota(),
        7
    );
    let levels: String = (1..12)
        .map(|level| {
            format!(
                "a{level}: &a{level} [{}]\n",
                format!("*a{},", level - 1).repeat(9)
            )
        })
        .collect();
    for (text, part) in [
        (
            format!("a0: &a0 [x]\n{levels}"),
            "comes to more values than a config has, counting what its aliases (*…) repeat (line ",
        ),
        (
            "plans: &a { p: *a }".to_owned(),
            "has an alias (*…) of what it stands in itself (line 1)",
        ),
        (
            "plans: { <<: { a: {} } }".to_owned(),
            "has a merge key (<<)",
        ),
        ("plans: !!map {}".to_owned(), "has a tag (!…)"),
        (
            "? [a]\n: b".to_owned(),
            "has a list or a table in place of a name",
        ),
    ] {
        let found = load(&text).unwrap_err().to_string();
        assert!(found.contains(part), "{text}: {found}");
    }
}

#[test]
fn a_possible_secret_is_not_repeated() {
    for text in [
        "store: redis://:canary@h",
        "listen: { plaintext: 'redis://u:canary@h' }",
        "plans: { p: { limits: [ { quota: 1, window: 1m, algorithm: 'rediss://:canary@h:1' } ] } }",
        "plans: { 'redis://:canary@h': { unlimited: true } }",
        "store: { canary }",
        "store: { deadline: canary, expected_replicas: canary, url: [canary], tls: canary }",
        "store: { url: 'memory:?capacity=canary' }",
        "store: { url: 'memory:?canary=1' }",
        "listen: { tls: { client_names: ['*canary*'], canary: 1 }, admin_token_file: { canary: canary } }",
        "canary",
        "{ canary }",
        "\"canary",
        "@canary",
    ] {
        let found = load(text).unwrap_err().to_string();
        let paths = found.lines().skip(1).collect::<String>();
        assert!(!paths.contains("canary"), "{text}: {found}");
    }
    for path in [
        "store.redis://:canary@h",
        "store.canary@",
        "canary:canary",
        "store.canary0",
        "listen.tls.canary0",
        "listen.tls[0].canary0",
        "Canary",
        "canary0",
    ] {
        let found = load_with(PLANS, &[], &[(path, "canary")])
            .unwrap_err()
            .to_string()
            .to_lowercase();
        assert!(!found.contains("canary"), "{path}: {found}");
    }
}

#[test]
fn the_number_of_replicas_is_a_number_or_left_to_them() {
    let load = |written: &str| {
        load(&format!(
            "{PLANS}store: {{ expected_replicas: {written} }}\n"
        ))
        .map(|it| it.store.expected_replicas)
    };
    assert_eq!(
        (
            load("auto").unwrap(),
            load("1").unwrap(),
            load("10000").unwrap()
        ),
        (None, Some(1), Some(10_000))
    );
    for (wrong, said) in [
        ("0", "out of range"),
        ("10001", "out of range"),
        ("atuo", "is wrong; it is auto"),
        ("-1", "is wrong; it is auto"),
    ] {
        let text = load(wrong).unwrap_err().to_string();
        assert!(
            text.contains("store.expected_replicas") && text.contains(said),
            "{text}"
        );
    }
    let variables = [("TOLLGATE_STORE__EXPECTED_REPLICAS", "auto")];
    let yaml = format!("{PLANS}store: {{ expected_replicas: 2 }}\n");
    assert_eq!(
        load_with(&yaml, &variables, &[])
            .unwrap()
            .store
            .expected_replicas,
        None
    );
}

#[test]
fn brackets_in_comments_nest_nothing() {
    assert!(load(&(PLANS.to_owned() + &"# a [ b { c\n".repeat(1_000))).is_ok());
}

#[test]
fn only_a_regular_file_is_read() {
    let error = Config::load(Sources {
        file: Some("/dev/zero".into()),
        ..Sources::default()
    })
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("is a device; name a regular file"),
        "{error}"
    );
}

#[test]
fn plan_names_keep_their_case_and_dots() {
    let config = load("plans: { Team.A/v1: { blocked: true }, 2024: { blocked: true } }").unwrap();
    assert!(config.plans.get("Team.A/v1").is_ok() && config.plans.get("2024").is_ok());
}

#[test]
fn settings_beside_the_url_must_fit_its_redis() {
    let errors = |store: &str| {
        let error = load(&format!("{PLANS}store: {{ {store} }}\n")).unwrap_err();
        error
            .errors
            .iter()
            .map(|error| error.path.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(errors("tls: { ca_file: /ca }"), ["store.tls"]);
    assert_eq!(
        errors("url: 'redis://h', tls: { ca_file: /ca }"),
        ["store.tls"]
    );
    assert_eq!(
        errors("url: 'rediss://h', tls: { cert_file: /c }"),
        ["store.tls"]
    );
    assert_eq!(
        errors("url: 'rediss://h', tls: { ca_file: '', chain: x }"),
        ["store.tls.ca_file", "store.tls"]
    );
    assert_eq!(errors("url: 'redis://h', username: u"), ["store.url"]);
    assert_eq!(
        errors("url: 'redis://u:p@h', username: u"),
        ["store.username"]
    );
    assert_eq!(
        errors("url: 'redis://u:p@h', password_file: /p"),
        ["store.password_file"]
    );
    assert_eq!(
        errors("url: 'redis://u@h', passwordfile: /p"),
        ["store.url", "store.passwordfile"]
    );
    assert_eq!(errors("key_prefix: shop"), ["store.key_prefix"]);
    assert_eq!(
        errors("url: 'redis://h', key_prefix: '{shop}'"),
        ["store.key_prefix"]
    );
    assert!(load(&format!("{PLANS}store: {{ key_prefix: '' }}\n")).is_ok());
    let whole = "url: 'rediss-cluster://h', username: u, password_file: /p, key_prefix: 'shop:', \
                 tls: { ca_file: /ca, cert_file: /c, key_file: /k, server_name: n }";
    let config = load(&format!("{PLANS}store: {{ {whole} }}\n")).unwrap();
    assert_eq!(config.store.url.to_string(), "rediss-cluster://h:6379");
}
