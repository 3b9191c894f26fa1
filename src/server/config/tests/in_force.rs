//! The settings in force, as `tollgate check --print` lists them.

use super::*;

/// The settings in force of a config that was read from standard input.
fn listed(yaml: &str, environment: &[(&str, &str)], flags: Vec<Flag>) -> Vec<SettingInForce> {
    let text = Some((Origin::StandardInput, yaml.to_owned()));
    let environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let sources = Sources {
        text,
        environment,
        flags,
        ..Sources::default()
    };
    Config::load_and_list(&sources).unwrap().1
}

#[test]
fn every_setting_is_listed_in_force_with_its_origin() {
    let defaults = listed(PLANS, &[], Vec::new());
    let paths: Vec<&str> = defaults
        .iter()
        .map(|setting| setting.path.split("plans.").next().unwrap())
        .collect();
    let expected: Vec<&str> = environment::SETTINGS
        .into_iter()
        .filter(|path| *path != "plans")
        .collect();
    assert_eq!(
        paths
            .iter()
            .copied()
            .filter(|path| !path.is_empty())
            .collect::<Vec<_>>(),
        expected
    );
    assert!(
        defaults
            .iter()
            .all(|setting| setting.path.starts_with("plans.") != (setting.origin == "default")),
        "{defaults:?}"
    );
}

#[test]
fn a_setting_in_force_has_the_origin_that_came_last_and_shows_no_password() {
    let yaml = format!(
        "{PLANS}store: {{ url: 'redis://u:canary@h', deadline: 9ms }}\nlisten: {{ http_hosts: [a,\n  b] }}\n"
    );
    let flags = vec![
        Flag::set("store.deadline", "7ms"),
        Flag::set("listen.http_hosts[1]", "c"),
        Flag::set("plans.p.shadow", "true"),
    ];
    let listed = listed(
        &yaml,
        &[
            ("TOLLGATE_WORKERS", "2"),
            ("TOLLGATE_STORE__DEADLINE", "8ms"),
        ],
        flags,
    );
    for (path, value, origin) in [
        ("store.url", "redis://u:***@h", "standard input, line 2"),
        ("store.deadline", "7ms", "flag --set store.deadline"),
        ("workers", "2", "variable TOLLGATE_WORKERS"),
        (
            "listen.http_hosts",
            "a,c",
            "standard input, line 3; flag --set listen.http_hosts[1]",
        ),
        ("plans.p.limits[0].quota", "1", "standard input, line 1"),
        ("plans.p.shadow", "true", "flag --set plans.p.shadow"),
        ("status.keys", "hash", "default"),
    ] {
        let found = listed.iter().find(|setting| setting.path == path).unwrap();
        assert_eq!(
            (found.value.as_deref(), found.origin.as_str()),
            (Some(value), origin),
            "{path}"
        );
    }
    assert!(!format!("{listed:?}").contains("canary"));
}

#[test]
fn subjects_are_listed_in_the_place_of_key_and_plan() {
    let yaml = format!(
        "{PLANS}check: {{ subjects: [ {{ key: ['header:x-a', client_address], plan: ['default:p'] }} ] }}\n"
    );
    let flags = vec![Flag::set("check.subjects[0].optional", "true")];
    let listed = listed(&yaml, &[], flags);
    let of_check: Vec<(&str, &str)> = listed
        .iter()
        .filter(|setting| setting.path.starts_with("check.") && setting.origin != "default")
        .map(|setting| (&*setting.path, setting.value.as_deref().unwrap()))
        .collect();
    assert_eq!(
        of_check,
        [
            ("check.subjects[0].key", "header:x-a,client_address"),
            ("check.subjects[0].optional", "true"),
            ("check.subjects[0].plan", "default:p"),
        ]
    );
    let has = |path| listed.iter().any(|setting| setting.path == path);
    assert!(!has("check.key") && !has("check.plan") && has("check.headers"));
}
