//! What operators see of keys.

use super::*;

#[test]
fn keys_are_shown_as_a_hash_unless_the_config_says_otherwise() {
    for (yaml, expected) in [
        ("", (false, ShownKeys::Hash, 1_000)),
        (
            "status: { page: true, keys: clear, top: 10 }",
            (true, ShownKeys::Clear, 10),
        ),
        ("status: { keys: off }", (false, ShownKeys::Off, 1_000)),
    ] {
        let status = load(&format!("{PLANS}{yaml}")).unwrap().status;
        assert_eq!((status.page, status.keys, status.top), expected, "{yaml}");
    }
    for (yaml, message) in [
        ("status: { top: 9 }", "status.top is 9; it is 10 to 1000"),
        (
            "status: { top: 1001 }",
            "status.top is 1001; it is 10 to 1000",
        ),
        (
            "status: { keys: plain }",
            "status.keys is \"plain\"; it must be one of hash, clear, off",
        ),
        (
            "status: { page: 1 }",
            "status.page is 1; it must be true or false",
        ),
    ] {
        let errors = load(&format!("{PLANS}{yaml}")).unwrap_err().to_string();
        assert!(errors.contains(message), "{errors}");
    }
}
