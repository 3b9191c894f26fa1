//! gRPC over a Unix socket.

use super::PLANS;
use crate::support::frames::{
    self, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, Raw, frame,
};
use crate::support::server::{Client, Server, decide};

#[tokio::test]
async fn a_unix_socket_serves_too_and_a_stale_one_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tollgate.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = format!("unix:{}", path.display());
    let _server = Server::start(PLANS, &["--listen", &address]);
    let channel = tonic::transport::Endpoint::from_shared(format!("unix://{}", path.display()))
        .unwrap()
        .connect()
        .await
        .unwrap();
    assert!(decide(&mut Client::new(channel), "k", "free").await.allowed);
}

/// Whether this call is answered by headers, as frames tell.
fn is_answered(raw: &mut Raw<std::os::unix::net::UnixStream>, stream: u32, headers: &[u8]) -> bool {
    let call = [
        frame(HEADERS, END_HEADERS, stream, headers),
        frame(DATA, END_STREAM, stream, frames::ASK),
    ]
    .concat();
    assert!(raw.send(&call));
    loop {
        match raw.next().expect("the connection stays open") {
            (HEADERS, _, of, _) if of == stream => return true,
            (RST_STREAM, _, of, _) if of == stream => return false,
            _ => {}
        }
    }
}

#[tokio::test]
async fn calls_over_a_unix_socket_are_answered_with_any_authority() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tollgate.sock");
    let _server = Server::start(PLANS, &["--listen", &format!("unix:{}", path.display())]);
    let grpc = ("content-type", "application/grpc");
    let answered = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::connect_unix(&path);
        // The values that gRPC's core (Python, Ruby, C++, PHP), Java, Go and others send, and wrong ones.
        let authorities = [
            "tmp%2Fx.sock",
            "%2Ftmp%2Fx.sock",
            "/tmp/x.sock",
            "localhost",
            "a:b:c",
            "[",
            "@",
            "\u{7f}",
            "x",
        ];
        let literal = authorities.map(|authority| {
            frames::headers_with(frames::SHOULD_ALLOW, &[(":authority", authority), grpc])
        });
        // By its place in the table, and remembered; then what was remembered.
        let indexed = |field: &[u8]| {
            let head = frames::literal(":method", "POST");
            let rest = [(":scheme", "http"), (":path", frames::SHOULD_ALLOW), grpc];
            let rest = rest
                .iter()
                .flat_map(|(name, value)| frames::literal(name, value));
            // The regular field comes last, as it must.
            [head, field.to_vec(), rest.collect()].concat()
        };
        let path = b"tmp%2Fx.sock";
        // The same in the code of RFC 7541, appendix B.
        let coded = [0x4d, 0x35, 0xaa, 0x2c, 0x7e, 0x57, 0x41, 0xc9, 0xd7];
        let remembered = [
            indexed(&[&[0x41, u8::try_from(path.len()).unwrap()], path.as_slice()].concat()),
            indexed(&[0xbe]),
            indexed(
                &[
                    &[0x41, 0x80 | u8::try_from(coded.len()).unwrap()],
                    coded.as_slice(),
                ]
                .concat(),
            ),
            indexed(&[0xbe]),
            indexed(&[0xbf]),
        ];
        let calls = literal.into_iter().chain(remembered).zip((1..).step_by(2));
        calls
            .map(|(headers, stream)| is_answered(&mut raw, stream, &headers))
            .collect::<Vec<_>>()
    });
    let answered = answered.await.unwrap();
    assert!(answered.iter().all(|answered| *answered), "{answered:?}");
}
