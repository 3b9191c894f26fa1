//! Names of keys in Redis.
//!
//! A request's state lies under `{group:key}`, each log beside it under `{group:key}log:` and the log's window. The
//! braces are the hash tag, so that all keys of one request share a Cluster slot. Names of groups hold no colon, so the
//! name reads one way only; braces in a key are escaped, so that a caller cannot choose the tag, and so the slot.

use fred::util::redis_keyslot;

use crate::plan::COMMON_WINDOWS_MS;
use crate::store::Subject;

/// Every name that a subject's state may lie under: its packed state, its logs, and logs of every common window, which plans
/// may have had before they were edited.
pub(super) fn all_of(subject: &Subject) -> Vec<String> {
    let tag = hash_tag(&subject.counts_as, subject.key.as_str());
    let common_us = COMMON_WINDOWS_MS.iter().map(|ms| ms * 1_000);
    let logs_us = common_us.chain(subject.logs_us.iter().copied());
    let logs: Vec<String> = logs_us.map(|window_us| log(&tag, window_us)).collect();
    std::iter::once(tag).chain(logs).collect()
}

/// The name of a log, from its subject's.
pub(super) fn log(tag: &str, window_us: u64) -> String {
    format!("{tag}log:{window_us}")
}

/// The name of a request's packed state, and the beginning of its logs' names.
pub(super) fn hash_tag(group: &str, key: &str) -> String {
    let mut tag = String::with_capacity(group.len() + key.len() + 3);
    tag.push('{');
    tag.push_str(group);
    tag.push(':');
    if !key.bytes().any(|byte| matches!(byte, b'{' | b'}' | b'%')) {
        tag.push_str(key);
        tag.push('}');
        return tag;
    }
    for character in key.chars() {
        match character {
            '{' => tag.push_str("%7B"),
            '}' => tag.push_str("%7D"),
            '%' => tag.push_str("%25"),
            other => tag.push(other),
        }
    }
    tag.push('}');
    tag
}

/// A name that no request has, since no plan's name is empty; there are as many as numbers, so that every node of a Cluster
/// has some.
pub(super) fn trial(number: u32) -> String {
    hash_tag("", &number.to_string())
}

/// The name of the set of replicas, which no request has and no trial: its group is empty, and it is no number.
pub(super) fn replicas() -> String {
    hash_tag("", "replicas")
}

/// Where a name is kept in a Cluster.
pub(super) fn slot(name: &str) -> u16 {
    redis_keyslot(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_the_whole_name_whatever_the_key_holds() {
        assert_eq!(hash_tag("free", "alice"), "{free:alice}");
        assert_eq!(hash_tag("free", "a}b{c%7D:d"), "{free:a%7Db%7Bc%257D:d}");
    }

    #[test]
    fn a_subject_lies_under_its_tag_its_logs_and_the_common_windows() {
        let key = crate::key::Key::new("alice").unwrap();
        let names = all_of(&Subject { key, counts_as: "free".into(), logs_us: vec![60_000_000, 90_000_000] });
        assert_eq!((names[0].as_str(), names.len()), ("{free:alice}", 1 + COMMON_WINDOWS_MS.len() + 2));
        assert!(names.contains(&"{free:alice}log:60000000".to_owned()) && names.contains(&"{free:alice}log:90000000".to_owned()));
    }

    #[test]
    fn composition_cannot_collide() {
        assert_ne!(hash_tag("a_b", "c"), hash_tag("a", "b_c"));
        assert_ne!(hash_tag("a", "b:c"), hash_tag("a", "b%3Ac"));
        assert_ne!(hash_tag("a", "}"), hash_tag("a", "%7D"));
    }

    /// The name as it was composed, taken apart.
    fn taken_apart(tag: &str) -> Option<(String, String)> {
        let (group, key) = tag.strip_prefix('{')?.strip_suffix('}')?.split_once(':')?;
        let unescaped = key.replace("%7B", "{").replace("%7D", "}").replace("%25", "%");
        (!key.contains(['{', '}'])).then(|| (group.to_owned(), unescaped))
    }

    #[test]
    fn fuzz_names() {
        // Few letters, all that have a meaning: else hardly a key would have one.
        const LETTERS: [char; 12] = ['{', '}', '%', ':', '2', '5', '7', 'B', 'D', 'a', ' ', 'é'];
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let key: String = bytes.iter().map(|byte| LETTERS[usize::from(*byte) % LETTERS.len()]).collect();
            assert_eq!(taken_apart(&hash_tag("group", &key)), Some(("group".to_owned(), key)));
        });
    }
}
