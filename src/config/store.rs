//! The `store` table to what the counters are kept in and how it is reached.

use std::path::PathBuf;
use std::time::Duration;

use super::store_url::StoreUrl;
use super::tree::{Mistakes, Node, Table, wrong};
use crate::store::{REPLICAS_MAX, RedisTarget, Tls};

const DEADLINE_DEFAULT: Duration = Duration::from_millis(25);
const DEADLINE_MIN: Duration = Duration::from_millis(1);
/// Nobody puts a longer wait into the path of every request on purpose.
const DEADLINE_MAX: Duration = Duration::from_secs(10);
/// What leaves the number of replicas to the replicas.
const AUTO: &str = "auto";

/// Which store, how long it is waited for, and how many replicas share it.
pub(super) fn check(root: &mut Table, mistakes: &mut Mistakes) -> Option<(StoreUrl, Duration, Option<u64>)> {
    let Some(store) = root.take("store") else { return Some((StoreUrl::default(), DEADLINE_DEFAULT, None)) };
    let mut store = store.table(mistakes)?;
    let mut url = match store.take("url") {
        None => Some(StoreUrl::default()),
        Some(node) => {
            let path = node.path.clone();
            let parsed = node.text(mistakes).map(|text| StoreUrl::parse(&text));
            parsed.and_then(|parsed| parsed.map_err(|message| wrong(mistakes, &path, message)).ok())
        }
    };
    let read = beside(&mut store, url.as_mut(), mistakes);
    let deadline = store.take("deadline").map_or(Some(DEADLINE_DEFAULT), |node| {
        let path = node.path.clone();
        let deadline = node.duration(mistakes)?;
        if !(DEADLINE_MIN..=DEADLINE_MAX).contains(&deadline) {
            wrong(mistakes, &path, "is out of range; a deadline is 1ms to 10s");
        }
        Some(deadline)
    });
    let replicas = store.take("expected_replicas").map_or(Some(None), |node| replicas(node, mistakes));
    store.finish(mistakes);
    read?;
    Some((url?, deadline?, replicas?))
}

/// A number, or the inner `None` for `auto`.
fn replicas(node: Node, mistakes: &mut Mistakes) -> Option<Option<u64>> {
    let (path, text) = (node.path.clone(), node.plain_text());
    if text.as_deref() == Some(AUTO) {
        return Some(None);
    }
    if text.is_some_and(|text| !text.bytes().all(|byte| byte.is_ascii_digit())) {
        wrong(mistakes, &path, format!("is wrong; it is {AUTO}, or 1 to {REPLICAS_MAX}"));
        return None;
    }
    let replicas = node.number(mistakes)?;
    if !(1..=REPLICAS_MAX).contains(&replicas) {
        wrong(mistakes, &path, format!("is out of range; it is {AUTO}, or 1 to {REPLICAS_MAX}"));
    }
    Some(Some(replicas))
}

/// What stands beside the URL, given to the Redis that it names.
fn beside(store: &mut Table, mut url: Option<&mut StoreUrl>, mistakes: &mut Mistakes) -> Option<()> {
    let tls = store.take("tls").map(|node| (node.path.clone(), tls(node, mistakes)));
    let username = given(store, "username", mistakes)?;
    let password_file = given(store, "password_file", mistakes)?;
    let key_prefix = match store.take("key_prefix") {
        Some(node) => Some((node.path.clone(), node.text(mistakes)?)),
        None => None,
    };
    let mut give = |path: &str, set: &mut dyn FnMut(&mut RedisTarget) -> Result<(), String>| match url.as_deref_mut() {
        Some(StoreUrl::Redis(target)) => set(target).map_err(|message| wrong(mistakes, path, message)).ok(),
        Some(StoreUrl::Memory { .. }) => {
            wrong(mistakes, path, "is there, and store.url names no Redis; remove this or name one");
            None
        }
        None => None,
    };
    if let Some((path, tls)) = tls {
        let mut tls = Some(tls?);
        give(&path, &mut |target| tls.take().map_or(Ok(()), |tls| target.set_tls(tls)))?;
    }
    if let Some((path, username)) = username {
        give(&path, &mut |target| target.set_username(username.clone()))?;
    }
    if let Some((path, file)) = password_file {
        give(&path, &mut |target| target.set_password_file(PathBuf::from(&file)))?;
    }
    if let Some((path, prefix)) = key_prefix.filter(|(_, prefix)| !prefix.is_empty()) {
        give(&path, &mut |target| target.set_key_prefix(&prefix))?;
    }
    if let Some(StoreUrl::Redis(target)) = url {
        target.check().map_err(|message| wrong(mistakes, "store.url", message)).ok()?;
    }
    Some(())
}

/// A text that is there and not empty, with its path; the outer `None` when it is wrong.
fn given(table: &mut Table, field: &'static str, mistakes: &mut Mistakes) -> Option<Option<(String, String)>> {
    let Some(node) = table.take(field) else { return Some(None) };
    let path = node.path.clone();
    let text = node.text(mistakes)?;
    if text.is_empty() {
        wrong(mistakes, &path, "is empty; write something there, or remove it");
        return None;
    }
    Some(Some((path, text)))
}

/// Files are not looked for: a config is checked on other machines than it runs on. The server does at its start.
fn tls(node: Node, mistakes: &mut Mistakes) -> Option<Tls> {
    let path = node.path.clone();
    let mut table = node.table(mistakes)?;
    let mut text = |field| given(&mut table, field, mistakes).map(|given| given.map(|(_, text)| text));
    let (ca_file, server_name) = (text("ca_file"), text("server_name"));
    let (cert_file, key_file) = (text("cert_file"), text("key_file"));
    table.finish(mistakes);
    let identity = match (cert_file?, key_file?) {
        (Some(cert), Some(key)) => Some((cert.into(), key.into())),
        (None, None) => None,
        _ => {
            wrong(mistakes, &path, "has one of cert_file and key_file; name both, or none where Redis asks for no certificate");
            return None;
        }
    };
    Some(Tls { ca_file: ca_file?.map(PathBuf::from), identity, server_name: server_name? })
}
