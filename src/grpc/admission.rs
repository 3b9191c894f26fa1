//! Which connections are let in when as many are open as may be.
//!
//! A newcomer is let in at the expense of connections that do nothing, of the peer that has most of them, so that nobody who
//! opens connections and leaves them idle keeps others out. One that was used since the last look is spared if there are
//! others. Beyond that, newcomers are refused. And no address on the network takes the last eighth of all places, so that
//! probes, which come from another one, find some.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Of all places, the part that one address may not take: one in so many.
const KEPT: usize = 8;
/// Of all places, the part that is made free at once when there is none: to find those that do nothing takes a look at all.
const FREED: usize = 64;
/// Bytes of an IPv6 address that tell a peer: a host has the rest to itself. Source: RFC 6177.
const NETWORK_BYTES: usize = 8;

/// Who is at the other end, as far as places are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// Some process on this host.
    Local,
    /// An address.
    V4([u8; 4]),
    /// A network of addresses.
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

/// The places of connections; clones share them.
#[derive(Clone)]
pub(crate) struct Admission(Arc<Places>);

struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// In the order in which they came, those included that were told to leave.
    visits: BTreeMap<u64, (Peer, Arc<Usage>)>,
    /// Those that were told to leave.
    leaving: usize,
    /// Of each peer, those not included that were told to leave.
    by_peer: HashMap<Peer, usize>,
    next: u64,
}

impl Admission {
    /// Has so many places.
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Places { most, taken: Mutex::default() }))
    }

    /// A place for a connection of this peer, if there is one or can be made.
    pub(crate) fn admit(&self, peer: Peer) -> Option<Visit> {
        let mut taken = self.0.lock();
        let share = self.0.most - self.0.most / KEPT;
        let has_share = peer != Peer::Local && taken.by_peer.get(&peer).is_some_and(|count| *count >= share);
        if has_share || taken.staying() >= self.0.most {
            let freed = (self.0.most / FREED).max(1);
            let enough = taken.leaving < freed * 2 && taken.free(has_share.then_some(peer), freed);
            if !enough {
                return None;
            }
        }
        let (id, usage) = (taken.next, Arc::<Usage>::default());
        taken.next += 1;
        *taken.by_peer.entry(peer).or_default() += 1;
        taken.visits.insert(id, (peer, usage.clone()));
        Some(Visit { places: self.0.clone(), id, usage })
    }
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn staying(&self) -> usize {
        self.visits.len() - self.leaving
    }

    /// Tells up to so many that do nothing to leave, all of one peer: this one, or the one that has most connections of those
    /// that have an idle one. Whether there is any.
    fn free(&mut self, peer: Option<Peer>, most: usize) -> bool {
        let idle: Vec<(Peer, Arc<Usage>)> = self.visits.values().filter(|(_, usage)| usage.is_idle()).cloned().collect();
        let count = |peer: &Peer| self.by_peer.get(peer).copied().unwrap_or_default();
        let Some(peer) = peer.or_else(|| idle.iter().map(|(peer, _)| *peer).max_by_key(count)) else { return false };
        let (used, unused): (Vec<_>, Vec<_>) =
            idle.into_iter().filter(|(of, _)| *of == peer).map(|(_, usage)| usage).partition(|usage| usage.was_used());
        let chosen: Vec<_> = if unused.is_empty() { used } else { unused }.into_iter().take(most).collect();
        for usage in &chosen {
            self.leaving += 1;
            self.forget(peer);
            usage.leaving.store(true, Ordering::Relaxed);
            usage.leave.notify_one();
        }
        !chosen.is_empty()
    }

    fn forget(&mut self, peer: Peer) {
        if let Some(count) = self.by_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }
}

/// What a connection does, as it says itself.
#[derive(Default)]
pub(crate) struct Usage {
    /// Calls that are decided or answered. Only one thread writes it.
    busy: AtomicUsize,
    /// Whether it had one since the last look.
    used: AtomicBool,
    leaving: AtomicBool,
    leave: Notify,
}

impl Usage {
    /// Notes that a call begins.
    pub(crate) fn begin(&self) {
        self.busy.store(self.busy.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
    }

    /// Notes that a call ends.
    pub(crate) fn end(&self) {
        self.busy.store(self.busy.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0 && !self.leaving.load(Ordering::Relaxed)
    }

    /// Asked once a look.
    fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

/// A connection's place, given back when dropped.
pub(crate) struct Visit {
    places: Arc<Places>,
    id: u64,
    usage: Arc<Usage>,
}

impl Visit {
    /// Where the connection says what it does.
    pub(crate) fn usage(&self) -> Arc<Usage> {
        self.usage.clone()
    }

    /// Waits until the connection is told to make room.
    pub(crate) async fn must_leave(&self) {
        self.usage.leave.notified().await;
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        let Some((peer, usage)) = taken.visits.remove(&self.id) else { return };
        if usage.leaving.load(Ordering::Relaxed) {
            taken.leaving -= 1;
        } else {
            taken.forget(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> Peer {
        Peer::V4([10, 0, 0, number])
    }

    fn is_told(visit: &Visit) -> bool {
        visit.usage.leaving.load(Ordering::Relaxed)
    }

    #[test]
    fn no_address_takes_the_last_places_and_processes_of_this_host_may() {
        let admission = Admission::new(64);
        let crowd: Vec<Visit> = (0..56).filter_map(|_| admission.admit(peer(1))).collect();
        crowd.iter().for_each(|visit| visit.usage.begin());
        assert!(admission.admit(peer(1)).is_none());
        let others: Vec<Visit> = (0..8).filter_map(|_| admission.admit(peer(2))).collect();
        assert_eq!((crowd.len(), others.len()), (56, 8));
        let local = Admission::new(64);
        let all: Vec<Visit> = (0..64).filter_map(|_| local.admit(Peer::Local)).collect();
        assert_eq!(all.len(), 64);
    }

    #[test]
    fn when_it_is_full_the_oldest_that_does_nothing_makes_room_of_the_peer_that_has_most() {
        let admission = Admission::new(16);
        let few: Vec<Visit> = (0..3).filter_map(|_| admission.admit(peer(1))).collect();
        let many: Vec<Visit> = (0..13).filter_map(|_| admission.admit(peer(2))).collect();
        many[0].usage.begin();
        many[1].usage.begin();
        many[1].usage.end();
        let newcomer = admission.admit(peer(3)).unwrap();
        assert!(is_told(&many[2]) && many.iter().filter(|visit| is_told(visit)).count() == 1);
        assert!(!few.iter().any(is_told) && !is_told(&newcomer));
    }

    #[test]
    fn a_crowd_that_is_busy_keeps_its_places_and_one_that_was_used_is_spared_while_there_are_others() {
        let admission = Admission::new(4);
        let all: Vec<Visit> = (0..4).filter_map(|_| admission.admit(Peer::Local)).collect();
        all.iter().for_each(|visit| visit.usage.begin());
        assert!(admission.admit(Peer::Local).is_none());
        all.iter().for_each(|visit| visit.usage.end());
        // All were used, so the oldest goes; the next look finds that nobody was since.
        let first = admission.admit(Peer::Local).unwrap();
        assert!(is_told(&all[0]));
        all[1].usage.begin();
        all[1].usage.end();
        let _second = admission.admit(Peer::Local).unwrap();
        assert!(!is_told(&all[1]) && is_told(&all[2]) && !is_told(&first));
    }

    #[test]
    fn places_are_given_back_whether_they_were_asked_for_or_not() {
        let admission = Admission::new(2);
        for _ in 0..100 {
            let _visits: Vec<Visit> = (0..3).filter_map(|number| admission.admit(peer(number))).collect();
        }
        let taken = admission.0.lock();
        assert_eq!((taken.visits.len(), taken.leaving, taken.by_peer.len()), (0, 0, 0));
    }

    #[test]
    fn connections_that_do_not_go_when_told_are_few() {
        let admission = Admission::new(64);
        let all: Vec<Visit> = std::iter::from_fn(|| admission.admit(Peer::Local)).collect();
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
