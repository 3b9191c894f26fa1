//! A TCP proxy that a test can make fail: it forwards bytes, delays them, or accepts all bytes and forwards none.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Interval at which the proxy's threads check whether the test is over.
const TICK: Duration = Duration::from_millis(20);

pub struct Proxy {
    pub port: u16,
    rules: Arc<Rules>,
}

#[derive(Default)]
struct Rules {
    /// Connections that were open when this was set, or are opened while it is set, forward no further byte.
    swallow: AtomicBool,
    /// Delay of each byte in each direction.
    latency_us: AtomicU64,
    accepted: AtomicUsize,
    open: AtomicUsize,
    over: AtomicBool,
    /// For each connection, whether it was swallowed. A swallowed connection stays so.
    swallowed: Mutex<Vec<Arc<AtomicBool>>>,
}

impl Proxy {
    /// Starts a proxy before the server at this port of the loopback address.
    pub fn before(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let own = listener.local_addr().unwrap().port();
        let rules = Arc::new(Rules::default());
        let shared = rules.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if shared.over.load(Ordering::SeqCst) {
                    return;
                }
                serve(near, port, &shared);
            }
        });
        Self { port: own, rules }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on, no connection forwards bytes. All bytes are still accepted and acknowledged.
    pub fn swallow(&self) {
        self.rules.swallow.store(true, Ordering::SeqCst);
        for swallowed in self.rules.swallowed.lock().unwrap().iter() {
            swallowed.store(true, Ordering::SeqCst);
        }
    }

    /// New connections forward bytes again. Swallowed ones stay dead, as behind a firewall that has forgotten them.
    pub fn let_through(&self) {
        self.rules.swallow.store(false, Ordering::SeqCst);
    }

    /// Bytes take this much longer each way.
    pub fn delay(&self, latency: Duration) {
        self.rules
            .latency_us
            .store(latency.as_micros() as u64, Ordering::SeqCst);
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.rules.accepted.load(Ordering::SeqCst)
    }

    /// Connections that the client has not closed.
    pub fn open(&self) -> usize {
        self.rules.open.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.rules.over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(near: TcpStream, port: u16, rules: &Arc<Rules>) {
    rules.accepted.fetch_add(1, Ordering::SeqCst);
    rules.open.fetch_add(1, Ordering::SeqCst);
    let mut all = rules.swallowed.lock().unwrap();
    let swallowed = Arc::new(AtomicBool::new(rules.swallow.load(Ordering::SeqCst)));
    all.push(swallowed.clone());
    drop(all);
    let far = TcpStream::connect(("127.0.0.1", port)).ok();
    let (Some(far), false) = (far, swallowed.load(Ordering::SeqCst)) else {
        // Read to the end, so that the client's close is seen.
        let rules = rules.clone();
        std::thread::spawn(move || {
            let sink = channel().0;
            read(near, &sink, &AtomicBool::new(true), &rules);
            rules.open.fetch_sub(1, Ordering::SeqCst);
        });
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let to_far = far.try_clone().unwrap();
    let to_near = near.try_clone().unwrap();
    for (from, to, is_near) in [(near, to_far, true), (far, to_near, false)] {
        let (sender, received) = channel();
        std::thread::spawn(move || write(to, &received));
        let rules = rules.clone();
        let swallowed = swallowed.clone();
        std::thread::spawn(move || {
            read(from, &sender, &swallowed, &rules);
            if is_near {
                rules.open.fetch_sub(1, Ordering::SeqCst);
            }
        });
    }
}

/// Reads to the end. Sends what may be forwarded to the writer, with the time at which to write it.
fn read(
    mut from: TcpStream,
    to: &std::sync::mpsc::Sender<(Instant, Vec<u8>)>,
    swallowed: &AtomicBool,
    rules: &Rules,
) {
    from.set_read_timeout(Some(TICK)).unwrap();
    let mut buffer = [0; 64 * 1024];
    while !rules.over.load(Ordering::SeqCst) {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) if !swallowed.load(Ordering::SeqCst) => {
                let latency = Duration::from_micros(rules.latency_us.load(Ordering::SeqCst));
                // Its writer ends with the other side.
                let _ = to.send((Instant::now() + latency, buffer[..count].to_vec()));
            }
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) => {}
            Err(_) => return,
        }
    }
}

fn write(mut to: TcpStream, received: &Receiver<(Instant, Vec<u8>)>) {
    for (at, bytes) in received {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
