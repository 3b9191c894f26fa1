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
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    const PROXY: &str = "10.0.0.1";

    fn proxies() -> Proxies {
        Proxies {
            networks: ["10.0.0.0/8", "fd00::/8"]
                .map(|network| network.parse().unwrap())
                .to_vec(),
            unix: true,
        }
    }

    fn client_by(
        proxies: &Proxies,
        peer: Option<&str>,
        fields: &[(&str, &str)],
    ) -> Result<Option<String>, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
        }
        let client = proxies.client(peer.map(|peer| peer.parse().unwrap()), &headers)?;
        Ok(client.map(|client| client.to_string()))
    }

    fn client(peer: &str, fields: &[(&str, &str)]) -> String {
        client_by(&proxies(), Some(peer), fields).unwrap().unwrap()
    }

    fn error(fields: &[(&str, &str)]) -> String {
        client_by(&proxies(), Some(PROXY), fields).unwrap_err()
    }

    #[test]
    fn fields_of_an_untrusted_peer_are_ignored_whatever_they_say() {
        for field in ["1.1.1.1", "10.0.0.2", "nonsense", "1.1.1.1, 10.0.0.2"] {
            assert_eq!(
                client(
                    "198.51.100.9",
                    &[("x-forwarded-for", field), ("forwarded", field)]
                ),
                "198.51.100.9"
            );
        }
        assert_eq!(
            client_by(&Proxies::default(), None, &[("x-forwarded-for", "1.1.1.1")]),
            Ok(None)
        );
        assert_eq!(
            client_by(&proxies(), None, &[("x-forwarded-for", "1.1.1.1")]),
            Ok(Some("1.1.1.1".to_owned()))
        );
        assert_eq!(client_by(&proxies(), None, &[]), Ok(None));
    }

    #[test]
    fn the_first_untrusted_address_from_the_right_is_the_client() {
        let of = |field: &str| client(PROXY, &[("x-forwarded-for", field)]);
        assert_eq!(of("203.0.113.7"), "203.0.113.7");
        assert_eq!(of("1.1.1.1, 203.0.113.7"), "203.0.113.7");
        assert_eq!(of("1.1.1.1, 203.0.113.7, 10.9.9.9, fd00::1"), "203.0.113.7");
        // What a client writes before that is not even read.
        assert_eq!(of("\u{ff}\", ,,, 203.0.113.7"), "203.0.113.7");
        // All trusted: the first one.
        assert_eq!(of("10.0.0.5, 10.0.0.6"), "10.0.0.5");
        assert_eq!(client(PROXY, &[]), PROXY);
        let lines = [
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "203.0.113.7, 10.0.0.3"),
        ];
        assert_eq!(client(PROXY, &lines), "203.0.113.7");
    }

    #[test]
    fn forwarded_is_read_in_all_its_forms() {
        for (field, expected) in [
            ("for=203.0.113.7", "203.0.113.7"),
            ("For=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
            (
                "for=1.1.1.1, for=198.51.100.17 ; host=\"a,b\\\";c\" , for=10.1.1.1",
                "198.51.100.17",
            ),
            ("for=\"203.0.113.7:80\"", "203.0.113.7"),
            ("for=203.0.113.7:80", "203.0.113.7"),
            ("for=\"[::ffff:203.0.113.7]\"", "203.0.113.7"),
        ] {
            assert_eq!(client(PROXY, &[("forwarded", field)]), expected, "{field}");
        }
    }

    #[test]
    fn a_malformed_field_of_a_trusted_proxy_is_an_error() {
        for field in [
            "",
            "for",
            "for=",
            "for=\"1.1.1.1",
            "for=1.1.1.1,",
            "for=1.1.1.1 for=2.2.2.2",
            "=1.1.1.1",
            "for=1.1.1.1;for=2.2.2.2",
            "for=\"x, for=\"[2001:db8::1]\"",
            "for=\"x\\, for=203.0.113.7",
            "f or=1.1.1.1",
            "for=é",
        ] {
            assert!(
                error(&[("forwarded", field)]).starts_with("Forwarded is malformed; write it like"),
                "{field}"
            );
        }
        for field in [
            "for=unknown",
            "for=_hidden",
            "proto=http",
            "for=\"1.1.1.1\\\"\"",
        ] {
            assert_eq!(
                error(&[("forwarded", field)]),
                "Forwarded from 10.0.0.1 names no address of the client",
                "{field}"
            );
        }
        for field in [
            "",
            "unknown",
            "1.1.1.1,",
            "1.1.1.1, unknown",
            "fe80::1%eth0",
            "1.1.1.1:x",
        ] {
            assert_eq!(
                error(&[("x-forwarded-for", field)]),
                "X-Forwarded-For from 10.0.0.1 names no address of the client"
            );
        }
        let beyond = error(&[("x-forwarded-for", "unknown, 10.0.0.7")]);
        assert_eq!(
            beyond,
            "X-Forwarded-For from 10.0.0.7 names no address of the client"
        );
    }

    #[test]
    fn two_fields_that_differ_are_an_error_since_one_may_be_the_clients_own() {
        let both = |one, other| {
            client_by(
                &proxies(),
                Some(PROXY),
                &[("forwarded", one), ("x-forwarded-for", other)],
            )
        };
        assert_eq!(
            both("for=203.0.113.7", "203.0.113.7").unwrap().unwrap(),
            "203.0.113.7"
        );
        assert!(
            both("for=1.1.1.1", "203.0.113.7")
                .unwrap_err()
                .contains("name different clients")
        );
    }

    #[test]
    fn ipv6_clients_are_grouped_by_prefix_and_mapped_addresses_are_ipv4() {
        let of = |text: &str, prefix| shown(text.parse::<IpAddr>().unwrap().to_canonical(), prefix);
        assert_eq!(of("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::/64");
        assert_eq!(of("2001:db8:1:2:ffff::", 64), "2001:db8:1:2::/64");
        assert_eq!(of("2001:db8:1:3::", 64), "2001:db8:1:3::/64");
        assert_eq!(
            (of("2001:db8:1:2::1", 32), of("2001:db8:1:2::1", 56)),
            ("2001:db8::/32".to_owned(), "2001:db8:1::/56".to_owned())
        );
        assert_eq!(of("2001:db8::1", 128), "2001:db8::1");
        assert_eq!(
            (of("::ffff:192.0.2.9", 64), of("192.0.2.9", 32)),
            ("192.0.2.9".to_owned(), "192.0.2.9".to_owned())
        );
    }

    #[test]
    fn a_mapped_peer_is_trusted_by_its_ipv4_network() {
        assert_eq!(
            client(
                "::ffff:10.0.0.1",
                &[("x-forwarded-for", "::ffff:203.0.113.7")]
            ),
            "203.0.113.7"
        );
        assert_eq!(
            client("::ffff:192.0.2.1", &[("x-forwarded-for", "1.1.1.1")]),
            "192.0.2.1"
        );
    }
}
