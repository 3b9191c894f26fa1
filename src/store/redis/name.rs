//! Names of keys in Redis.
//!
//! All begin with `store.key_prefix`, which is empty unless it is set. A request's state lies under `{group:key}`, each log
//! beside it under `{group:key}log:` and the log's window, and the index of those logs that are not found by their names under
//! `{group:key}logs`. Holds lie under `{group:key}holds`, and ids that are not open under `{group:key}ids`. The braces are the hash tag, so that all keys of one request share a Cluster slot. Names of groups hold no
//! colon, so the name reads one way only; braces in a key are escaped, so that a caller cannot choose the tag, and so the slot.
//!
//! A key of a shard lies under `{shard}{group:key}` instead, and the same follows. The first braces are the hash tag, so that all keys
//! of a shard share a slot. No other name has braces twice.
//!
//! The state under a candidate plan lies beside that under its live plan: `candidate:NAME:` follows the tag, and then the same as
//! above. So both are decided by one script call, in a Cluster too.

use fred::util::redis_keyslot;

use crate::ReplicaId;
use tollgate_core::key::Key;
use tollgate_core::plan::{Algorithm, CANDIDATE_SEPARATOR, COMMON_WINDOWS_MS, Limit, Plan};

/// Names that a subject's state may lie under, whatever its plans are or were: its packed state, and its logs of common windows.
pub(super) fn known_of(tag: &str) -> impl Iterator<Item = String> {
    let logs = COMMON_WINDOWS_MS.iter().map(move |ms| log(tag, ms * 1_000));
    std::iter::once(tag.to_owned())
        .chain([holds(tag), ids(tag)])
        .chain(logs)
}

/// The name of a subject's holds, from the subject's.
pub(super) fn holds(tag: &str) -> String {
    format!("{tag}holds")
}

/// The name of a subject's ids that are not open, from the subject's.
pub(super) fn ids(tag: &str) -> String {
    format!("{tag}ids")
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
pub(super) fn state_name(prefix: &str, group: &str, key: &Key) -> String {
    let (live, candidate) = group
        .split_once(CANDIDATE_SEPARATOR)
        .map_or((group, None), |(live, name)| (live, Some(name)));
    let shard = key.shard();
    let has_shard = key.has_shard();
    let key = key.as_str();
    let mut tag = String::with_capacity(prefix.len() + live.len() + key.len() + shard.len() + 5);
    tag.push_str(prefix);
    if has_shard {
        tag.push('{');
        push_escaped(&mut tag, shard);
        tag.push('}');
    }
    tag.push('{');
    tag.push_str(live);
    tag.push(':');
    push_escaped(&mut tag, key);
    tag.push('}');
    match candidate {
        None => tag,
        Some(name) => tag + "candidate:" + name + ":",
    }
}

/// Appends a text of a caller, in which braces are escaped.
fn push_escaped(tag: &mut String, text: &str) {
    if !text.bytes().any(|byte| matches!(byte, b'{' | b'}' | b'%')) {
        tag.push_str(text);
        return;
    }
    for character in text.chars() {
        match character {
            '{' => tag.push_str("%7B"),
            '}' => tag.push_str("%7D"),
            '%' => tag.push_str("%25"),
            other => tag.push(other),
        }
    }
}

/// The name of what belongs to no request: its group is empty.
fn reserved(prefix: &str, word: &str) -> String {
    format!("{prefix}{{:{word}}}")
}

/// Names of the keys that hold a key's state under this plan: one for all its limits of constant size, and one for each log.
pub(super) fn all_of(prefix: &str, key: &Key, plan: &Plan) -> Vec<String> {
    let tag = state_name(prefix, &plan.counts_as, key);
    let is_log = |limit: &&Limit| limit.algorithm() == Algorithm::SlidingLog;
    let logs: Vec<String> = plan
        .limits()
        .iter()
        .filter(is_log)
        .map(|limit| log(&tag, limit.window_us()))
        .collect();
    // A block of a log is not in the log.
    let packed = (logs.len() < plan.limits().len() || plan.has_blocks()).then_some(tag);
    packed.into_iter().chain(logs).collect()
}

/// The name that the probe of this number counts under. No request has it, since no plan's name is empty. Every node of a
/// Cluster has some of these names.
pub(super) fn probe(prefix: &str, number: u32) -> String {
    reserved(prefix, &number.to_string())
}

/// The name of the set of replicas, which is neither a request's nor a probe's: its group is empty, and its key is not a number.
pub(super) fn replicas(prefix: &str) -> String {
    reserved(prefix, "replicas")
}

/// The name of the directory of lists of heaviest keys. It shares the slot of the set of replicas. The lists, and the secret that
/// hashes of keys are made with, lie under this name, a colon, and more.
pub(super) fn top(prefix: &str) -> String {
    replicas(prefix) + "top"
}

/// The name of the hash of overrides. It has no expiry, as nothing else has.
pub(super) fn overrides(prefix: &str) -> String {
    reserved(prefix, "overrides")
}

/// The name of a copy that this replica makes of the hash of overrides, in its slot.
pub(super) fn overrides_copy(prefix: &str, replica: &ReplicaId) -> String {
    format!("{}:copy:{}", overrides(prefix), replica.as_str())
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

    fn state_name(prefix: &str, group: &str, key: &str) -> String {
        super::state_name(prefix, group, &Key::new(key).unwrap())
    }

    fn name_in_shard(shard: &str, group: &str, key: &str) -> String {
        let key = Key::new(key).unwrap().in_shard(shard).unwrap();
        super::state_name("", group, &key)
    }

    #[test]
    fn the_tag_is_the_whole_name_whatever_the_key_holds() {
        assert_eq!(state_name("", "free", "alice"), "{free:alice}");
        assert_eq!(
            state_name("", "free", "a}b{c%7D:d"),
            "{free:a%7Db%7Bc%257D:d}"
        );
    }

    #[test]
    fn the_names_of_a_subject_are_its_tag_holds_ids_and_one_log_per_common_window() {
        let names: Vec<String> = known_of("{free:alice}").collect();
        assert_eq!(
            (names[0].as_str(), names.len()),
            ("{free:alice}", 3 + COMMON_WINDOWS_MS.len())
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

    #[test]
    fn keys_of_a_shard_share_a_slot_and_no_name_with_others() {
        let names = [
            name_in_shard("acme", "user", "u1"),
            name_in_shard("acme", "org", "acme"),
            log(&name_in_shard("acme", "user", "u1"), 60_000_000),
            probe_beside(&name_in_shard("acme", "user", "u1")),
        ];
        assert_eq!(names[0], "{acme}{user:u1}");
        assert!(names.iter().all(|name| slot(name) == slot("{acme}")));
        // Whoever chooses a shard cannot choose the name of a key without one.
        assert_ne!(name_in_shard("user:u1", "user", "u1"), "{user:u1}");
        assert_eq!(name_in_shard("}{", "user", "u1"), "{%7D%7B}{user:u1}");
    }

    /// The name as it was composed, taken apart: shard, group and key.
    fn taken_apart(name: &str) -> Option<[String; 3]> {
        let (shard, tag) = match name.split_once("}{") {
            Some((shard, rest)) => (shard.strip_prefix('{')?, rest),
            None => ("", name.strip_prefix('{')?),
        };
        let (group, key) = tag.strip_suffix('}')?.split_once(':')?;
        let unescaped = |text: &str| {
            let text = text.replace("%7B", "{").replace("%7D", "}");
            text.replace("%25", "%")
        };
        (!key.contains(['{', '}']) && !shard.contains(['{', '}']))
            .then(|| [unescaped(shard), group.to_owned(), unescaped(key)])
    }

    #[test]
    fn fuzz_names() {
        // Few letters, all that have a meaning: else hardly a key would have one.
        const LETTERS: [char; 12] = ['{', '}', '%', ':', '2', '5', '7', 'B', 'D', 'a', ' ', 'é'];
        let text_of = |bytes: &[u8]| -> String {
            let letters = bytes.iter();
            letters
                .map(|byte| LETTERS[usize::from(*byte) % LETTERS.len()])
                .collect()
        };
        bolero::check!()
            .with_type::<(Vec<u8>, Vec<u8>)>()
            .for_each(|(key, shard)| {
                let key = text_of(key);
                let shard = text_of(shard);
                let Ok(whole) = Key::new(key.clone()).and_then(|key| key.in_shard(&shard)) else {
                    return;
                };
                assert_eq!(
                    taken_apart(&super::state_name("", "group", &whole)),
                    Some([shard, "group".to_owned(), key])
                );
            });
    }
}
