//! `listen`: where to serve what, who may see it on the way, and how connections end.

use std::path::PathBuf;
use std::time::Duration;

use super::tree::{Mistakes, Node, Table, wrong};
use crate::duration;
use crate::grpc::Address;
use crate::tls;

/// Where gRPC is served unless told otherwise: this host alone, since nothing is encrypted.
const GRPC_DEFAULT: &str = "127.0.0.1:50051";
/// Proxies look every second or two, by default, and leave when told twice at most.
const LAME_DUCK_DEFAULT: Duration = Duration::from_secs(2);
/// With the 5 s that calls under way may take and what HTTP adds, it stays within the 10 that are promised.
const LAME_DUCK_MAX: Duration = Duration::from_secs(3);
/// Below, callers would do little but connect.
const AGE_MIN: Duration = Duration::from_secs(1);
const AGE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Most addresses for gRPC, each a socket; a host has a few networks, and a socket or two for its own processes.
const ADDRESSES_MAX: usize = 64;
/// Longest address: a name of 253 letters and a port, or a path of 108 bytes.
const ADDRESS_BYTES_MAX: usize = 300;
/// Most names of callers; all are looked at for each handshake.
const CLIENT_NAMES_MAX: usize = 1_000;

/// The checked section.
pub(super) struct Listen {
    pub grpc: Vec<Address>,
    pub http: Option<Address>,
    pub admin: Option<Address>,
    pub admin_token_file: Option<PathBuf>,
    pub tls: Option<tls::Settings>,
    pub lame_duck: Duration,
    pub max_connection_age: Option<Duration>,
}

pub(super) fn check(root: &mut Table, mistakes: &mut Mistakes) -> Option<Listen> {
    let default = || GRPC_DEFAULT.parse().ok().map(|address| vec![address]);
    let Some(node) = root.take("listen") else {
        return Some(Listen {
            grpc: default()?,
            http: None,
            admin: None,
            admin_token_file: None,
            tls: None,
            lame_duck: LAME_DUCK_DEFAULT,
            max_connection_age: None,
        });
    };
    let mut listen = node.table(mistakes)?;
    let grpc = match listen.take("grpc") {
        Some(grpc) => grpc.list(mistakes).and_then(|nodes| addresses(nodes, mistakes)),
        None => default(),
    };
    let http = listen.take("http").map_or(Some(None), |node| address_or_off(node, mistakes));
    let tls_node = listen.take("tls");
    let encrypted = tls_node.is_some();
    let tls = tls_node.map_or(Some(None), |node| tls(node, mistakes).map(Some));
    let plaintext = listen.take("plaintext").map_or(Some(false), |node| node.truth(mistakes));
    let lame_duck = listen.take("lame_duck").map_or(Some(LAME_DUCK_DEFAULT), |node| lame_duck(node, mistakes));
    let age = listen.take("max_connection_age").map_or(Some(None), |node| age(node, mistakes));
    let token_file = listen.take("admin_token_file").map_or(Some(None), |node| path_or_none(node, mistakes));
    let admin = listen.take("admin").map_or(Some(None), |node| address_or_off(node, mistakes));
    listen.finish(mistakes);
    let (grpc, http) = (grpc?, http?);
    let (admin, admin_token_file) = (admin?, token_file?);
    if let Some(address @ Address::Tcp { .. }) = &admin {
        check_admin(address, admin_token_file.is_some(), mistakes);
    }
    match (plaintext?, encrypted) {
        (true, true) => {
            let sentence = "is true, and listen.tls is set; remove one, or write plaintext: before single addresses";
            wrong(mistakes, "listen.plaintext", sentence);
        }
        (true, false) => {}
        (false, encrypted) => {
            let grpc = grpc.iter().enumerate().map(|(index, address)| (format!("listen.grpc[{index}]"), address));
            let http = http.iter().map(|address| ("listen.http".to_owned(), address));
            grpc.chain(http).for_each(|(path, address)| refuse_plaintext(&path, address, encrypted, mistakes));
        }
    }
    Some(Listen { grpc, http, admin, admin_token_file, tls: tls?, lame_duck: lame_duck?, max_connection_age: age? })
}

/// What others than this host can reach is encrypted, unless the config says that it need not be.
fn refuse_plaintext(path: &str, address: &Address, encrypted: bool, mistakes: &mut Mistakes) {
    let meant = encrypted || matches!(address, Address::Tcp { plaintext: true, .. });
    if !meant && !address.is_local() {
        let sentence = format!(
            "is {address}, which other hosts can reach, and nothing encrypts it; set listen.tls, or, where the network is \
             trusted, listen.plaintext: true (--plaintext), or write plaintext:{address} for this one alone"
        );
        wrong(mistakes, path, sentence);
    }
}

/// What an admin address of TCP must be: the token travels as it is, and every process of this host can connect.
fn check_admin(address: &Address, has_token: bool, mistakes: &mut Mistakes) {
    if !address.is_local() {
        let right = "admin listens on loopback, such as 127.0.0.1:50052, or at unix:/path, since nothing is encrypted";
        wrong(mistakes, "listen.admin", format!("is {address}; {right}"));
    }
    if !has_token {
        let right = "every process of this host can connect; name listen.admin_token_file, or listen at unix:/path";
        wrong(mistakes, "listen.admin", format!("is {address}, where {right}"));
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
        text => address(text, &path, mistakes).map(Some),
    }
}

fn address(text: &str, path: &str, mistakes: &mut Mistakes) -> Option<Address> {
    if text.len() > ADDRESS_BYTES_MAX {
        wrong(mistakes, path, format!("has {} bytes; an address has at most {ADDRESS_BYTES_MAX}", text.len()));
        return None;
    }
    text.parse().map_err(|error| wrong(mistakes, path, format!("is wrong: {error}"))).ok()
}

fn addresses(nodes: Vec<Node>, mistakes: &mut Mistakes) -> Option<Vec<Address>> {
    if nodes.is_empty() {
        wrong(mistakes, "listen.grpc", "is empty; name at least one address, such as 127.0.0.1:50051");
        return None;
    }
    if nodes.len() > ADDRESSES_MAX {
        wrong(mistakes, "listen.grpc", format!("has {} addresses; at most {ADDRESSES_MAX} are listened at", nodes.len()));
        return None;
    }
    let mut addresses = Vec::new();
    for node in nodes {
        let path = node.path.clone();
        addresses.extend(address(&node.text(mistakes)?, &path, mistakes));
    }
    Some(addresses)
}

/// The files are read when serving begins, not here: a config may be checked where its keys are not.
fn tls(node: Node, mistakes: &mut Mistakes) -> Option<tls::Settings> {
    let mut table = node.table(mistakes)?;
    let mut file = |table: &mut Table, name| {
        let node = table.take(name)?;
        let path = node.path.clone();
        let file = node.text(mistakes)?;
        if file.is_empty() {
            wrong(mistakes, &path, "is empty; name a file in PEM");
        }
        Some(PathBuf::from(file))
    };
    let (cert_file, key_file) = (file(&mut table, "cert_file"), file(&mut table, "key_file"));
    let client_ca_file = file(&mut table, "client_ca_file");
    for (name, found) in [("cert_file", &cert_file), ("key_file", &key_file)] {
        // A value that is no text has been complained of.
        if found.is_none() && !mistakes.iter().any(|mistake| mistake.path == format!("listen.tls.{name}")) {
            wrong(mistakes, &format!("listen.tls.{name}"), "is missing; name a file in PEM");
        }
    }
    let client_names = table.take("client_names").map_or(Some(Vec::new()), |node| names(node, mistakes));
    if client_ca_file.is_none() && client_names.as_ref().is_some_and(|names| !names.is_empty()) {
        wrong(
            mistakes,
            "listen.tls.client_names",
            "is of no use without client_ca_file, who signs what those names are read from",
        );
    }
    table.finish(mistakes);
    Some(tls::Settings { cert_file: cert_file?, key_file: key_file?, client_ca_file, client_names: client_names? })
}

fn names(node: Node, mistakes: &mut Mistakes) -> Option<Vec<tls::ClientName>> {
    let (list, nodes) = (node.path.clone(), node.list(mistakes)?);
    if nodes.len() > CLIENT_NAMES_MAX {
        wrong(mistakes, &list, format!("has {} names; at most {CLIENT_NAMES_MAX} are compared", nodes.len()));
        return None;
    }
    let mut names = Vec::new();
    for node in nodes {
        let path = node.path.clone();
        let name = node.text(mistakes)?;
        match tls::ClientName::parse(&name) {
            Ok(name) => names.push(name),
            Err(right) => wrong(mistakes, &path, format!("is wrong; {right}")),
        }
    }
    Some(names)
}

fn lame_duck(node: Node, mistakes: &mut Mistakes) -> Option<Duration> {
    let path = node.path.clone();
    let pause = node.duration(mistakes)?;
    if pause > LAME_DUCK_MAX {
        wrong(mistakes, &path, format!("is {}; it is 0s to 3s", duration::Shown(pause)));
    }
    Some(pause)
}

/// None for 0.
fn age(node: Node, mistakes: &mut Mistakes) -> Option<Option<Duration>> {
    let path = node.path.clone();
    let age = node.duration(mistakes)?;
    if !age.is_zero() && !(AGE_MIN..=AGE_MAX).contains(&age) {
        wrong(mistakes, &path, format!("is {}; it is 0s (off), or 1s to 365d", duration::Shown(age)));
    }
    Some(Some(age).filter(|age| !age.is_zero()))
}
