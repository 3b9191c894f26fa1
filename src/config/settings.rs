//! The tree of raw values, field by field, to a checked config.

use std::num::NonZeroUsize;

use config::Value;

use super::Config;
use super::listen;
use super::plans;
use super::store;
use super::tree::{Mistakes, Node, Table, wrong};
use super::warnings;
use crate::limiter::{DENY_CACHE_DEFAULT, DENY_CACHE_MAX};

/// More than the largest hosts have cores; each worker has a thread and, with Redis, a connection to it.
const WORKERS_MAX: u64 = 1024;

/// Checks all of it; `None`, or at least one mistake, when something is wrong.
pub(super) fn check(root: Value, mistakes: &mut Mistakes) -> Option<Config> {
    let mut root = Node::root(root).table(mistakes)?;
    let listen = listen::check(&mut root, mistakes);
    let store = store::check(&mut root, mistakes);
    let deny_cache_entries = deny_cache(&mut root, mistakes);
    let workers = workers(&mut root, mistakes);
    let default_plan = root.take("default_plan").and_then(|node| node.text(mistakes)).filter(|name| !name.is_empty());
    let plans = plans::check(root.take("plans"), default_plan.as_deref(), mistakes);
    root.finish(mistakes);
    let listen = listen?;
    let (store_url, store_deadline, expected_replicas) = store?;
    let plans = plans?;
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
        warnings: warnings::of(&plans),
        plans,
    })
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
