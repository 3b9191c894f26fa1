//! Checks of whole configs. All errors of a config are reported at once, each with its path.

use std::io::Write;
use std::time::Duration;

use super::*;

mod addresses;
mod blocks;
mod bounds;
mod candidate;
mod check;
mod envoy;
mod holds;
mod in_force;
mod limits;
mod listen;
mod overrides;
mod sources;
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
