//! The tree of raw values, field by field, to a checked config.

use std::num::NonZeroUsize;
use std::time::Duration;

use config::Value;

use super::Config;
use super::plans;
use super::store_url::StoreUrl;
use super::tree::{Mistakes, Node, Table, wrong};
use crate::grpc::Address;
use crate::limiter::{DENY_CACHE_DEFAULT, DENY_CACHE_MAX};

/// Where gRPC is served unless told otherwise: this host alone, since nothing is encrypted.
const LISTEN_GRPC_DEFAULT: &str = "127.0.0.1:50051";
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
    let listen = listen(&mut root, mistakes);
    let store = store(&mut root, mistakes);
    let deny_cache_entries = deny_cache(&mut root, mistakes);
    let workers = workers(&mut root, mistakes);
    let plans = plans::check(root.take("plans"), mistakes);
    root.finish(mistakes);
    let (listen_grpc, listen_http) = listen?;
    let (store_url, store_deadline, expected_replicas) = store?;
    Some(Config {
        listen_grpc,
        listen_http,
        store_url,
        store_deadline,
        expected_replicas,
        deny_cache_entries: deny_cache_entries?,
        workers: workers?,
        plans: plans?,
    })
}

/// Where gRPC is served, and where HTTP, if anywhere.
fn listen(root: &mut Table, mistakes: &mut Mistakes) -> Option<(Vec<Address>, Option<Address>)> {
    let default = || LISTEN_GRPC_DEFAULT.parse().ok().map(|address| vec![address]);
    let Some(listen) = root.take("listen") else { return Some((default()?, None)) };
    let mut listen = listen.table(mistakes)?;
    let grpc = match listen.take("grpc") {
        Some(grpc) => grpc.list(mistakes).and_then(|nodes| addresses(nodes, mistakes)),
        None => default(),
    };
    let http = listen.take("http").map_or(Some(None), |node| address_or_off(node, mistakes));
    not_yet(&mut listen, "admin", mistakes);
    listen.finish(mistakes);
    Some((grpc?, http?))
}

fn address_or_off(node: Node, mistakes: &mut Mistakes) -> Option<Option<Address>> {
    let path = node.path.clone();
    match node.text(mistakes)?.as_str() {
        "" => Some(None),
        text => text.parse().map(Some).map_err(|error| wrong(mistakes, &path, format!("is wrong: {error}"))).ok(),
    }
}

fn addresses(nodes: Vec<Node>, mistakes: &mut Mistakes) -> Option<Vec<Address>> {
    if nodes.is_empty() {
        wrong(mistakes, "listen.grpc", "is empty; name at least one address, such as 127.0.0.1:50051");
        return None;
    }
    let mut addresses = Vec::new();
    for node in nodes {
        let path = node.path.clone();
        match node.text(mistakes)?.parse() {
            Ok(address) => addresses.push(address),
            Err(error) => wrong(mistakes, &path, format!("is wrong: {error}")),
        }
    }
    Some(addresses)
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

/// Fields that the design has and this version does not: said so, never ignored.
fn not_yet(table: &mut Table, field: &'static str, mistakes: &mut Mistakes) {
    if let Some(node) = table.take(field) {
        let version = env!("CARGO_PKG_VERSION");
        wrong(mistakes, &node.path, format!("is not supported by version {version} yet, a later one brings it; remove it"));
    }
}
