//! Which Redis a store keeps its counters in and how it is reached: a URL in fred's forms and the settings beside it, checked.
//!
//! Knows no fred. Passwords go from here to the client alone: no text that is made here repeats any part of a URL that may
//! hold one.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use url::Url;

const RIGHT: &str = "write redis://host:6379, redis://user:password@host:6379/0, redis+unix:///path/to/redis.sock, \
                     redis-sentinel://host:26379?sentinelServiceName=NAME&node=host2:26379 or \
                     redis-cluster://host:6379?node=host2:6379; rediss… is the same over TLS";
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// Most nodes that a URL may name: what answers at one tells of the others.
const NODES_MAX: usize = 64;
/// Longest prefix of names: it is sent and hashed with every key.
const KEY_PREFIX_BYTES_MAX: usize = 64;
/// Longest name of a parameter that is compared with those that are known.
const NAME_BYTES_MAX: usize = 64;
/// Names further away than this many edits are no help to offer.
const SUGGESTION_EDITS_MAX: usize = 3;

/// One Redis, however many processes it is made of.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisTarget {
    pub(super) topology: Topology,
    /// The number of the database; `None` is the first. A Cluster has no other.
    pub(super) database: Option<u8>,
    pub(super) credentials: Credentials,
    /// How TLS is spoken; `None` where it is not.
    pub(super) tls: Option<Tls>,
    /// What every name begins with; see [`Self::set_key_prefix`].
    pub(super) key_prefix: Arc<str>,
}

/// What Redis is made of.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Topology {
    /// One server.
    Alone(Peer),
    /// A server that Sentinels name, anew whenever it fails.
    Sentinel(Sentinels),
    /// Servers that have a share of the keys each; these are some that may be asked which.
    Cluster(Vec<Address>),
}

/// Who names the server.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Sentinels {
    pub(super) nodes: Vec<Address>,
    /// What they call it.
    pub(super) service: String,
    /// For the Sentinels themselves; they may have other passwords than what they watch.
    pub(super) credentials: Credentials,
}

/// What a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    Tcp(Address),
    Unix(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    /// A name or an IP address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

/// Who we are to a server. Nothing at all where it asks for nothing.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Credentials {
    pub(super) username: Option<String>,
    pub(super) password: Option<Password>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Password {
    Given(String),
    /// Read at each connection, so that it may change.
    File(PathBuf),
}

/// How TLS is spoken. Files are PEM, and read at each connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// Certificates of the authorities that are trusted. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// Our certificate, with what leads to its authority, and its key: for a server that asks who we are.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must be for. Default: the host that is connected to.
    pub server_name: Option<String>,
}

impl RedisTarget {
    /// Understands a URL. Errors: a sentence that repeats no part of it, as it may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("is no URL ({error}); {RIGHT}"))?;
        let (family, form) = scheme(&url)?;
        if url.fragment().is_some() {
            return Err("has a #; write %23 for one that is part of a password".to_owned());
        }
        let mut parameters = Parameters::of(&url, form)?;
        let credentials = credentials(&url)?;
        let database = if form == Form::Unix { None } else { database(&url)? };
        let topology = match form {
            Form::Alone => Topology::Alone(Peer::Tcp(host(&url, PORT)?)),
            Form::Unix => Topology::Alone(Peer::Unix(socket(&url)?)),
            Form::Sentinel => Topology::Sentinel(sentinels(host(&url, SENTINEL_PORT)?, parameters)?),
            Form::Cluster if database.is_some_and(|database| database > 0) => {
                return Err("names a database, and a Cluster has only the first; remove it".to_owned());
            }
            Form::Cluster => Topology::Cluster(parameters.nodes_after(host(&url, PORT)?)),
        };
        Ok(Self { topology, database, credentials, tls: family.then(Tls::default), key_prefix: Arc::default() })
    }

    /// Gives the settings for TLS. Errors: the URL does not ask for TLS.
    pub fn set_tls(&mut self, tls: Tls) -> Result<(), String> {
        if self.tls.is_none() {
            return Err("is there, and store.url does not ask for TLS; write rediss… there, or remove this".to_owned());
        }
        self.tls = Some(tls);
        Ok(())
    }

    /// Names the user to log in as. Errors: the URL names one.
    pub fn set_username(&mut self, username: String) -> Result<(), String> {
        if self.credentials.username.replace(username).is_some() {
            return Err("is there, and store.url names a user too; remove one of them".to_owned());
        }
        Ok(())
    }

    /// Names the file whose first line is the password, read at each connection. Errors: the URL holds one.
    pub fn set_password_file(&mut self, file: PathBuf) -> Result<(), String> {
        if self.credentials.password.replace(Password::File(file)).is_some() {
            return Err("is there, and store.url holds a password too; remove one of them".to_owned());
        }
        Ok(())
    }

    /// What every name in Redis begins with, so that several deployments may share one: 0 to [`KEY_PREFIX_BYTES_MAX`] ASCII
    /// letters, digits, `_`, `-`, `.`, `:` and `/`. No braces, since what stands in the first ones says in which slot of a Cluster
    /// a name is kept; nothing that has a meaning in the pattern of an ACL rule. Errors: another character, or too many.
    pub fn set_key_prefix(&mut self, prefix: &str) -> Result<(), String> {
        if prefix.len() > KEY_PREFIX_BYTES_MAX {
            return Err(format!("has {} bytes; a prefix has at most {KEY_PREFIX_BYTES_MAX}", prefix.len()));
        }
        let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
        if let Some(found) = prefix.chars().find(|c| !allowed(c)) {
            return Err(format!("holds {found:?}; a prefix has ASCII letters, digits, '_', '-', '.', ':' and '/'"));
        }
        self.key_prefix = prefix.into();
        Ok(())
    }

    /// Errors: a user that would never be logged in as.
    pub fn check(&self) -> Result<(), String> {
        let sentinels = match &self.topology {
            Topology::Sentinel(sentinels) => Some(&sentinels.credentials),
            _ => None,
        };
        if [Some(&self.credentials), sentinels].into_iter().flatten().any(|who| who.username.is_some() && who.password.is_none())
        {
            return Err("names a user and no password; write user:password@, or any word for a user that needs none".to_owned());
        }
        Ok(())
    }

    /// Which settings are not the same in both.
    pub fn unlike(&self, other: &Self) -> Vec<&'static str> {
        let Self { topology, database, credentials, tls, key_prefix } = self;
        let unlike = [
            ("store.url", (topology, database) != (&other.topology, &other.database)),
            ("store.tls", *tls != other.tls),
            ("store.username or store.password_file", *credentials != other.credentials),
            ("store.key_prefix", *key_prefix != other.key_prefix),
        ];
        unlike.into_iter().filter_map(|(path, unlike)| unlike.then_some(path)).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Alone,
    Unix,
    Sentinel,
    Cluster,
}

/// Whether it is over TLS, and what follows.
fn scheme(url: &Url) -> Result<(bool, Form), String> {
    let forms = [("", Form::Alone), ("+unix", Form::Unix), ("-sentinel", Form::Sentinel), ("-cluster", Form::Cluster)];
    let families = [("rediss", true), ("valkeys", true), ("redis", false), ("valkey", false)];
    let known = families.iter().flat_map(|family| forms.iter().map(move |form| (family, form)));
    let found = known.into_iter().find(|(family, form)| url.scheme().strip_prefix(family.0) == Some(form.0));
    match found {
        Some(((_, true), (_, Form::Unix))) => Err("asks for TLS on a socket of this host; write redis+unix://".to_owned()),
        Some((family, form)) => Ok((family.1, form.1)),
        None => Err(format!("has a scheme that is no store's; {RIGHT}")),
    }
}

fn host(url: &Url, port: u16) -> Result<Address, String> {
    let host = url.host_str().unwrap_or("").trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(format!("names no host; {RIGHT}"));
    }
    Ok(Address { host: host.to_owned(), port: url.port().unwrap_or(port) })
}

fn socket(url: &Url) -> Result<PathBuf, String> {
    match decoded(url.path())?.as_str() {
        path if url.cannot_be_a_base() || path.len() < 2 => Err(format!("names no socket; {RIGHT}")),
        path => Ok(path.into()),
    }
}

fn database(url: &Url) -> Result<Option<u8>, String> {
    match url.path().trim_start_matches('/') {
        "" => Ok(None),
        number => number.parse().map(Some).map_err(|_| format!("has a path that is no number of a database, 0 to 255; {RIGHT}")),
    }
}

fn credentials(url: &Url) -> Result<Credentials, String> {
    let username = decoded(url.username())?;
    let password = decoded(url.password().unwrap_or(""))?;
    Ok(Credentials {
        username: Some(username).filter(|username| !username.is_empty()),
        password: Some(password).filter(|password| !password.is_empty()).map(Password::Given),
    })
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| "holds bytes that are no UTF-8 behind its % signs".to_owned())
}

fn sentinels(first: Address, mut parameters: Parameters) -> Result<Sentinels, String> {
    let (username, password) = (parameters.username.take(), parameters.password.take());
    let service = parameters.service.take().filter(|service| !service.is_empty());
    let service = service.ok_or("does not say what the Sentinels call the server; add ?sentinelServiceName=NAME")?;
    let credentials = Credentials { username, password: password.map(Password::Given) };
    Ok(Sentinels { nodes: parameters.nodes_after(first), service, credentials })
}

/// What stands behind the question mark.
#[derive(Default)]
struct Parameters {
    nodes: Vec<Address>,
    service: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Parameters {
    fn of(url: &Url, form: Form) -> Result<Self, String> {
        let known: &[&str] = match form {
            Form::Alone | Form::Unix => &[],
            Form::Cluster => &["node"],
            Form::Sentinel => &["node", "sentinelServiceName", "sentinelUsername", "sentinelPassword"],
        };
        let mut parameters = Self::default();
        for (name, value) in url.query_pairs() {
            let Some(name) = known.iter().find(|known| **known == name) else { return Err(unknown(known, &name)) };
            let slot = match *name {
                "sentinelServiceName" => &mut parameters.service,
                "sentinelUsername" => &mut parameters.username,
                "sentinelPassword" => &mut parameters.password,
                _ => {
                    parameters.nodes.push(node(&value)?);
                    continue;
                }
            };
            if slot.replace(value.into_owned()).is_some() {
                return Err(format!("says {name} twice; remove one of them"));
            }
        }
        if parameters.nodes.len() >= NODES_MAX {
            return Err(format!("names more than {NODES_MAX} nodes; some are enough"));
        }
        Ok(parameters)
    }

    /// All nodes, each once.
    fn nodes_after(&mut self, first: Address) -> Vec<Address> {
        let mut nodes = vec![first];
        for node in self.nodes.drain(..) {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }
}

/// Does not repeat the name: in a URL whose password has a question mark, that is what stands behind it.
fn unknown(known: &[&str], name: &str) -> String {
    // Comparing takes time and memory by the product of both lengths.
    let near = known
        .iter()
        .filter(|_| name.len() <= NAME_BYTES_MAX)
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .min();
    match near {
        Some((edits, known)) if edits <= SUGGESTION_EDITS_MAX => {
            format!("has a parameter that is not known here; did you mean {known}?")
        }
        None if known.is_empty() => format!("has parameters, and none are known here (write %3F for a ? in a password); {RIGHT}"),
        _ => format!("has a parameter that is not known here (write %3F for a ? in a password); there are {}", known.join(", ")),
    }
}

fn node(text: &str) -> Result<Address, String> {
    let address = text.rsplit_once(':').and_then(|(host, port)| {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Some(Address { host: host.to_owned(), port: port.parse().ok()? }).filter(|address| !address.host.is_empty())
    });
    address.ok_or_else(|| "has a node that is no host:port; write &node=host2:6379 for each further one".to_owned())
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(out, "[{}]:{}", self.host, self.port)
        } else {
            write!(out, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(out, "{address}"),
            Self::Unix(path) => write!(out, "{}", path.display()),
        }
    }
}

/// Without users and passwords: fit for logs.
impl fmt::Display for RedisTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.tls.is_some() { "rediss" } else { "redis" };
        let list = |nodes: &[Address]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        match &self.topology {
            Topology::Alone(Peer::Unix(path)) => write!(out, "{family}+unix://{}", path.display())?,
            Topology::Alone(Peer::Tcp(address)) => write!(out, "{family}://{address}")?,
            Topology::Cluster(nodes) => write!(out, "{family}-cluster://{}", list(nodes))?,
            Topology::Sentinel(Sentinels { nodes, service, .. }) => {
                write!(out, "{family}-sentinel://{}?sentinelServiceName={service}", list(nodes))?;
            }
        }
        self.database.map_or(Ok(()), |database| write!(out, "/{database}"))
    }
}

impl fmt::Debug for RedisTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RedisTarget({self})")
    }
}

#[cfg(test)]
mod tests;
