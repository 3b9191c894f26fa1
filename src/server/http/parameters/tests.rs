//! Parameters from a query, a form and JSON, good and bad ones, and ones made up at random.

use super::*;

fn check_names(subjects: &Subjects) -> ParameterNames<'_> {
    ParameterNames::for_check(subjects)
}
use tollgate_core::plan::NAME_BYTES_MAX;

impl Parameters {
    /// The one request that was asked for.
    fn single(&self) -> &Check<String> {
        match &self.asked {
            RequestedChecks::Single(check, _) => check,
            RequestedChecks::Joint(joint) => panic!("{joint:?}"),
        }
    }
}

/// By the default settings.
fn check(fields: ParameterFields) -> Result<Parameters, String> {
    fields.check(&CheckSettings::default(), &HeaderMap::new(), None)
}

fn from_query(query: &str) -> Result<Parameters, String> {
    check(ParameterFields::from_query(
        query,
        check_names(&Subjects::default()),
    )?)
}

fn from_form(form: &str) -> Result<Parameters, String> {
    check(ParameterFields::from_form(
        form.as_bytes(),
        check_names(&Subjects::default()),
    )?)
}

fn from_json(json: &str) -> Result<Parameters, String> {
    check(ParameterFields::from_json(
        json.as_bytes(),
        check_names(&Subjects::default()),
    )?)
}

#[test]
fn a_plus_is_itself_in_a_query_and_a_space_in_a_form() {
    let text = "plan=free&&key=a+b%2Bc%26%C3%A9%20d&cost=7&deny_status=403&";
    let found = from_query(text).unwrap();
    assert_eq!(
        (found.single().key.as_str(), &*found.single().plan),
        ("a+b+c&é d", "free")
    );
    assert_eq!(
        (found.single().cost.units(), found.deny_status.as_u16()),
        (7, 403)
    );
    let form = from_form(text).unwrap();
    assert_eq!(form.single().key.as_str(), "a b+c&é d");
    let defaults = from_query("key=%25&plan=p").unwrap();
    assert_eq!(
        (defaults.single().key.as_str(), defaults.single().cost),
        ("%", Cost::ONE)
    );
    assert_eq!(
        (defaults.deny_status, defaults.single().mode),
        (StatusCode::TOO_MANY_REQUESTS, Mode::Charge)
    );
    assert_eq!(
        from_query("key=a&plan=p&peek=true").unwrap().single().mode,
        Mode::Peek
    );
    assert_eq!(
        from_query("key=a&plan=p&peek=false").unwrap().single().mode,
        Mode::Charge
    );
}

#[test]
fn json_has_the_same_parameters_with_its_own_types() {
    let found = from_json(
        r#"{"key": "a+b %zz é", "plan": "free", "cost": 7, "deny_status": 403, "peek": true}"#,
    )
    .unwrap();
    assert_eq!(
        (found.single().key.as_str(), &*found.single().plan),
        ("a+b %zz é", "free")
    );
    assert_eq!(
        (
            found.single().cost.units(),
            found.deny_status.as_u16(),
            found.single().mode
        ),
        (7, 403, Mode::Peek)
    );
    assert_eq!(
        from_json(r#"{"key":"a","plan":"p","cost":null}"#)
            .unwrap()
            .single()
            .cost,
        Cost::ONE
    );
    for (text, sentence) in [
        ("", "the body is not the JSON of a check"),
        ("[]", "send an object"),
        (r#"["a", "p", null, null, null]"#, "send an object"),
        (r#"{"key":"a"}"#, "plan is empty"),
        (r#"{"key":"a","plan":"p","cost":"7"}"#, "expected u64"),
        (r#"{"key":"a","plan":"p","cost":-1}"#, "expected u64"),
        (r#"{"key":"a","plan":"p","cost":1.0}"#, "expected u64"),
        (r#"{"key":"a","plan":"p","cost":0}"#, "cost is 0"),
        (
            r#"{"key":"a","plan":"p","deny_status":200}"#,
            "deny_status is \"200\"; it must be 400 to 599",
        ),
        (
            r#"{"key":"a","key":"b","plan":"p"}"#,
            "duplicate field `key`",
        ),
        (
            r#"{"key":"a","plan":"p","costs":1}"#,
            "unknown field `costs`",
        ),
        (
            r#"{"key":"\ud800","plan":"p"}"#,
            "the body is not the JSON of a check",
        ),
        (r#"{"key":"a","plan":"p"} x"#, "trailing characters"),
    ] {
        let found = from_json(text).unwrap_err();
        assert!(found.contains(sentence), "{text}: {found}");
    }
    assert!(from_json(&"[".repeat(4_096)).is_err());
}

#[test]
fn requests_are_decided_together_and_stand_alone() {
    let found = from_json(
        r#"{"requests": [{"key": "u1", "plan": "free", "cost": 2, "shard": "acme"}, {"key": "acme", "plan": "org"}], "peek": true}"#,
    );
    let RequestedChecks::Joint(JointChecks { checks, names }) = found.unwrap().asked else {
        panic!("it is not a joint decision")
    };
    assert_eq!(names, ["requests[0]", "requests[1]"]);
    assert_eq!((checks[0].key.shard(), checks[0].cost.units()), ("acme", 2));
    assert_eq!((&*checks[1].plan, checks[1].mode), ("org", Mode::Peek));
    let many = format!(
        r#"{{"requests":[{}]}}"#,
        [r#"{"key":"k","plan":"p"}"#; 9].join(",")
    );
    for (text, sentence) in [
        (r#"{"requests":[]}"#, "requests has 0 of them; send 1 to 8"),
        (&many, "requests has 9 of them; send 1 to 8"),
        (
            r#"{"key":"k","requests":[{"key":"k","plan":"p"}]}"#,
            "requests stands beside key; send one of them",
        ),
        (
            r#"{"requests":[{"key":"k","plan":"p"},{"key":"","plan":"p"}]}"#,
            "requests[1].key is empty",
        ),
        (
            r#"{"requests":[{"key":"k","plan":"p","cost":0}]}"#,
            "requests[0].cost is 0",
        ),
        (r#"{"requests":[{"key":"k"}]}"#, "missing field `plan`"),
        (
            r#"{"requests":[{"key":"k","plan":"p","peek":true}]}"#,
            "unknown field `peek`",
        ),
    ] {
        let found = from_json(text).unwrap_err();
        assert!(found.contains(sentence), "{text}: {found}");
    }
}

#[test]
fn a_parameter_in_both_the_query_and_the_body_is_an_error() {
    let of = |query, body: &str| {
        let subjects = Subjects::default();
        ParameterFields::from_query(query, check_names(&subjects))?
            .merged(ParameterFields::from_json(
                body.as_bytes(),
                check_names(&subjects),
            )?)
            .and_then(check)
    };
    let found = of("plan=p&deny_status=403", r#"{"key":"a"}"#).unwrap();
    assert_eq!(
        (
            found.single().key.as_str(),
            &*found.single().plan,
            found.deny_status.as_u16()
        ),
        ("a", "p", 403)
    );
    assert_eq!(
        of("plan=p&key=b", r#"{"key":"a"}"#).unwrap_err(),
        "key is given twice"
    );
}

#[test]
fn every_invalid_parameter_has_an_error_text() {
    let long = |bytes| "x".repeat(bytes);
    for (query, sentence) in [
        ("", "key is empty"),
        ("key=a", "plan is empty"),
        ("plan=p", "key is empty"),
        ("key=&plan=p", "key is empty"),
        (&format!("key={}&plan=p", long(513)), "key has 513 bytes"),
        (&format!("key=a&plan={}", long(65)), "plan has 65 bytes"),
        ("key=%ff&plan=p", "key is not UTF-8"),
        ("key=+%ff&plan=p", "key is not UTF-8"),
        (
            "key=%zz&plan=p",
            "key has a % that two hexadecimal digits do not follow; write %25",
        ),
        ("key=%&plan=p", "key has a %"),
        ("key=a%4&plan=p", "key has a %"),
        ("key=%%41&plan=p", "key has a %"),
        ("key=%+1&plan=p", "key has a %"),
        ("key=a&plan=p%g0", "plan has a %"),
        ("key=a&plan=p&cost=0", "cost is 0"),
        ("key=a&plan=p&cost=", "cost is \"\""),
        ("key=a&plan=p&cost=-1", "cost is \"-1\""),
        ("key=a&plan=p&cost=%2B1", "cost is \"+1\""),
        ("key=a&plan=p&cost=1.5", "cost is \"1.5\""),
        ("key=a&plan=p&cost=18446744073709551616", "whole number"),
        (
            "key=a&plan=p&deny_status=200",
            "deny_status is \"200\"; it must be 400 to 599",
        ),
        ("key=a&plan=p&deny_status=399", "400 to 599"),
        ("key=a&plan=p&deny_status=600", "400 to 599"),
        ("key=a&plan=p&deny_status=65965", "400 to 599"),
        (
            "key=a&plan=p&peek=yes",
            "peek is \"yes\"; it must be true or false",
        ),
        ("key=a&plan=p&peek", "peek is \"\""),
        (
            "key=a&plan=p&costs=5",
            "there are key, plan, cost, deny_status, peek, shard",
        ),
        ("key=a&key=b&plan=p", "key is given twice"),
    ] {
        let found = from_query(query).unwrap_err();
        assert!(found.contains(sentence), "{query}: {found}");
    }
    assert!(from_query(&format!("key={}&plan={}", long(512), long(64))).is_ok());
}

#[test]
fn fuzz_queries() {
    const WORDS: [&str; 17] = [
        "key=",
        "plan=",
        "cost=",
        "deny_status=",
        "peek=",
        "&",
        "=",
        "+",
        "%",
        "%ff",
        "%41",
        "0",
        "9",
        "403",
        "a",
        "é",
        ";",
    ];
    crate::fuzz::fuzz!("queries", Vec<u8>, |bytes: &Vec<u8>| {
        let query: String = bytes
            .iter()
            .map(|byte| WORDS[usize::from(*byte) % WORDS.len()])
            .collect();
        let settings = CheckSettings::default();
        for call in CallPath::ALL {
            let subjects = Some(&settings.subjects);
            let read = ParameterFields::from_json(bytes, ParameterNames { call, subjects });
            let nobody = (&HeaderMap::new(), None);
            let asked = read.and_then(|fields| fields.hold(call, &settings, nobody));
            assert!(asked.map_or_else(|sentence| !sentence.is_empty(), |_| true));
        }
        for found in [from_query(&query), from_form(&query)] {
            match found {
                Ok(found) => assert!(
                    (1..=NAME_BYTES_MAX).contains(&found.single().plan.len()),
                    "{query}"
                ),
                Err(sentence) => assert!(!sentence.is_empty(), "{query}"),
            }
        }
    });
}
