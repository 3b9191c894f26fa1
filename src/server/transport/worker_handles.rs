//! Runs connections of other servers on the workers, beside those of gRPC. Knows no protocol.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// The workers, as a server sees them whose connections they serve, too. They run until it is dropped.
pub struct WorkerHandles(Vec<WorkerHandle>);

struct WorkerHandle {
    runtime: Handle,
    /// Connections that were assigned here and are not closed.
    open: Arc<AtomicUsize>,
    /// Never sends; its end tells the worker that it may end.
    _running: mpsc::Sender<Infallible>,
}

impl WorkerHandles {
    pub(crate) fn new(
        workers: impl IntoIterator<Item = (Handle, mpsc::Sender<Infallible>)>,
    ) -> Self {
        let worker = |(runtime, running)| WorkerHandle {
            runtime,
            open: Arc::default(),
            _running: running,
        };
        Self(workers.into_iter().map(worker).collect())
    }

    /// Runs a connection on the worker with the fewest; of equals, on the first. `connection` gets the worker's index. Without
    /// workers, the connection is closed.
    pub(crate) fn spawn<C: Future<Output = ()> + Send + 'static>(
        &self,
        connection: impl FnOnce(usize) -> C,
    ) {
        let open = |worker: &WorkerHandle| worker.open.load(Ordering::Relaxed);
        let Some((index, worker)) = self
            .0
            .iter()
            .enumerate()
            .min_by_key(|(_, worker)| open(worker))
        else {
            return;
        };
        worker.open.fetch_add(1, Ordering::Relaxed);
        let connection = connection(index);
        let counted = CountedConnection(worker.open.clone());
        // A worker that has ended drops the task, and with it the connection.
        worker.runtime.spawn(async move {
            connection.await;
            drop(counted);
        });
    }
}

/// Counts a connection until it is dropped.
struct CountedConnection(Arc<AtomicUsize>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn each_connection_goes_to_a_worker_with_the_fewest_and_workers_run_until_the_handles_are_dropped()
     {
        let runtimes = [(); 2].map(|()| {
            tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap()
        });
        let (ends, mut running): (Vec<_>, Vec<_>) =
            runtimes.iter().map(|_| mpsc::channel(1)).unzip();
        let handles = WorkerHandles::new(
            runtimes
                .iter()
                .map(|runtime| runtime.handle().clone())
                .zip(ends),
        );
        let chosen = Mutex::new(Vec::new());
        let mut open = Vec::new();
        for _ in 0..4 {
            handles.spawn(|index| {
                chosen.lock().unwrap().push(index);
                let (close, closed) = tokio::sync::oneshot::channel::<()>();
                open.push(close);
                async move { drop(closed.await) }
            });
        }
        assert_eq!(*chosen.lock().unwrap(), [0, 1, 0, 1]);
        // Both of the second worker close, so it gets the next two.
        drop((open.remove(3), open.remove(1)));
        runtimes[1].block_on(async {
            while handles.0[1].open.load(Ordering::Relaxed) > 0 {
                tokio::task::yield_now().await
            }
        });
        for _ in 0..2 {
            handles.spawn(|index| {
                chosen.lock().unwrap().push(index);
                std::future::pending()
            });
        }
        assert_eq!(chosen.lock().unwrap()[4..], [1, 1]);
        assert!(
            running
                .iter_mut()
                .all(|running| running.try_recv() == Err(mpsc::error::TryRecvError::Empty))
        );
        drop(handles);
        assert!(
            running
                .iter_mut()
                .all(|running| running.try_recv() == Err(mpsc::error::TryRecvError::Disconnected))
        );
    }
}
