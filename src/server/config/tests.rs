//! Checks of whole configs. All errors of a config are reported at once, each with its path.

use std::io::Write;
use std::time::Duration;

use super::*;

mod blocks;
mod bounds;
mod candidate;
mod check;
mod envoy;
mod holds;
mod in_force;
mod listen;
mod overrides;
mod status;
mod text;

fn load(yaml: &str) -> Result<Config, ConfigErrors> {
    load_with(yaml, &[], &[])
}

fn load_with(
    yaml: &str,
    environment: &[(&str, &str)],
    overrides: &[(&str, &str)],
) -> Result<Config, ConfigErrors> {
    load_bytes(yaml.as_bytes(), environment, overrides)
}

fn load_bytes(
    bytes: &[u8],
    environment: &[(&str, &str)],
    overrides: &[(&str, &str)],
) -> Result<Config, ConfigErrors> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    let own = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect()
    };
    let flags = overrides
        .iter()
        .map(|(path, value)| Flag::set(path, value))
        .collect();
    Config::load(Sources {
        file: Some(file.path().into()),
        environment: own(environment),
        flags,
        ..Sources::default()
    })
}

fn errors(yaml: &str) -> Vec<String> {
    let errors = load(yaml).unwrap_err().errors;
    errors
        .into_iter()
        .map(|error| {
            ConfigError {
                place: None,
                ..error
            }
            .to_string()
        })
        .collect()
}

/// The one error of a plan `p` with this limit.
fn error_of(limit: &str) -> String {
    let found = errors(&format!("plans: {{ p: {{ limits: [ {limit} ] }} }}"));
    assert_eq!(found.len(), 1, "{limit}: {found:?}");
    found[0].clone()
}

const PLANS: &str = "plans: { p: { limits: [ { quota: 1, window: 1s } ] } }\n";

#[test]
fn the_example_is_valid_and_runs_without_a_file() {
    let config = Config::load(Sources::default()).unwrap();
    assert_eq!(config.plans.len(), 7);
    assert_eq!(config.plans.get("free").unwrap().limits()[0].quota(), 100);
    assert_eq!(config.listen.grpc[0].to_string(), "127.0.0.1:50051");
    assert_eq!(
        (config.store.deadline, config.store.expected_replicas),
        (Duration::from_millis(25), None)
    );
}

#[test]
fn defaults_are_what_people_mean() {
    let plan = load(PLANS).unwrap().plans.get("p").unwrap().clone();
    let limit = &plan.limits()[0];
    assert_eq!(
        limit.algorithm(),
        tollgate_core::plan::Algorithm::SlidingWindow { precision: 64 }
    );
    assert_eq!(
        (&*plan.counts_as, limit.name().as_ref()),
        ("p", "sliding_window/1s")
    );
    let bucket =
        load("plans: { p: { limits: [ { quota: 7, window: 7s, algorithm: token_bucket } ] } }")
            .unwrap();
    assert_eq!(bucket.plans.get("p").unwrap().limits()[0].capacity(), 7);
}

#[test]
fn every_error_is_reported_at_once_with_its_path() {
    let found = errors(
        "listen: { grpc: [nowhere], htpp: x }\nstore: { url: 'http://h', deadline: 1h, expected_replicas: 0 }\n\
         plans:\n  a: { limits: [ { quota: 0, window: 1m }, { quota: 1, window: 0s } ], shadow: maybe }\n  b: {}\n  'c c': { unlimited: true }\n",
    );
    let paths: Vec<&str> = found
        .iter()
        .map(|error| error.split(' ').next().unwrap())
        .collect();
    let expected = [
        "listen.grpc[0]",
        "listen.htpp",
        "store.url",
        "store.deadline",
        "store.expected_replicas",
        "plans.a.shadow",
        "plans.a.limits[0].quota",
        "plans.a.limits[1].window",
        "plans.b",
        "plans.\"c",
    ];
    assert_eq!(paths, expected, "{found:#?}");
}

#[test]
fn workers_are_as_many_as_configured_and_0_means_one_per_core() {
    let workers =
        |text: &str| load(&format!("{PLANS}workers: {text}\n")).map(|config| config.workers);
    assert_eq!(load(PLANS).unwrap().workers, None);
    assert_eq!(workers("0").unwrap(), None);
    for count in [1, 1024] {
        assert_eq!(
            workers(&count.to_string()).unwrap(),
            NonZeroUsize::new(count)
        );
    }
    assert!(
        workers("1025")
            .unwrap_err()
            .to_string()
            .contains("workers is 1025; it is 0 to 1024, and 0 means one per core")
    );
    assert!(
        workers("two")
            .unwrap_err()
            .to_string()
            .contains("workers is \"two\"; it must be a whole number")
    );
    let by_environment = load_with(
        &format!("{PLANS}workers: 3\n"),
        &[("TOLLGATE_WORKERS", "5")],
        &[],
    )
    .unwrap();
    assert_eq!(by_environment.workers, NonZeroUsize::new(5));
}

/// Wrong limits, each with a part of its error.
const LIMIT_ERRORS: &[(&str, &str)] = &[
    (
        "{ quota: 0, window: 1m }",
        "plans.p.limits[0].quota is 0; a quota is at least 1",
    ),
    (
        "{ quota: -1, window: 1m }",
        "plans.p.limits[0].quota is -1; it must be a whole number",
    ),
    (
        "{ quota: 1.5, window: 1m }",
        "quota is 1.5; it must be a whole number",
    ),
    (
        "{ quota: many, window: 1m }",
        "quota is \"many\"; it must be a whole number",
    ),
    ("{ quota: 1e30, window: 1m }", "it must be a whole number"),
    ("{ quota: 1 }", "plans.p.limits[0] has no window"),
    ("{ window: 1m }", "plans.p.limits[0] has no quota"),
    (
        "{ quota: 1, window: 60 }",
        "window is 60; it must be a duration: it has a number without a unit",
    ),
    ("{ quota: 1, window: 1 fortnight }", "must be a duration"),
    (
        "{ quota: 1, window: 1M }",
        "window is \"1M\"; it must be a duration: it has the unit M, which could be minutes or months",
    ),
    (
        "{ quota: 1, window: 1month }",
        "whose length is not always the same; write days",
    ),
    (
        "{ quota: 1, window: 1H }",
        "has a unit that is written h, such as 1h",
    ),
    ("{ quota: 1, window: 400d }", "a window is 1ms to 366d"),
    (
        "{ quota: 1, window: 1us }",
        "has a unit below a millisecond; the shortest is ms",
    ),
    (
        "{ quota: 1, window: 1m, algorithm: leaky }",
        "one of sliding_window, sliding_log, fixed_window",
    ),
    (
        "{ quota: 1, window: 1m, burst: 5 }",
        "burst belongs to token_bucket only",
    ),
    (
        "{ quota: 1, window: 1m, algorithm: token_bucket, burst: 0 }",
        "burst is 0; a burst is 1 to",
    ),
    (
        "{ quota: 1, window: 1m, anchor: clock }",
        "anchor belongs to fixed_window only",
    ),
    (
        "{ quota: 1, window: 1m, algorithm: fixed_window, anchor: noon }",
        "one of clock, first_request",
    ),
    (
        "{ quota: 1, window: 1m, precision: 1000 }",
        "a precision is 2 to 64",
    ),
    (
        "{ quota: 100001, window: 1m, algorithm: sliding_log }",
        "use sliding_window",
    ),
    (
        "{ quota: 1, window: 1m, qouta: 1 }",
        "plans.p.limits[0].qouta is not a field; did you mean quota?",
    ),
    (
        "{ quota: 1, window: 1m, zzz: 1 }",
        "zzz is not a field; there are algorithm, quota, window",
    ),
    ("5", "plans.p.limits[0] is 5; it must be a table"),
    (
        "{ quota: 1, window: 1m }, { quota: 2, window: 1m, name: b }",
        "plans.p.limits[1] has the algorithm and window of one before",
    ),
    (
        "{ quota: 1, window: 1m, name: a }, { quota: 1, window: 1h, name: a }",
        "limits[1] is named \"a\" like one before it",
    ),
    ("", "plans.p.limits has 0 limits; a plan has 1 to 8"),
];

#[test]
fn errors_of_a_limit_give_the_right_form() {
    for (limit, part) in LIMIT_ERRORS.iter().copied() {
        let found = error_of(limit);
        assert!(found.contains(part), "{limit}: {found}");
    }
}

#[test]
fn a_duration_means_the_same_in_file_environment_and_flags() {
    for text in ["1M", "1S", "1month", "1 hour", "1.5s", "60"] {
        let file = errors(&format!("{PLANS}store: {{ deadline: {text} }}"));
        let variable = load_with(PLANS, &[("TOLLGATE_STORE__DEADLINE", text)], &[])
            .unwrap_err()
            .errors;
        let flag = load_with(PLANS, &[], &[("store.deadline", text)])
            .unwrap_err()
            .errors;
        assert!(
            file.len() == 1 && file[0].contains("it must be a duration"),
            "{text}: {file:?}"
        );
        assert_eq!((variable.len(), flag.len()), (1, 1), "{text}");
        assert!(
            flag[0].message.contains("it must be a duration")
                && variable[0].message.contains("it must be a duration"),
            "{text}"
        );
    }
    let minute = load(
        "plans: { p: { limits: [ { quota: 1, window: 60s }, { quota: 1, window: 1h30m } ] } }",
    )
    .unwrap();
    assert_eq!(
        minute.plans.get("p").unwrap().limits()[1].window_us(),
        5_400_000_000
    );
}

#[test]
fn a_plan_has_limits_or_is_unlimited_or_blocked() {
    for plan in [
        "{}",
        "{ unlimited: true, blocked: true }",
        "{ unlimited: true, limits: [ { quota: 1, window: 1s } ] }",
        "5",
    ] {
        assert_eq!(
            errors(&format!("plans: {{ p: {plan} }}")).len(),
            1,
            "{plan}"
        );
    }
}

#[test]
fn nine_limits_and_ten_thousand_and_one_plans_are_too_many() {
    let nine: Vec<String> = (1..10)
        .map(|hours| format!("{{ quota: 1, window: {hours}h }}"))
        .collect();
    assert!(error_of(&nine.join(", ")).contains("has 9 limits; a plan has 1 to 8"));
    let plans = |count: u32| {
        (0..count)
            .map(|index| format!("  p{index}: {{ blocked: true }}\n"))
            .collect::<String>()
    };
    assert!(load(&format!("plans:\n{}", plans(10_000))).is_ok());
    assert!(errors(&format!("plans:\n{}", plans(10_001)))[0].contains("has 10001 plans"));
}

#[test]
fn plans_of_one_count_have_limits_that_redis_can_read_at_once() {
    let plans = |count: usize, algorithm: &str| -> String {
        let plan = |of| {
            format!(
                "p{of}: {{ counts_as: g, limits: [ {{ quota: 5, window: {of}m, algorithm: {algorithm} }} ] }}"
            )
        };
        format!(
            "plans: {{ {} }}",
            (1..=count).map(plan).collect::<Vec<_>>().join(", ")
        )
    };
    for (most, algorithm, words) in [
        (1_024, "fixed_window", "limits in all"),
        (80, "sliding_window", "sliding_window in all"),
    ] {
        assert!(load(&plans(most, algorithm)).is_ok());
        let found = errors(&plans(most + 1, algorithm));
        assert!(
            found.len() == 1
                && found[0].contains(words)
                && found[0].contains(&format!("at most {most}")),
            "{found:?}"
        );
    }
}

#[test]
fn http_is_off_unless_it_has_an_address() {
    for (yaml, address) in [
        ("", None),
        ("listen: {}", None),
        ("listen: { http: '' }", None),
        ("listen: { http: '127.0.0.1:8080' }", Some("127.0.0.1:8080")),
        (
            "listen: { http: 'plaintext:10.0.0.1:8080' }",
            Some("10.0.0.1:8080"),
        ),
        (
            "listen: { http: 'unix:/run/tollgate/http.sock' }",
            Some("unix:/run/tollgate/http.sock"),
        ),
    ] {
        let found = load(&format!("{PLANS}{yaml}"))
            .unwrap()
            .listen
            .http
            .map(|address| address.to_string());
        assert_eq!(found.as_deref(), address, "{yaml}");
    }
    let from_environment = load_with(PLANS, &[("TOLLGATE_LISTEN__HTTP", "127.0.0.1:9090")], &[])
        .unwrap()
        .listen
        .http;
    assert_eq!(
        from_environment
            .map(|address| address.to_string())
            .as_deref(),
        Some("127.0.0.1:9090")
    );
    for yaml in [
        "listen: { http: 8080 }",
        "listen: { http: ':8080' }",
        "listen: { http: ['127.0.0.1:1', '127.0.0.1:2'] }",
    ] {
        let found = errors(&format!("{PLANS}{yaml}"));
        assert!(
            found.len() == 1 && found[0].starts_with("listen.http is "),
            "{found:?}"
        );
    }
}

#[test]
fn an_address_for_other_hosts_needs_encryption_or_plaintext() {
    let open = "listen: { grpc: ['127.0.0.1:1', '0.0.0.0:2', 'tollgate.internal:3'], http: '[::]:4', metrics: '[::]:5' }";
    let found = errors(&format!("{PLANS}{open}"));
    let paths: Vec<&str> = found
        .iter()
        .map(|error| error.split(' ').next().unwrap())
        .collect();
    assert_eq!(
        paths,
        [
            "listen.grpc[1]",
            "listen.grpc[2]",
            "listen.http",
            "listen.metrics"
        ],
        "{found:?}"
    );
    assert!(
        found[0].contains("listen.plaintext: true (--plaintext), or write plaintext:0.0.0.0:2"),
        "{found:?}"
    );
    for also in ["plaintext: true", "tls: { cert_file: c, key_file: k }"] {
        assert!(
            load(&format!(
                "{PLANS}{}",
                open.replace(" }", &format!(", {also} }}"))
            ))
            .is_ok(),
            "{also}"
        );
    }
    let each = "listen: { grpc: ['plaintext:0.0.0.0:2', 'unix:/s'], http: 'plaintext:[::]:4', metrics: 'plaintext:[::]:5' }";
    assert!(load(&format!("{PLANS}{each}")).is_ok());
    assert!(
        load_with(
            PLANS,
            &[],
            &[("listen.grpc", "0.0.0.0:1"), ("listen.plaintext", "true")]
        )
        .is_ok()
    );
}

#[test]
fn a_default_plan_is_one_of_the_plans() {
    let of = |name: &str| format!("{PLANS}default_plan: {name}\n");
    let config = load(&of("p")).unwrap();
    assert_eq!(config.plans.default_plan().unwrap().1.name.to_string(), "p");
    assert!(load(PLANS).unwrap().plans.default_plan().is_none());
    assert!(load(&of("''")).unwrap().plans.default_plan().is_none());
    assert_eq!(
        load_with(PLANS, &[], &[("default_plan", "p")])
            .unwrap()
            .plans
            .default_plan()
            .unwrap()
            .0,
        0
    );
    assert_eq!(
        errors(&of("pp")),
        ["default_plan is \"pp\", which is not a plan of this config; did you mean \"p\"?"]
    );
    assert_eq!(
        errors(&of("other")),
        ["default_plan is \"other\", which is not a plan of this config"]
    );
    assert!(errors(&of("[p]"))[0].starts_with("default_plan is a list"));
    // A plan with errors is not reported as missing.
    let flawed = errors("plans: { p: {}, q: { unlimited: true } }\ndefault_plan: p\n");
    assert!(
        flawed.len() == 1 && flawed[0].starts_with("plans.p has no rule"),
        "{flawed:?}"
    );
}

#[test]
fn figures_have_names_of_hosts_without_ports() {
    let of = |hosts: &str| format!("{PLANS}listen: {{ http_hosts: {hosts} }}");
    assert_eq!(
        load(&of("[limits.example.com, '*.svc']"))
            .unwrap()
            .listen
            .http_hosts
            .len(),
        2
    );
    assert!(load(PLANS).unwrap().listen.http_hosts.is_empty());
    for (hosts, expected) in [
        (
            "[a, 'a:80']",
            "listen.http_hosts[1] is wrong; write a name without a port",
        ),
        ("['*']", "listen.http_hosts[0] is wrong; "),
        ("[{}]", "listen.http_hosts[0] is a table"),
    ] {
        let found = errors(&of(hosts));
        assert!(
            found.len() == 1 && found[0].starts_with(expected),
            "{found:?}"
        );
    }
}

#[test]
fn connections_end_as_the_config_says() {
    let config = load(PLANS).unwrap();
    assert_eq!(
        (config.listen.lame_duck, config.listen.max_connection_age),
        (Duration::from_secs(2), None)
    );
    let config = load(&format!(
        "{PLANS}listen: {{ lame_duck: 0s, max_connection_age: 1h }}"
    ))
    .unwrap();
    assert_eq!(
        (config.listen.lame_duck, config.listen.max_connection_age),
        (Duration::ZERO, Some(Duration::from_secs(3600)))
    );
    assert_eq!(
        load(&format!("{PLANS}listen: {{ max_connection_age: 0s }}"))
            .unwrap()
            .listen
            .max_connection_age,
        None
    );
    for (yaml, sentence) in [
        ("lame_duck: 6s", "listen.lame_duck is 6s; it is 0s to 3s"),
        (
            "max_connection_age: 1ms",
            "listen.max_connection_age is 1ms; it is 0s (off), or 1s to 365d",
        ),
    ] {
        assert_eq!(errors(&format!("{PLANS}listen: {{ {yaml} }}")), [sentence]);
    }
}

#[test]
fn the_deny_cache_has_a_size() {
    for (yaml, entries) in [
        ("", 65_536),
        ("deny_cache: {}", 65_536),
        ("deny_cache: { entries: 0 }", 0),
        ("deny_cache: { entries: 10000000 }", 10_000_000),
    ] {
        assert_eq!(
            load(&format!("{PLANS}{yaml}")).unwrap().deny_cache.entries,
            entries,
            "{yaml}"
        );
    }
    for (yaml, part) in [
        (
            "deny_cache: { entries: 10000001 }",
            "deny_cache.entries is 10000001; it is 0 (off) to 10000000",
        ),
        (
            "deny_cache: { entries: -1 }",
            "deny_cache.entries is -1; it must be a whole number",
        ),
        (
            "deny_cache: { entires: 1 }",
            "deny_cache.entires is not a field; did you mean entries?",
        ),
        ("deny_cache: 5", "deny_cache is 5; it must be a table"),
    ] {
        let found = errors(&format!("{PLANS}{yaml}"));
        assert!(found.len() == 1 && found[0].starts_with(part), "{found:?}");
    }
}

#[test]
fn a_file_that_is_not_a_config_gives_the_reason() {
    for (bytes, part) in [
        (b"".as_slice(), "is empty"),
        (b" \n \n", "is empty"),
        (b"\xff\xfe", "is not UTF-8: line 1"),
        (b"plans:\n  a: \xc3", "is not UTF-8: line 2"),
        (b"plans: [", "is not valid YAML"),
        (
            b"plans: {a: {blocked: true}}\n---\nplans: {}",
            "begins a second document (---); a config is one (line 2)",
        ),
        (
            b"a: 1\na: 2",
            "a occurs twice, the first time at line 1; remove one of them (line 2)",
        ),
        (
            b"- 1",
            "the config is a list; it must be a table of fields (line 1)",
        ),
        (
            b"42",
            "the config is a text; it must be a table of fields (line 1)",
        ),
        (
            b"hello",
            "the config is a text; it must be a table of fields (line 1)",
        ),
        (b"plans: {}", "plans has no plan"),
        (b"plans: []", "plans is a list; it must be a table"),
        (
            "[".repeat(100_000).as_bytes(),
            "is nested more than 32 deep (line 1)",
        ),
        (
            "- ".repeat(100_000).as_bytes(),
            "is nested more than 32 deep (line 1)",
        ),
    ] {
        let message = load_bytes(bytes, &[], &[]).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    let none = Config::load(Sources {
        file: Some("/nowhere/tollgate.yaml".into()),
        ..Sources::default()
    })
    .unwrap_err();
    assert!(
        none.to_string()
            .starts_with("/nowhere/tollgate.yaml: 1 error\n  cannot be read: No such file"),
        "{none}"
    );
}

#[test]
fn a_duplicate_plan_is_an_error() {
    assert!(load("plans:\n  a: { blocked: true }\n  a: { unlimited: true }\n").is_err());
}

#[test]
fn a_huge_file_is_refused_unread() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 40).unwrap();
    let error = Config::load(Sources {
        file: Some(file.path().into()),
        ..Sources::default()
    })
    .unwrap_err();
    assert!(
        error.to_string().contains("has more than 16777216 bytes"),
        "{error}"
    );
}

#[test]
fn environment_beats_file_and_flags_beat_both() {
    let yaml = format!("{PLANS}store: {{ deadline: 10ms, expected_replicas: 2 }}\n");
    let environment = [
        ("TOLLGATE_STORE__DEADLINE", "20ms"),
        ("TOLLGATE_STORE__EXPECTED_REPLICAS", "3"),
        ("TOLLGATE_LISTEN__GRPC", "127.0.0.1:1,unix:/s"),
        ("TOLLGATE_LOG_LEVEL", "debug"),
        ("TOLLGATE_PORT", "tcp://10.0.0.1:50051"),
        ("TOLLGATE_SERVICE_PORT_GRPC", "50051"),
        ("PATH", "/bin"),
    ];
    let config = load_with(&yaml, &environment, &[("store.deadline", "30ms")]).unwrap();
    assert_eq!(
        (config.store.deadline, config.store.expected_replicas),
        (Duration::from_millis(30), Some(3))
    );
    assert_eq!(
        config
            .listen
            .grpc
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["127.0.0.1:1", "unix:/s"]
    );
    let misspelt = load_with(&yaml, &[("TOLLGATE_STORE__DEADLIN", "1s")], &[]).unwrap_err();
    assert!(
        misspelt
            .to_string()
            .contains("did you mean TOLLGATE_STORE__DEADLINE?"),
        "{misspelt}"
    );
}

/// A variable with single underscores gets the right name, for every setting.
#[test]
fn every_setting_is_in_the_list_of_those_that_variables_may_name() {
    let mut listed: Vec<&str> = environment::SETTINGS.to_vec();
    let tables = [
        "",
        "listen",
        "listen.tls",
        "store",
        "store.tls",
        "deny_cache",
        "status",
        "check",
        "envoy",
    ];
    let mut checked = Vec::new();
    for table in tables {
        let field = table
            .split('.')
            .filter(|name| !name.is_empty())
            .rfold("zzzzzzzz: 1".to_owned(), |inner, name| {
                format!("{name}: {{ {inner} }}")
            });
        let found = load_with(
            &format!("{PLANS}{field}\n"),
            &[],
            &[("store.url", "rediss://h")],
        )
        .unwrap_err()
        .to_string();
        let known = found
            .split_once("there are ")
            .unwrap()
            .1
            .split([' ', '\n'])
            .take_while(|word| !word.starts_with('('));
        let paths = known.map(|name| name.trim_end_matches(',').to_owned());
        checked.extend(paths.map(|name| {
            if table.is_empty() {
                name
            } else {
                format!("{table}.{name}")
            }
        }));
    }
    checked.retain(|path| !tables.contains(&path.as_str()));
    checked.sort();
    listed.sort();
    assert_eq!(checked, listed);
}
