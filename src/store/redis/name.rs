//! Names of keys in Redis.
//!
//! A request's state lies under `{group:key}`, a log of its own beside it under `{group:key}` and the log's window. The
//! braces are the hash tag, so that all keys of one request share a Cluster slot. Names of groups hold no colon, so the
//! name reads one way only; braces in a key are escaped, so that a caller cannot choose the tag, and so the slot.

use std::fmt::Write as _;

use crate::plan::{Algorithm, Limit};
use crate::store::Ask;

/// The keys of one request in the order that the script takes them: the packed state's if there is one, then the logs'.
pub(super) fn keys(ask: &Ask) -> impl Iterator<Item = String> {
    let tag = hash_tag(&ask.plan.counts_as, ask.key.as_str());
    let logs: Vec<String> =
        ask.plan.limits().iter().filter(|limit| is_log(limit)).map(|limit| format!("{tag}{}", limit.window_us())).collect();
    let packed = (logs.len() < ask.plan.limits().len()).then_some(tag);
    packed.into_iter().chain(logs)
}

fn is_log(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::SlidingLog
}

fn hash_tag(group: &str, key: &str) -> String {
    let mut tag = String::with_capacity(group.len() + key.len() + 3);
    let _ = write!(tag, "{{{group}:");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_the_whole_name_whatever_the_key_holds() {
        assert_eq!(hash_tag("free", "alice"), "{free:alice}");
        assert_eq!(hash_tag("free", "a}b{c%7D:d"), "{free:a%7Db%7Bc%257D:d}");
    }

    #[test]
    fn composition_cannot_collide() {
        assert_ne!(hash_tag("a_b", "c"), hash_tag("a", "b_c"));
        assert_ne!(hash_tag("a", "b:c"), hash_tag("a", "b%3Ac"));
        assert_ne!(hash_tag("a", "}"), hash_tag("a", "%7D"));
    }
}
