//! Listen addresses: parsing them, and the sockets bound to them.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream};

use super::socket::Accepted;
use crate::tls::Tls;

/// Prefix of a TCP address that is not encrypted, even where TLS is configured.
const PLAINTEXT: &str = "plaintext:";
/// Default permissions of a Unix socket: only the user that runs this process may connect.
const MODE_DEFAULT: u32 = 0o600;
const MODE_MAX: u32 = 0o777;

/// An address to listen at: `host:port` (port 0 means any free port), `plaintext:host:port`, or `unix:/path`.
///
/// `?mode=0660` at the end of a Unix path says who may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp {
        /// As `host:port`.
        at: String,
        /// Whether the address was written with the prefix `plaintext:`.
        plaintext: bool,
    },
    /// A socket in the file system.
    Unix {
        /// The path of the socket file.
        path: PathBuf,
        /// Permissions of the file. Connecting needs write permission. Default: 0600.
        mode: u32,
    },
}

impl Address {
    /// Whether only this host can reach the address, judged by its text: a Unix socket, a loopback address, or `localhost`.
    pub fn is_local(&self) -> bool {
        let Self::Tcp { at, .. } = self else {
            return true;
        };
        let host = at.rsplit_once(':').map_or(at.as_str(), |(host, _)| host);
        let address = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>();
        address.map_or(host.eq_ignore_ascii_case("localhost"), |address| {
            address.to_canonical().is_loopback()
        })
    }

    /// Whether the two cannot both be bound, judged by their texts. They cannot if their ports are the same, and their
    /// hosts are, or one is every address of the host. Port 0 is any free port.
    pub fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unix { path, .. }, Self::Unix { path: other, .. }) => path == other,
            (Self::Tcp { at, .. }, Self::Tcp { at: other, .. }) => {
                let (Some((host, port)), Some((other, other_port))) =
                    (at.rsplit_once(':'), other.rsplit_once(':'))
                else {
                    return false;
                };
                let is_every = |host: &str| matches!(host, "0.0.0.0" | "[::]");
                let same = host.eq_ignore_ascii_case(other) || is_every(host) || is_every(other);
                same && port.parse::<u16>() == other_port.parse() && port.parse() != Ok(0_u16)
            }
            _ => false,
        }
    }
}

impl std::str::FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let invalid = || AddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return parse_unix(path).ok_or_else(invalid);
        }
        let (at, plaintext) = text
            .strip_prefix(PLAINTEXT)
            .map_or((text, false), |at| (at, true));
        let parts = at
            .rsplit_once(':')
            .filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        // Without brackets, the last group of an IPv6 address would be read as a port.
        let is_unambiguous =
            |host: &str| !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
        // Addresses appear in error messages and log lines, so they must not contain control characters or spaces.
        let valid = parts.is_some_and(|(host, _)| {
            is_unambiguous(host) && host.bytes().all(|byte| byte.is_ascii_graphic())
        });
        if valid {
            Ok(Self::Tcp {
                at: at.to_owned(),
                plaintext,
            })
        } else {
            Err(invalid())
        }
    }
}

fn parse_unix(text: &str) -> Option<Address> {
    let (path, mode) = match text.rsplit_once("?mode=") {
        Some((path, mode)) => (
            path,
            u32::from_str_radix(mode, 8)
                .ok()
                .filter(|mode| *mode <= MODE_MAX)?,
        ),
        None => (text, MODE_DEFAULT),
    };
    let path = path.strip_prefix("//").unwrap_or(path);
    let valid = path.starts_with('/') && !path.contains(char::is_control);
    valid.then(|| Address::Unix {
        path: path.into(),
        mode,
    })
}

impl fmt::Display for Address {
    /// Writes the address as a client would connect to it, without what only the server needs.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { at, .. } => out.write_str(at),
            Self::Unix { path, .. } => write!(out, "unix:{}", path.display()),
        }
    }
}

/// The text is not a valid address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an address; write host:port, such as 127.0.0.1:50051 or [::1]:50051, or unix:/path/to/socket, with ?mode=0660 \
     at its end for its permissions"
)]
pub struct AddressError(String);

/// A bound socket and its actual address. Dropping it closes the socket and removes the file of a Unix socket.
#[derive(Debug)]
pub struct Listener {
    bound: Bound,
    address: Address,
    tls: Option<Arc<Tls>>,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener),
    /// The file is removed before the socket is closed, so that no client finds a socket file that refuses.
    Unix {
        _file: SocketFile,
        listener: UnixListener,
    },
}

/// An address could not be bound: it is in use, does not belong to this host, or needs a permission.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}: {cause}{}", hint(address, cause))]
pub struct BindError {
    address: Address,
    cause: io::Error,
}

impl Listener {
    /// Binds an address. Replaces a Unix socket that no process listens at any more.
    pub async fn bind(address: &Address) -> Result<Self, BindError> {
        let bound = match address {
            Address::Tcp { at, plaintext } => bind_tcp(at, *plaintext).await,
            Address::Unix { path, mode } => bind_unix(path, *mode)
                .await
                .map(|bound| (bound, address.clone())),
        };
        let bound = bound.map(|(bound, address)| Self {
            bound,
            address,
            tls: None,
        });
        bound.map_err(|cause| BindError {
            address: address.clone(),
            cause,
        })
    }

    /// Requires TLS of callers. Unix sockets and addresses with `plaintext:` stay unencrypted.
    pub fn with_tls(self, tls: Arc<Tls>) -> Self {
        match self.address {
            Address::Tcp {
                plaintext: false, ..
            } => Self {
                tls: Some(tls),
                ..self
            },
            _ => self,
        }
    }

    /// Whether callers must use TLS.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Stops listening and returns the connections that were established but not yet accepted.
    pub(crate) fn close(self) -> Vec<Accepted> {
        let tls = self.tls;
        match self.bound {
            Bound::Tcp(listener) => {
                let Ok(listener) = listener.into_std() else {
                    return Vec::new();
                };
                let waiting = std::iter::from_fn(|| listener.accept().ok());
                waiting
                    .filter_map(|(stream, _)| into_accepted(stream, tls.as_ref()).ok())
                    .collect()
            }
            Bound::Unix { _file, listener } => {
                // Without the file, no further client can connect.
                drop(_file);
                let Ok(listener) = listener.into_std() else {
                    return Vec::new();
                };
                let waiting = std::iter::from_fn(|| listener.accept().ok());
                let into_accepted = |stream: StdUnixStream| {
                    stream
                        .set_nonblocking(true)
                        .map(|()| Accepted::Unix(stream))
                };
                waiting
                    .filter_map(|(stream, _)| into_accepted(stream).ok())
                    .collect()
            }
        }
    }

    /// Waits for a connection. Errors are those of the system; most of them are temporary, see [`super::acceptor`].
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match &self.bound {
            Bound::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                into_accepted(stream.into_std()?, self.tls.as_ref())
            }
            Bound::Unix { listener, .. } => {
                listener.accept().await?.0.into_std().map(Accepted::Unix)
            }
        }
    }

    /// The address. Port 0 is replaced by the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.bound {
            Bound::Tcp(listener) => listener.as_fd(),
            Bound::Unix { listener, .. } => listener.as_fd(),
        }
    }
}

fn into_accepted(stream: StdTcpStream, tls: Option<&Arc<Tls>>) -> io::Result<Accepted> {
    // A connection on which TCP_NODELAY cannot be set is slower but still works.
    drop(stream.set_nodelay(true));
    stream.set_nonblocking(true)?;
    Ok(match tls {
        Some(tls) => Accepted::Tls(stream, tls.clone()),
        None => Accepted::Tcp(stream),
    })
}

/// Binds the first address of a name that can be bound.
async fn bind_tcp(at: &str, plaintext: bool) -> io::Result<(Bound, Address)> {
    let mut failed = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in tokio::net::lookup_host(at).await? {
        match listen(address) {
            Ok(listener) => {
                let at = listener.local_addr()?.to_string();
                return Ok((Bound::Tcp(listener), Address::Tcp { at, plaintext }));
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // Without it, a restart would have to wait until the system forgets the previous process's connections.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Connections that may wait to be accepted; the system's own limit may be lower. When a replica returns, all its clients
/// connect at once. A client that finds no room retries only a second later.
const BACKLOG: u32 = 4096;

/// Binds a Unix socket. The mode is set before the socket listens, so at no moment can a process connect that `mode`
/// excludes.
async fn bind_unix(path: &Path, mode: u32) -> io::Result<Bound> {
    remove_stale(path).await;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let file = SocketFile::new(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    socket.listen(BACKLOG).map(|listener| Bound::Unix {
        _file: file,
        listener,
    })
}

/// The file of a Unix socket. Dropping it removes the file, unless another file has replaced it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.into(),
            identity: identity(path)?,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // If this fails, the next start finds a socket that refuses, and removes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Removes the socket file of a process that has died. A socket that answers, or a file that is not a socket, stays; `bind`
/// then fails.
async fn remove_stale(path: &Path) {
    let refused = UnixStream::connect(path)
        .await
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if refused && is_socket(path) {
        // If this fails, `bind` reports the reason.
        let _ = std::fs::remove_file(path);
    }
}

fn hint(address: &Address, cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse if matches!(address, Address::Unix { path, .. } if !is_socket(path)) => {
            "; something that is no socket has this name: remove it, or set another path"
        }
        io::ErrorKind::AddrInUse => {
            "; another process listens there: stop it, or set another address"
        }
        io::ErrorKind::AddrNotAvailable => "; this host does not have that address",
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 and directories of other users need a permission"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests;
