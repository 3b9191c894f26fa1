//! The worker pool as the acceptor sees it: how many connections each worker has, and how to assign a new one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use super::admission::{Admission, AdmissionPermit};
use super::socket::Accepted;
use tollgate_store::random::{self, jittered};

/// Maximum number of open connections for each worker; see [`Admission`] for which are let in beyond it. An idle connection takes
/// some 20 KiB, so these take 80 MiB. More clients than that need more workers or replicas.
pub const CONNECTIONS_MAX: usize = 4096;

/// Maximum number of streams that one connection may have open at once; more wait in the client. At a millisecond a call, this
/// allows 256,000 calls a second.
pub(crate) const STREAMS_MAX: usize = 256;
/// Fewest streams that a connection may have open, however many connections there are.
const STREAMS_MIN: usize = 8;
/// Streams that the connections of a worker share. As many as it holds calls: more would not be answered any sooner. A stream
/// leaves some 2.5 KiB allocated until its connection closes, 20 MiB for all of these.
const STREAMS_SHARED: usize = 8 << 10;

/// Largest flow control window of a connection: bytes sent to us that no call has read. It shrinks when there are many
/// connections, down to the 64 KiB that HTTP/2 itself gives each.
const WINDOW_BYTES_MAX: usize = 1 << 20;
const WINDOW_BYTES_MIN: usize = 64 << 10;
/// Window bytes that all connections share.
const WINDOWS_SHARED: usize = 64 << 20;

/// An accepted connection and its limits.
pub(crate) struct AcceptedConnection {
    pub accepted: Accepted,
    /// Maximum number of streams that it may have open at once.
    pub streams: u32,
    /// Flow control window: bytes that the peer may send before calls read them.
    pub window: u32,
    /// Age at which the peer is sent GOAWAY; `None`: never.
    pub age: Option<Duration>,
    /// Counts it among the connections of all workers.
    pub admission: AdmissionPermit,
}

/// An accepted connection on its way to a worker, with its permit.
pub(crate) struct QueuedConnection {
    pub connection: AcceptedConnection,
    pub permit: ConnectionPermit,
}

/// What the connections of a worker take together.
#[derive(Default)]
struct Taken {
    /// Connections assigned to the worker and not yet closed.
    connections: AtomicUsize,
    /// Streams that they may have open.
    streams: AtomicUsize,
}

/// Counts a connection and its streams among those of one worker. Dropping it gives them back.
pub(crate) struct ConnectionPermit {
    taken: Arc<Taken>,
    streams: u32,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.taken.connections.fetch_sub(1, Ordering::Relaxed);
        self.taken
            .streams
            .fetch_sub(self.streams as usize, Ordering::Relaxed);
    }
}

/// Reads how many connections the workers have and how many calls they refused.
pub struct Connections(Vec<(Arc<Taken>, Arc<AtomicU64>)>);

impl Connections {
    /// Open connections, including those that a worker has not begun to serve.
    pub fn open(&self) -> usize {
        self.0
            .iter()
            .map(|(taken, _)| taken.connections.load(Ordering::Relaxed))
            .sum()
    }

    /// Calls that were refused because the limit of calls was reached.
    pub fn refused_calls(&self) -> u64 {
        self.0
            .iter()
            .map(|(_, refused)| refused.load(Ordering::Relaxed))
            .sum()
    }
}

/// All workers, in order of their index. Dropping it tells them that no more connections come.
pub(crate) struct WorkerPool {
    workers: Vec<PoolWorker>,
    admission: Admission,
    /// Age at which connections are sent GOAWAY, varied by [`AGE_JITTER`]; `None`: never.
    pub age: Option<Duration>,
}

/// The age varies by this fraction up and down, so that connections made together are not all made anew together.
const AGE_JITTER: f64 = 0.1;

struct PoolWorker {
    /// Unbounded as a channel; [`Admission`] bounds what is in it.
    connections: mpsc::UnboundedSender<QueuedConnection>,
    taken: Arc<Taken>,
    /// Calls that the worker refused.
    refused: Arc<AtomicU64>,
}

/// The worker's side of the pool.
pub(crate) struct WorkerInbox {
    /// Connections assigned to the worker.
    pub connections: mpsc::UnboundedReceiver<QueuedConnection>,
    /// Counts the calls that the worker refuses.
    pub refused: Arc<AtomicU64>,
}

impl WorkerPool {
    /// A pool without workers, which will let in at most `connections_max` in all.
    pub(crate) fn new(connections_max: usize) -> Self {
        Self {
            workers: Vec::new(),
            admission: Admission::new(connections_max),
            age: None,
        }
    }

    /// Lets in at most `connections_max` for each worker.
    pub(crate) fn limit(&mut self, connections_max: usize) {
        self.admission = Admission::new(connections_max.saturating_mul(self.workers.len()));
    }

    /// Adds a worker.
    pub(crate) fn add_worker(&mut self) -> WorkerInbox {
        let (sender, receiver) = mpsc::unbounded_channel();
        let refused = Arc::<AtomicU64>::default();
        self.workers.push(PoolWorker {
            connections: sender,
            taken: Arc::default(),
            refused: refused.clone(),
        });
        WorkerInbox {
            connections: receiver,
            refused,
        }
    }

    pub(crate) fn connections(&self) -> Connections {
        Connections(
            self.workers
                .iter()
                .map(|worker| (worker.taken.clone(), worker.refused.clone()))
                .collect(),
        )
    }

    /// Assigns a connection to the worker with the fewest; of equals, to the first. Returns false, and closes the
    /// connection, when there is no place for it.
    pub(crate) fn assign(&self, accepted: Accepted) -> bool {
        // Only the acceptor, which calls this, adds to these counts. So none grows between reading the minimum and adding
        // to it.
        let open = |worker: &PoolWorker| worker.taken.connections.load(Ordering::Relaxed);
        let Some(worker) = self.workers.iter().min_by_key(|worker| open(worker)) else {
            return false;
        };
        let Some(admission) = self.admission.admit(accepted.peer()) else {
            return false;
        };
        let taken = worker.taken.clone();
        let open = 1 + taken.connections.fetch_add(1, Ordering::Relaxed);
        let streams = streams(taken.streams.load(Ordering::Relaxed));
        taken.streams.fetch_add(streams as usize, Ordering::Relaxed);
        let permit = ConnectionPermit { taken, streams };
        let connection = AcceptedConnection {
            accepted,
            streams,
            window: window(open),
            age: self
                .age
                .map(|age| jittered(age, AGE_JITTER, random::bits())),
            admission,
        };
        worker
            .connections
            .send(QueuedConnection { connection, permit })
            .is_ok()
    }
}

/// Maximum number of streams for a new connection of a worker whose others have `taken`: a part of what is left. So the first
/// have the most, and the sum is bounded.
#[expect(clippy::cast_possible_truncation, reason = "at most 256")]
pub(crate) fn streams(taken: usize) -> u32 {
    (STREAMS_SHARED.saturating_sub(taken) * STREAMS_MAX / STREAMS_SHARED)
        .clamp(STREAMS_MIN, STREAMS_MAX) as u32
}

/// Flow control window, in bytes, for a connection of a worker that has `open`.
#[expect(clippy::cast_possible_truncation, reason = "at most 1 MiB")]
pub(crate) fn window(open: usize) -> u32 {
    (WINDOWS_SHARED / open).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX) as u32
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pool(workers: usize) -> (WorkerPool, Vec<mpsc::UnboundedReceiver<QueuedConnection>>) {
        let mut pool = WorkerPool::new(12);
        let received = (0..workers)
            .map(|_| pool.add_worker().connections)
            .collect();
        (pool, received)
    }

    fn assign(pool: &WorkerPool) -> bool {
        let (ours, _) = UnixStream::pair().unwrap();
        pool.assign(Accepted::Unix(ours))
    }

    fn open(pool: &WorkerPool) -> Vec<usize> {
        pool.workers
            .iter()
            .map(|worker| worker.taken.connections.load(Ordering::Relaxed))
            .collect()
    }

    #[test]
    fn each_connection_goes_to_a_worker_with_the_fewest() {
        let (pool, mut received) = pool(3);
        for assigned in 1..=12 {
            assert!(assign(&pool));
            let open = open(&pool);
            assert!(
                open.iter().max().unwrap() - open.iter().min().unwrap() <= 1,
                "{open:?} after {assigned}"
            );
        }
        // Two connections of the second worker close, so it gets the next two.
        drop((
            received[1].try_recv().unwrap(),
            received[1].try_recv().unwrap(),
        ));
        assert_eq!(open(&pool), [4, 2, 4]);
        assert_eq!(pool.connections().open(), 10);
        assert!(assign(&pool) && assign(&pool));
        assert_eq!(open(&pool), [4, 4, 4]);
    }

    #[test]
    fn a_full_pool_takes_no_more_until_a_connection_closes() {
        let (pool, mut received) = pool(2);
        assert!((0..12).all(|_| assign(&pool)));
        let taken: Vec<QueuedConnection> = received
            .iter_mut()
            .flat_map(|of| std::iter::from_fn(|| of.try_recv().ok()))
            .collect();
        taken
            .iter()
            .for_each(|queued| queued.connection.admission.usage().begin());
        assert!(!assign(&pool));
        drop(taken);
        assert!(assign(&pool));
    }

    #[test]
    fn the_more_connections_the_fewer_streams_each() {
        let mut taken = 0;
        let mut each = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            each.push(streams(taken));
            taken += streams(taken) as usize;
        }
        assert_eq!(
            [1, 10, 33, 100, CONNECTIONS_MAX].map(|open| each[open - 1]),
            [256, 192, 92, 11, 8]
        );
        assert!(
            taken <= STREAMS_SHARED + CONNECTIONS_MAX * STREAMS_MIN,
            "{taken}"
        );
    }

    #[test]
    fn streams_of_a_connection_that_is_gone_are_free_again() {
        let (pool, mut received) = pool(1);
        let next = |received: &mut Vec<mpsc::UnboundedReceiver<QueuedConnection>>| {
            assert!(assign(&pool));
            received[0].try_recv().unwrap()
        };
        let first = next(&mut received);
        let second = next(&mut received);
        assert_eq!(
            (first.connection.streams, second.connection.streams),
            (256, 248)
        );
        drop(first);
        drop(second);
        assert_eq!(next(&mut received).connection.streams, 256);
    }

    #[test]
    fn the_more_connections_the_smaller_the_window_of_each() {
        assert_eq!(
            [1, 64, 128, 1024, CONNECTIONS_MAX].map(window),
            [1 << 20, 1 << 20, 512 << 10, 64 << 10, 64 << 10]
        );
    }

    #[test]
    fn connections_made_together_reach_their_age_at_different_times() {
        let hour = Duration::from_secs(3600);
        let ages: Vec<Duration> = (0..1_000)
            .map(|_| jittered(hour, AGE_JITTER, random::bits()))
            .collect();
        assert!(
            ages.iter()
                .all(|age| *age >= hour.mul_f64(0.9) && *age <= hour.mul_f64(1.1))
        );
        assert!(
            ages.iter()
                .max()
                .unwrap()
                .saturating_sub(*ages.iter().min().unwrap())
                > hour.mul_f64(0.15)
        );
    }

    #[test]
    fn a_connection_is_refused_when_no_worker_can_take_it() {
        assert!(!assign(&WorkerPool::new(1)));
        let (pool, received) = pool(1);
        drop(received);
        assert!(!assign(&pool));
        assert_eq!(open(&pool), [0]);
    }
}
