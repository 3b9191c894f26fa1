//! The address of a Redis and how to connect to it, checked. It comes from a URL in fred's forms and the settings beside it.
//!
//! It does not use fred. Passwords go from here only to the client: no text that is made here repeats a part of a URL that
//! may hold a password.

mod parameters;
mod url_parts;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use url::Url;

use parameters::UrlParameters;
use url_parts::{UrlForm, credentials, database, scheme, topology};

const RIGHT: &str = "write redis://host:6379, redis://user:password@host:6379/0, redis+unix:///path/to/redis.sock, \
                     redis-sentinel://host:26379?sentinelServiceName=NAME&node=host2:26379 or \
                     redis-cluster://host:6379?node=host2:6379; rediss… is the same over TLS";
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// Maximum number of nodes that a URL may name. One that answers knows the others, so more are not needed.
const NODES_MAX: usize = 64;
/// Longest key prefix in bytes. It is sent and hashed with every key.
const KEY_PREFIX_BYTES_MAX: usize = 64;

/// One Redis deployment: its servers and how to connect to them.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisTarget {
    pub(super) topology: Topology,
    /// The number of the database; `None` is the first. A Cluster has only the first.
    pub(super) database: Option<u8>,
    pub(super) credentials: Credentials,
    /// The TLS settings; `None` for connections without TLS.
    pub(super) tls: Option<RedisTls>,
    /// The prefix of every key name; see [`Self::set_key_prefix`].
    pub(super) key_prefix: Arc<str>,
}

/// The servers of a Redis deployment.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Topology {
    /// One server.
    Alone(ServerAddress),
    /// The server that Sentinels name as master, which changes at a failover.
    Sentinel(Sentinels),
    /// Servers that have a share of the keys each. These are some of them, which are asked for the others.
    Cluster(Vec<HostAndPort>),
}

/// The Sentinels that name the master.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Sentinels {
    pub(super) nodes: Vec<HostAndPort>,
    /// The name of the master at the Sentinels.
    pub(super) service: String,
    /// Credentials for the Sentinels. They may differ from those of the servers that they watch.
    pub(super) credentials: Credentials,
}

/// The address of one server: TCP or a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ServerAddress {
    Tcp(HostAndPort),
    Unix(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HostAndPort {
    /// A host name or an IP address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

/// The user and the password for a server. Both are `None` for a server without authentication.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Credentials {
    pub(super) username: Option<String>,
    pub(super) password: Option<Password>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Password {
    Given(String),
    /// Read for each connection, so that it may change.
    File(PathBuf),
}

/// TLS settings of connections. Files are PEM, and are read for each connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedisTls {
    /// Certificates of the trusted authorities. Default: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Our certificate chain and our private key, for servers that require client certificates.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must have. Default: the host of the connection.
    pub server_name: Option<String>,
}

impl RedisTarget {
    /// Parses a URL. Errors: a sentence that repeats no part of the URL, since it may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("is not a URL ({error}); {RIGHT}"))?;
        let (family, form) = scheme(&url)?;
        if url.fragment().is_some() {
            return Err("has a #; write %23 for one that is part of a password".to_owned());
        }
        let parameters = UrlParameters::from_url(&url, form)?;
        let credentials = credentials(&url)?;
        let database = if form == UrlForm::Unix {
            None
        } else {
            database(&url)?
        };
        Ok(Self {
            topology: topology(&url, form, parameters, database)?,
            database,
            credentials,
            tls: family.then(RedisTls::default),
            key_prefix: Arc::default(),
        })
    }

    /// Sets the TLS settings. Errors: the URL does not ask for TLS.
    pub fn set_tls(&mut self, tls: RedisTls) -> Result<(), String> {
        if self.tls.is_none() {
            return Err(
                "is set, but store.url does not ask for TLS; write rediss… there, or remove this"
                    .to_owned(),
            );
        }
        self.tls = Some(tls);
        Ok(())
    }

    /// Sets the user to log in as. Errors: the URL names a user.
    pub fn set_username(&mut self, username: String) -> Result<(), String> {
        if self.credentials.username.replace(username).is_some() {
            return Err("is set, and store.url names a user too; remove one of them".to_owned());
        }
        Ok(())
    }

    /// Sets the file whose first line is the password. It is read for each connection. Errors: the URL holds a password.
    pub fn set_password_file(&mut self, file: PathBuf) -> Result<(), String> {
        if self
            .credentials
            .password
            .replace(Password::File(file))
            .is_some()
        {
            return Err(
                "is set, and store.url holds a password too; remove one of them".to_owned(),
            );
        }
        Ok(())
    }

    /// Sets the prefix of every key name, so that several deployments may share one Redis. It has 0 to [`KEY_PREFIX_BYTES_MAX`]
    /// ASCII letters, digits, `_`, `-`, `.`, `:` and `/`. Braces are not allowed, since the first braces in a name select its
    /// slot in a Cluster. Neither are characters with a meaning in the patterns of ACL rules. Errors: another character, or too
    /// many.
    pub fn set_key_prefix(&mut self, prefix: &str) -> Result<(), String> {
        if prefix.len() > KEY_PREFIX_BYTES_MAX {
            return Err(format!(
                "has {} bytes; a prefix has at most {KEY_PREFIX_BYTES_MAX}",
                prefix.len()
            ));
        }
        let allowed =
            |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
        if let Some(found) = prefix.chars().find(|c| !allowed(c)) {
            return Err(format!(
                "holds {found:?}; a prefix has ASCII letters, digits, '_', '-', '.', ':' and '/'"
            ));
        }
        self.key_prefix = prefix.into();
        Ok(())
    }

    /// Checks that all settings fit together. Errors: a user without a password, who would never be logged in.
    pub fn check(&self) -> Result<(), String> {
        let sentinels = match &self.topology {
            Topology::Sentinel(sentinels) => Some(&sentinels.credentials),
            _ => None,
        };
        if [Some(&self.credentials), sentinels]
            .into_iter()
            .flatten()
            .any(|who| who.username.is_some() && who.password.is_none())
        {
            return Err("names a user and no password; write user:password@, or any word for a user that needs none".to_owned());
        }
        Ok(())
    }

    /// Names of the settings in which the two targets differ.
    pub fn changed_settings(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            topology,
            database,
            credentials,
            tls,
            key_prefix,
        } = self;
        let changed = [
            (
                "store.url",
                (topology, database) != (&other.topology, &other.database),
            ),
            ("store.tls", *tls != other.tls),
            (
                "store.username or store.password_file",
                *credentials != other.credentials,
            ),
            ("store.key_prefix", *key_prefix != other.key_prefix),
        ];
        changed
            .into_iter()
            .filter_map(|(path, unlike)| unlike.then_some(path))
            .collect()
    }
}

impl fmt::Display for HostAndPort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(out, "[{}]:{}", self.host, self.port)
        } else {
            write!(out, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(out, "{address}"),
            Self::Unix(path) => write!(out, "{}", path.display()),
        }
    }
}

impl RedisTarget {
    fn write_database(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.database
            .map_or(Ok(()), |database| write!(out, "/{database}"))
    }
}

/// Shows no users and passwords, so it may be logged.
impl fmt::Display for RedisTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        let list = |nodes: &[HostAndPort]| {
            nodes
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(",")
        };
        match &self.topology {
            Topology::Alone(ServerAddress::Unix(path)) => {
                write!(out, "{family}+unix://{}", path.display())?
            }
            Topology::Alone(ServerAddress::Tcp(address)) => write!(out, "{family}://{address}")?,
            Topology::Cluster(nodes) => write!(out, "{family}-cluster://{}", list(nodes))?,
            Topology::Sentinel(Sentinels { nodes, service, .. }) => {
                write!(out, "{family}-sentinel://{}", list(nodes))?;
                self.write_database(out)?;
                return write!(out, "?sentinelServiceName={service}");
            }
        }
        self.write_database(out)
    }
}

impl fmt::Debug for RedisTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RedisTarget({self})")
    }
}

#[cfg(test)]
mod tests;
