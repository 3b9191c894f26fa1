//! A proxy before Redis that records the commands of clients.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub struct Tap {
    port: u16,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    /// Starts a tap before the server at this port of the loopback address.
    pub fn before(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let own = listener.local_addr().unwrap().port();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let kept = sent.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let to_far = far.try_clone().unwrap();
                let to_near = near.try_clone().unwrap();
                let kept = kept.clone();
                std::thread::spawn(move || pass(near, to_far, Some(&kept)));
                std::thread::spawn(move || pass(far, to_near, None));
            }
        });
        Self { port: own, sent }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The arguments of every command of this name that was sent, in their order.
    pub fn commands(&self, name: &str) -> Vec<Vec<Vec<u8>>> {
        let sent = self.sent.lock().unwrap();
        let mut rest = sent.as_slice();
        let mut found = Vec::new();
        while let Some(count) = length(&mut rest, b'*') {
            let mut words = Vec::new();
            for _ in 0..count {
                let Some(bytes) = length(&mut rest, b'$') else {
                    return found;
                };
                let Some(word) = rest.split_off(..bytes) else {
                    return found;
                };
                let _end = rest.split_off(..2);
                words.push(word.to_vec());
            }
            if words[0].eq_ignore_ascii_case(name.as_bytes()) {
                found.push(words.split_off(1));
            }
        }
        found
    }
}

/// `*3\r\n` or `$3\r\n`: the 3.
fn length(rest: &mut &[u8], mark: u8) -> Option<usize> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let line = rest.split_off(..end + 2)?;
    assert_eq!(line[0], mark, "what clients sent cannot be read");
    std::str::from_utf8(&line[1..end]).unwrap().parse().ok()
}

fn pass(mut from: TcpStream, mut to: TcpStream, kept: Option<&Mutex<Vec<u8>>>) {
    let mut buffer = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if let Some(kept) = kept {
            kept.lock().unwrap().extend_from_slice(&buffer[..count]);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
