//! The tree of raw values, field by field, to a checked config.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use config::Value;

use super::Config;
use super::plans;
use super::store;
use super::tree::{Mistakes, Node, Table, wrong};
use crate::grpc::Address;
use crate::limiter::{DENY_CACHE_DEFAULT, DENY_CACHE_MAX};

/// Where gRPC is served unless told otherwise: this host alone, since nothing is encrypted.
const LISTEN_GRPC_DEFAULT: &str = "127.0.0.1:50051";
/// More than the largest hosts have cores; each worker has a thread and, with Redis, a connection to it.
const WORKERS_MAX: u64 = 1024;

/// Checks all of it; `None`, or at least one mistake, when something is wrong.
pub(super) fn check(root: Value, mistakes: &mut Mistakes) -> Option<Config> {
    let mut root = Node::root(root).table(mistakes)?;
    let listen = listen(&mut root, mistakes);
    let store = store::check(&mut root, mistakes);
    let deny_cache_entries = deny_cache(&mut root, mistakes);
    let workers = workers(&mut root, mistakes);
    let plans = plans::check(root.take("plans"), mistakes);
    root.finish(mistakes);
    let Listen { grpc: listen_grpc, http: listen_http, admin: listen_admin, admin_token_file } = listen?;
    let (store_url, store_deadline, expected_replicas) = store?;
    Some(Config {
        listen_grpc,
        listen_http,
        listen_admin,
        admin_token_file,
        store_url,
        store_deadline,
        expected_replicas,
        deny_cache_entries: deny_cache_entries?,
        workers: workers?,
        plans: plans?,
    })
}

/// What is served where, if anywhere.
struct Listen {
    grpc: Vec<Address>,
    http: Option<Address>,
    admin: Option<Address>,
    admin_token_file: Option<PathBuf>,
}

fn listen(root: &mut Table, mistakes: &mut Mistakes) -> Option<Listen> {
    let default = || LISTEN_GRPC_DEFAULT.parse().ok().map(|address| vec![address]);
    let Some(listen) = root.take("listen") else {
        return Some(Listen { grpc: default()?, http: None, admin: None, admin_token_file: None });
    };
    let mut listen = listen.table(mistakes)?;
    let grpc = match listen.take("grpc") {
        Some(grpc) => grpc.list(mistakes).and_then(|nodes| addresses(nodes, mistakes)),
        None => default(),
    };
    let http = listen.take("http").map_or(Some(None), |node| address_or_off(node, mistakes));
    let token_file = listen.take("admin_token_file").map_or(Some(None), |node| path_or_none(node, mistakes));
    let admin = listen.take("admin").map_or(Some(None), |node| address_or_off(node, mistakes));
    listen.finish(mistakes);
    let (admin, admin_token_file) = (admin?, token_file?);
    if let Some(Address::Tcp(text)) = &admin {
        check_admin(text, admin_token_file.is_some(), mistakes);
    }
    Some(Listen { grpc: grpc?, http: http?, admin, admin_token_file })
}

/// What an admin address of TCP must be: the token travels as it is, and every process of this host can connect.
fn check_admin(text: &str, has_token: bool, mistakes: &mut Mistakes) {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host).trim_matches(['[', ']']);
    if host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
        let right = "admin listens on loopback, such as 127.0.0.1:50052, or at unix:/path, since nothing is encrypted";
        wrong(mistakes, "listen.admin", format!("is {text}; {right}"));
    }
    if !has_token {
        let right = "every process of this host can connect; name listen.admin_token_file, or listen at unix:/path";
        wrong(mistakes, "listen.admin", format!("is {text}, where {right}"));
    }
}

fn path_or_none(node: Node, mistakes: &mut Mistakes) -> Option<Option<PathBuf>> {
    let path = node.text(mistakes)?;
    Some((!path.is_empty()).then(|| path.into()))
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
