//! The key that a rule makes of a descriptor.

use super::*;

pub(super) fn key_of(patterns: &[&str], template: Option<&str>, descriptor: &[&str]) -> String {
    let patterns: Vec<EntryPattern> = patterns
        .iter()
        .map(|text| EntryPattern::parse(text).unwrap())
        .collect();
    let template = template.map_or_else(
        || KeyTemplate::for_open_values(&patterns),
        |text| {
            KeyTemplate::parse(text, &patterns).unwrap_or_else(|error| panic!("{text}: {error}"))
        },
    );
    template.key(&entries(descriptor)).as_str().to_owned()
}

#[test]
fn a_key_is_the_template_filled_or_all_open_values() {
    for (patterns, template, descriptor, key) in [
        (&["user"][..], None, &["user=al|ice"][..], "al|ice"),
        (&["user"], Some("user/{user}"), &["user=a/b"], "user/a/b"),
        (
            &["path=/login", "user"],
            None,
            &["path=/login", "user=al"],
            "al",
        ),
        (
            &["path=/a*", "user"],
            None,
            &["path=/ab", "user=al"],
            "/ab|al",
        ),
        (
            &["path=/a*", "user"],
            Some("{user}"),
            &["path=/ab", "user=al"],
            "al",
        ),
        (&["a", "b"], None, &["a=x|y", "b=z\\"], "x\\|y|z\\\\"),
        (
            &["a", "b"],
            Some("{b}:{a}!"),
            &["a=1!", "b=2:"],
            "2\\::1\\!!",
        ),
        (&["path=/login"], None, &["path=/login"], "path=/login"),
        (&["path=/login"], Some("{path}"), &["path=/login"], "/login"),
        (&["a"], Some("everyone"), &["a=1"], "everyone"),
        (&["a", "a=x*y"], None, &["a=1", "a=xzy"], "1|xzy"),
        (
            &["a", "a", "b"],
            Some("{b=1}/{a=2}"),
            &["a=1", "a=2", "b=3"],
            "3/2",
        ),
        (&["user"], None, &["user="], "-"),
    ] {
        assert_eq!(
            key_of(patterns, template, descriptor),
            key,
            "{patterns:?} {template:?}"
        );
    }
    assert_eq!(
        key_of_all("", &entries(&["a=x|b=y"])).as_str(),
        "a=x\\|b\\=y"
    );
    assert_eq!(
        key_of_all("edge", &entries(&["a=x", "b=y"])).as_str(),
        "edge|a=x|b=y"
    );
    let long = key_of(&["user"], None, &[&format!("user={}", "x".repeat(8_000))]);
    assert!(
        long.starts_with(&format!("{}#", "x".repeat(64))) && long.len() < 100,
        "{long}"
    );
}

#[test]
fn a_template_says_what_is_wrong_with_it() {
    let patterns: Vec<EntryPattern> = ["user", "path=/a*", "twice", "twice"]
        .map(|text| EntryPattern::parse(text).unwrap())
        .into();
    for (text, wrong) in [
        ("", "is empty; leave it out"),
        (
            "{use}",
            "has {use}, which no entry fills; there are {user}, {path}, {twice}, {twice}",
        ),
        (
            "{twice}",
            "has {twice}, and 2 entries have this name; write {twice=1} for the first of them",
        ),
        (
            "{twice=3}",
            "has {twice=3}; after the = write a number from 1 to 2",
        ),
        ("{twice=0}", "after the = write a number from 1 to 2"),
        ("{user=}", "after the = write a number from 1 to 1"),
        ("{use=1}", "has {use}, which no entry fills"),
        ("{user", "has a { without a }"),
        ("user}", "has a } without a {"),
        (
            "{user}{path}",
            "has two values side by side; write a letter between them",
        ),
        ("\\{user}", "has a \\"),
        (&"x".repeat(513), "has 513 bytes"),
    ] {
        let found = KeyTemplate::parse(text, &patterns).unwrap_err();
        assert!(found.contains(wrong), "{text}: {found}");
    }
}
