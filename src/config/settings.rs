//! The tree of raw values, field by field, to a checked config.

use std::num::NonZeroUsize;
use std::time::Duration;

use config::Value;

use super::Config;
use super::listen;
use super::plans;
use super::store_url::StoreUrl;
use super::tree::{Mistakes, Node, Table, wrong};
use crate::limiter::{DENY_CACHE_DEFAULT, DENY_CACHE_MAX};

const DEADLINE_DEFAULT: Duration = Duration::from_millis(25);
const DEADLINE_MIN: Duration = Duration::from_millis(1);
/// Nobody puts a longer wait into the path of every request on purpose.
const DEADLINE_MAX: Duration = Duration::from_secs(10);
const REPLICAS_MAX: u64 = 10_000;
/// More than the largest hosts have cores; each worker has a thread and, with Redis, a connection to it.
const WORKERS_MAX: u64 = 1024;

/// Checks all of it; `None`, or at least one mistake, when something is wrong.
pub(super) fn check(root: Value, mistakes: &mut Mistakes) -> Option<Config> {
    let mut root = Node::root(root).table(mistakes)?;
    let listen = listen::check(&mut root, mistakes);
    let store = store(&mut root, mistakes);
    let deny_cache_entries = deny_cache(&mut root, mistakes);
    let workers = workers(&mut root, mistakes);
    let plans = plans::check(root.take("plans"), mistakes);
    root.finish(mistakes);
    let listen = listen?;
    let (store_url, store_deadline, expected_replicas) = store?;
    Some(Config {
        listen_grpc: listen.grpc,
        listen_http: listen.http,
        listen_admin: listen.admin,
        admin_token_file: listen.admin_token_file,
        listen_tls: listen.tls,
        listen_lame_duck: listen.lame_duck,
        listen_max_connection_age: listen.max_connection_age,
        store_url,
        store_deadline,
        expected_replicas,
        deny_cache_entries: deny_cache_entries?,
        workers: workers?,
        plans: plans?,
    })
}

fn store(root: &mut Table, mistakes: &mut Mistakes) -> Option<(StoreUrl, Duration, u64)> {
    let Some(store) = root.take("store") else { return Some((StoreUrl::default(), DEADLINE_DEFAULT, 1)) };
    let mut store = store.table(mistakes)?;
    let url = match store.take("url") {
        None => Some(StoreUrl::default()),
        Some(node) => {
            let path = node.path.clone();
            let parsed = node.text(mistakes).map(|text| StoreUrl::parse(&text));
            parsed.and_then(|parsed| parsed.map_err(|message| wrong(mistakes, &path, message)).ok())
        }
    };
    let deadline = store.take("deadline").map_or(Some(DEADLINE_DEFAULT), |node| {
        let path = node.path.clone();
        let deadline = node.duration(mistakes)?;
        if !(DEADLINE_MIN..=DEADLINE_MAX).contains(&deadline) {
            wrong(mistakes, &path, format!("is {}; a deadline is 1ms to 10s", humantime::format_duration(deadline)));
        }
        Some(deadline)
    });
    let replicas = store.take("expected_replicas").map_or(Some(1), |node| {
        let path = node.path.clone();
        let replicas = node.number(mistakes)?;
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            wrong(mistakes, &path, format!("is {replicas}; it is 1 to {REPLICAS_MAX}"));
        }
        Some(replicas)
    });
    store.finish(mistakes);
    Some((url?, deadline?, replicas?))
}

/// The number of workers; 0 leaves it to the machine.
fn workers(root: &mut Table, mistakes: &mut Mistakes) -> Option<Option<NonZeroUsize>> {
    let Some(node) = root.take("workers") else { return Some(None) };
    let path = node.path.clone();
    let workers = node.number(mistakes)?;
    if workers > WORKERS_MAX {
        wrong(mistakes, &path, format!("is {workers}; it is 0 to {WORKERS_MAX}, and 0 means one per core"));
    }
    Some(usize::try_from(workers).ok().and_then(NonZeroUsize::new))
}

fn deny_cache(root: &mut Table, mistakes: &mut Mistakes) -> Option<usize> {
    let Some(deny_cache) = root.take("deny_cache") else { return Some(DENY_CACHE_DEFAULT) };
    let mut deny_cache = deny_cache.table(mistakes)?;
    let entries = deny_cache.take("entries").map_or(Some(DENY_CACHE_DEFAULT), |node| {
        let path = node.path.clone();
        let entries = node.number(mistakes)?;
        let within = usize::try_from(entries).ok().filter(|entries| *entries <= DENY_CACHE_MAX);
        if within.is_none() {
            wrong(mistakes, &path, format!("is {entries}; it is 0 (off) to {DENY_CACHE_MAX}"));
        }
        within
    });
    deny_cache.finish(mistakes);
    entries
}
