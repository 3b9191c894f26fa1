//! What a service manager hears: the messages of systemd's `Type=notify`, over a real socket.

use std::os::unix::net::UnixDatagram;

use crate::support::server::{PATIENCE, Server};

const PLANS: &str = "plans: { p: { unlimited: true } }\n";

struct Manager {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, folder }
    }

    fn start(&self) -> Server {
        let path = self.folder.path().join("notify");
        Server::start_in(PLANS, &[], &[("NOTIFY_SOCKET", path.to_str().unwrap())])
    }

    /// The lines of the next message.
    fn heard(&self) -> Vec<String> {
        let mut message = [0; 4096];
        let length = self.socket.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec())
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

#[test]
fn the_manager_hears_of_start_reload_and_stop() {
    let manager = Manager::new();
    let mut server = manager.start();
    assert_eq!(manager.heard(), ["READY=1"]);
    server.signal("HUP");
    let reloading = manager.heard();
    let [begins, at] = reloading.as_slice() else {
        panic!("{reloading:?}")
    };
    assert_eq!(begins, "RELOADING=1");
    assert!(
        at.strip_prefix("MONOTONIC_USEC=")
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > 0
    );
    assert_eq!(manager.heard(), ["READY=1"]);
    server.signal("TERM");
    assert_eq!(manager.heard(), ["STOPPING=1"]);
    assert!(server.wait().0.success());
}

/// The log says why nobody is told.
#[tokio::test]
async fn a_manager_that_is_gone_stops_nothing() {
    let manager = Manager::new();
    drop(std::fs::remove_file(manager.folder.path().join("notify")));
    let mut server = manager.start();
    server
        .wait_for_line("the service manager cannot be told")
        .await;
    server.signal("INT");
    assert!(server.wait().0.success());
}
