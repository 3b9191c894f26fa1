//! Which rule of several decides, and what is wrong with a pattern.

use super::*;

#[test]
fn a_wildcard_stands_for_any_letters_anywhere() {
    for (pattern, matching, others) in [
        (
            "a=bar*b",
            &["barb", "barab", "bar*b", "barbb"][..],
            &["bar", "ba", "barba", "xbarb", "arb"][..],
        ),
        (
            "a=foo*bar*baz",
            &["foobarbaz", "foo-bar-baz", "foobarbarbaz"],
            &["foobaz", "foobarba", "foobazbar", "foobabaz"],
        ),
        ("a=*x", &["x", "xx", "éx"], &["", "xé"]),
        ("a=x**y*", &["xy", "xéy", "xyy"], &["x", "yx"]),
        ("a=aa*aa", &["aaaa", "aaaaa"], &["aaa", "aa"]),
        ("a=*ab*ab*", &["abab", "xabxabx"], &["ab", "aab", "abb"]),
    ] {
        let domain = domain(&[&[pattern]]);
        for (values, found) in [(matching, true), (others, false)] {
            for value in values {
                assert_eq!(
                    domain.find(&entries(&[&format!("a={value}")])).is_some(),
                    found,
                    "{pattern}: {value}"
                );
            }
        }
    }
    // Each star has a letter to stand for, none of them the right one: the time does not multiply.
    let many = Wildcard::parse(&"a*".repeat(250)).unwrap();
    assert!(
        !many.matches(&"a".repeat(249))
            && !many.matches(&"ab".repeat(200))
            && many.matches(&"ab".repeat(250))
    );
}

#[test]
fn more_text_beats_less_fewer_stars_beat_more_and_of_equals_the_first_decides() {
    let rules = [
        "a=*bc", "a=ab*", "a=a*bc", "a=*b*", "a=b*", "a=*b", "a=*bd", "a=abd",
    ];
    let domain = domain(
        &rules
            .map(|rule| vec![rule])
            .iter()
            .map(Vec::as_slice)
            .collect::<Vec<_>>(),
    );
    for (value, decides) in [
        ("abc", Some(2)),
        ("abbc", Some(2)),
        ("xbc", Some(0)),
        ("abx", Some(1)),
        ("xbx", Some(3)),
        // Of `*b*`, `b*` and `*b`, the first one with a single star.
        ("b", Some(4)),
        ("xb", Some(5)),
        ("abd", Some(7)),
        ("abbd", Some(1)),
        ("x", None),
    ] {
        let found = domain
            .find(&entries(&[&format!("a={value}")]))
            .map(|(rule_index, _)| rule_index);
        assert_eq!(found, decides, "{value}");
    }
}

#[test]
fn a_rule_that_is_never_reached_and_too_many_forms_are_errors() {
    let rules = |patterns: &[&[&str]]| {
        patterns
            .iter()
            .map(|patterns| rule(patterns))
            .collect::<Vec<_>>()
    };
    let errors = Domain::new(
        Unmatched::Deny,
        rules(&[&["a=1"], &["a"], &["a=1"], &["a=1*"], &["a"]]),
    )
    .unwrap_err();
    assert_eq!(
        errors,
        [(2, RuleError::SameAs(0)), (4, RuleError::SameAs(1))]
    );
    let prefixes: Vec<DescriptorRule> = (1..=65)
        .map(|bytes| rule(&[&format!("a={}*", "x".repeat(bytes))]))
        .collect();
    assert!(Domain::new(Unmatched::Allow, prefixes[..FORMS_MAX].to_vec()).is_ok());
    assert_eq!(
        Domain::new(Unmatched::Allow, prefixes).unwrap_err(),
        [(64, RuleError::TooManyForms)]
    );
    let between: Vec<DescriptorRule> = (1..=65)
        .map(|number| rule(&[&format!("a=x*{number}*")]))
        .collect();
    assert!(Domain::new(Unmatched::Allow, between[..FORMS_MAX].to_vec()).is_ok());
    assert_eq!(
        Domain::new(Unmatched::Allow, between).unwrap_err(),
        [(64, RuleError::TooManyForms)]
    );
    let twice = rules(&[&["a=x**y"], &["a=x*y"]]);
    assert_eq!(
        Domain::new(Unmatched::Allow, twice).unwrap_err(),
        [(1, RuleError::SameAs(0))]
    );
}

#[test]
fn the_work_of_a_search_does_not_grow_with_the_rules() {
    let exact = (0..RULES_MAX - 1).map(|user| rule(&[&format!("user={user}"), "path"]));
    let domain = Domain::new(
        Unmatched::Allow,
        exact.chain([rule(&["user", "path"])]).collect(),
    )
    .unwrap();
    let shape = entries(&["user=77", "path=/"]);
    assert_eq!(domain.find(&shape).unwrap().0, 77);
    assert_eq!(
        domain.find(&entries(&["user=none", "path=/"])).unwrap().0,
        RULES_MAX - 1
    );
    // Two forms, whatever the number of rules.
    assert!(
        format!("{:?}", domain.index.forms()) == "[2]",
        "{:?}",
        domain.index.forms()
    );
}

#[test]
fn a_pattern_says_what_is_wrong_with_it() {
    for (text, wrong) in [
        ("", "has no name"),
        ("=x", "has no name"),
        ("a=", "gives no value after its ="),
        ("a=*", "gives no value after its ="),
        ("a=**", "gives no value after its ="),
        ("a*", "has a name with *"),
        ("{a}", "has a name with *, { or }"),
    ] {
        let found = EntryPattern::parse(text).unwrap_err();
        assert!(
            found.starts_with(wrong)
                && found.contains("; write name for any value, name=value, or name=prefix*;"),
            "{found}"
        );
    }
    assert!(
        EntryPattern::parse(&"a".repeat(513))
            .unwrap_err()
            .contains("has 513 bytes; an entry has at most 512")
    );
    for text in [
        "a",
        "a=x",
        "a=x*",
        "a=*x",
        "a=*x*y*",
        "a=x=y",
        "remote_address=10.0.0.*",
        "a b=é",
    ] {
        assert_eq!(EntryPattern::parse(text).unwrap().to_string(), text);
    }
}
