//! Decides which connections are let in when as many are open as may be.
//!
//! A new connection then replaces idle ones of the peer that has most. So a peer that opens connections and leaves them idle
//! keeps no other peer out. Among idle connections, those without a call since the last search are closed first. If no
//! connection is idle, the new one is refused.
//!
//! One network address gets at most seven eighths of the places. The rest stays for other addresses, such as that of probes.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// One part in this many of all places is never given to a single address.
const RESERVED_DIVISOR: usize = 8;
/// When the places are full, up to one part in this many is freed at once, because a search for idle connections looks at all.
const FREED_DIVISOR: usize = 64;
/// Bytes of an IPv6 address that identify a peer; a host has all addresses below that prefix. Source: RFC 6177.
const NETWORK_BYTES: usize = 8;

/// The peer that a connection is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// A process on this host, through a Unix socket.
    Local,
    /// An IPv4 address.
    V4([u8; 4]),
    /// The first 64 bits of an IPv6 address.
    V6([u8; NETWORK_BYTES]),
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// Gives out places for connections. Clones share them.
#[derive(Clone)]
pub(crate) struct Admission(Arc<AdmissionState>);

struct AdmissionState {
    capacity: usize,
    admitted: Mutex<AdmittedConnections>,
}

#[derive(Default)]
struct AdmittedConnections {
    /// All admitted connections in order of arrival, including those asked to close.
    connections: BTreeMap<u64, (Peer, Arc<Usage>)>,
    /// How many of them were asked to close.
    closing: usize,
    /// Connections of each peer, without those asked to close.
    by_peer: HashMap<Peer, usize>,
    next: u64,
}

impl Admission {
    /// Allows `capacity` connections.
    pub(crate) fn new(capacity: usize) -> Self {
        Self(Arc::new(AdmissionState {
            capacity,
            admitted: Mutex::default(),
        }))
    }

    /// Returns a place for a connection of `peer`, if one is free or can be freed.
    pub(crate) fn admit(&self, peer: Peer) -> Option<AdmissionPermit> {
        let mut admitted = self.0.lock();
        let peer_max = self.0.capacity - self.0.capacity / RESERVED_DIVISOR;
        let has_max = peer != Peer::Local
            && admitted
                .by_peer
                .get(&peer)
                .is_some_and(|count| *count >= peer_max);
        if has_max || admitted.not_closing() >= self.0.capacity {
            let freed = (self.0.capacity / FREED_DIVISOR).max(1);
            // Connections that were asked to close may stay open for a while, beside those that replace them.
            let freed_some =
                admitted.closing < freed * 2 && admitted.close_idle(has_max.then_some(peer), freed);
            if !freed_some {
                return None;
            }
        }
        let id = admitted.next;
        let usage = Arc::<Usage>::default();
        admitted.next += 1;
        *admitted.by_peer.entry(peer).or_default() += 1;
        admitted.connections.insert(id, (peer, usage.clone()));
        Some(AdmissionPermit {
            state: self.0.clone(),
            id,
            usage,
        })
    }
}

impl AdmissionState {
    fn lock(&self) -> MutexGuard<'_, AdmittedConnections> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmittedConnections {
    fn not_closing(&self) -> usize {
        self.connections.len() - self.closing
    }

    /// Asks up to `most` idle connections of one peer to close. That is `peer`, or else the peer with most connections
    /// among those with an idle one. Returns whether there was any.
    fn close_idle(&mut self, peer: Option<Peer>, most: usize) -> bool {
        let idle: Vec<(Peer, Arc<Usage>)> = self
            .connections
            .values()
            .filter(|(_, usage)| usage.is_idle())
            .cloned()
            .collect();
        let count = |peer: &Peer| self.by_peer.get(peer).copied().unwrap_or_default();
        let Some(peer) = peer.or_else(|| idle.iter().map(|(peer, _)| *peer).max_by_key(count))
        else {
            return false;
        };
        let (used, unused): (Vec<_>, Vec<_>) = idle
            .into_iter()
            .filter(|(of, _)| *of == peer)
            .map(|(_, usage)| usage)
            .partition(|usage| usage.take_used());
        let chosen: Vec<_> = if unused.is_empty() { used } else { unused }
            .into_iter()
            .take(most)
            .collect();
        for usage in &chosen {
            self.closing += 1;
            self.forget(peer);
            usage.closing.store(true, Ordering::Relaxed);
            usage.close.notify_one();
        }
        !chosen.is_empty()
    }

    /// Subtracts a connection from those of its peer.
    fn forget(&mut self, peer: Peer) {
        if let Some(count) = self.by_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }
}

/// Whether a connection is in use, as recorded by the connection itself.
#[derive(Default)]
pub(crate) struct Usage {
    /// Calls in progress. Only one thread writes it.
    busy: AtomicUsize,
    /// Whether a call began since the last search for idle connections.
    used: AtomicBool,
    closing: AtomicBool,
    close: Notify,
}

impl Usage {
    /// Records the begin of a call.
    pub(crate) fn begin(&self) {
        self.busy
            .store(self.busy.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
    }

    /// Records the end of a call.
    pub(crate) fn end(&self) {
        self.busy.store(
            self.busy.load(Ordering::Relaxed).saturating_sub(1),
            Ordering::Relaxed,
        );
    }

    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0 && !self.closing.load(Ordering::Relaxed)
    }

    /// Returns whether a call began since the last search that looked at this connection, and clears the mark.
    fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

/// A connection's place. Dropping it gives the place back.
pub(crate) struct AdmissionPermit {
    state: Arc<AdmissionState>,
    id: u64,
    usage: Arc<Usage>,
}

impl AdmissionPermit {
    /// The record of use, which the connection writes.
    pub(crate) fn usage(&self) -> Arc<Usage> {
        self.usage.clone()
    }

    /// Waits until the connection is asked to close to make room.
    pub(crate) async fn close_requested(&self) {
        self.usage.close.notified().await;
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        let mut admitted = self.state.lock();
        let Some((peer, usage)) = admitted.connections.remove(&self.id) else {
            return;
        };
        if usage.closing.load(Ordering::Relaxed) {
            admitted.closing -= 1;
        } else {
            admitted.forget(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> Peer {
        Peer::V4([10, 0, 0, number])
    }

    fn is_closing(admission: &AdmissionPermit) -> bool {
        admission.usage.closing.load(Ordering::Relaxed)
    }

    #[test]
    fn no_address_takes_the_last_places_and_processes_of_this_host_may() {
        let admission = Admission::new(64);
        let crowd: Vec<AdmissionPermit> =
            (0..56).filter_map(|_| admission.admit(peer(1))).collect();
        crowd.iter().for_each(|admission| admission.usage.begin());
        assert!(admission.admit(peer(1)).is_none());
        let others: Vec<AdmissionPermit> =
            (0..8).filter_map(|_| admission.admit(peer(2))).collect();
        assert_eq!((crowd.len(), others.len()), (56, 8));
        let local = Admission::new(64);
        let all: Vec<AdmissionPermit> = (0..64).filter_map(|_| local.admit(Peer::Local)).collect();
        assert_eq!(all.len(), 64);
    }

    #[test]
    fn when_full_the_oldest_idle_connection_of_the_peer_with_most_is_closed() {
        let admission = Admission::new(16);
        let few: Vec<AdmissionPermit> = (0..3).filter_map(|_| admission.admit(peer(1))).collect();
        let many: Vec<AdmissionPermit> = (0..13).filter_map(|_| admission.admit(peer(2))).collect();
        many[0].usage.begin();
        many[1].usage.begin();
        many[1].usage.end();
        let newcomer = admission.admit(peer(3)).unwrap();
        assert!(
            is_closing(&many[2])
                && many
                    .iter()
                    .filter(|admission| is_closing(admission))
                    .count()
                    == 1
        );
        assert!(!few.iter().any(is_closing) && !is_closing(&newcomer));
    }

    #[test]
    fn busy_connections_keep_their_places_and_recently_used_ones_are_spared_while_others_are_idle()
    {
        let admission = Admission::new(4);
        let all: Vec<AdmissionPermit> = (0..4)
            .filter_map(|_| admission.admit(Peer::Local))
            .collect();
        all.iter().for_each(|admission| admission.usage.begin());
        assert!(admission.admit(Peer::Local).is_none());
        all.iter().for_each(|admission| admission.usage.end());
        // All were used, so the oldest is closed. The next search finds that none was used since.
        let first = admission.admit(Peer::Local).unwrap();
        assert!(is_closing(&all[0]));
        all[1].usage.begin();
        all[1].usage.end();
        let _second = admission.admit(Peer::Local).unwrap();
        assert!(!is_closing(&all[1]) && is_closing(&all[2]) && !is_closing(&first));
    }

    #[test]
    fn every_place_is_given_back_whether_its_connection_was_asked_to_close_or_not() {
        let admission = Admission::new(2);
        for _ in 0..100 {
            let _permits: Vec<AdmissionPermit> = (0..3)
                .filter_map(|number| admission.admit(peer(number)))
                .collect();
        }
        let admitted = admission.0.lock();
        assert_eq!(
            (
                admitted.connections.len(),
                admitted.closing,
                admitted.by_peer.len()
            ),
            (0, 0, 0)
        );
    }

    #[test]
    fn few_connections_may_stay_open_after_they_were_asked_to_close() {
        let admission = Admission::new(64);
        // Two connections are admitted beyond the capacity, because two idle ones were asked to close and have not yet.
        let all: Vec<AdmissionPermit> =
            std::iter::from_fn(|| admission.admit(Peer::Local)).collect();
        assert_eq!(all.len(), 66);
    }

    #[test]
    fn addresses_of_one_network_are_one_peer() {
        let peer = |text: &str| Peer::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.2"), peer("10.0.0.1"));
    }
}
