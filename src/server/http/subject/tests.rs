//! Whom a check counts, by each source of a key and by several at once.

use super::super::call::ParameterNames;
use super::super::parameters::ParameterFields;
use super::*;

const X_USER: HeaderName = HeaderName::from_static("x-user");
const X_ORG: HeaderName = HeaderName::from_static("x-org");

fn settings(subjects: Subjects) -> CheckSettings {
    CheckSettings {
        subjects,
        ..CheckSettings::default()
    }
}

/// Asks with this query and these fields, written as `name: value`, from 192.0.2.1.
fn requests(
    settings: &CheckSettings,
    query: &str,
    fields: &[(&str, &[u8])],
) -> Result<Vec<(String, RequestFields)>, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            axum::http::HeaderValue::from_bytes(value).unwrap(),
        );
    }
    let found = settings.requests(RequestParts {
        parameters: &ParameterFields::from_query(
            query,
            ParameterNames::for_check(&settings.subjects),
        )?
        .given,
        headers: &headers,
        peer: Some("192.0.2.1".parse().unwrap()),
        has_cost: true,
    })?;
    let found = found.into_iter();
    Ok(found
        .map(|request| (request.name, request.fields))
        .collect())
}

/// The key and the plan of the only subject.
fn subject(
    settings: &CheckSettings,
    key: Option<&str>,
    fields: &[(&str, &[u8])],
) -> Result<(String, String), String> {
    let query = key.map_or_else(String::new, |key| format!("key={key}"));
    let (_, only) = requests(settings, &query, fields)?.pop().unwrap();
    Ok((only.key, only.plan))
}

fn header_or_address() -> CheckSettings {
    let key = vec![vec![Source::Header(X_USER)], vec![Source::ClientAddress]];
    let plan = vec![Source::Header(X_ORG), Source::default("free")];
    settings(Subjects::one(key, plan))
}

#[test]
fn the_first_source_that_is_there_counts() {
    let settings = header_or_address();
    let of = |fields: &[(&str, &[u8])]| subject(&settings, None, fields).unwrap();
    assert_eq!(
        of(&[("x-user", b"ann"), ("x-org", b"paid")]),
        ("ann".to_owned(), "paid".to_owned())
    );
    assert_eq!(of(&[]), ("192.0.2.1".to_owned(), "free".to_owned()));
    assert_eq!(
        of(&[("x-user", b" "), ("x-org", b"")]),
        ("192.0.2.1".to_owned(), "free".to_owned())
    );
    assert_eq!(of(&[("x-user", "é".as_bytes())]).0, "é");
}

#[test]
fn a_field_that_is_there_twice_or_no_utf8_is_an_error_and_no_other_source_replaces_it() {
    let settings = header_or_address();
    for (fields, sentence) in [
        (
            vec![("x-user", &b"ann"[..]), ("x-user", b"ben")],
            "the header x-user is given twice; the proxy must send it once",
        ),
        (vec![("x-user", b"\xff")], "the header x-user is not UTF-8"),
        (
            vec![("x-org", b"a"), ("x-org", b"a")],
            "the header x-org is given twice; the proxy must send it once",
        ),
    ] {
        assert_eq!(subject(&settings, None, &fields).unwrap_err(), sentence);
    }
    let parameter = subject(&settings, Some("ann"), &[]).unwrap_err();
    assert!(
        parameter.starts_with("check.key of the config has no param:key"),
        "{parameter}"
    );
}

#[test]
fn without_any_source_the_answer_names_all_of_them() {
    let key = vec![
        vec![Source::Header(X_ORG), Source::Header(X_USER)],
        vec![Source::parameter("key")],
    ];
    let settings = settings(Subjects::one(key, vec![Source::parameter("plan")]));
    let places = "send the header x-org or the header x-user or the parameter key";
    assert_eq!(
        subject(&settings, None, &[("x-org", b"a")]).unwrap_err(),
        format!("key is empty: {places}")
    );
    assert_eq!(
        subject(&settings, Some("k"), &[]).unwrap_err(),
        "plan is empty: send the parameter plan"
    );
}

#[test]
fn different_parts_never_give_one_key() {
    let settings = settings(Subjects::one(
        vec![vec![Source::Header(X_ORG), Source::Header(X_USER)]],
        vec![Source::default("p")],
    ));
    let texts = [
        "a", "+", "a+", "+a", "%", "%2B", "a%2Ba", "a+a", "%25", "++",
    ];
    let mut keys = BTreeSet::new();
    for org in texts {
        for user in texts {
            let fields = [("x-org", org.as_bytes()), ("x-user", user.as_bytes())];
            assert!(
                keys.insert(subject(&settings, None, &fields).unwrap().0),
                "{org} and {user}"
            );
        }
    }
    let fields: [(&str, &[u8]); 2] = [("x-org", b"acme"), ("x-user", b"a+b")];
    assert_eq!(subject(&settings, None, &fields).unwrap().0, "acme+a%2Bb");
}

/// A customer, whose key may be missing, and an address.
fn customer_and_address() -> CheckSettings {
    let customer = SubjectSources {
        key: vec![vec![Source::Header(X_USER)], vec![Source::parameter("u")]],
        plan: vec![Source::parameter("plan"), Source::default("free")],
        cost: vec![Source::Header(X_COST), Source::parameter("units")],
        shard: vec![Source::Header(X_ORG)],
        optional: true,
    };
    let address = SubjectSources {
        key: vec![vec![Source::ClientAddress]],
        plan: vec![Source::default("address")],
        cost: SubjectSources::default_cost(),
        shard: Vec::new(),
        optional: false,
    };
    settings(Subjects::Listed(vec![customer, address]))
}

const X_COST: HeaderName = HeaderName::from_static("x-cost");

#[test]
fn each_subject_has_its_own_sources_and_an_optional_one_may_be_missing() {
    let settings = customer_and_address();
    let of = |query: &str, fields: &[(&str, &[u8])]| {
        let found = requests(&settings, query, fields).unwrap();
        let shown = |(name, it): (String, RequestFields)| {
            let shard = it.shard.unwrap_or_default();
            format!("{name} {} {} {} {shard}", it.key, it.plan, it.cost.unwrap())
        };
        found.into_iter().map(shown).collect::<Vec<_>>()
    };
    let address = "subjects[1] 192.0.2.1 address 1 ";
    assert_eq!(
        of(
            "u=no&units=7&plan=paid",
            &[("x-user", b"ann"), ("x-org", b"acme"), ("x-cost", b"3")]
        ),
        ["subjects[0] ann paid 3 acme", address]
    );
    assert_eq!(
        of("u=ben&units=7&cost=2", &[]),
        [
            "subjects[0] ben free 7 ",
            "subjects[1] 192.0.2.1 address 2 "
        ]
    );
    // Whatever stands for a subject without a key.
    assert_eq!(of("units=x&plan=", &[("x-user", b"")]), [address]);
}

#[test]
fn what_is_wrong_with_a_subject_names_it() {
    let settings = customer_and_address();
    for (query, fields, sentence) in [
        (
            "u=a",
            &[][..],
            "subjects[0].cost is empty: send the header x-cost or the parameter units",
        ),
        (
            "u=a&units=1.5",
            &[],
            "units is \"1.5\"; it must be a whole number, 1 or more",
        ),
        (
            "u=a",
            &[("x-cost", &b"-1"[..])],
            "the header x-cost is \"-1\"; it must be a whole number, 1 or more",
        ),
        ("u=a&u=b", &[], "u is given twice"),
        ("u=a&units=1&units=1", &[], "units is given twice"),
        (
            "key=a",
            &[],
            "the request has an unknown parameter, key; there are u, plan, units, cost, deny_status, peek",
        ),
        (
            "u=a&units=1&request_id=r",
            &[],
            "the request has an unknown parameter, request_id; there are u, plan, units, cost, deny_status, peek",
        ),
        (
            "u=a&Units=1",
            &[],
            "the request has an unknown parameter; there are u, plan, units, cost, deny_status, peek",
        ),
        (
            "u=a&units=1",
            &[("x-org", b"a"), ("x-org", b"b")],
            "the header x-org is given twice; the proxy must send it once",
        ),
        (
            "u=a&units=1",
            &[("x-org", b"\xff")],
            "the header x-org is not UTF-8",
        ),
    ] {
        let found = requests(&settings, query, fields).map(|_| ());
        assert_eq!(found, Err(sentence.to_owned()), "{query}");
    }
}

#[test]
fn a_request_without_any_key_is_told_what_to_send() {
    let mut settings = customer_and_address();
    if let Subjects::Listed(subjects) = &mut settings.subjects {
        subjects.truncate(1);
    }
    let found = requests(&settings, "", &[]).map(|_| ());
    let sentence = "the request has none of the keys: send the header x-user or the parameter u";
    assert_eq!(found, Err(sentence.to_owned()));
}

/// Any parameters and header fields give the requests of both subjects or of the one that is not optional, or a sentence. Nothing
/// that was not sent stands in a request, so that none can be smuggled in.
#[test]
fn fuzz_subjects() {
    const WORDS: [&str; 16] = [
        "u=",
        "plan=",
        "units=",
        "cost=",
        "peek=",
        "deny_status=",
        "key=",
        "&",
        "=",
        "+",
        "%26",
        "%",
        "1",
        "ann",
        "true",
        "é",
    ];
    const VALUES: [&[u8]; 6] = [b"", b"ann", b"3", b"-1", b"\xff", b"a,b"];
    let settings = customer_and_address();
    let check = |bytes: &[u8], values: [Option<u8>; 3]| {
        let words = bytes
            .iter()
            .map(|byte| WORDS[usize::from(*byte) % WORDS.len()]);
        let query: String = words.collect();
        let names = ["x-user", "x-org", "x-cost"].into_iter().zip(values);
        let fields = names
            .filter_map(|(name, value)| Some((name, VALUES[usize::from(value?) % VALUES.len()])));
        let fields: Vec<(&str, &[u8])> = fields.collect();
        match requests(&settings, &query, &fields) {
            Ok(found) => {
                let names: Vec<&str> = found.iter().map(|(name, _)| &**name).collect();
                assert!(
                    names == ["subjects[0]", "subjects[1]"] || names == ["subjects[1]"],
                    "{query}: {names:?}"
                );
                let address = &found[found.len() - 1].1;
                assert_eq!(
                    (&*address.key, &*address.plan),
                    ("192.0.2.1", "address"),
                    "{query}"
                );
                let user = fields
                    .iter()
                    .any(|(name, value)| *name == "x-user" && !value.is_empty());
                assert!(names.len() == 1 || user || query.contains("u="), "{query}");
            }
            Err(sentence) => assert!(!sentence.is_empty(), "{query}"),
        }
    };
    bolero::check!()
        .with_type::<(Vec<u8>, Option<u8>, Option<u8>, Option<u8>)>()
        .for_each(|(bytes, user, org, cost)| check(bytes, [*user, *org, *cost]));
}

#[test]
fn only_the_default_takes_requests() {
    assert!(Subjects::default().take_requests());
    assert!(!customer_and_address().subjects.take_requests());
    let plan = vec![Source::parameter("plan")];
    assert!(!Subjects::one(vec![vec![Source::ClientAddress]], plan).take_requests());
}
