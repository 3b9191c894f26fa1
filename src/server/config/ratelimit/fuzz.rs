//! Any text as a config of ratelimit becomes a valid config, or gives errors with sentences.

use super::*;
use crate::config::edits::{Edit, edited};
use crate::config::{Config, Origin};
use crate::fuzz::fuzz;

/// Siblings, nesting, wildcards and every field.
const EXAMPLE: &str = "domain: d
descriptors:
  - { key: a, rate_limit: { unit: second, requests_per_unit: 5, name: n, replaces: [ { name: m } ] } }
  - key: a
    value: x*
    shadow_mode: true
    detailed_metric: true
    descriptors:
      - { key: b, share_threshold: true, rate_limit: { unlimited: true } }
      - { key: b, value: y, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 0 } }
  - key: a
    value: xy
    descriptors: [ { key: b, value_to_metric: true } ]
";

fn assert_converted(text: String) {
    let sources = Sources {
        text: Some((Origin::StandardInput, text.clone())),
        ..Sources::default()
    };
    let converted = match convert(&[sources]) {
        Ok(converted) => converted,
        Err(refused) => {
            let errors = &refused[0];
            assert!(
                !errors.errors.is_empty()
                    && errors.errors.iter().all(|error| !error.message.is_empty()),
                "{text:?}"
            );
            return assert!(
                !errors.in_one_line().contains('\n'),
                "{}",
                errors.in_one_line()
            );
        }
    };
    assert!(
        converted
            .warnings
            .iter()
            .all(|warning| !warning.contains(char::is_control)),
        "{:?}",
        converted.warnings
    );
    let sources = Sources {
        text: Some((Origin::StandardInput, converted.yaml.clone())),
        ..Sources::default()
    };
    if let Err(errors) = Config::load(sources) {
        panic!(
            "{text:?} became what is not a config: {errors}\n{}",
            converted.yaml
        );
    }
}

#[test]
fn fuzz_ratelimit_files() {
    fuzz!("ratelimit_files", Vec<u8>, |bytes: &Vec<u8>| {
        assert_converted(String::from_utf8_lossy(bytes).into_owned())
    });
}

/// Random edits of the example with all words that have a meaning.
#[test]
fn fuzz_edits_of_a_ratelimit_file() {
    const WORDS: [&str; 40] = [
        "domain: ",
        "descriptors:",
        "- ",
        "key: ",
        "value: ",
        "rate_limit: ",
        "unit: ",
        "requests_per_unit: ",
        "unlimited: ",
        "shadow_mode: ",
        "share_threshold: ",
        "name: ",
        "replaces: ",
        "second",
        "minute",
        "week",
        "year",
        "true",
        "0",
        "-1",
        "4294967295",
        "9999999999999999",
        "\"",
        "'",
        "*",
        "x*",
        "*y",
        "x*y*",
        "metadata: ",
        "quota_mode: ",
        "=",
        "\\",
        "é",
        "\u{7f}",
        "{ ",
        " }",
        "[ ",
        " ]",
        ", ",
        "\n  ",
    ];
    fuzz!("ratelimit_edits", Vec<Edit>, |edits: &Vec<Edit>| {
        assert_converted(edited(EXAMPLE, edits, &WORDS))
    });
}
