//! The workers: threads that each run one connection after another's turn, on a runtime of their own, so that no decision
//! crosses from one core to another.

use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use super::answer::Tasks;
use super::calls::Calls;
use super::connection::{self, Manners};
use super::crew::{CONNECTIONS_MAX, Connections, Crew, Entry, Handed, Post};
use super::leaving::Leaving;
use super::pb::{self, rate_limit_service_server::RateLimitService};
use super::services::{self, Services};
use super::{Drained, HEALTH_SERVICE};

/// Longest that open calls and connections may hold up the end, after 3 s of a lame duck at most. Kubernetes kills after 30 s,
/// and promises stand at 10.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// How much longer a worker is waited for that should have cut its connections by then and did not.
const CUT_WITHIN: Duration = Duration::from_millis(500);
/// See [`keep_heap`].
const HEAP_KEPT_BYTES: usize = 2 << 20;

/// Threads that serve connections, started and ready for [`super::serve`]. Dropping them ends them.
pub struct Workers {
    pub(super) crew: Crew,
    pub(super) ends: Ends,
}

/// Why workers could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system gave no thread, or no runtime for it.
    #[error("cannot start a worker: {0}")]
    System(#[from] io::Error),
    /// The factory could not make a worker's service: its sentence.
    #[error("{0}")]
    Service(String),
    /// The factory panicked, which standard error tells of.
    #[error("a worker ended before it was ready")]
    Lost,
}

impl Workers {
    /// Starts `count` threads and waits until each has its service, made within its own runtime by `factory` from the
    /// worker's index, all at the same time: so a service may have connections and tasks of its own. Connections are
    /// handed to them by [`super::serve`].
    ///
    /// Errors: [`StartError`]; workers that did start end then.
    pub async fn start<T, F, M>(count: NonZeroUsize, factory: F) -> Result<Self, StartError>
    where
        T: RateLimitService,
        F: Fn(usize) -> M + Send + Sync + 'static,
        M: Future<Output = Result<T, String>>,
    {
        let (health, health_service) = health_reporter();
        health.set_service_status("", ServingStatus::Serving).await;
        health.set_service_status(HEALTH_SERVICE, ServingStatus::Serving).await;
        let (others, factory) = (services::others(health_service, pb::FILE_DESCRIPTOR_SET), Arc::new(factory));
        let connections_max = CONNECTIONS_MAX.saturating_mul(count.get());
        let (mut crew, ends) = (Crew::new(connections_max), FuturesUnordered::new());
        let mut starting = Vec::new();
        for index in 0..count.get() {
            let (ready, started) = oneshot::channel();
            let (end, ended) = oneshot::channel();
            let worker = Worker { others: others.clone(), post: crew.join(), ready };
            let factory = factory.clone();
            let thread = std::thread::Builder::new().name(format!("worker {index}"));
            // The handle is let go: what is to be known of the thread comes by `ended`, also when it panics, and a
            // thread that hangs must not be waited for.
            thread.spawn(move || {
                if let Some(drained) = worker.run(|| factory(index)) {
                    // Nobody waits for it when the server is gone.
                    let _ = end.send(drained);
                }
            })?;
            starting.push(started);
            ends.push(ended);
        }
        for started in starting {
            started.await.map_err(|_| StartError::Lost)??;
        }
        Ok(Self { crew, ends: Ends { health, ends } })
    }

    /// Has connections told to go away when they are so old, give or take a tenth; `None`: never, which is the default.
    pub fn retire_connections_after(mut self, age: Option<Duration>) -> Self {
        self.crew.age = age;
        self
    }

    /// Has each worker take at most so many connections, and never more than its own bound, 4,096.
    pub fn with_connections_max(mut self, connections: usize) -> Self {
        self.crew.limit(connections.min(CONNECTIONS_MAX));
        self
    }

    /// Tells how many connections they have, also while they serve.
    pub fn connections(&self) -> Connections {
        self.crew.connections()
    }
}

/// How the workers end.
pub(super) struct Ends {
    health: HealthReporter,
    /// One a worker; an error is a panic of its thread.
    ends: FuturesUnordered<oneshot::Receiver<Drained>>,
}

impl Ends {
    /// Waits for a worker that ends although connections may still come, which only a panic makes it do.
    pub(super) async fn lost(&mut self) {
        if self.ends.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Says, from the next moment on and to whoever watches, that this server is not to be asked any more.
    pub(super) fn unready(&self) -> impl Future<Output = ()> + use<> {
        let health = self.health.clone();
        async move { health.set_service_status(HEALTH_SERVICE, ServingStatus::NotServing).await }
    }

    /// Tells the workers that this is the end, and waits for theirs.
    pub(super) async fn drain(mut self, crew: Crew) -> Drained {
        // Whoever watches has been told, and hears the end of the stream after it.
        for service in ["", HEALTH_SERVICE] {
            self.health.clear_service_status(service).await;
        }
        drop(crew);
        let all = async {
            let mut all = Drained::Clean;
            while let Some(ended) = self.ends.next().await {
                all = if ended == Ok(Drained::Clean) { all } else { Drained::Cut };
            }
            all
        };
        tokio::time::timeout(DRAIN_WITHIN + CUT_WITHIN, all).await.unwrap_or(Drained::Cut)
    }
}

/// What a worker's thread begins with.
struct Worker {
    others: Routes,
    post: Post,
    ready: oneshot::Sender<Result<(), StartError>>,
}

impl Worker {
    /// The life of the thread; `None` when it did not get as far as serving, which `ready` was told.
    fn run<T, M>(self, make: impl FnOnce() -> M) -> Option<Drained>
    where
        T: RateLimitService,
        M: Future<Output = Result<T, String>>,
    {
        let Self { others, post: Post { handed, refused }, ready } = self;
        // Nobody waits for what is sent by `ready` when another worker has failed before.
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => return ready.send(Err(error.into())).err().and(None),
        };
        let drained = runtime.block_on(async {
            match make().await {
                Ok(service) => {
                    let _ = ready.send(Ok(()));
                    Some(serve(Services::new(service, others, Calls::new(refused)), handed).await)
                }
                Err(sentence) => ready.send(Err(StartError::Service(sentence))).err().and(None),
            }
        });
        // Closes what was cut; names that are still being looked up are not waited for.
        runtime.shutdown_background();
        drained
    }
}

fn runtime() -> io::Result<LocalRuntime> {
    keep_heap();
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// Lets glibc keep [`HEAP_KEPT_BYTES`] at a heap's end instead of 128 KiB. What 48 calls need for a moment is more than that,
/// so that a busy worker would give pages back and fault them in again all the time: 7 % of what it did.
///
/// glibc takes the size of the largest mapped block that was freed for what the program works with, and keeps twice that.
/// Other allocators see a block come and go. Source: mallopt(3), M_MMAP_THRESHOLD.
fn keep_heap() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(HEAP_KEPT_BYTES / 2)));
}

/// Serves one connection.
async fn connect<T: RateLimitService>(entry: Entry, services: &Rc<Services<T>>, stopping: watch::Receiver<bool>) {
    let Entry { accepted, streams, window, age, visit } = entry;
    let ((leave, leaving), all) = (watch::channel(false), services.calls().clone());
    let calls = all.connection(visit.usage());
    let executor = Tasks(calls.clone());
    let manners = Manners { executor, streams, window, age, leave, visit, busy: move || all.are_enough() };
    connection::serve(accepted, services.desk(calls, Leaving(leaving)), manners, stopping).await;
}

/// Serves what is handed over; when no more comes, drains.
async fn serve<T: RateLimitService>(services: Services<T>, mut handed: mpsc::UnboundedReceiver<Handed>) -> Drained {
    let (services, (stop, stopping)) = (Rc::new(services), watch::channel(false));
    while let Some(Handed { entry, seat }) = handed.recv().await {
        let (services, stopping) = (services.clone(), stopping.clone());
        tokio::task::spawn_local(async move {
            connect(entry, &services, stopping).await;
            drop(seat);
        });
    }
    drop(stopping);
    stop.send_replace(true);
    match tokio::time::timeout(DRAIN_WITHIN, stop.closed()).await {
        Ok(()) => Drained::Clean,
        Err(_) => Drained::Cut,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ServeError, serve};
    use super::*;

    #[tokio::test]
    async fn a_worker_that_is_lost_ends_the_server() {
        let (end, ended) = oneshot::channel::<Drained>();
        let ends = Ends { health: HealthReporter::new(), ends: [ended].into_iter().collect() };
        // What a panic does to it.
        drop(end);
        let served = serve(Vec::new(), Workers { crew: Crew::new(1), ends }, std::future::pending());
        let ended = tokio::time::timeout(Duration::from_secs(60), served).await;
        assert!(matches!(ended, Ok(Err(ServeError::Worker))), "{ended:?}");
    }
}
