//! Checks the `store` table: the store's URL, its deadline and the number of replicas.

use std::path::PathBuf;
use std::time::Duration;

use super::paths_of;
use super::tree::{ErrorList, Node, Table, report};
use tollgate_store::{REPLICAS_MAX, RedisTarget, RedisTls, StoreTarget};

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
    pub url: StoreTarget,
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
            url: StoreTarget::default(),
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
    let mut url = store.read_or("url", StoreTarget::default(), url, errors);
    let read = apply_settings(&mut store, url.as_mut(), errors);
    let deadline = store.read_or("deadline", DEADLINE_DEFAULT, deadline, errors);
    let replicas = store.read_or("expected_replicas", None, replicas, errors);
    let ready = store.choice_or("ready", Readiness::default(), &Readiness::NAMES, errors);
    store.finish(errors);
    read?;
    Some(StoreSection {
        url: url?,
        deadline: deadline?,
        expected_replicas: replicas?,
        ready: ready?,
    })
}

fn url(node: Node, errors: &mut ErrorList) -> Option<StoreTarget> {
    let path = node.path.clone();
    let text = node.text(errors)?;
    StoreTarget::parse(&text)
        .map_err(|message| report(errors, &path, message))
        .ok()
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
    let path = node.path.clone();
    let text = node.plain_text();
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
    mut url: Option<&mut StoreTarget>,
    errors: &mut ErrorList,
) -> Option<()> {
    let before = errors.len();
    let settings = RedisSettings::read(store, errors);
    match url.as_deref_mut() {
        Some(StoreTarget::Redis(target)) => settings.give_to(target, errors),
        Some(_) => settings.refuse(errors),
        None => {}
    }
    if errors.len() > before {
        return None;
    }
    if let Some(StoreTarget::Redis(target)) = url {
        target
            .check()
            .map_err(|message| report(errors, "store.url", message))
            .ok()?;
    }
    Some(())
}

/// The settings beside the URL that are there and sound, each with its path.
struct RedisSettings {
    tls: Option<(String, RedisTls)>,
    username: Option<(String, String)>,
    password_file: Option<(String, String)>,
    key_prefix: Option<(String, String)>,
}

impl RedisSettings {
    fn read(store: &mut Table, errors: &mut ErrorList) -> Self {
        let tls =
            |node: Node, errors: &mut ErrorList| Some((node.path.clone(), tls(node, errors)?));
        let prefix =
            |node: Node, errors: &mut ErrorList| Some((node.path.clone(), node.text(errors)?));
        Self {
            tls: store.read("tls", tls, errors).flatten(),
            username: optional_text(store, "username", errors).flatten(),
            password_file: optional_text(store, "password_file", errors).flatten(),
            key_prefix: store
                .read("key_prefix", prefix, errors)
                .flatten()
                .filter(|(_, prefix)| !prefix.is_empty()),
        }
    }

    fn give_to(self, target: &mut RedisTarget, errors: &mut ErrorList) {
        let mut report_wrong = |path: &str, given: Result<(), String>| {
            given.unwrap_or_else(|message| report(errors, path, message));
        };
        if let Some((path, tls)) = self.tls {
            report_wrong(&path, target.set_tls(tls));
        }
        if let Some((path, username)) = self.username {
            report_wrong(&path, target.set_username(username));
        }
        if let Some((path, file)) = self.password_file {
            report_wrong(&path, target.set_password_file(file.into()));
        }
        if let Some((path, prefix)) = self.key_prefix {
            report_wrong(&path, target.set_key_prefix(&prefix));
        }
    }

    /// Reports every setting, since the URL names another store.
    fn refuse(self, errors: &mut ErrorList) {
        let tls = self.tls.map(|(path, _)| path);
        let texts = [self.username, self.password_file, self.key_prefix];
        let texts = texts.into_iter().flatten().map(|(path, _)| path);
        for path in tls.into_iter().chain(texts) {
            report(
                errors,
                &path,
                "is set, but store.url names no Redis; remove this, or write redis://… there",
            );
        }
    }
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
    let ca_file = text("ca_file");
    let server_name = text("server_name");
    let cert_file = text("cert_file");
    let key_file = text("key_file");
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
