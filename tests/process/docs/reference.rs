//! Reference tables, compared with the program: every field of the config, every flag, every metric.

mod command_line;
mod metrics;

use std::collections::BTreeSet;
use std::time::Duration;

use tollgate::config::{Config, Flag, Origin, Sources};
use tollgate::duration;
use tollgate::plan::{OnStoreFailure, PolicyAnswer};

use super::examples::load;
use super::markdown::page;

/// A name that is like no field's, so that the program lists those that there are.
const NOT_A_FIELD: &str = "zzzzzzzzzzzzzzzzzzzzzzzz";

const PLAN: &str = "plans: { NAME: { limits: [ { quota: 10, window: 1m } ] } }";

/// Fields of the table that `within` puts a text into; `None` where there is no table.
fn fields_within(within: &dyn Fn(&str) -> String) -> Option<Vec<String>> {
    let errors = load(&within(&format!("{{ {NOT_A_FIELD}: 1 }}")), Vec::new()).err()?;
    let list = errors
        .lines()
        .find_map(|line| line.split_once("there are "))
        .map(|(_, list)| list)?;
    Some(
        list.split(" (line")
            .next()
            .unwrap()
            .split(", ")
            .map(str::to_owned)
            .collect(),
    )
}

/// Adds every field that is not a table itself.
fn walk(path: &str, within: &dyn Fn(&str) -> String, found: &mut BTreeSet<String>) {
    let Some(names) = fields_within(within) else {
        found.insert(path.to_owned());
        return;
    };
    for name in names {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        walk(
            &path,
            &|inner| within(&format!("{{ {name}: {inner} }}")),
            found,
        );
    }
}

/// Paths of all fields, as the program tells them when it meets one that it does not know.
pub fn known_fields() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk("", &|inner| inner.to_owned(), &mut found);
    walk(
        "plans.NAME",
        &|inner| format!("plans: {{ NAME: {inner} }}"),
        &mut found,
    );
    walk(
        "plans.NAME.limits[]",
        &|inner| format!("plans: {{ NAME: {{ limits: [ {inner} ] }} }}"),
        &mut found,
    );
    let in_override = |inner: &str| format!("{PLAN}\noverrides: [ {inner} ]");
    walk("overrides[]", &in_override, &mut found);
    walk(
        "overrides[].quotas[]",
        &|inner| in_override(&format!("{{ quotas: [ {inner} ] }}")),
        &mut found,
    );
    let in_domain = |inner: &str| format!("envoy: {{ domains: {{ NAME: {inner} }} }}");
    walk("envoy.domains.NAME", &in_domain, &mut found);
    walk(
        "envoy.domains.NAME.rules[]",
        &|inner| in_domain(&format!("{{ rules: [ {inner} ] }}")),
        &mut found,
    );
    walk(
        "check.subjects[]",
        &|inner| format!("check: {{ subjects: [ {inner} ] }}"),
        &mut found,
    );
    found
}

/// A row of the tables of fields.
struct Row {
    field: String,
    kind: String,
    range: String,
    default: String,
}

fn rows() -> Vec<Row> {
    let bare = |cell: &str| cell.trim_matches('`').to_owned();
    let row = |cells: Vec<String>| {
        assert_eq!(cells.len(), 5, "{cells:?}");
        assert!(!cells[4].is_empty(), "{cells:?}");
        Row {
            field: bare(&cells[0]),
            kind: cells[1].clone(),
            range: cells[2].clone(),
            default: cells[3].clone(),
        }
    };
    page("docs/configuration.md")
        .rows("field")
        .into_iter()
        .map(row)
        .collect()
}

#[test]
fn every_field_of_the_config_has_a_row_and_every_row_a_field() {
    let known = known_fields();
    assert!(
        known.len() > 30
            && known.contains("store.tls.server_name")
            && known.contains("plans.NAME.limits[].burst"),
        "{known:?}"
    );
    let rows = rows();
    let documented: BTreeSet<String> = rows.iter().map(|row| row.field.clone()).collect();
    assert_eq!(documented, known);
    assert_eq!(rows.len(), documented.len(), "a field has two rows");
}

/// A config in which this field may be set.
fn base(field: &str) -> String {
    let limit = |limit: &str| format!("plans: {{ NAME: {{ limits: [ {{ {limit} }} ] }} }}");
    if field.starts_with("check.subjects[]") {
        return format!(
            "{PLAN}\ncheck: {{ subjects: [ {{ key: client_address, plan: 'default:NAME' }} ] }}"
        );
    }
    match field.rsplit('.').next().unwrap() {
        "burst" => limit("quota: 1000000, window: 1s, algorithm: token_bucket"),
        "zone" => limit("quota: 10, window: day"),
        "starts" => limit("quota: 10, window: week"),
        "anchor" => limit("quota: 10, window: 1m, algorithm: fixed_window"),
        "unmatched" => format!("{PLAN}\nenvoy: {{ domains: {{ NAME: {{}} }} }}"),
        "key_prefix" => format!("store: {{ url: 'redis://h' }}\n{PLAN}"),
        _ => PLAN.to_owned(),
    }
}

/// The config with this field set.
fn with(field: &str, value: &str) -> Result<Config, String> {
    load(
        &base(field),
        vec![Flag::set(&field.replace("[]", "[0]"), value)],
    )
}

#[test]
fn every_default_is_the_one_that_is_documented() {
    let mut compared = 0;
    for Row { field, default, .. } in rows() {
        let value = match default.trim_matches('`') {
            "required" | "none" => continue,
            "\"\"" => "",
            "ALGORITHM/WINDOW" => "sliding_window/1m",
            "QUOTA" => "1000000",
            value => value,
        };
        let left_out = load(&base(&field), Vec::new()).unwrap();
        let set = with(&field, value);
        let set = set.unwrap_or_else(|errors| panic!("{field}: {errors}"));
        // Whether a burst is stated matters to overrides alone.
        let text = |config: &Config| {
            format!("{config:?}").replace("burst_is_quota: true", "burst_is_quota: false")
        };
        assert_eq!(
            text(&left_out),
            text(&set),
            "{field} is not {default} by default"
        );
        assert!(
            left_out.changed_settings(&set).is_empty(),
            "{field} is not {default} by default"
        );
        compared += 1;
    }
    assert!(compared >= 20, "only {compared} defaults were compared");
}

/// Of a setting that nobody wrote, `tollgate check --print` shows what this page has.
#[test]
fn every_default_that_is_printed_is_the_one_that_is_documented() {
    let text = Some((Origin::StandardInput, PLAN.to_owned()));
    let (_, settings) = Config::load_and_list(&Sources {
        text,
        ..Sources::default()
    })
    .unwrap();
    let mut compared = 0;
    for setting in settings
        .iter()
        .filter(|setting| setting.origin == "default")
    {
        let row = rows()
            .into_iter()
            .find(|row| row.field == setting.path)
            .unwrap_or_else(|| panic!("{} has no row", setting.path));
        let documented = match row.default.as_str() {
            "required" | "none" => None,
            value => Some(value.trim_matches(['`', '"'])),
        };
        assert_eq!(setting.value.as_deref(), documented, "{}", setting.path);
        compared += 1;
    }
    assert!(compared >= 35, "only {compared} defaults were compared");
}

fn with_subject(subject: &str) -> String {
    format!("{PLAN}\ncheck: {{ subjects: [ {subject} ] }}")
}

fn with_rule(rule: &str) -> String {
    format!("{PLAN}\nenvoy: {{ domains: {{ d: {{ rules: [ {rule} ] }} }} }}")
}

#[test]
fn a_missing_field_is_an_error_only_if_it_is_required() {
    let required: BTreeSet<String> = rows()
        .into_iter()
        .filter(|row| row.default == "required")
        .map(|row| row.field)
        .collect();
    let limit = "plans.NAME.limits[]";
    let rule = "envoy.domains.NAME.rules[]";
    for (config, field, error) in [
        ("workers: 0".into(), "plans".into(), "plans has no plan"),
        (
            "plans: { NAME: { limits: [ { window: 1m } ] } }".to_owned(),
            format!("{limit}.quota"),
            "has no quota",
        ),
        (
            "plans: { NAME: { limits: [ { quota: 1 } ] } }".to_owned(),
            format!("{limit}.window"),
            "has no window",
        ),
        (
            with_rule("{ plan: NAME }"),
            format!("{rule}.descriptor"),
            "has no descriptor",
        ),
        (
            with_rule("{ descriptor: [a] }"),
            format!("{rule}.plan"),
            "has no plan",
        ),
        (
            format!("{PLAN}\noverrides: [ {{ key: k, use_plan: NAME }} ]"),
            "overrides[].plan".to_owned(),
            "has no plan",
        ),
        (
            with_subject("{ plan: 'default:NAME' }"),
            "check.subjects[].key".to_owned(),
            "has no key",
        ),
        (
            with_subject("{ key: client_address }"),
            "check.subjects[].plan".to_owned(),
            "has no plan",
        ),
        (
            format!("listen: {{ tls: {{ key_file: k }} }}\n{PLAN}"),
            "listen.tls.cert_file".to_owned(),
            "cert_file is missing",
        ),
        (
            format!("listen: {{ tls: {{ cert_file: c }} }}\n{PLAN}"),
            "listen.tls.key_file".to_owned(),
            "key_file is missing",
        ),
    ] {
        assert!(required.contains(&field), "{field} is required");
        let errors = load(&config, Vec::new()).unwrap_err();
        assert!(errors.contains(error), "{errors}");
    }
    assert_eq!(required.len(), 10, "{required:?}");
}

/// The first and the last value of a range such as `1ms to 10s, or 0s`.
fn ends(range: &str) -> Option<(String, String)> {
    let words: Vec<String> = range
        .split_whitespace()
        .map(|word| word.trim_end_matches(',').replace(',', ""))
        .collect();
    let to = words.iter().position(|word| word == "to")?;
    Some((words[to - 1].clone(), words[to + 1].clone()))
}

fn assert_accepted(field: &str, value: &str, expected: bool) {
    let config = with(field, value);
    assert_eq!(
        config.is_ok(),
        expected,
        "{field} = {value}: {:?}",
        config.err()
    );
}

#[test]
fn every_range_of_a_number_or_duration_ends_where_it_is_documented() {
    let mut ranges = 0;
    for Row {
        field, kind, range, ..
    } in rows()
    {
        let Some((first, last)) = ends(&range) else {
            continue;
        };
        let (below, above) = match kind.as_str() {
            "number" => {
                let first: u64 = first.parse().unwrap();
                let last: u64 = last.parse().unwrap();
                (
                    first.checked_sub(1).map(|value| value.to_string()),
                    (last + 1).to_string(),
                )
            }
            "duration" => {
                let step = Duration::from_millis(1);
                let first = duration::parse(&first).unwrap();
                let last = duration::parse(&last).unwrap();
                let below = first
                    .checked_sub(step)
                    .map(|value| duration::Shown(value).to_string());
                let above = duration::Shown(last + step).to_string();
                // What the range names beside is not a value below it.
                (
                    below.filter(|below| !range.ends_with(&format!("or {below}"))),
                    above,
                )
            }
            _ => continue,
        };
        assert_accepted(&field, &first, true);
        assert_accepted(&field, &last, true);
        assert_accepted(&field, &above, false);
        below
            .iter()
            .for_each(|below| assert_accepted(&field, below, false));
        if let Some((_, beside)) = range.split_once("or ") {
            assert_accepted(&field, beside.trim_matches('`'), true);
        }
        ranges += 1;
    }
    assert!(ranges >= 9, "only {ranges} ranges were tried");
}

fn choices(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// What the program tells when it meets another value.
fn choices_of(field: &str) -> BTreeSet<String> {
    let errors = with(field, "nothing").unwrap_err();
    let known = errors
        .split_once("must be one of ")
        .map(|(_, list)| list.lines().next().unwrap())
        .unwrap();
    known
        .split(" (")
        .next()
        .unwrap()
        .split(", ")
        .map(str::to_owned)
        .collect()
}

/// Names of all algorithms.
pub fn algorithms() -> BTreeSet<String> {
    choices_of("plans.NAME.limits[].algorithm")
}

/// Of a policy whose answer is always the same, the page has it.
#[test]
fn every_policy_has_a_row_that_says_what_it_answers() {
    let rows = page("docs/failures.md").rows("policy");
    for policy in OnStoreFailure::ALL {
        let name = policy.as_str();
        let row = rows.iter().find(|cells| choices(&cells[0]) == [name]);
        let row = row.unwrap_or_else(|| panic!("docs/failures.md has no row of {name}"));
        if let PolicyAnswer::Always(outcome, by) = policy.answer() {
            assert!(row[1].starts_with(outcome.as_str()), "{row:?}");
            assert_eq!(choices(&row[2]), [by.as_str().to_ascii_uppercase()]);
        }
    }
}

#[test]
fn every_choice_of_a_field_is_documented() {
    let mut fields = 0;
    for Row {
        field, kind, range, ..
    } in rows().into_iter().filter(|row| row.kind == "choice")
    {
        let known = choices_of(&field);
        let mut documented = choices(&range);
        if field.ends_with(".algorithm") {
            documented = page("docs/algorithms.md")
                .rows("algorithm")
                .into_iter()
                .flat_map(|cells| choices(&cells[0]))
                .collect();
        }
        assert_eq!(
            documented.into_iter().collect::<BTreeSet<_>>(),
            known,
            "{field}, a {kind}"
        );
        fields += 1;
    }
    assert_eq!(fields, 7);
}

#[test]
fn every_address_of_a_store_that_is_shown_is_one() {
    let rows = page("docs/redis.md").rows("`store.url`");
    assert!(rows.len() >= 4);
    for url in rows
        .iter()
        .map(|cells| cells[0].trim_matches('`'))
        .chain(["memory:", "memory:?capacity=64MiB"])
    {
        for url in [url.to_owned(), url.replacen("redis", "valkey", 1)] {
            assert_accepted("store.url", &url, true);
        }
    }
    let pages = page("docs/configuration.md").text + &page("docs/concepts.md").text;
    assert!(pages.contains("memory:?capacity=64MiB"));
}

/// The name and the labels of a metric's row.
fn metric(cell: &str) -> (String, Vec<String>) {
    let (name, labels) = cell
        .trim_matches('`')
        .split_once('{')
        .unwrap_or((cell.trim_matches('`'), ""));
    let labels = labels
        .trim_end_matches('}')
        .split(", ")
        .filter(|label| !label.is_empty());
    (name.to_owned(), labels.map(str::to_owned).collect())
}

pub(super) fn documented_metrics() -> Vec<(String, Vec<String>)> {
    page("docs/operations.md")
        .rows("metric")
        .iter()
        .map(|cells| metric(&cells[0]))
        .collect()
}
