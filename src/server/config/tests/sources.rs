//! What is read from files, variables and flags, and which of them is first.

use super::*;

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
