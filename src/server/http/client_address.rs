//! Finds the address of the client behind trusted proxies: `Forwarded` (RFC 7239) and `X-Forwarded-For`.
//!
//! Each proxy appends the address of its own peer. So the fields are read from the right: as long as an address is that of a
//! trusted proxy, its word about the next one is believed. Whatever a client wrote itself stands further left and is not looked
//! at.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::http::HeaderMap;
use axum::http::header::{FORWARDED, HeaderName};
use ipnet::IpNet;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Maximum number of networks of proxies; each is compared with each address of a request. Content delivery networks publish a
/// few dozen.
pub const PROXIES_MAX: usize = 256;
/// The entry of the config for peers on Unix sockets.
const UNIX: &str = "unix";

/// The peers whose word about the client's address is believed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proxies {
    /// Their networks.
    pub networks: Vec<IpNet>,
    /// Whether processes are among them that connect to a Unix socket.
    pub unix: bool,
}

impl Proxies {
    /// Adds an entry of the config: a network, an address, or `unix`. Errors: what is wrong and what is right.
    pub fn add(&mut self, entry: &str) -> Result<(), String> {
        if entry == UNIX {
            self.unix = true;
            return Ok(());
        }
        let parsed = entry
            .parse()
            .or_else(|_| entry.parse().map(|address: IpAddr| IpNet::from(address)));
        let network: IpNet = parsed.map_err(|_| {
            "is not a network; write one such as 10.0.0.0/8 or fd00::/8, an address, or unix for peers on Unix sockets".to_owned()
        })?;
        if network.addr() != network.network() {
            return Err(format!(
                "has bits of a host in its address; write {}",
                network.trunc()
            ));
        }
        if matches!(network.addr(), IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
            return Err("is an IPv4 network written as IPv6; write it like 10.0.0.0/8".to_owned());
        }
        self.networks.push(network);
        Ok(())
    }

    /// The address of the client. `None` when it is not known: the peer is on a Unix socket, and no field tells more.
    ///
    /// Errors: a trusted proxy sent a field that cannot be read, or two that differ.
    pub(super) fn client(
        &self,
        peer: Option<IpAddr>,
        headers: &HeaderMap,
    ) -> Result<Option<IpAddr>, String> {
        let peer = peer.map(|peer| peer.to_canonical());
        if !peer.map_or(self.unix, |peer| self.trusts(peer)) {
            return Ok(peer);
        }
        let forwarded = self.client_of(peer, &forwarded(headers)?, "Forwarded")?;
        let x_forwarded_for =
            self.client_of(peer, &x_forwarded_for(headers)?, "X-Forwarded-For")?;
        match (forwarded, x_forwarded_for) {
            // A proxy writes one of them and passes the other on, which the client may have made up.
            (Some(one), Some(other)) if one != other => {
                Err("Forwarded and X-Forwarded-For name different clients; the proxy must send one and remove the other"
                    .to_owned())
            }
            (one, other) => Ok(one.or(other).or(peer)),
        }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(&address))
    }

    /// The client as one of the fields tells it. `None` when the field is not there.
    fn client_of(
        &self,
        peer: Option<IpAddr>,
        nodes: &[&str],
        field: &str,
    ) -> Result<Option<IpAddr>, String> {
        let mut client = None;
        for node in nodes.iter().rev() {
            let address = address(node).ok_or_else(|| {
                let sender = client.or(peer).map_or_else(
                    || "a Unix socket".to_owned(),
                    |sender: IpAddr| sender.to_string(),
                );
                format!("{field} from {sender} names no address of the client")
            })?;
            client = Some(address);
            if !self.trusts(address) {
                break;
            }
        }
        Ok(client)
    }
}

/// The nodes of all `X-Forwarded-For` fields, in their order.
fn x_forwarded_for(headers: &HeaderMap) -> Result<Vec<&str>, String> {
    let mut nodes = Vec::new();
    for value in headers.get_all(X_FORWARDED_FOR) {
        // Bytes beyond ASCII are not part of an address. Those that a client wrote must not spoil what a proxy appended.
        let elements = value.as_bytes().split(|byte| *byte == b',');
        nodes.extend(
            elements.map(|element| std::str::from_utf8(element).unwrap_or_default().trim()),
        );
    }
    Ok(nodes)
}

/// The `for` of each element of all `Forwarded` fields, in their order; empty where an element has none.
fn forwarded(headers: &HeaderMap) -> Result<Vec<&str>, String> {
    let mut nodes = Vec::new();
    for value in headers.get_all(FORWARDED) {
        let text = value.to_str().map_err(|_| malformed())?;
        elements(text, &mut nodes).ok_or_else(malformed)?;
    }
    Ok(nodes)
}

fn malformed() -> String {
    "Forwarded is malformed; write it like: for=192.0.2.1, for=\"[2001:db8::1]\"".to_owned()
}

/// Adds the `for` of each element. `None` when the field is malformed. It is read as a whole: a quote that a client left open
/// could otherwise hide what a proxy appended. Source: RFC 7239, section 4.
fn elements<'a>(field: &'a str, nodes: &mut Vec<&'a str>) -> Option<()> {
    let mut rest = field.trim_start();
    let mut node = None;
    loop {
        let (name, after) = rest.split_at_checked(rest.find('=')?)?;
        let (value, after) = value(after.get(1..)?)?;
        let is_token = !name.is_empty() && name.bytes().all(is_token_byte);
        if !is_token || (name.eq_ignore_ascii_case("for") && node.replace(value).is_some()) {
            return None;
        }
        let after = after.trim_start();
        match after.as_bytes().first() {
            Some(b';') => {}
            Some(b',') => nodes.push(node.take().unwrap_or_default()),
            None => {
                nodes.push(node.unwrap_or_default());
                return Some(());
            }
            Some(_) => return None,
        }
        rest = after[1..].trim_start();
    }
}

/// A token or a quoted string at the beginning of `text`, and what follows. An escape is not undone, since no address has one.
fn value(text: &str) -> Option<(&str, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text
            .bytes()
            .position(|byte| !is_token_byte(byte))
            .unwrap_or(text.len());
        return Some(text.split_at_checked(end)?).filter(|(token, _)| !token.is_empty());
    };
    let mut bytes = quoted.bytes().enumerate();
    while let Some((index, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((&quoted[..index], &quoted[index + 1..])),
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    None
}

/// Source: RFC 9110, section 5.6.2. A port behind an IPv4 address needs quotes, but is often written without: so `:` is taken, too.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:".contains(&byte)
}

/// An address, with or without brackets and port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn address(node: &str) -> Option<IpAddr> {
    let bare = || {
        node.strip_prefix('[')?
            .strip_suffix(']')?
            .parse::<Ipv6Addr>()
            .ok()
            .map(IpAddr::V6)
    };
    let with_port = || node.parse::<SocketAddr>().ok().map(|address| address.ip());
    Some(
        node.parse()
            .ok()
            .or_else(bare)
            .or_else(with_port)?
            .to_canonical(),
    )
}

/// A client as part of a key: an IPv4 address as it is, an IPv6 address as the network of its first `ipv6_prefix` bits.
pub(super) fn shown(client: IpAddr, ipv6_prefix: u8) -> String {
    match (client, IpNet::new(client, ipv6_prefix)) {
        (IpAddr::V6(_), Ok(network)) if ipv6_prefix < 128 => network.trunc().to_string(),
        _ => client.to_string(),
    }
}

#[cfg(test)]
mod tests;
