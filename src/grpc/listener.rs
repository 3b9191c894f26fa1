//! Where to listen: an address as text, and the socket bound to it.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};

use super::socket::Accepted;

/// An address to listen at: `host:port` (port 0: any free one) or `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp(String),
    /// Path of a socket.
    Unix(PathBuf),
}

impl std::str::FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(AddressError(text.to_owned())) };
        }
        let parts = text.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        // A bare IPv6 address would have its last group read as a port.
        let sound = parts.is_some_and(|(host, _)| !host.contains(':') || (host.starts_with('[') && host.ends_with(']')));
        if sound { Ok(Self::Tcp(text.to_owned())) } else { Err(AddressError(text.to_owned())) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(text) => out.write_str(text),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

/// A text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address; write host:port, such as 127.0.0.1:50051 or [::1]:50051, or unix:/path/to/socket")]
pub struct AddressError(String);

/// A bound socket, and the address that it came to have.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener, Address),
    /// Unix domain.
    Unix(UnixListener, Address),
}

/// An address could not be bound: it is in use, not this host's, or not permitted.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}: {cause}{}", hint(cause))]
pub struct BindError {
    address: Address,
    cause: io::Error,
}

impl Listener {
    /// Binds an address. A Unix socket that nobody listens at any more is replaced.
    pub async fn bind(address: &Address) -> Result<Self, BindError> {
        let bound = match address {
            Address::Tcp(text) => bind_tcp(text).await,
            Address::Unix(path) => {
                remove_stale(path).await;
                UnixListener::bind(path).map(|listener| Self::Unix(listener, address.clone()))
            }
        };
        bound.map_err(|cause| BindError { address: address.clone(), cause })
    }

    /// As [`Self::bind`], but a Unix socket lets nobody connect who is not its owner.
    pub async fn bind_private(address: &Address) -> Result<Self, BindError> {
        let Address::Unix(path) = address else { return Self::bind(address).await };
        remove_stale(path).await;
        let bound = bind_private(path).map(|listener| Self::Unix(listener, address.clone()));
        bound.map_err(|cause| BindError { address: address.clone(), cause })
    }

    /// Waits for a connection. Errors: the system's; most pass, see [`super::acceptor`].
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener, _) => {
                let (stream, _) = listener.accept().await?;
                // One that cannot be set to send at once still serves.
                drop(stream.set_nodelay(true));
                stream.into_std().map(Accepted::Tcp)
            }
            Self::Unix(listener, _) => listener.accept().await?.0.into_std().map(Accepted::Unix),
        }
    }

    /// The address, with the port that was given when 0 was asked for.
    pub fn address(&self) -> &Address {
        match self {
            Self::Tcp(_, address) | Self::Unix(_, address) => address,
        }
    }
}

/// Binds the first of a name's addresses that can be.
async fn bind_tcp(text: &str) -> io::Result<Listener> {
    let mut failed = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in tokio::net::lookup_host(text).await? {
        match listen(address) {
            Ok(listener) => {
                let address = Address::Tcp(listener.local_addr()?.to_string());
                return Ok(Listener::Tcp(listener, address));
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Else a restart would wait for connections of its predecessor to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Connections that may wait to be accepted; the system's own bound may be lower. When a replica returns, all its clients
/// come at once, and one that finds no room tries again only a second later.
const BACKLOG: u32 = 4096;

/// Removes a socket that a dead process left behind; one that answers, or a file that is no socket, is left for `bind`
/// to complain of.
async fn remove_stale(path: &PathBuf) {
    let refused = UnixStream::connect(path).await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|metadata| std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()));
    if refused && is_socket {
        // If it cannot be removed, `bind` says why.
        let _ = std::fs::remove_file(path);
    }
}

/// Binds in a folder that nobody else may enter, so that there is no moment at which the socket lets others in, and moves it
/// from there to its place, unless that is taken.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    if path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let folder = path.with_file_name(format!(".tollgate-{}", std::process::id()));
    // One that a process of the same number left behind when it was killed at this very point.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let socket = folder.join("s");
    let bound = UnixListener::bind(&socket).and_then(|listener| {
        std::fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        std::fs::rename(&socket, path).map(|()| listener)
    });
    // What cannot be removed is in nobody's way.
    let _ = std::fs::remove_dir_all(folder);
    bound
}

fn hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => "; another process listens there: stop it, or choose another with --listen",
        io::ErrorKind::AddrNotAvailable => "; this host does not have that address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 and foreign directories need a permission",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_private_socket_is_its_owner_s_alone_and_replaces_only_a_stale_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let address = Address::Unix(path.clone());
        let listener = Listener::bind_private(&address).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).await.unwrap();
        assert!(Listener::bind_private(&address).await.unwrap_err().to_string().contains("another process listens there"));
        drop(listener);
        drop(Listener::bind_private(&address).await.unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file of somebody's").unwrap();
        assert!(Listener::bind_private(&address).await.is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the file is left");
    }

    #[test]
    fn addresses_are_host_and_port_or_a_socket_s_path() {
        for good in ["127.0.0.1:50051", "[::1]:0", "localhost:1", "unix:/run/tollgate.sock"] {
            assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
        }
        assert_eq!("unix:///run/s".parse(), Ok(Address::Unix("/run/s".into())));
        for bad in ["", "50051", ":50051", "localhost", "localhost:", "localhost:65536", "::1:50051", "unix:relative", "unix:"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
