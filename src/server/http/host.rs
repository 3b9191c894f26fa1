//! The host that a request names: HTTP/1.1 requires one, and figures are shown only under names of this server.
//!
//! A site can make its own name resolve to this server's address (DNS rebinding). A browser then takes the figures for that
//! site's own, and shows them to its scripts. The name in the request gives such a site away.
//! Sources: RFC 9112, section 3.2; RFC 9110, section 15.5.20.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{StatusCode, Version};
use axum::response::{IntoResponse, Response};

use crate::transport::Address;

/// Maximum number of names of `listen.http_hosts`; each request for figures is compared with all of them.
pub const HOST_NAMES_MAX: usize = 100;
/// Longest name of a host. Source: RFC 1035, section 2.3.4.
const NAME_BYTES_MAX: usize = 253;

const REFUSED: &str =
    "an HTTP/1.1 request must have one Host header; send one, such as Host: localhost\n";
const MISDIRECTED: &str = "the Host header names a host that is not listed in listen.http_hosts; list it, or ask by IP address\n";

/// The answer 400 to an HTTP/1.1 request with no Host header or several; `None` to any other. With several, two proxies could
/// each believe another one.
pub(super) fn refuse(request: &Request) -> Option<Response> {
    let hosts = request.headers().get_all(HOST).iter().count();
    let valid = hosts == 1 || (hosts == 0 && request.version() < Version::HTTP_11);
    (!valid).then(|| (StatusCode::BAD_REQUEST, REFUSED).into_response())
}

/// A name from the config under which figures are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(ListedHost);

/// Both in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ListedHost {
    Name(String),
    /// All names that end in this, which begins with a dot.
    Below(String),
}

impl HostName {
    /// Parses a name without a port. `*.` at its begin stands for one or more labels.
    ///
    /// Errors: how to write a name. The text continues a sentence such as `http_hosts[0] is wrong; `.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let is_plain = |label: &str| {
            label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        if text.len() > NAME_BYTES_MAX
            || name
                .split('.')
                .any(|label| label.is_empty() || !is_plain(label))
        {
            return Err(
                "write a name without a port, such as limits.example.com, or *.example.com for all names below",
            );
        }
        Ok(Self(match text.strip_prefix('*') {
            Some(end) => ListedHost::Below(end.to_ascii_lowercase()),
            None => ListedHost::Name(text.to_ascii_lowercase()),
        }))
    }

    fn matches(&self, name: &str) -> bool {
        match &self.0 {
            ListedHost::Name(listed) => name == listed,
            ListedHost::Below(end) => name
                .strip_suffix(end.as_str())
                .is_some_and(|begin| !begin.is_empty()),
        }
    }
}

/// The hosts under which a listener shows figures.
#[derive(Debug, Clone)]
pub(super) enum Hosts {
    /// All: browsers do not reach a Unix socket.
    Any,
    /// IP addresses, which no site can own, `localhost`, and these names.
    Only(Arc<[HostName]>),
}

impl Hosts {
    /// The hosts of a listener at `address`.
    pub(super) fn for_listener(address: &Address, names: &Arc<[HostName]>) -> Self {
        match address {
            Address::Unix { .. } => Self::Any,
            Address::Tcp { .. } => Self::Only(names.clone()),
        }
    }

    /// The answer 421 to a request that names another host; `None` to any other.
    pub(super) fn refuse(&self, request: &Request) -> Option<Response> {
        let Self::Only(names) = self else { return None };
        // A target with a host counts more than the field. No browser leaves out both.
        let named = match (request.uri().authority(), request.headers().get(HOST)) {
            (Some(authority), _) => Some(authority.clone()),
            (None, Some(field)) => Authority::try_from(field.as_bytes()).ok(),
            (None, None) => return None,
        };
        let shown = named.is_some_and(|authority| is_shown(authority.host(), names));
        (!shown).then(|| (StatusCode::MISDIRECTED_REQUEST, MISDIRECTED).into_response())
    }
}

fn is_shown(host: &str, names: &[HostName]) -> bool {
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let is_address = host.parse::<Ipv4Addr>().is_ok()
        || in_brackets.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok());
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    is_address || name == "localhost" || names.iter().any(|listed| listed.matches(&name))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn is_refused(target: &str, host: Option<&str>) -> bool {
        let names =
            ["Limits.example.com", "*.metrics.svc"].map(|name| HostName::parse(name).unwrap());
        let hosts = Hosts::for_listener(&"127.0.0.1:8080".parse().unwrap(), &names.into());
        let mut request = Request::builder().uri(target);
        request = host
            .into_iter()
            .fold(request, |request, host| request.header(HOST, host));
        let answer = hosts.refuse(&request.body(Body::empty()).unwrap());
        answer.is_some_and(|answer| answer.status() == StatusCode::MISDIRECTED_REQUEST)
    }

    #[test]
    fn figures_are_shown_under_addresses_localhost_and_listed_names() {
        let shown = [
            "127.0.0.1",
            "10.1.2.3:9464",
            "[::1]",
            "[2001:db8::1]:8080",
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "limits.example.com",
            "LIMITS.example.com:443",
            "limits.example.com.:80",
            "a.metrics.svc",
            "a.b.metrics.svc:9464",
        ];
        shown
            .iter()
            .for_each(|host| assert!(!is_refused("/status", Some(host)), "{host}"));
        let refused = [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "limits.example.com.evil.example",
            "evil-limits.example.com",
            "a.limits.example.com",
            "metrics.svc",
            "ametrics.svc",
            "127.0.0.1@evil.example",
            "",
            ":8080",
            "a b",
            "localhost..",
            "::1",
        ];
        refused
            .iter()
            .for_each(|host| assert!(is_refused("/status", Some(host)), "{host}"));
    }

    #[test]
    fn a_host_in_the_target_counts_more_than_the_field() {
        assert!(is_refused("http://evil.example/status", Some("localhost")));
        assert!(!is_refused("http://localhost/status", Some("evil.example")));
        assert!(
            !is_refused("/metrics", None),
            "HTTP/1.0 names none, and browsers do not speak it"
        );
    }

    #[test]
    fn a_unix_socket_shows_figures_under_any_name() {
        let hosts = Hosts::for_listener(&"unix:/run/s".parse().unwrap(), &[].into());
        let request = Request::builder()
            .header(HOST, "evil.example")
            .body(Body::empty())
            .unwrap();
        assert!(hosts.refuse(&request).is_none());
    }

    #[test]
    fn a_listed_name_has_labels_and_no_port() {
        for wrong in [
            "",
            "*",
            "*.",
            ".",
            "a..b",
            ".a",
            "a.",
            "a:80",
            "*.*.a",
            "a.*",
            "[::1]",
            "a b",
            "a/b",
            &"a".repeat(254),
        ] {
            assert!(HostName::parse(wrong).is_err(), "{wrong}");
        }
    }
}
