//! The workers as the acceptor sees them: who has how many connections, and how to hand one over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::socket::Accepted;

/// Most open connections of one worker; more are closed as soon as they are accepted. An idle one takes some 20 KiB, so
/// these take 80 MiB, and a fleet of clients that needs more needs more workers or replicas.
pub(super) const CONNECTIONS_MAX: usize = 4096;

/// An accepted connection and the seat that was kept for it.
pub(super) struct Handed {
    pub accepted: Accepted,
    pub seat: Seat,
}

/// A place among a worker's connections, given back when dropped.
pub(super) struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells how many connections are open, of all workers together.
pub struct Connections(Vec<Arc<AtomicUsize>>);

impl Connections {
    /// So many, those that were handed over and not served yet included.
    pub fn open(&self) -> usize {
        self.0.iter().map(|open| open.load(Ordering::Relaxed)).sum()
    }
}

/// Every worker, in order. Dropping it tells them that no more connections come.
#[derive(Default)]
pub(super) struct Crew(Vec<Mate>);

struct Mate {
    /// Bounded by the seats.
    connections: mpsc::UnboundedSender<Handed>,
    /// Connections handed over and not yet closed.
    open: Arc<AtomicUsize>,
}

impl Crew {
    /// Adds a worker; what is handed to it comes out here.
    pub(super) fn join(&mut self) -> mpsc::UnboundedReceiver<Handed> {
        let (connections, handed) = mpsc::unbounded_channel();
        self.0.push(Mate { connections, open: Arc::default() });
        handed
    }

    pub(super) fn connections(&self) -> Connections {
        Connections(self.0.iter().map(|mate| mate.open.clone()).collect())
    }

    /// Hands a connection to the worker with the fewest, of equals to the first; whether one took it. It is closed if not.
    pub(super) fn hand(&self, accepted: Accepted) -> bool {
        // Only this adds to the numbers, so none grows between the look and the step.
        let idlest = self.0.iter().map(|mate| (mate.open.load(Ordering::Relaxed), mate)).min_by_key(|(open, _)| *open);
        let Some((_, mate)) = idlest.filter(|(open, _)| *open < CONNECTIONS_MAX) else { return false };
        mate.open.fetch_add(1, Ordering::Relaxed);
        mate.connections.send(Handed { accepted, seat: Seat(mate.open.clone()) }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn crew(workers: usize) -> (Crew, Vec<mpsc::UnboundedReceiver<Handed>>) {
        let mut crew = Crew::default();
        let received = (0..workers).map(|_| crew.join()).collect();
        (crew, received)
    }

    fn hand(crew: &Crew) -> bool {
        let (ours, _) = UnixStream::pair().unwrap();
        crew.hand(Accepted::Unix(ours))
    }

    fn open(crew: &Crew) -> Vec<usize> {
        crew.0.iter().map(|mate| mate.open.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn each_connection_goes_to_a_worker_that_none_is_idler_than() {
        let (crew, mut received) = crew(3);
        for handed in 1..=12 {
            assert!(hand(&crew));
            let open = open(&crew);
            assert!(open.iter().max().unwrap() - open.iter().min().unwrap() <= 1, "{open:?} after {handed}");
        }
        // Two of the second worker close: the next two are its.
        drop((received[1].try_recv().unwrap(), received[1].try_recv().unwrap()));
        assert_eq!(open(&crew), [4, 2, 4]);
        assert_eq!(crew.connections().open(), 10);
        assert!(hand(&crew) && hand(&crew));
        assert_eq!(open(&crew), [4, 4, 4]);
    }

    #[test]
    fn a_full_crew_takes_no_more_until_a_connection_closes() {
        let (crew, mut received) = crew(2);
        for mate in &crew.0 {
            mate.open.store(CONNECTIONS_MAX, Ordering::Relaxed);
        }
        assert!(!hand(&crew));
        crew.0[1].open.store(CONNECTIONS_MAX - 1, Ordering::Relaxed);
        assert!(hand(&crew) && !hand(&crew));
        drop(received[1].try_recv().unwrap());
        assert!(hand(&crew));
        assert!(received[0].try_recv().is_err());
    }

    #[test]
    fn nobody_takes_what_no_worker_is_there_for() {
        assert!(!hand(&Crew::default()));
        let (crew, received) = crew(1);
        drop(received);
        assert!(!hand(&crew));
        assert_eq!(open(&crew), [0]);
    }
}
