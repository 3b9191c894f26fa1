//! The workers as the acceptor sees them: who has how many connections, and how to hand one over.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use super::admission::{Admission, Visit};
use super::socket::Accepted;

/// Most open connections for each worker; see [`Admission`] for who is let in when there are as many. An idle one takes some 20 KiB, so
/// these take 80 MiB, and a fleet of clients that needs more needs more workers or replicas.
pub const CONNECTIONS_MAX: usize = 4096;

/// Most streams that one connection may have open at once. More wait on the client's side: at a millisecond a call, these
/// are 256,000 a second.
pub(super) const STREAMS_MAX: usize = 256;
/// Fewest, and so of every connection of a crowd.
const STREAMS_MIN: usize = 16;
/// What connections share while there are many: a connection keeps for its life what it once needed for a stream, some 1 KiB
/// each. So all of them together need 170 MiB at the very worst, where they would need 1 GiB if each might have the most.
const STREAMS_SHARED: usize = 32 << 10;

/// Bytes that may be under way unread on one connection, unless its calls take them in; less of every connection of a crowd,
/// down to what each has by HTTP/2 itself.
const WINDOW_BYTES_MAX: usize = 1 << 20;
const WINDOW_BYTES_MIN: usize = 64 << 10;
/// What connections share of it while there are few.
const WINDOWS_SHARED: usize = 64 << 20;

/// An accepted connection, and what it may.
pub(super) struct Entry {
    pub accepted: Accepted,
    /// Streams that it may have open at once.
    pub streams: u32,
    /// Bytes that may be under way unread.
    pub window: u32,
    /// After how long it is told to go away, if it is.
    pub age: Option<Duration>,
    /// Its place among those of all workers.
    pub visit: Visit,
}

/// An accepted connection and the seat that was kept for it.
pub(super) struct Handed {
    pub entry: Entry,
    pub seat: Seat,
}

/// A place among a worker's connections, given back when dropped.
pub(super) struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells how busy the workers are, all of them together.
pub struct Connections(Vec<(Arc<AtomicUsize>, Arc<AtomicU64>)>);

impl Connections {
    /// How many are open, those that were handed over and not served yet included.
    pub fn open(&self) -> usize {
        self.0.iter().map(|(open, _)| open.load(Ordering::Relaxed)).sum()
    }

    /// How many of their calls were refused, since as many were held as may be.
    pub fn refused_calls(&self) -> u64 {
        self.0.iter().map(|(_, refused)| refused.load(Ordering::Relaxed)).sum()
    }
}

/// Every worker, in order. Dropping it tells them that no more connections come.
pub(super) struct Crew {
    mates: Vec<Mate>,
    admission: Admission,
    /// After how long connections are told to go away, give or take [`AGE_JITTER`].
    pub age: Option<Duration>,
}

/// So much more or less of the age, so that connections made at once are not all made again at once: one part in ten.
const AGE_JITTER: f64 = 0.1;

struct Mate {
    /// Bounded by the seats.
    connections: mpsc::UnboundedSender<Handed>,
    /// Connections handed over and not yet closed.
    open: Arc<AtomicUsize>,
    /// Calls that it refused.
    refused: Arc<AtomicU64>,
}

/// What a worker has of the crew.
pub(super) struct Post {
    /// What is handed to it.
    pub handed: mpsc::UnboundedReceiver<Handed>,
    /// Where it counts the calls that it refuses.
    pub refused: Arc<AtomicU64>,
}

impl Crew {
    /// Nobody yet, who will have so many connections in all.
    pub(super) fn new(connections_max: usize) -> Self {
        Self { mates: Vec::new(), admission: Admission::new(connections_max), age: None }
    }

    /// Has so many connections for each worker at most.
    pub(super) fn limit(&mut self, connections_max: usize) {
        self.admission = Admission::new(connections_max.saturating_mul(self.mates.len()));
    }

    /// Adds a worker.
    pub(super) fn join(&mut self) -> Post {
        let (connections, handed) = mpsc::unbounded_channel();
        let refused = Arc::<AtomicU64>::default();
        self.mates.push(Mate { connections, open: Arc::default(), refused: refused.clone() });
        Post { handed, refused }
    }

    pub(super) fn connections(&self) -> Connections {
        Connections(self.mates.iter().map(|mate| (mate.open.clone(), mate.refused.clone())).collect())
    }

    /// Hands a connection to the worker with the fewest, of equals to the first, if there is a place for it; whether one took
    /// it. It is closed if not.
    pub(super) fn hand(&self, accepted: Accepted) -> bool {
        // Only this adds to the numbers, so none grows between the look and the step.
        let idlest = self.mates.iter().map(|mate| (mate.open.load(Ordering::Relaxed), mate)).min_by_key(|(open, _)| *open);
        let Some((_, mate)) = idlest else { return false };
        let Some(visit) = self.admission.admit(accepted.peer()) else { return false };
        let open = 1 + mate.open.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { accepted, streams: streams(open), window: window(open), age: self.age.map(jittered), visit };
        mate.connections.send(Handed { entry, seat: Seat(mate.open.clone()) }).is_ok()
    }
}

/// Streams for a connection that is one of so many.
fn streams(open: usize) -> u32 {
    // At most 256.
    (STREAMS_SHARED / open).clamp(STREAMS_MIN, STREAMS_MAX) as u32
}

/// Bytes unread for a connection that is one of so many.
fn window(open: usize) -> u32 {
    // At most 1 MiB.
    (WINDOWS_SHARED / open).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX) as u32
}

fn jittered(age: Duration) -> Duration {
    // Its keys are the standard library's source of chance.
    let chance = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
    age.mul_f64(1.0 - AGE_JITTER + 2.0 * AGE_JITTER * chance)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn crew(workers: usize) -> (Crew, Vec<mpsc::UnboundedReceiver<Handed>>) {
        let mut crew = Crew::new(12);
        let received = (0..workers).map(|_| crew.join().handed).collect();
        (crew, received)
    }

    fn hand(crew: &Crew) -> bool {
        let (ours, _) = UnixStream::pair().unwrap();
        crew.hand(Accepted::Unix(ours))
    }

    fn open(crew: &Crew) -> Vec<usize> {
        crew.mates.iter().map(|mate| mate.open.load(Ordering::Relaxed)).collect()
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
        assert!((0..12).all(|_| hand(&crew)));
        let taken: Vec<Handed> = received.iter_mut().flat_map(|of| std::iter::from_fn(|| of.try_recv().ok())).collect();
        taken.iter().for_each(|handed| handed.entry.visit.usage().begin());
        assert!(!hand(&crew));
        drop(taken);
        assert!(hand(&crew));
    }

    #[test]
    fn the_more_connections_the_fewer_streams_each() {
        assert_eq!([1, 128, 129, 1024, 2048, CONNECTIONS_MAX].map(streams), [256, 256, 254, 32, 16, 16]);
        assert!((1..=CONNECTIONS_MAX).map(|open| streams(open) as usize).sum::<usize>() < 170 << 10);
    }

    #[test]
    fn the_more_connections_the_fewer_bytes_unread_each() {
        assert_eq!([1, 64, 128, 1024, CONNECTIONS_MAX].map(window), [1 << 20, 1 << 20, 512 << 10, 64 << 10, 64 << 10]);
    }

    #[test]
    fn connections_of_one_moment_grow_old_at_different_ones() {
        let hour = Duration::from_secs(3600);
        let ages: Vec<Duration> = (0..1_000).map(|_| jittered(hour)).collect();
        assert!(ages.iter().all(|age| *age >= hour.mul_f64(0.9) && *age <= hour.mul_f64(1.1)));
        assert!(ages.iter().max().unwrap().saturating_sub(*ages.iter().min().unwrap()) > hour.mul_f64(0.15));
    }

    #[test]
    fn nobody_takes_what_no_worker_is_there_for() {
        assert!(!hand(&Crew::new(1)));
        let (crew, received) = crew(1);
        drop(received);
        assert!(!hand(&crew));
        assert_eq!(open(&crew), [0]);
    }
}
