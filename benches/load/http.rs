//! The client side of one HTTP/1.1 connection that stays open, as proxies keep them: a request, its response, the next request.

use std::rc::Rc;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Load, Requests, STRIDE, Shared};

/// Bytes of one response at most: a head without a body.
const RESPONSE_BYTES_MAX: usize = 4 << 10;
/// The end of a head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Makes calls over the `index`th connection of a load until all are made, or it is told to stop.
pub(super) async fn drive(
    mut stream: TcpStream,
    load: Load,
    index: usize,
    requests: Rc<Requests>,
    shared: Rc<Shared>,
) -> Result<(), String> {
    let mut turn = index * requests.len() / load.connections;
    let mut left = load.calls_max.unwrap_or(u64::MAX);
    let mut response = [0; RESPONSE_BYTES_MAX];
    while left > 0 && !shared.stopping.get() {
        let sent = Instant::now();
        let request = requests.get(turn % requests.len());
        stream
            .write_all(request)
            .await
            .map_err(|error| format!("cannot write: {error}"))?;
        let head = read_head(&mut stream, &mut response).await?;
        let mut tally = shared.tally.borrow_mut();
        tally.took(sent.elapsed());
        tally.http(head);
        (turn, left) = (turn.wrapping_add(STRIDE), left - 1);
    }
    Ok(())
}

/// Reads a response, which has no body, as that to an allowed check. Errors: a sentence.
async fn read_head<'a>(stream: &mut TcpStream, response: &'a mut [u8]) -> Result<&'a str, String> {
    let mut bytes = 0;
    while !response[..bytes].ends_with(HEAD_END) {
        if response[..bytes]
            .windows(HEAD_END.len())
            .any(|window| window == HEAD_END)
        {
            return Err(format!(
                "a response has a body: {}",
                String::from_utf8_lossy(&response[..bytes])
            ));
        }
        match stream.read(&mut response[bytes..]).await {
            Ok(0) => {
                return Err(
                    "the server closed the connection, or a response is too long".to_owned(),
                );
            }
            Ok(read) => bytes += read,
            Err(error) => return Err(format!("cannot read: {error}")),
        }
    }
    std::str::from_utf8(&response[..bytes]).map_err(|error| error.to_string())
}
