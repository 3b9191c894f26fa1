//! Rules for what leaves the process, and for what is asked of the system.

use super::only;

/// What only one system has, or is asked otherwise of another one.
#[test]
fn what_differs_between_systems_stands_in_one_module() {
    for word in [
        "libc",
        "rustix",
        "procfs",
        "prctl",
        "target_os",
        "cfg(unix",
        "os::linux",
        "os::macos",
        "\"/proc",
        "\"/sys",
        "user_timeout",
    ] {
        only(word, &["src/store/platform"]);
    }
}

/// A hash without a secret can be tried out: there are only so many addresses. These hash names of their own, or what stays inside;
/// `src/core/key.rs` makes a key of a text that is too long for one. A hash of a key leaves the process as `KeyHash` alone.
#[test]
fn no_hash_of_a_key_leaves_the_process_without_the_secret() {
    let inside = [
        "src/core/plan/calendar/zone.rs",
        "src/core/plan/envoy/index.rs",
        "src/core/plan/overrides/table.rs",
        "src/store/redis/batcher/call.rs",
        "src/store/redis/script_codec/holds.rs",
        "src/tools/cli/simulate/pipeline.rs",
    ];
    let of_configs = ["src/server/limiter/snapshot.rs", "src/server/file_watch.rs"];
    only(
        "xxh",
        &[
            &inside[..],
            &of_configs,
            &["src/core/key.rs", "src/server/limiter/top/secret.rs"],
        ]
        .concat(),
    );
    only("siphash", &["src/server/limiter/top/secret.rs"]);
    for hasher in ["DefaultHasher", "RandomState", "BuildHasher"] {
        only(
            hasher,
            &[
                "src/core/algorithm/holds/ended.rs",
                "src/store/memory",
                "src/server/limiter/deny_cache.rs",
                "src/tools/cli/simulate/pipeline.rs",
            ],
        );
    }
    for digits in [":016x", ":032x", ":x}", "LowerHex"] {
        only(
            digits,
            &[
                "src/core/key.rs",
                "src/server/limiter/top/secret.rs",
                "src/server/limiter/snapshot.rs",
                "src/store/replicas.rs",
            ],
        );
    }
}
