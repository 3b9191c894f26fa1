//! Names of keys in Redis.
//!
//! All begin with `store.key_prefix`, which is empty unless it is set. A request's state lies under `{group:key}`, each log
//! beside it under `{group:key}log:` and the log's window, and the index of those logs that are not found by their names under
//! `{group:key}logs`. The braces are the hash tag, so that all keys of one request share a Cluster slot. Names of groups hold no
//! colon, so the name reads one way only; braces in a key are escaped, so that a caller cannot choose the tag, and so the slot.
//!
//! The state under a candidate plan lies beside that under its live plan: `candidate:NAME:` follows the tag, and then the same as
//! above. So both are decided by one script call, in a Cluster too.

use fred::util::redis_keyslot;

use tollgate_core::key::Key;
use tollgate_core::plan::{Algorithm, CANDIDATE_SEPARATOR, COMMON_WINDOWS_MS, Limit, Plan};

/// Names that a subject's state may lie under, whatever its plans are or were: its packed state, and its logs of common windows.
pub(super) fn known_of(tag: &str) -> impl Iterator<Item = String> {
    let logs = COMMON_WINDOWS_MS.iter().map(move |ms| log(tag, ms * 1_000));
    std::iter::once(tag.to_owned()).chain(logs)
}

/// The name of the index of a subject's logs, from the subject's.
pub(super) fn log_index(tag: &str) -> String {
    format!("{tag}logs")
}

/// Whether a log of this window is found by the index, and not by its name alone. Windows that most limits have are not in it:
/// a new log would cost Redis twice as much, and its name would need a second key.
pub(super) fn is_indexed(window_us: u64) -> bool {
    COMMON_WINDOWS_MS
        .binary_search(&(window_us / 1_000))
        .is_err()
}

/// The name of a log, from its subject's.
pub(super) fn log(tag: &str, window_us: u64) -> String {
    format!("{tag}log:{window_us}")
}

/// The name of a request's packed state, and the beginning of its logs' names. `group` is [`Plan::counts_as`].
pub(super) fn state_name(prefix: &str, group: &str, key: &str) -> String {
    let (live, candidate) = group
        .split_once(CANDIDATE_SEPARATOR)
        .map_or((group, None), |(live, name)| (live, Some(name)));
    let mut tag = String::with_capacity(prefix.len() + live.len() + key.len() + 3);
    tag.push_str(prefix);
    tag.push('{');
    tag.push_str(live);
    tag.push(':');
    if key.bytes().any(|byte| matches!(byte, b'{' | b'}' | b'%')) {
        for character in key.chars() {
            match character {
                '{' => tag.push_str("%7B"),
                '}' => tag.push_str("%7D"),
                '%' => tag.push_str("%25"),
                other => tag.push(other),
            }
        }
    } else {
        tag.push_str(key);
    }
    tag.push('}');
    match candidate {
        None => tag,
        Some(name) => tag + "candidate:" + name + ":",
    }
}

/// Names of the keys that hold a key's state under this plan: one for all its limits of constant size, and one for each log.
pub(super) fn all_of(prefix: &str, key: &Key, plan: &Plan) -> Vec<String> {
    let tag = state_name(prefix, &plan.counts_as, key.as_str());
    let is_log = |limit: &&Limit| limit.algorithm() == Algorithm::SlidingLog;
    let logs: Vec<String> = plan
        .limits()
        .iter()
        .filter(is_log)
        .map(|limit| log(&tag, limit.window_us()))
        .collect();
    let packed = (logs.len() < plan.limits().len()).then_some(tag);
    packed.into_iter().chain(logs).collect()
}

/// The name that the probe of this number counts under. No request has it, since no plan's name is empty. Every node of a
/// Cluster has some of these names.
pub(super) fn probe(prefix: &str, number: u32) -> String {
    state_name(prefix, "", &number.to_string())
}

/// The name of the set of replicas, which is neither a request's nor a probe's: its group is empty, and its key is not a number.
pub(super) fn replicas(prefix: &str) -> String {
    state_name(prefix, "", "replicas")
}

/// The name of the directory of lists of heaviest keys. It shares the slot of the set of replicas. The lists, and the secret that
/// hashes of keys are made with, lie under this name, a colon, and more.
pub(super) fn top(prefix: &str) -> String {
    replicas(prefix) + "top"
}

/// The name that a probe counts under in the slot of a request's name. No request has it.
pub(super) fn probe_beside(name: &str) -> String {
    let tag = name.split_inclusive('}').next().unwrap_or_default();
    // Behind a tag, requests have nothing, `candidate:`, or `log:` and a window.
    format!("{tag}trial")
}

/// Where a name is kept in a Cluster.
pub(super) fn slot(name: &str) -> u16 {
    redis_keyslot(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_tag_is_the_whole_name_whatever_the_key_holds() {
        assert_eq!(state_name("", "free", "alice"), "{free:alice}");
        assert_eq!(
            state_name("", "free", "a}b{c%7D:d"),
            "{free:a%7Db%7Bc%257D:d}"
        );
    }

    #[test]
    fn a_subject_lies_under_its_tag_and_the_common_windows() {
        let names: Vec<String> = known_of("{free:alice}").collect();
        assert_eq!(
            (names[0].as_str(), names.len()),
            ("{free:alice}", 1 + COMMON_WINDOWS_MS.len())
        );
        assert!(
            names.contains(&"{free:alice}log:60000000".to_owned())
                && !names.contains(&log_index("{free:alice}"))
        );
    }

    /// By the length of its fingerprint the script tells whether a log has to be listed.
    #[test]
    fn a_window_is_indexed_where_its_fingerprint_says_that_it_is_not_common() {
        let common = COMMON_WINDOWS_MS.into_iter();
        let windows_ms: Vec<u64> = common
            .flat_map(|ms| [ms, ms + 1_000, ms - 500])
            .chain([1, 97_000, 31_622_400_000])
            .collect();
        for ms in windows_ms
            .into_iter()
            .filter(|ms| *ms < 1 << 31 || ms % 1_000 == 0)
        {
            let limit =
                Limit::new("l", 1, Duration::from_millis(ms), Algorithm::SlidingLog).unwrap();
            assert_eq!(
                is_indexed(limit.window_us()),
                limit.fingerprint().bytes().len() > 1,
                "{ms}"
            );
        }
    }

    /// A prefix has no braces, so it stands outside of the tag.
    #[test]
    fn a_prefix_begins_every_name_and_moves_none_to_another_slot() {
        let names = |prefix| {
            let tag = state_name(prefix, "free", "a}b");
            let logs = [
                log(&tag, 90_000_000),
                log_index(&tag),
                probe(prefix, 7),
                replicas(prefix),
                top(prefix),
            ];
            known_of(&tag).chain(logs).collect::<Vec<_>>()
        };
        for (plain, prefixed) in names("").into_iter().zip(names("shop:")) {
            assert_eq!(
                (prefixed.strip_prefix("shop:"), slot(&prefixed)),
                (Some(plain.as_str()), slot(&plain))
            );
        }
    }

    #[test]
    fn a_probe_beside_a_name_shares_its_slot_and_is_no_request_s() {
        for name in [
            state_name("", "free", "alice"),
            log(&state_name("shop:", "free", "a}b{c"), 60_000_000),
        ] {
            let probe = probe_beside(&name);
            assert_eq!(slot(&probe), slot(&name));
            assert!(probe.ends_with("}trial"), "{probe}");
        }
    }

    #[test]
    fn composition_cannot_collide() {
        assert_ne!(state_name("", "a_b", "c"), state_name("", "a", "b_c"));
        assert_ne!(state_name("", "a", "b:c"), state_name("", "a", "b%3Ac"));
        assert_ne!(state_name("", "a", "}"), state_name("", "a", "%7D"));
    }

    /// The name as it was composed, taken apart.
    fn taken_apart(tag: &str) -> Option<(String, String)> {
        let (group, key) = tag.strip_prefix('{')?.strip_suffix('}')?.split_once(':')?;
        let unescaped = key
            .replace("%7B", "{")
            .replace("%7D", "}")
            .replace("%25", "%");
        (!key.contains(['{', '}'])).then(|| (group.to_owned(), unescaped))
    }

    #[test]
    fn fuzz_names() {
        // Few letters, all that have a meaning: else hardly a key would have one.
        const LETTERS: [char; 12] = ['{', '}', '%', ':', '2', '5', '7', 'B', 'D', 'a', ' ', 'é'];
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let key: String = bytes
                .iter()
                .map(|byte| LETTERS[usize::from(*byte) % LETTERS.len()])
                .collect();
            assert_eq!(
                taken_apart(&state_name("", "group", &key)),
                Some(("group".to_owned(), key))
            );
        });
    }
}
