//! Checks the `status` table.

use super::paths_of;
use super::tree::{ErrorList, Node, Table, report};
use crate::limiter::{TOP_DEFAULT, TOP_MAX, TOP_MIN};

/// The checked section.
#[derive(Debug)]
pub struct StatusSection {
    /// Whether the HTTP listener serves a status page at `/status`. Default: false.
    pub page: bool,
    /// How the keys that are limited, or use most, are shown. Default: as a hash.
    pub keys: ShownKeys,
    /// Maximum number of keys that are counted for each plan, 10 to 1,000. Default: 1,000. With `N` denials in the last minute, a
    /// count is too high by `N / top` at most, so fewer save memory, and more are more exact.
    pub top: usize,
}

/// How keys are shown to operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShownKeys {
    /// As a hash with a secret that the replicas share.
    #[default]
    Hash,
    /// In clear, to callers of the admin listener.
    Clear,
    /// Not at all: nothing is counted by key.
    Off,
}

impl ShownKeys {
    const NAMES: [(&str, Self); 3] = [
        ("hash", Self::Hash),
        ("clear", Self::Clear),
        ("off", Self::Off),
    ];
}

impl StatusSection {
    /// Paths of the settings that differ.
    pub(super) fn changed_settings(&self, other: &Self) -> Vec<&'static str> {
        let Self { page, keys, top } = self;
        paths_of([
            ("status.page", *page != other.page),
            ("status.keys", *keys != other.keys),
            ("status.top", *top != other.top),
        ])
    }
}

pub(super) fn check(root: &mut Table, errors: &mut ErrorList) -> Option<StatusSection> {
    let default = StatusSection {
        page: false,
        keys: ShownKeys::default(),
        top: TOP_DEFAULT,
    };
    let Some(status) = root.take("status") else {
        return Some(default);
    };
    let mut status = status.table(errors)?;
    let page = status.read_or("page", default.page, Node::boolean, errors);
    let keys = status.choice_or("keys", default.keys, &ShownKeys::NAMES, errors);
    let top = status.read_or("top", default.top, top, errors);
    status.finish(errors);
    Some(StatusSection {
        page: page?,
        keys: keys?,
        top: top?,
    })
}

fn top(node: Node, errors: &mut ErrorList) -> Option<usize> {
    let path = node.path.clone();
    let top = node.number(errors)?;
    let within = usize::try_from(top)
        .ok()
        .filter(|top| (TOP_MIN..=TOP_MAX).contains(top));
    if within.is_none() {
        report(
            errors,
            &path,
            format!("is {top}; it is {TOP_MIN} to {TOP_MAX}"),
        );
    }
    within
}
