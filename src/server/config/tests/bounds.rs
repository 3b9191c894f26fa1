//! Bounds on the work and memory that a config can cause: work grows only linearly with its size.

use allocation_counter::measure;

use super::*;
use tollgate_core::plan::{LIMITS_MAX, PLANS_MAX};

/// Allocations per part of a text. They measure work, and are the same on a busy machine.
fn allocations_each(count: usize, text: &str) -> u64 {
    let text = Some((Origin::StandardInput, text.to_owned()));
    let sources = Sources {
        text,
        ..Sources::default()
    };
    let counted = measure(|| drop(Config::load(sources)));
    counted.count_total / u64::try_from(count).unwrap()
}

/// A plan with all fields, and the most limits, each with all its fields.
fn largest_plan(name: usize) -> String {
    let limit = |minutes: usize| {
        format!(
            r#"{{"quota":"5","window":"{minutes}m","algorithm":"token_bucket","burst":"5","name":"minutes_{minutes}"}}"#
        )
    };
    let limits: Vec<String> = (1..=LIMITS_MAX).map(limit).collect();
    // A candidate has none itself.
    let candidate = if name == 0 {
        ""
    } else {
        r#""candidate":"p0","#
    };
    format!(
        r#""p{name}":{{"unlimited":"false","blocked":"false","shadow":"true","counts_as":"g{name}","on_store_failure":"deny",{candidate}"limits":[{}]}}"#,
        limits.join(",")
    )
}

#[test]
fn the_largest_config_is_valid_in_its_longest_form() {
    let plans: Vec<String> = (0..PLANS_MAX).map(largest_plan).collect();
    let config = load(&format!(r#"{{"plans":{{{}}}}}"#, plans.join(","))).unwrap();
    assert!(
        config.plans.len() == PLANS_MAX
            && config
                .plans
                .iter()
                .all(|plan| plan.limits().len() == LIMITS_MAX)
    );
    assert_eq!(
        config
            .plans
            .iter()
            .filter(|plan| plan.candidate.is_some())
            .count(),
        PLANS_MAX - 1
    );
}

#[test]
fn limits_beyond_the_most_are_counted_and_not_compared_with_each_other() {
    let limits = |count: usize| {
        (1..=count).map(|window| format!("{{ quota: 1, window: {window}s, name: n{window} }}, "))
    };
    let text = |count| {
        format!(
            "plans: {{ p: {{ limits: [ {} ] }} }}",
            limits(count).collect::<String>()
        )
    };
    assert!(load(&text(LIMITS_MAX)).is_ok());
    assert_eq!(
        errors(&text(3_000)),
        ["plans.p.limits has 3000 limits; a plan has 1 to 8"]
    );
    let wrong = format!("plans: {{ p: {{ limits: [ {} ] }} }}", "{}, ".repeat(3_000));
    assert_eq!(
        errors(&wrong),
        ["plans.p.limits has 3000 limits; a plan has 1 to 8"]
    );
}

#[test]
fn a_list_that_is_too_long_takes_no_memory_for_its_parts() {
    for field in ["grpc", "http_hosts", "tls: { client_names"] {
        let end = if field.contains('{') { " }" } else { "" };
        let text = format!(
            "{PLANS}listen: {{ {field}: \"{}\"{end} }}\n",
            ",".repeat(100_000)
        );
        assert!(
            load(&text)
                .unwrap_err()
                .errors
                .iter()
                .any(|error| error.message.starts_with("has 100001 "))
        );
        assert_eq!(allocations_each(100_000, &text), 0, "{field}");
    }
}

#[test]
fn only_the_first_thousand_unknown_names_are_compared_with_known_ones() {
    let count = 20_000;
    let fields: String = (0..count)
        .map(|field| format!("field_{field}: 1\n"))
        .collect();
    assert_eq!(load(&fields).unwrap_err().errors.len(), 1_000);
    // Most allocations are for the values themselves, which are parsed twice: for the check, and to find the places of errors.
    let each = allocations_each(count, &fields);
    assert!(each < 32, "{each} allocations a field");
    let names: Vec<_> = (0..count)
        .map(|name| (format!("TOLLGATE_NO_SETTING_{name}"), String::new()))
        .collect();
    let sources = Sources {
        environment: names,
        ..Sources::default()
    };
    let variables =
        measure(|| assert_eq!(Config::load(sources).unwrap_err().errors.len(), 1_000)).count_total;
    assert!(
        variables < 64 * 20_000,
        "{variables} allocations for the variables"
    );
}

#[test]
fn a_deeply_nested_name_costs_no_more() {
    let at = |depth: usize, name: fn(usize) -> String| {
        let outer: String = (0..depth)
            .map(|level| format!("{}a:\n", " ".repeat(level)))
            .collect();
        let inner: String = (0..5_000)
            .map(|index| format!("{}{}: 1\n", " ".repeat(depth), name(index)))
            .collect();
        allocations_each(5_000, &(outer + &inner))
    };
    let distinct = |index: usize| format!("b{index}");
    let same = |_: usize| "b".to_owned();
    let flat = at(1, distinct);
    let deep = at(30, distinct);
    assert!(deep <= flat + 2, "{flat} and {deep} allocations a name");
    // Of duplicate names, a thousand are reported.
    let flat = at(1, same);
    let deep = at(30, same);
    assert!(
        deep <= flat + 1_000 * 128 / 5_000,
        "{flat} and {deep} allocations a name that occurs twice"
    );
}

#[test]
fn a_text_that_costs_the_parser_too_much_is_refused_before_parsing() {
    let tokens = "has more than 4000000 names, values, ";
    let brackets = "has more than 32 brackets open ";
    for (text, refused) in [
        (format!("[{}", "! ".repeat(7_999_999)), tokens),
        (format!("[{}", "&a ".repeat(5_333_333)), tokens),
        (format!("[{}", "? ".repeat(7_999_999)), tokens),
        (format!("[{}", "a #\n".repeat(3_999_999)), tokens),
        (format!("[{}", "''\n".repeat(4_000_001)), tokens),
        (format!("[{}", "a,".repeat(2_000_001)), tokens),
        (format!("[{}", "a: ,".repeat(1_000_000)), tokens),
        ("[,".repeat(200) + &"a,".repeat(1_000_000), brackets),
        ("{a: ".repeat(200) + &"a,".repeat(1_000_000), brackets),
    ] {
        let measured = measure(|| {
            let found = load(&text).unwrap_err();
            assert!(
                found.errors[0].message.starts_with(refused),
                "{:.20}: {found}",
                text
            );
        });
        assert!(
            measured.bytes_max < 4 * 17_000_000,
            "{:.20}: {measured:?}",
            text
        );
    }
    // Quotes and comments may contain these characters, since the parser ignores them there.
    assert!(load(&(PLANS.to_owned() + &"# it's [ { a: 'b'\n".repeat(10_000))).is_ok());
}

/// The work of searching a log is computed from it, whichever plan asks.
#[test]
fn plans_that_count_as_one_know_the_greatest_quota_of_a_log() {
    for quotas in [[100, 100_000], [100_000, 100]] {
        let plans: Vec<String> = quotas
            .iter()
            .enumerate()
            .map(|(name, quota)| {
                format!(
                    "  p{name}: {{ counts_as: g, limits: [ {{ quota: {quota}, window: 1m, algorithm: sliding_log }} ] }}\n"
                )
            })
            .collect();
        let config = load(&format!("plans:\n{}", plans.concat())).unwrap();
        for name in ["p0", "p1"] {
            let shared = config.plans.get(name).unwrap().shared;
            assert_eq!((shared.logs, shared.log_halvings), (1, 17), "{name}");
        }
    }
}
