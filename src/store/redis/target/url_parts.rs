//! The parts of a store's URL.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::Url;

use super::parameters::UrlParameters;
use super::{
    Credentials, HostAndPort, PORT, Password, RIGHT, SENTINEL_PORT, Sentinels, ServerAddress,
    Topology,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UrlForm {
    Alone,
    Unix,
    Sentinel,
    Cluster,
}

/// Splits the scheme of a URL: whether it uses TLS, and the form of the rest.
pub(super) fn scheme(url: &Url) -> Result<(bool, UrlForm), String> {
    let forms = [
        ("", UrlForm::Alone),
        ("+unix", UrlForm::Unix),
        ("-sentinel", UrlForm::Sentinel),
        ("-cluster", UrlForm::Cluster),
    ];
    let families = [
        ("rediss", true),
        ("valkeys", true),
        ("redis", false),
        ("valkey", false),
    ];
    let known = families
        .iter()
        .flat_map(|family| forms.iter().map(move |form| (family, form)));
    let found = known
        .into_iter()
        .find(|(family, form)| url.scheme().strip_prefix(family.0) == Some(form.0));
    match found {
        Some(((_, true), (_, UrlForm::Unix))) => {
            Err("asks for TLS on a socket of this host; write redis+unix://".to_owned())
        }
        Some((family, form)) => Ok((family.1, form.1)),
        None => Err(format!("has a scheme that is not a store's; {RIGHT}")),
    }
}

fn host(url: &Url, port: u16) -> Result<HostAndPort, String> {
    let host = url
        .host_str()
        .unwrap_or("")
        .trim_start_matches('[')
        .trim_end_matches(']');
    if host.is_empty() {
        return Err(format!("names no host; {RIGHT}"));
    }
    Ok(HostAndPort {
        host: host.to_owned(),
        port: url.port().unwrap_or(port),
    })
}

fn socket(url: &Url) -> Result<PathBuf, String> {
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    // A URL may have these only before a host.
    let has_credentials = !url.username().is_empty() || url.password().is_some();
    match decoded(url.path())?.as_str() {
        path if url.cannot_be_a_base() || path.len() < 2 => {
            Err(format!("names no socket; {RIGHT}"))
        }
        // Else the first part of a path would be passed over.
        _ if has_host && !has_credentials => Err(format!(
            "names a host before the path of a socket, which begins with a third slash; {RIGHT}"
        )),
        path => Ok(path.into()),
    }
}

pub(super) fn database(url: &Url) -> Result<Option<u8>, String> {
    match url.path().trim_start_matches('/') {
        "" => Ok(None),
        number => number
            .parse()
            .map(Some)
            .map_err(|_| format!("has a path that is not a database number, 0 to 255; {RIGHT}")),
    }
}

pub(super) fn credentials(url: &Url) -> Result<Credentials, String> {
    let username = decoded(url.username())?;
    let password = decoded(url.password().unwrap_or(""))?;
    Ok(Credentials {
        username: Some(username).filter(|username| !username.is_empty()),
        password: Some(password)
            .filter(|password| !password.is_empty())
            .map(Password::Given),
    })
}

pub(super) fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded
        .map(String::from)
        .map_err(|_| "has percent-encoded bytes that are not UTF-8".to_owned())
}

pub(super) fn topology(
    url: &Url,
    form: UrlForm,
    mut parameters: UrlParameters,
    database: Option<u8>,
) -> Result<Topology, String> {
    Ok(match form {
        UrlForm::Alone => Topology::Alone(ServerAddress::Tcp(host(url, PORT)?)),
        UrlForm::Unix => Topology::Alone(ServerAddress::Unix(socket(url)?)),
        UrlForm::Sentinel => Topology::Sentinel(sentinels(host(url, SENTINEL_PORT)?, parameters)?),
        UrlForm::Cluster if database.is_some_and(|database| database > 0) => {
            return Err("names a database, and a Cluster has only the first; remove it".to_owned());
        }
        UrlForm::Cluster => Topology::Cluster(parameters.nodes_after(host(url, PORT)?)),
    })
}

fn sentinels(first: HostAndPort, mut parameters: UrlParameters) -> Result<Sentinels, String> {
    let username = parameters.username.take();
    let password = parameters.password.take();
    let service = parameters
        .service
        .take()
        .filter(|service| !service.is_empty());
    let service = service.ok_or(
        "does not name the master that the Sentinels watch; add ?sentinelServiceName=NAME",
    )?;
    let credentials = Credentials {
        username,
        password: password.map(Password::Given),
    };
    Ok(Sentinels {
        nodes: parameters.nodes_after(first),
        service,
        credentials,
    })
}

pub(super) fn node(text: &str) -> Result<HostAndPort, String> {
    let address = text.rsplit_once(':').and_then(|(host, port)| {
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        Some(HostAndPort {
            host: host.to_owned(),
            port: port.parse().ok()?,
        })
        // A list would be one name, which is never found.
        .filter(|address| !address.host.is_empty() && !address.host.contains([',', '/', '@', ' ']))
    });
    address.ok_or_else(|| {
        "has a node that is not host:port; write &node=host2:6379 for each further one".to_owned()
    })
}
