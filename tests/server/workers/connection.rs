//! The limits of a connection: how long it may be silent, and the settings that it is told.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::PLANS;
use crate::support::frames::opening;
use crate::support::server::{PATIENCE, Server, decide};

/// Longest time until a silent connection is closed. The promise is 5 s; a busy machine may take longer.
const SILENT_WITHIN: Duration = Duration::from_secs(20);

#[tokio::test]
async fn fault_25_five_hundred_silent_connections_are_gone_within_seconds_and_others_served_meanwhile()
 {
    let server = Server::start(PLANS, &["--set", "workers=2"]);
    let started = Instant::now();
    let mut silent: Vec<TcpStream> = (0..500)
        .map(|_| TcpStream::connect(&server.address).unwrap())
        .collect();
    println!("500 connections were made within {:?}", started.elapsed());
    let started = Instant::now();
    // A connection that sends half of a preface counts as silent, too.
    for stream in silent.iter_mut().step_by(2) {
        stream.write_all(b"PRI * HTTP/2").unwrap();
    }
    assert!(decide(&mut server.client().await, "k", "p").await.allowed);
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "nothing was shown: this machine is too slow"
    );
    let gone = tokio::task::spawn_blocking(move || {
        for mut stream in silent {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let ended = stream.read(&mut [0; 64]);
            assert!(
                matches!(ended, Ok(0))
                    || ended
                        .as_ref()
                        .is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
                "{ended:?}"
            );
        }
        started.elapsed()
    });
    let gone = gone.await.unwrap();
    println!("500 silent connections were gone {gone:?} after the last was made");
    assert!(gone < SILENT_WITHIN, "{gone:?}");
}

#[tokio::test]
async fn a_connection_that_has_spoken_is_not_taken_for_silent() {
    let server = Server::start(PLANS, &[]);
    let mut client = server.client().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    // A channel reconnects by itself, so it cannot show that its connection stayed open. A raw connection shows that.
    assert!(decide(&mut client, "k", "p").await.allowed);
    let mut raw = greeted(&server.address);
    raw.set_read_timeout(Some(Duration::from_secs(6))).unwrap();
    let error = std::iter::repeat_with(|| raw.read(&mut [0; 512])).find_map(|read| match read {
        Ok(0) => Some(ErrorKind::UnexpectedEof),
        Ok(_) => None,
        Err(error) => Some(error.kind()),
    });
    assert_eq!(error, Some(ErrorKind::WouldBlock), "it was closed");
}

/// Opens a connection and sends the preface and empty settings.
fn greeted(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&opening()).unwrap();
    stream
}

/// The settings that a server announces: identifiers and values. Source: RFC 9113, sections 4.1 and 6.5.
fn settings(address: &str) -> BTreeMap<u16, u32> {
    let mut stream = greeted(address);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "the first frame is SETTINGS");
    let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
    stream.read_exact(&mut payload).unwrap();
    let setting = |bytes: &[u8]| {
        let value = u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
        (u16::from_be_bytes([bytes[0], bytes[1]]), value)
    };
    payload.chunks_exact(6).map(setting).collect()
}

#[test]
fn the_limits_of_a_connection_are_in_its_settings() {
    let server = Server::start(PLANS, &[]);
    let settings = settings(&server.address);
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    const INITIAL_WINDOW_SIZE: u16 = 4;
    const MAX_HEADER_LIST_SIZE: u16 = 6;
    assert_eq!(
        settings.get(&MAX_CONCURRENT_STREAMS),
        Some(&256),
        "{settings:?}"
    );
    assert_eq!(
        settings.get(&INITIAL_WINDOW_SIZE),
        Some(&(64 << 10)),
        "{settings:?}"
    );
    assert_eq!(
        settings.get(&MAX_HEADER_LIST_SIZE),
        Some(&(16 << 10)),
        "{settings:?}"
    );
}
