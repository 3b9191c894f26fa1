//! Addresses of stores, whichever they name.

use super::*;

#[test]
fn an_address_names_its_store() {
    assert_eq!(StoreTarget::parse("memory:"), Ok(StoreTarget::default()));
    assert!(!StoreTarget::default().is_shared());
    assert!(StoreTarget::parse("redis://h").unwrap().is_shared());
}

#[test]
fn an_error_gives_the_right_form_of_both_kinds() {
    for bad in [
        "",
        "redis",
        "redis://",
        "http://h",
        "localhost:6379",
        "\u{7f}",
    ] {
        let error = StoreTarget::parse(bad).unwrap_err();
        for right in ["write memory:, ", "redis://host:6379, "] {
            assert!(error.contains(right), "{bad}: {error}");
        }
    }
}

#[test]
fn a_password_is_never_shown() {
    let target = StoreTarget::parse("redis://canary-user:canary-pass@h:1/2").unwrap();
    assert_eq!(target.to_string(), "redis://h:1/2");
    assert!(!format!("{target:?}").contains("canary"));
}
