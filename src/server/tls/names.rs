//! Compares the names in a caller's certificate with the names that the config accepts. Pure.
//!
//! A name is compared only with names of its own type: a URI that looks like a DNS name does not match one. DNS names follow
//! RFC 6125 without wildcards. URIs follow SPIFFE (SPIFFE-ID, section 2; X509-SVID, sections 2 and 5).

use std::fmt;

use rustls::pki_types::DnsName;

/// Separates the scheme of a URI from its authority.
const AUTHORITY: &str = "://";

/// A name from a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientName(ListedName);

/// A name in `listen.tls.client_names`, by its type.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ListedName {
    /// Compared without regard to case.
    Dns(String),
    /// Compared byte by byte.
    Uri(String),
    /// All URIs below this one, which ends in a `/`.
    Below(String),
}

/// A name from a certificate, with its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificateName<'a> {
    Dns(&'a str),
    Uri(&'a str),
}

impl ClientName {
    /// Parses a name: a URI if it contains `://`, else a DNS name. A URI may end in `/*`, which stands for everything below it.
    ///
    /// Errors: how to write a name. The text continues a sentence such as `client_names[0] is wrong; `.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let Some((scheme, rest)) = text.split_once(AUTHORITY) else {
            return match DnsName::try_from(text) {
                Ok(_) => Ok(Self(ListedName::Dns(text.to_owned()))),
                Err(_) => Err(
                    "write a DNS name without a wildcard, such as shop.house, or a URI, such as spiffe://house/shop",
                ),
            };
        };
        let (path_of, listed): (&str, fn(String) -> ListedName) = match rest.strip_suffix('*') {
            Some(begin) if begin.ends_with('/') => (begin.trim_end_matches('/'), ListedName::Below),
            Some(_) => {
                return Err(
                    "a * stands for everything below a path, so a / must be before it: spiffe://house/*",
                );
            }
            None => (rest, ListedName::Uri),
        };
        let whole = rest.strip_suffix('*').unwrap_or(rest);
        if scheme.is_empty()
            || path_of.is_empty()
            || path_of.contains('*')
            || whole.contains("//")
            || !is_plain(path_of)
        {
            return Err(
                "write a URI with an authority, and a path of letters, digits and - _ . ~ : @ ! $ & ' ( ) + , ; = \
                        without . or .. or an empty part",
            );
        }
        Ok(Self(listed(format!("{scheme}{AUTHORITY}{whole}"))))
    }

    fn matches(&self, name: CertificateName<'_>) -> bool {
        match (&self.0, name) {
            (ListedName::Dns(listed), CertificateName::Dns(name)) => {
                name.eq_ignore_ascii_case(listed)
            }
            (ListedName::Uri(listed), CertificateName::Uri(uri)) => uri == listed,
            // The rest of the path is plain, so it cannot lead back up.
            (ListedName::Below(begin), CertificateName::Uri(uri)) => {
                uri.strip_prefix(begin.as_str()).is_some_and(is_plain)
            }
            (ListedName::Dns(_), CertificateName::Uri(_))
            | (ListedName::Uri(_) | ListedName::Below(_), CertificateName::Dns(_)) => false,
        }
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ListedName::Dns(name) | ListedName::Uri(name) => out.write_str(name),
            ListedName::Below(begin) => write!(out, "{begin}*"),
        }
    }
}

/// Whether one of the configured names is in the certificate.
///
/// A certificate with a SPIFFE ID must have no other URI. If it has one, it is ambiguous, and none of its URIs counts.
pub(super) fn any_matches(listed: &[ClientName], names: &[CertificateName<'_>]) -> bool {
    let uris = || {
        names
            .iter()
            .filter(|name| matches!(name, CertificateName::Uri(_)))
    };
    let spiffe = |name: &&CertificateName<'_>| matches!(name, CertificateName::Uri(uri) if has_scheme(uri, "spiffe"));
    let ambiguous = uris().count() > 1 && uris().any(|name| spiffe(&name));
    let counts =
        |name: &&CertificateName<'_>| matches!(name, CertificateName::Dns(_)) || !ambiguous;
    names
        .iter()
        .filter(counts)
        .any(|name| listed.iter().any(|listed| listed.matches(*name)))
}

fn has_scheme(uri: &str, scheme: &str) -> bool {
    uri.split_once(':')
        .is_some_and(|(found, _)| found.eq_ignore_ascii_case(scheme))
}

/// Whether no part between slashes is empty, `.` or `..`, and every byte is allowed. `%`, `\`, `?` and `#` are not allowed,
/// since they could hide such a part or end the path.
fn is_plain(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~:@!$&'()+,;=".contains(&byte);
    path.split('/')
        .all(|part| !matches!(part, "" | "." | "..") && part.bytes().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use CertificateName::{Dns, Uri};

    fn matches(listed: &str, name: CertificateName<'_>) -> bool {
        any_matches(&[ClientName::parse(listed).unwrap()], &[name])
    }

    #[test]
    fn a_name_is_compared_with_names_of_its_own_type_only() {
        for (listed, name, same) in [
            ("shop.house", Dns("shop.house"), true),
            ("shop.house", Dns("Shop.House"), true),
            ("shop.house", Uri("shop.house"), false),
            ("shop.house", Uri("URI:shop.house"), false),
            ("shop.house", Uri("dns:shop.house"), false),
            ("shop.house", Dns("till.shop.house"), false),
            ("shop.house", Dns("*.house"), false),
            ("shop.house", Dns("shop.house."), false),
            ("spiffe://house/shop", Uri("spiffe://house/shop"), true),
            ("spiffe://house/shop", Dns("spiffe://house/shop"), false),
            (
                "spiffe://house/shop",
                Uri("spiffe://house/shop/till"),
                false,
            ),
            ("spiffe://house/shop", Uri("spiffe://House/shop"), false),
            ("spiffe://house/shop", Uri("spiffe://house/shop/"), false),
        ] {
            assert_eq!(matches(listed, name), same, "{listed} {name:?}");
        }
    }

    #[test]
    fn a_star_matches_paths_below_and_nothing_else() {
        for (listed, uri, same) in [
            ("spiffe://house/*", "spiffe://house/shop", true),
            ("spiffe://house/*", "spiffe://house/shop/till", true),
            (
                "spiffe://house/ns/*",
                "spiffe://house/ns/a.b-c_d/sa/1",
                true,
            ),
            ("spiffe://house/*", "spiffe://house", false),
            ("spiffe://house/*", "spiffe://house/", false),
            ("spiffe://house/*", "spiffe://house.evil/shop", false),
            ("spiffe://house/*", "spiffe://house:1/shop", false),
            ("spiffe://house/*", "spiffe://housemate/shop", false),
            ("spiffe://house/*", "spiffe://evil@house/shop", false),
            ("spiffe://house/ns/*", "spiffe://house/nsx/a", false),
            ("spiffe://house/ns/*", "spiffe://house/ns", false),
            ("spiffe://house/ns/*", "spiffe://house/ns/../admin", false),
            ("spiffe://house/ns/*", "spiffe://house/ns/..", false),
            ("spiffe://house/ns/*", "spiffe://house/ns/./a", false),
            ("spiffe://house/ns/*", "spiffe://house/ns//a", false),
            ("spiffe://house/ns/*", "spiffe://house/ns/a/", false),
            (
                "spiffe://house/ns/*",
                "spiffe://house/ns/%2e%2e/admin",
                false,
            ),
            ("spiffe://house/ns/*", "spiffe://house/ns/%2E./admin", false),
            ("spiffe://house/ns/*", "spiffe://house/ns/..%2fadmin", false),
            (
                "spiffe://house/ns/*",
                "spiffe://house/ns/a%2f..%2f..%2fadmin",
                false,
            ),
            ("spiffe://house/ns/*", "spiffe://house/ns/..\\admin", false),
            ("spiffe://house/ns/*", "spiffe://house/ns/a?b", false),
            ("spiffe://house/ns/*", "spiffe://house/ns/a#b", false),
        ] {
            assert_eq!(matches(listed, Uri(uri)), same, "{listed} {uri}");
        }
    }

    #[test]
    fn of_two_uris_beside_a_spiffe_id_neither_counts() {
        let listed = [
            ClientName::parse("spiffe://house/shop").unwrap(),
            ClientName::parse("shop.house").unwrap(),
        ];
        assert!(any_matches(
            &listed,
            &[Uri("spiffe://house/shop"), Dns("other")]
        ));
        assert!(!any_matches(
            &listed,
            &[Uri("spiffe://house/shop"), Uri("spiffe://house/till")]
        ));
        assert!(!any_matches(
            &listed,
            &[
                Uri("https://house/"),
                Uri("SPIFFE://house/shop"),
                Uri("spiffe://house/shop")
            ]
        ));
        assert!(any_matches(
            &listed,
            &[
                Uri("spiffe://house/shop"),
                Uri("spiffe://house/till"),
                Dns("shop.house")
            ]
        ));
    }

    #[test]
    fn a_name_that_could_match_more_than_it_shows_is_refused() {
        for text in [
            "shop",
            "shop.house",
            "spiffe://house",
            "spiffe://house/shop",
            "spiffe://house/*",
            "https://a:1/b/c/*",
        ] {
            assert_eq!(
                ClientName::parse(text)
                    .map(|name| name.to_string())
                    .as_deref(),
                Ok(text)
            );
        }
        for text in [
            "",
            "*",
            "*.house",
            "shop.*",
            "URI:shop.house",
            "shop house",
            "spiffe:house/shop",
            "://house/shop",
            "spiffe://",
            "spiffe:///shop",
            "spiffe://*",
            "spiffe:///*",
            "spiffe://house*",
            "spiffe://house/ns*",
            "spiffe://house/*/shop",
            "spiffe://house/**",
            "spiffe://house/ns/../*",
            "spiffe://house/./shop",
            "spiffe://house//shop",
            "spiffe://house//*",
            "spiffe://house/shop/",
            "spiffe://house/%2e%2e/shop",
            "spiffe://house/shop?a",
        ] {
            assert!(ClientName::parse(text).is_err(), "{text}");
        }
    }
}
