//! Checks the `store` table: the store's URL, its deadline and the number of replicas.

use std::path::PathBuf;
use std::time::Duration;

use super::paths_of;
use super::store_url::StoreUrl;
use super::tree::{ErrorList, Node, Table, report};
use tollgate_store::{REPLICAS_MAX, RedisTarget, RedisTls};

const DEADLINE_DEFAULT: Duration = Duration::from_millis(25);
const DEADLINE_MIN: Duration = Duration::from_millis(1);
/// No service waits longer than this on purpose in every request.
const DEADLINE_MAX: Duration = Duration::from_secs(10);
/// The value that makes the replicas count each other.
const AUTO: &str = "auto";

/// The checked section.
#[derive(Debug)]
pub struct StoreSection {
    /// Store of the counters. Default: `memory:`.
    pub url: StoreUrl,
    /// Longest that a decision waits for the store, 1 ms to 10 s. Default: 25 ms. A healthy Redis nearby needs far less, and
    /// the request that waits loses little.
    pub deadline: Duration,
    /// Replicas that share the quotas while the store cannot decide, 1 to 10,000. `None`, written as `auto`: as many as
    /// announce themselves in the store. Default: `auto`.
    pub expected_replicas: Option<u64>,
    /// When this replica is ready. Default: always, since policies answer without the store.
    pub ready: Readiness,
}

/// When a replica tells load balancers that it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Readiness {
    /// From the start to the stop.
    #[default]
    Always,
    /// Once the store was reached, to the stop.
    OnceReached,
}

impl Readiness {
    const NAMES: [(&str, Self); 2] = [
        ("always", Self::Always),
        ("once_reached", Self::OnceReached),
    ];
}

impl Default for StoreSection {
    fn default() -> Self {
        Self {
            url: StoreUrl::default(),
            deadline: DEADLINE_DEFAULT,
            expected_replicas: None,
            ready: Readiness::default(),
        }
    }
}

impl StoreSection {
    /// Paths of the settings that differ.
    pub(super) fn changed_settings(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            url,
            deadline,
            expected_replicas,
            ready,
        } = self;
        let mut changed = url.changed_settings(&other.url);
        changed.extend(paths_of([
            ("store.deadline", *deadline != other.deadline),
            (
                "store.expected_replicas",
                *expected_replicas != other.expected_replicas,
            ),
            ("store.ready", *ready != other.ready),
        ]));
        changed
    }
}

pub(super) fn check(root: &mut Table, errors: &mut ErrorList) -> Option<StoreSection> {
    let Some(store) = root.take("store") else {
        return Some(StoreSection::default());
    };
    let mut store = store.table(errors)?;
    let mut url = match store.take("url") {
        None => Some(StoreUrl::default()),
        Some(node) => {
            let path = node.path.clone();
            let parsed = node.text(errors).map(|text| StoreUrl::parse(&text));
            parsed.and_then(|parsed| {
                parsed
                    .map_err(|message| report(errors, &path, message))
                    .ok()
            })
        }
    };
    let read = apply_settings(&mut store, url.as_mut(), errors);
    let deadline = store
        .take("deadline")
        .map_or(Some(DEADLINE_DEFAULT), |node| deadline(node, errors));
    let replicas = store
        .take("expected_replicas")
        .map_or(Some(None), |node| replicas(node, errors));
    let ready = store
        .take("ready")
        .map_or(Some(Readiness::default()), |node| {
            node.choice(&Readiness::NAMES, errors)
        });
    store.finish(errors);
    read?;
    Some(StoreSection {
        url: url?,
        deadline: deadline?,
        expected_replicas: replicas?,
        ready: ready?,
    })
}

fn deadline(node: Node, errors: &mut ErrorList) -> Option<Duration> {
    let path = node.path.clone();
    let deadline = node.duration(errors)?;
    if !(DEADLINE_MIN..=DEADLINE_MAX).contains(&deadline) {
        report(errors, &path, "is out of range; a deadline is 1ms to 10s");
    }
    Some(deadline)
}

/// The number of replicas; the inner value is `None` for `auto`.
fn replicas(node: Node, errors: &mut ErrorList) -> Option<Option<u64>> {
    let (path, text) = (node.path.clone(), node.plain_text());
    if text.as_deref() == Some(AUTO) {
        return Some(None);
    }
    if text.is_some_and(|text| !text.bytes().all(|byte| byte.is_ascii_digit())) {
        report(
            errors,
            &path,
            format!("is wrong; it is {AUTO}, or 1 to {REPLICAS_MAX}"),
        );
        return None;
    }
    let replicas = node.number(errors)?;
    if !(1..=REPLICAS_MAX).contains(&replicas) {
        report(
            errors,
            &path,
            format!("is out of range; it is {AUTO}, or 1 to {REPLICAS_MAX}"),
        );
    }
    Some(Some(replicas))
}

/// Applies the settings beside the URL to the Redis that the URL names. `None` after adding at least one error.
fn apply_settings(
    store: &mut Table,
    mut url: Option<&mut StoreUrl>,
    errors: &mut ErrorList,
) -> Option<()> {
    let before = errors.len();
    let tls = store
        .take("tls")
        .map(|node| (node.path.clone(), tls(node, errors)));
    let username = optional_text(store, "username", errors).flatten();
    let password_file = optional_text(store, "password_file", errors).flatten();
    let key_prefix = store
        .take("key_prefix")
        .map(|node| (node.path.clone(), node.text(errors).unwrap_or_default()));
    let mut give =
        |path: &str, set: &mut dyn FnMut(&mut RedisTarget) -> Result<(), String>| match url
            .as_deref_mut()
        {
            Some(StoreUrl::Redis(target)) => {
                set(target).unwrap_or_else(|message| report(errors, path, message))
            }
            Some(_) => {
                report(
                    errors,
                    path,
                    "is set, but store.url names no Redis; remove this, or write redis://… there",
                );
            }
            None => {}
        };
    if let Some((path, Some(tls))) = tls {
        let mut tls = Some(tls);
        give(&path, &mut |target| {
            tls.take().map_or(Ok(()), |tls| target.set_tls(tls))
        });
    }
    if let Some((path, username)) = username {
        give(&path, &mut |target| target.set_username(username.clone()));
    }
    if let Some((path, file)) = password_file {
        give(&path, &mut |target| {
            target.set_password_file(PathBuf::from(&file))
        });
    }
    if let Some((path, prefix)) = key_prefix.filter(|(_, prefix)| !prefix.is_empty()) {
        give(&path, &mut |target| target.set_key_prefix(&prefix));
    }
    if errors.len() > before {
        return None;
    }
    if let Some(StoreUrl::Redis(target)) = url {
        target
            .check()
            .map_err(|message| report(errors, "store.url", message))
            .ok()?;
    }
    Some(())
}

/// A text that is not empty, with its path. The outer `None` means an error.
fn optional_text(
    table: &mut Table,
    field: &'static str,
    errors: &mut ErrorList,
) -> Option<Option<(String, String)>> {
    let Some(node) = table.take(field) else {
        return Some(None);
    };
    let path = node.path.clone();
    let text = node.text(errors)?;
    if text.is_empty() {
        report(
            errors,
            &path,
            "is empty; write something there, or remove it",
        );
        return None;
    }
    Some(Some((path, text)))
}

/// The files are not read here, since a config may be checked on another machine. The server reads them at its start.
fn tls(node: Node, errors: &mut ErrorList) -> Option<RedisTls> {
    let path = node.path.clone();
    let mut table = node.table(errors)?;
    let mut text =
        |field| optional_text(&mut table, field, errors).map(|found| found.map(|(_, text)| text));
    let (ca_file, server_name) = (text("ca_file"), text("server_name"));
    let (cert_file, key_file) = (text("cert_file"), text("key_file"));
    table.finish(errors);
    let identity = match (cert_file?, key_file?) {
        (Some(cert), Some(key)) => Some((cert.into(), key.into())),
        (None, None) => None,
        _ => {
            report(
                errors,
                &path,
                "has one of cert_file and key_file; name both, or none where Redis asks for no certificate",
            );
            return None;
        }
    };
    Some(RedisTls {
        ca_file: ca_file?.map(PathBuf::from),
        identity,
        server_name: server_name?,
    })
}
