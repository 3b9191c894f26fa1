//! The open loop: calls at a fixed rate, whatever the answers do.
//!
//! Latency counts from when a call was due. So a stall of the server shows in every call that should have been made meanwhile
//! (no coordinated omission). The thread spins on non-blocking sockets and takes one core. Timers would wake it tens of
//! microseconds late, which would count as the server's latency.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{Caller, DRAIN_TIMEOUT, Load, READ_BYTES, Requests, Shared, Tally};

/// Makes calls at `rate` a second, evenly over the connections. Returns the counts after `warm_up`, to the end of `measured`.
/// Errors: a sentence, when a connection fails or an answer never comes.
pub fn run(load: &Load, rate: u32, warm_up: Duration, measured: Duration) -> Result<Tally, String> {
    let mut client = Client::connect(load)?;
    let began = Instant::now();
    let due = |call: u32| began + Duration::from_secs(1) * call / rate;
    let from = began + warm_up;
    let until = began + warm_up + measured;
    let mut made = 0;
    let mut warming_up = true;
    while due(made) < until {
        let now = Instant::now();
        if warming_up && now >= from {
            client.shared.take();
            warming_up = false;
        }
        // A call that the server does not take yet stays due, and those after it too.
        while due(made) <= now && client.start(made, due(made))? {
            made += 1;
        }
        client.turn()?;
    }
    client.drain(until + DRAIN_TIMEOUT)?;
    Ok(client.shared.take())
}

struct Client {
    connections: Vec<(TcpStream, Caller)>,
    shared: Rc<Shared>,
    input: Vec<u8>,
}

impl Client {
    fn connect(load: &Load) -> Result<Self, String> {
        let shared = Shared::new(load.expect);
        let requests = Rc::new(Requests::of(load));
        let connect = |index| {
            let stream = TcpStream::connect(load.address(0))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok((
                stream,
                Caller::new(load, index, requests.clone(), shared.clone()),
            ))
        };
        let connections: std::io::Result<_> = (0..load.connections).map(connect).collect();
        let connections = connections.map_err(|error| format!("{}: {error}", load.address(0)))?;
        Ok(Self {
            connections,
            shared,
            input: vec![0; READ_BYTES],
        })
    }

    /// Makes a call that is due. Returns whether the server takes it now.
    fn start(&mut self, call: u32, due: Instant) -> Result<bool, String> {
        let connections = self.connections.len();
        self.connections[call as usize % connections].1.start(due)
    }

    /// Writes what waits and reads what has come, on every connection.
    fn turn(&mut self) -> Result<(), String> {
        for (stream, caller) in &mut self.connections {
            let output = caller.output();
            if !output.is_empty() {
                let written = bytes_if_ready(stream.write(output))?.unwrap_or(0);
                output.drain(..written);
            }
            match bytes_if_ready(stream.read(&mut self.input))? {
                Some(0) => return Err("the server closed the connection".to_owned()),
                Some(read) => caller.receive(&self.input[..read], Instant::now())?,
                None => {}
            }
        }
        Ok(())
    }

    /// Waits for the answers that are missing.
    fn drain(&mut self, until: Instant) -> Result<(), String> {
        self.shared.stopping.set(true);
        while !self.connections.iter().all(|(_, caller)| caller.finished()) {
            if Instant::now() > until {
                return Err("some calls were never answered".to_owned());
            }
            for (_, caller) in &mut self.connections {
                caller.fill(until)?;
            }
            self.turn()?;
        }
        Ok(())
    }
}

/// The bytes that were read or written; `None` when the socket is not ready.
fn bytes_if_ready(attempt: std::io::Result<usize>) -> Result<Option<usize>, String> {
    match attempt {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error.to_string()),
    }
}
