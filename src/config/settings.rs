//! Checks the tree of raw values field by field, and builds the config.

use std::num::NonZeroUsize;

use config::Value;

use super::Config;
use super::check as check_endpoint;
use super::envoy;
use super::listen;
use super::plans;
use super::store;
use super::tree::{ErrorList, Node, Table, report};
use super::warnings;
use crate::limiter::{DENY_CACHE_DEFAULT, DENY_CACHE_MAX};

/// Most workers, more than the largest hosts have cores. Each worker has a thread and, with Redis, a connection.
const WORKERS_MAX: u64 = 1024;

/// Checks all fields. Returns `None` after adding at least one error. It may also return a config after adding errors; the
/// caller then drops the config.
pub(super) fn check(root: Value, errors: &mut ErrorList) -> Option<Config> {
    let mut root = Node::root(root).table(errors)?;
    let listen = listen::check(&mut root, errors);
    let store = store::check(&mut root, errors);
    let deny_cache_entries = deny_cache(&mut root, errors);
    let workers = workers(&mut root, errors);
    let default_plan = root.take("default_plan").and_then(|node| node.text(errors)).filter(|name| !name.is_empty());
    let check = check_endpoint::check(&mut root, errors);
    let plans = plans::check(root.take("plans"), default_plan.as_deref(), errors);
    let envoy = envoy::check(root.take("envoy"), plans.as_ref(), errors);
    root.finish(errors);
    let listen = listen?;
    let (store_url, store_deadline, expected_replicas) = store?;
    let (check, plans) = (check?, plans?.with_envoy(envoy?));
    check_endpoint::check_plans(&check, &plans, errors);
    Some(Config {
        listen_grpc: listen.grpc,
        listen_http: listen.http,
        listen_metrics: listen.metrics,
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
        check,
        warnings: warnings::of(&plans),
        plans,
    })
}

/// The number of workers: `Some(None)` is one per core, written as 0. `None` after adding an error.
fn workers(root: &mut Table, errors: &mut ErrorList) -> Option<Option<NonZeroUsize>> {
    let Some(node) = root.take("workers") else { return Some(None) };
    let path = node.path.clone();
    let workers = node.number(errors)?;
    if workers > WORKERS_MAX {
        report(errors, &path, format!("is {workers}; it is 0 to {WORKERS_MAX}, and 0 means one per core"));
    }
    Some(usize::try_from(workers).ok().and_then(NonZeroUsize::new))
}

/// The entries of the deny cache; 0 turns it off. `None` after adding an error.
fn deny_cache(root: &mut Table, errors: &mut ErrorList) -> Option<usize> {
    let Some(deny_cache) = root.take("deny_cache") else { return Some(DENY_CACHE_DEFAULT) };
    let mut deny_cache = deny_cache.table(errors)?;
    let entries = deny_cache.take("entries").map_or(Some(DENY_CACHE_DEFAULT), |node| {
        let path = node.path.clone();
        let entries = node.number(errors)?;
        let within = usize::try_from(entries).ok().filter(|entries| *entries <= DENY_CACHE_MAX);
        if within.is_none() {
            report(errors, &path, format!("is {entries}; it is 0 (off) to {DENY_CACHE_MAX}"));
        }
        within
    });
    deny_cache.finish(errors);
    entries
}
