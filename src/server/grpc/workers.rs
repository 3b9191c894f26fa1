//! The workers: threads that serve connections, each on its own single-threaded runtime. So a decision never moves from one
//! core to another.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::{Builder, Handle, LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use super::calls::CallLimits;
use super::drain::DrainSignal;
use super::services::{OtherRoutes, Services};
use super::{CALLERS_SERVICES, WorkerService};
use crate::transport::connection::{self, ConnectionOptions};
use crate::transport::pool::{
    AcceptedConnection, CONNECTIONS_MAX, Connections, QueuedConnection, WorkerInbox, WorkerPool,
};
use crate::transport::turns::WorkerTurns;
use crate::transport::{Drained, WorkerHandles};

/// Longest time that open calls and connections may delay the end of the process. A lame duck of at most 3 s comes before it.
/// The documents promise an end within 10 s; Kubernetes kills a process after 30 s.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than [`DRAIN_TIMEOUT`] the end of a worker is waited for. By then it should have cut its connections.
const CUT_TIMEOUT: Duration = Duration::from_millis(500);

/// Threads that are started and ready for [`super::serve`]. Dropping it ends them.
pub struct Workers {
    pub(super) pool: WorkerPool,
    pub(super) ends: WorkerEnds,
    /// For the HTTP server, which takes them at its start: these threads serve its connections too.
    pub(super) handles: WorkerHandles,
}

/// Why workers could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system gave no thread, or no runtime for it.
    #[error("cannot start a worker: {0}")]
    System(#[from] io::Error),
    /// The factory could not make a worker's service. The text is its error message.
    #[error("{0}")]
    Service(String),
    /// The factory panicked. Standard error has the panic message.
    #[error("a worker ended before it was ready")]
    Lost,
}

impl Workers {
    /// Starts `count` threads and waits until each has its service. `factory` makes the service from the worker's index,
    /// within the worker's runtime, for all workers at the same time. So a service may have its own connections and tasks.
    /// [`super::serve`] then assigns connections to the workers.
    ///
    /// Errors: [`StartError`]; workers that did start end then.
    pub async fn start<T, F, M>(count: NonZeroUsize, factory: F) -> Result<Self, StartError>
    where
        T: WorkerService,
        F: Fn(usize) -> M + Send + Sync + 'static,
        M: Future<Output = Result<T, String>>,
    {
        let (health, health_service) = health_reporter();
        health.set_service_status("", ServingStatus::Serving).await;
        set_health(&health, ServingStatus::Serving).await;
        let other_routes = OtherRoutes::new(&health_service);
        let factory = Arc::new(factory);
        let connections_max = CONNECTIONS_MAX.saturating_mul(count.get());
        let mut pool = WorkerPool::new(connections_max);
        let ends = FuturesUnordered::new();
        let mut starting = Vec::new();
        for index in 0..count.get() {
            let (ready, started) = oneshot::channel();
            let (end, ended) = oneshot::channel();
            let (running, others) = mpsc::channel(1);
            let worker = Worker {
                other_routes: other_routes.clone(),
                inbox: pool.add_worker(),
                ready,
                end,
                others,
            };
            let factory = factory.clone();
            let thread = std::thread::Builder::new().name(format!("worker {index}"));
            // The thread's handle is dropped: `ended` reports its end, also after a panic. A thread that hangs must not be
            // joined.
            thread.spawn(move || worker.run(|| factory(index)))?;
            starting.push((started, running));
            ends.push(ended);
        }
        let mut runtimes = Vec::new();
        for (started, running) in starting {
            runtimes.push((started.await.map_err(|_| StartError::Lost)??, running));
        }
        Ok(Self {
            pool,
            ends: WorkerEnds {
                health,
                ends,
                becoming_ready: None,
            },
            handles: WorkerHandles::new(runtimes),
        })
    }

    /// Sends connections GOAWAY at this age, varied by a tenth. `None`: never, which is the default.
    pub fn retire_connections_after(mut self, age: Option<Duration>) -> Self {
        self.pool.age = age;
        self
    }

    /// Makes the health of the service NOT_SERVING until `ready` is over. Calls are answered meanwhile.
    pub async fn unready_until(mut self, ready: impl Future<Output = ()> + Send + 'static) -> Self {
        let health = self.ends.health.clone();
        set_health(&health, ServingStatus::NotServing).await;
        let waiting = async move {
            ready.await;
            set_health(&health, ServingStatus::Serving).await;
        };
        self.ends.becoming_ready = Some(tokio::spawn(waiting).abort_handle());
        self
    }

    /// Limits the connections of each worker, to at most its own bound of 4,096.
    pub fn with_connections_max(mut self, connections: usize) -> Self {
        self.pool.limit(connections.min(CONNECTIONS_MAX));
        self
    }

    /// Returns handles for a server whose connections the workers serve, too. They run until the handles are dropped.
    pub fn take_handles(&mut self) -> WorkerHandles {
        std::mem::replace(&mut self.handles, WorkerHandles::new([]))
    }

    /// Returns a reader of the number of connections, which also works while they serve.
    pub fn connections(&self) -> Connections {
        self.pool.connections()
    }
}

/// Reports and awaits the end of the workers.
pub(super) struct WorkerEnds {
    health: HealthReporter,
    /// The task that makes the service ready later.
    becoming_ready: Option<AbortHandle>,
    /// One for each worker. An error means that its thread panicked.
    ends: FuturesUnordered<oneshot::Receiver<Drained>>,
}

impl WorkerEnds {
    /// Waits until a worker ends although connections may still come. Only a panic causes that.
    pub(super) async fn lost(&mut self) {
        if self.ends.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Sets the health of the service to NOT_SERVING. Clients that watch its health are told.
    pub(super) fn unready(&self) -> impl Future<Output = ()> + use<> {
        let health = self.health.clone();
        let becoming_ready = self.becoming_ready.clone();
        async move {
            becoming_ready.iter().for_each(AbortHandle::abort);
            set_health(&health, ServingStatus::NotServing).await;
        }
    }

    /// Tells the workers to end and waits for them.
    pub(super) async fn drain(mut self, pool: WorkerPool) -> Drained {
        // Clients that watch have been told NOT_SERVING; this ends their streams.
        for service in [""].into_iter().chain(CALLERS_SERVICES) {
            self.health.clear_service_status(service).await;
        }
        drop(pool);
        let all = async {
            let mut all = Drained::Clean;
            while let Some(ended) = self.ends.next().await {
                all = if ended == Ok(Drained::Clean) {
                    all
                } else {
                    Drained::Cut
                };
            }
            all
        };
        tokio::time::timeout(DRAIN_TIMEOUT + CUT_TIMEOUT, all)
            .await
            .unwrap_or(Drained::Cut)
    }
}

/// The parts that a worker's thread starts with.
struct Worker {
    other_routes: OtherRoutes,
    inbox: WorkerInbox,
    ready: oneshot::Sender<Result<Handle, StartError>>,
    /// Told how the connections of gRPC ended.
    end: oneshot::Sender<Drained>,
    /// Ends when no other server needs the worker.
    others: mpsc::Receiver<Infallible>,
}

impl Worker {
    /// Runs the thread. If it does not get as far as serving, `ready` has the reason.
    fn run<T, M>(self, make: impl FnOnce() -> M)
    where
        T: WorkerService,
        M: Future<Output = Result<T, String>>,
    {
        let Self {
            other_routes,
            inbox: WorkerInbox {
                connections,
                refused,
            },
            ready,
            end,
            mut others,
        } = self;
        // Sends fail when their receiver is gone: another worker has failed before, or the server is gone.
        let turns = WorkerTurns::default();
        let runtime = match runtime(turns.clone()) {
            Ok(runtime) => runtime,
            Err(error) => return drop(ready.send(Err(error.into()))),
        };
        runtime.block_on(async {
            match make().await {
                Ok(service) => {
                    let _ = ready.send(Ok(Handle::current()));
                    tokio::task::spawn_local(turns.clone().run());
                    let drained = serve(
                        Services::new(service, other_routes, CallLimits::new(refused, turns)),
                        connections,
                    )
                    .await;
                    let _ = end.send(drained);
                    others.recv().await;
                }
                Err(sentence) => drop(ready.send(Err(StartError::Service(sentence)))),
            }
        });
        // Closes the connections that were cut. Does not wait for DNS lookups in progress.
        runtime.shutdown_background();
    }
}

fn runtime(turns: WorkerTurns) -> io::Result<LocalRuntime> {
    Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || turns.idle())
        .build_local(LocalOptions::default())
}

/// Serves one connection.
async fn connect<T: WorkerService>(
    connection: AcceptedConnection,
    services: &Rc<Services<T>>,
    stopping: watch::Receiver<bool>,
) {
    let AcceptedConnection {
        accepted,
        streams,
        window,
        age,
        admission,
    } = connection;
    let (draining, drain) = watch::channel(false);
    let limits = services.calls().clone();
    let calls = limits.connection(admission.usage());
    let account = calls.account().clone();
    let options = ConnectionOptions {
        streams,
        window,
        age,
        draining,
        admission,
        account,
        busy: move || limits.is_backlogged(),
    };
    connection::serve(
        accepted,
        services.for_connection(calls, DrainSignal(drain)),
        options,
        stopping,
    )
    .await;
}

/// Serves the connections that arrive. Drains when no more can come.
async fn serve<T: WorkerService>(
    services: Services<T>,
    mut connections: mpsc::UnboundedReceiver<QueuedConnection>,
) -> Drained {
    let services = Rc::new(services);
    let (stop, stopping) = watch::channel(false);
    while let Some(QueuedConnection { connection, permit }) = connections.recv().await {
        let services = services.clone();
        let stopping = stopping.clone();
        tokio::task::spawn_local(async move {
            connect(connection, &services, stopping).await;
            drop(permit);
        });
    }
    drop(stopping);
    stop.send_replace(true);
    match tokio::time::timeout(DRAIN_TIMEOUT, stop.closed()).await {
        Ok(()) => Drained::Clean,
        Err(_) => Drained::Cut,
    }
}

/// Sets the health of the services of callers.
async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for service in CALLERS_SERVICES {
        health.set_service_status(service, status).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::serve;
    use super::*;
    use crate::transport::ServeError;

    #[tokio::test]
    async fn a_worker_that_is_lost_ends_the_server() {
        let (end, ended) = oneshot::channel::<Drained>();
        let ends = WorkerEnds {
            health: HealthReporter::new(),
            ends: [ended].into_iter().collect(),
            becoming_ready: None,
        };
        // A panic drops the sender.
        drop(end);
        let served = serve(
            Vec::new(),
            Workers {
                pool: WorkerPool::new(1),
                ends,
                handles: WorkerHandles::new([]),
            },
            std::future::pending(),
        );
        let ended = tokio::time::timeout(Duration::from_secs(60), served).await;
        assert!(matches!(ended, Ok(Err(ServeError::Worker))), "{ended:?}");
    }
}
