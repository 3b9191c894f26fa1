//! The client side of one HTTP/2 connection. It takes the bytes that were read, gives the bytes to write, and reports what comes
//! on each stream. It handles settings, windows and pings itself.

use super::frame::{self, Frame};

/// The client's receive window, of each stream and of the connection. It is the largest allowed, so that no answer waits for it.
const WINDOW: u32 = (1 << 31) - 1;
/// Windows begin at this size (RFC 9113, 6.9.2).
const WINDOW_DEFAULT: u32 = 65_535;
/// After so many received bytes, the client opens its receive windows by as many.
const REPLENISH: u32 = 1 << 30;
/// The last stream that a client may open.
const STREAM_LAST: u32 = (1 << 31) - 1;
/// Bytes of header table that [`frame::later_block`] relies on.
const HEADER_TABLE: u32 = 4096;

const SETTINGS_HEADER_TABLE_SIZE: u16 = 1;
const SETTINGS_MAX_CONCURRENT_STREAMS: u16 = 3;
const SETTINGS_INITIAL_WINDOW_SIZE: u16 = 4;

/// What came on a stream.
pub(super) enum Event<'a> {
    /// Part of an answer.
    Data(u32, &'a [u8]),
    /// The stream's end, by trailers or by a reset.
    Ended(u32),
}

/// The state of a connection.
pub(super) struct Connection {
    output: Vec<u8>,
    /// The frame of which some bytes are still to come.
    partial: Vec<u8>,
    first_block: Vec<u8>,
    later_block: Vec<u8>,
    next_stream: u32,
    /// Whether the server's settings have come.
    ready: bool,
    streams_max: u32,
    /// Bytes that the server takes now, on the connection and on the stream opened by [`Connection::open`].
    send_window: i64,
    open_window: i64,
    /// Bytes that the server takes on a fresh stream.
    stream_window: i64,
    /// Bytes received since the receive windows were last opened.
    received: u32,
    /// The stream opened by [`Connection::open`]; 0 when there is none.
    open: u32,
}

impl Connection {
    pub(super) fn new(authority: &str, path: &str) -> Self {
        let mut output = frame::PREFACE.to_vec();
        let mut window = SETTINGS_INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
        window.extend_from_slice(&WINDOW.to_be_bytes());
        frame::write(&mut output, frame::SETTINGS, 0, 0, &window);
        frame::write(
            &mut output,
            frame::WINDOW_UPDATE,
            0,
            0,
            &(WINDOW - WINDOW_DEFAULT).to_be_bytes(),
        );
        Self {
            output,
            partial: Vec::new(),
            first_block: frame::first_block(authority, path),
            later_block: frame::later_block(),
            next_stream: 1,
            ready: false,
            streams_max: u32::MAX,
            send_window: i64::from(WINDOW_DEFAULT),
            open_window: 0,
            stream_window: i64::from(WINDOW_DEFAULT),
            received: 0,
            open: 0,
        }
    }

    /// The bytes to write to the server. The writer removes those that it wrote.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Whether the server takes one more call of so many bytes beside `calls` that are open.
    pub(super) fn takes_call(&self, calls: usize, bytes: usize) -> bool {
        let bytes = bytes as i64;
        self.ready
            && calls < self.streams_max as usize
            && bytes <= self.send_window
            && bytes <= self.stream_window
    }

    /// Opens a stream, sends this message, and ends the client's side of it. Returns the stream's number.
    pub(super) fn call(&mut self, message: &[u8]) -> Result<u32, String> {
        let stream = self.begin()?;
        frame::write_data(&mut self.output, stream, message, true);
        self.send_window -= message.len() as i64;
        Ok(stream)
    }

    /// Whether the server takes a message of so many bytes on the open stream.
    pub(super) fn takes_message(&self, bytes: usize) -> bool {
        self.ready && bytes as i64 <= self.send_window.min(self.open_window)
    }

    /// Opens the stream that [`Self::push`] sends on.
    pub(super) fn open(&mut self) -> Result<(), String> {
        self.open = self.begin()?;
        self.open_window = self.stream_window;
        Ok(())
    }

    /// Sends a message on the open stream.
    pub(super) fn push(&mut self, message: &[u8]) {
        frame::write_data(&mut self.output, self.open, message, false);
        self.send_window -= message.len() as i64;
        self.open_window -= message.len() as i64;
    }

    /// Ends the client's side of the open stream.
    pub(super) fn close(&mut self) {
        frame::write(
            &mut self.output,
            frame::DATA,
            frame::END_STREAM,
            self.open,
            &[],
        );
    }

    /// Takes in what was read. Errors: the server ended the connection, or does not keep the protocol.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        mut on: impl FnMut(Event<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut joined = std::mem::take(&mut self.partial);
        let mut input = bytes;
        if !joined.is_empty() {
            joined.extend_from_slice(bytes);
            input = &joined;
        }
        while let Some(frame) = Frame::take(&mut input) {
            self.frame(&frame, &mut on)?;
        }
        self.partial = input.to_vec();
        Ok(())
    }

    fn begin(&mut self) -> Result<u32, String> {
        let stream = self.next_stream;
        if stream > STREAM_LAST {
            return Err("a connection has no more streams: the run is too long".to_owned());
        }
        frame::write_headers(
            &mut self.output,
            stream,
            if stream == 1 {
                &self.first_block
            } else {
                &self.later_block
            },
        );
        self.next_stream += 2;
        Ok(stream)
    }

    fn frame(
        &mut self,
        frame: &Frame<'_>,
        on: &mut impl FnMut(Event<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        match frame.kind {
            frame::DATA => {
                self.give_back(frame.payload.len() as u32);
                on(Event::Data(
                    frame.stream,
                    frame
                        .data()
                        .ok_or("a DATA frame is padded beyond its length")?,
                ))?;
                if frame.has(frame::END_STREAM) {
                    on(Event::Ended(frame.stream))
                } else {
                    Ok(())
                }
            }
            frame::HEADERS if frame.has(frame::END_STREAM) => on(Event::Ended(frame.stream)),
            frame::RST_STREAM => on(Event::Ended(frame.stream)),
            frame::SETTINGS if !frame.has(frame::ACK) => self.apply_settings(frame),
            frame::PING if !frame.has(frame::ACK) => {
                frame::write(&mut self.output, frame::PING, frame::ACK, 0, frame.payload);
                Ok(())
            }
            frame::WINDOW_UPDATE => {
                let more = i64::from(frame.number(0).ok_or("a WINDOW_UPDATE frame is cut")?);
                if frame.stream == 0 {
                    self.send_window += more;
                } else if frame.stream == self.open {
                    self.open_window += more;
                }
                Ok(())
            }
            frame::GOAWAY => Err(format!(
                "the server ended the connection: GOAWAY, code {}",
                frame.number(4).unwrap_or(u32::MAX)
            )),
            // Response headers, which say nothing that the end of the stream does not; acknowledgements; extensions.
            _ => Ok(()),
        }
    }

    /// Applies the server's settings and acknowledges them.
    fn apply_settings(&mut self, frame: &Frame<'_>) -> Result<(), String> {
        for (setting, value) in frame.settings() {
            match setting {
                SETTINGS_HEADER_TABLE_SIZE if value < HEADER_TABLE => {
                    return Err(format!(
                        "the server's header table has {value} bytes, and {HEADER_TABLE} are relied on"
                    ));
                }
                SETTINGS_MAX_CONCURRENT_STREAMS => self.streams_max = value,
                SETTINGS_INITIAL_WINDOW_SIZE => {
                    let change = i64::from(value) - self.stream_window;
                    self.stream_window += change;
                    self.open_window += change;
                }
                _ => {}
            }
        }
        self.ready = true;
        frame::write(&mut self.output, frame::SETTINGS, frame::ACK, 0, &[]);
        Ok(())
    }

    /// Opens the receive windows by the bytes that were received, once they are [`REPLENISH`].
    fn give_back(&mut self, bytes: u32) {
        self.received += bytes;
        if self.received < REPLENISH {
            return;
        }
        let bytes = std::mem::take(&mut self.received).to_be_bytes();
        frame::write(&mut self.output, frame::WINDOW_UPDATE, 0, 0, &bytes);
        if self.open != 0 {
            // With an open stream, all data comes on it.
            frame::write(&mut self.output, frame::WINDOW_UPDATE, 0, self.open, &bytes);
        }
    }
}
