//! `tollgate override`: what it prints, and how it exits.

use serde_json::Value;

use super::Fixture;
use crate::support::server::tollgate;

/// Asks `tollgate override` with these words.
fn ask(fixture: &Fixture, words: &str) -> (i32, String) {
    let mut command = tollgate();
    command.arg("override").args(words.split(' '));
    let output = command
        .args(["--admin", &fixture.admin()])
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text.trim_end().to_owned())
}

#[test]
fn an_override_is_set_listed_and_deleted() {
    let fixture = Fixture::start(&[]);
    assert_eq!(fixture.take("p", "6"), 1);
    let (code, text) = ask(
        &fixture,
        "set --plan p --key k --quota 50 --for 2h --reason order",
    );
    assert_eq!(code, 0, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "set: version 1");
    assert!(
        lines[1].starts_with("plan p, key k: quota 50, until 2"),
        "{text}"
    );
    assert!(lines[1].ends_with("Z (version 1): order"), "{text}");
    assert!(lines[2].contains("the store is embedded"), "{text}");
    assert_eq!(fixture.take("p", "6"), 0);
    let (code, text) = ask(&fixture, "list --plan p --matching k --output json");
    let listed: Value = serde_json::from_str(&text).unwrap();
    let entry = &listed["entries"][0];
    assert_eq!(
        (code, &entry["key"], &entry["source"]),
        (0, &"k".into(), &"runtime".into())
    );
    assert_eq!(entry["quotas"][0]["quota"], 50);
    let deleted = (0, "deleted: version 2".to_owned());
    assert_eq!(ask(&fixture, "delete --plan p --key k"), deleted);
    let nothing = (1, "nothing to delete: there is no such override".to_owned());
    assert_eq!(ask(&fixture, "delete --plan p --key k"), nothing);
    assert_eq!(fixture.take("p", "1"), 1);
}

#[test]
fn what_is_refused_is_told_and_a_wrong_command_line_too() {
    let fixture = Fixture::start(&[]);
    assert_eq!(ask(&fixture, "set --plan p --key k --quota 50").0, 0);
    for (words, expected, told) in [
        (
            "set --plan p --key-prefix x --use-plan interna",
            1,
            "refused: use_plan: plan \"interna\" is not in the config; did you mean \"internal\"?",
        ),
        (
            "set --plan p --key k --quota 60 --if-version 0",
            1,
            "refused: the override has version 1, not 0",
        ),
        ("set --plan p --key k", 2, "required"),
        ("set --plan p --quota 1", 2, "--key"),
        (
            "set --plan p --key k --quota x",
            2,
            "--quota is \"x\"; write a whole number",
        ),
        (
            "set --plan p --key k --quota 1 --use-plan internal",
            2,
            "cannot be used with",
        ),
        ("list --matching k", 2, "--plan"),
    ] {
        let (code, text) = ask(&fixture, words);
        assert!(
            code == expected && text.contains(told),
            "{words}: {code} {text}"
        );
    }
}
