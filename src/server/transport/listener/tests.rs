//! Addresses, good and bad ones, and files of sockets.

use super::*;

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

#[tokio::test]
async fn a_socket_replaces_only_a_stale_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let address = address(&format!("unix:{}", path.display()));
    let listener = Listener::bind(&address).await.unwrap();
    UnixStream::connect(&path).await.unwrap();
    assert!(
        Listener::bind(&address)
            .await
            .unwrap_err()
            .to_string()
            .contains("another process listens there")
    );
    drop(listener);
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(Listener::bind(&address).await.unwrap());
    std::fs::write(&path, "another program's file").unwrap();
    assert!(Listener::bind(&address).await.is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"another program's file");
}

#[test]
fn addresses_are_host_and_port_or_a_socket_s_path() {
    for good in [
        "127.0.0.1:50051",
        "[::1]:0",
        "localhost:1",
        "unix:/run/tollgate.sock",
    ] {
        assert_eq!(address(good).to_string(), good);
    }
    assert_eq!(
        address("unix:///run/s"),
        Address::Unix {
            path: "/run/s".into(),
            mode: 0o600
        }
    );
    for bad in [
        "",
        "50051",
        ":50051",
        "localhost",
        "localhost:",
        "localhost:65536",
        "::1:50051",
        "unix:relative",
        "unix:",
    ] {
        assert!(bad.parse::<Address>().is_err(), "{bad}");
    }
}

#[test]
fn an_address_is_one_line() {
    for bad in [
        "127.\t0.0.1:0",
        "a b:1",
        "a\u{1b}[31m:1",
        "h\u{202e}:1",
        "[::1\n]:1",
        "unix:/run/\ns",
        "plaintext:\t:1",
    ] {
        assert!(bad.parse::<Address>().is_err(), "{bad:?}");
    }
    assert_eq!(address("unix:/run/a b").to_string(), "unix:/run/a b");
}

#[test]
fn an_address_says_who_may_connect_and_that_nothing_encrypts_it() {
    assert_eq!(
        address("unix:/run/s?mode=0660"),
        Address::Unix {
            path: "/run/s".into(),
            mode: 0o660
        }
    );
    assert_eq!(
        address("plaintext:0.0.0.0:1"),
        Address::Tcp {
            at: "0.0.0.0:1".to_owned(),
            plaintext: true
        }
    );
    for bad in [
        "unix:/run/s?mode=",
        "unix:/run/s?mode=0680",
        "unix:/run/s?mode=1777",
        "plaintext:",
        "plaintext:unix:/s",
    ] {
        assert!(bad.parse::<Address>().is_err(), "{bad}");
    }
}

#[test]
fn addresses_that_only_this_host_reaches_are_local() {
    for local in [
        "127.0.0.1:1",
        "127.8.9.10:1",
        "[::1]:1",
        "[::ffff:127.0.0.1]:1",
        "localhost:1",
        "unix:/s",
    ] {
        assert!(address(local).is_local(), "{local}");
    }
    for open in [
        "0.0.0.0:1",
        "[::]:1",
        "10.0.0.1:1",
        "tollgate.internal:1",
        "localhost.example:1",
        "[::ffff:10.0.0.1]:1",
    ] {
        assert!(!address(open).is_local(), "{open}");
    }
}

#[tokio::test]
async fn a_socket_file_has_its_mode_and_is_removed_with_its_listener_unless_it_was_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    for (asked, expected) in [("?mode=0660", 0o660), ("?mode=0777", 0o777), ("", 0o600)] {
        let listener = Listener::bind(&address(&format!("unix:{}{asked}", path.display())))
            .await
            .unwrap();
        assert_eq!(mode(), expected);
        drop(listener);
        assert!(!path.exists());
    }
    let first = Listener::bind(&address(&format!("unix:{}", path.display())))
        .await
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = Listener::bind(&address(&format!("unix:{}", path.display())))
        .await
        .unwrap();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}
