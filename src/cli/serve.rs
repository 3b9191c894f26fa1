//! `tollgate serve`: reads the config, starts logs, store and listeners, and serves until told to stop.

use std::collections::BTreeMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::task::JoinHandle;

use super::ServeArguments;
use super::listeners::Listeners;
use super::reload::Reload;
use super::replicas::{Announcing, Replicas};
use super::start_line::StartLine;
use super::status_page;
use super::terminal::fail;
use crate::clock::SystemClock;
use crate::config::{Config, Readiness, StoreSection, StoreUrl, Watch};
use crate::descriptors::{self, ConnectionCaps};
use crate::grpc::{
    self, AdminCalls, AdminParts, AdminServer, Service, StartError, TokenFile, Workers,
};
use crate::headers::HeaderForm;
use crate::http;
use crate::limiter::{Limiter, Settings};
use crate::server::{self, Drained, Listener};
use crate::store::{ConfiguredStore, MemoryStore, RedisStore, RedisTarget, StoreRegistry};
use crate::telemetry::LogQueue;
use crate::tls::{self, Tls};
use crate::{service_manager, shutdown, telemetry};

/// Longest that the log line "tollgate is serving" waits for the first connections to the store. A caller that waits for that
/// line then gets its first calls decided by the store. Earlier calls are accepted, too; while the store is absent, each plan's
/// policy answers them.
const FIRST_CONNECTION: Duration = Duration::from_millis(500);

pub(super) fn run(arguments: ServeArguments) -> ExitCode {
    let mut watch = match arguments.sources() {
        Ok(sources) => Watch::new(sources),
        Err(sentence) => return fail(2, &sentence),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &format!("cannot start: {error}")),
    };
    let entered = runtime.enter();
    let mut telemetry = match telemetry::start(&arguments.log_level, arguments.log_format) {
        Ok(telemetry) => telemetry,
        Err(message) => return fail(2, &message),
    };
    drop(entered);
    let config = match watch.load() {
        Ok(config) => config,
        Err(errors) => return fail(2, &errors.to_string()),
    };
    let code = runtime.block_on(async {
        let code = serve(config, watch, telemetry.log.clone()).await;
        if let Some(spans) = telemetry.spans.take() {
            spans.stop().await;
        }
        code
    });
    // The drain already waited for open connections, so do not wait again.
    runtime.shutdown_background();
    code
}

async fn serve(mut config: Config, watch: Watch, log: LogQueue) -> ExitCode {
    // Before anything else, so that an early signal is not lost.
    let (signal, hangup) =
        match shutdown::signals().and_then(|signal| Ok((signal, shutdown::hangup()?))) {
            Ok(signals) => signals,
            Err(error) => return fail(1, &format!("cannot listen for signals: {error}")),
        };
    let ServingFiles {
        tls,
        certificates,
        token,
    } = match ServingFiles::load(&config) {
        Ok(files) => files,
        Err(error) => return fail(2, &error),
    };
    let listeners = match Listeners::bind(&config, tls.as_ref()).await {
        Ok(listeners) => listeners,
        Err(error) => return fail(1, &error.to_string()),
    };
    let count = config.workers.unwrap_or_else(cores);
    let caps = connection_caps(count);
    let limiter = shared_limiter(&mut config, count.get());
    let stores = Stores::new(&config.store);
    let registry = stores.registry();
    let replicas = stores
        .counts_replicas(&config)
        .then(|| Replicas::new(registry.clone(), limiter.clone()));
    let (form, with_store) = (
        config.check.headers,
        listeners.admin.is_some() || status_page::is_served(&config),
    );
    let (mut workers, limiters, operators) =
        match start(count, limiter.clone(), stores, form, with_store).await {
            Ok(started) => started,
            // A service fails to start only because of files that the config names.
            Err(error @ StartError::Service(_)) => return fail(2, &error.to_string()),
            Err(error) => return fail(1, &error.to_string()),
        };
    super::reload::warn_of(&config.warnings);
    let line = StartLine::new(
        &limiter,
        count,
        (&config.store.url, &registry),
        watch.origin(),
        &listeners,
    );
    let announcing = tokio::spawn(announce_start(registry.clone(), replicas, line));
    let (reloader, asked) = grpc::reloader();
    let calls = listeners.admin.as_ref().map(|_| AdminCalls::default());
    let (stores, top) = (
        registry.clone(),
        super::top_keys::start(&limiter, &registry, operators.as_ref()),
    );
    let (status, changes) = status_page::sources(
        &config,
        &limiter,
        operators.clone(),
        (token.clone(), top.clone()),
    );
    let hosts = config.listen.http_hosts.clone().into();
    let sockets = http::Listeners {
        http: listeners.http,
        metrics: listeners.metrics,
        hosts,
    };
    let http = (sockets.http.is_some() || sockets.metrics.is_some()).then(|| {
        let log_lines_dropped = Box::new(move || log.dropped());
        let (limiter, admin_calls, grpc_connections) =
            (limiter.clone(), calls.clone(), workers.connections());
        let sources = http::MetricSources {
            limiter,
            grpc_connections,
            admin_calls,
            stores: registry,
            tls,
            log_lines_dropped,
            status,
        };
        let serving = http::ServingWorkers {
            handles: workers.take_handles(),
            limiters,
        };
        let caps = http::Caps {
            http: caps.http,
            metrics: caps.metrics,
        };
        http::Server::start(sockets, serving, config.check.clone(), sources, caps)
    });
    let admin = listeners.admin.zip(operators).map(|(listener, limiter)| {
        let (calls, connections, replicas) = (
            calls.unwrap_or_default(),
            caps.admin,
            config.store.expected_replicas,
        );
        AdminServer::start(
            listener,
            AdminParts {
                limiter,
                top,
                stores,
                reloader,
                replicas,
                token,
                calls,
                connections,
            },
        )
    });
    let admin = OptionFuture::from(admin).await;
    let workers = workers
        .retire_connections_after(config.listen.max_connection_age)
        .with_connections_max(caps.worker);
    let signal = with_lame_duck(signal, config.listen.lame_duck);
    let reloading = tokio::spawn(
        Reload {
            watch,
            certificates,
            limiter,
            start: config,
            changes,
        }
        .run(hangup, asked),
    );
    let code = serve_until(
        signal,
        listeners.grpc,
        workers,
        AuxServers { http, admin },
        announcing,
    )
    .await;
    reloading.abort();
    code
}

/// What serving needs from files that the config names.
struct ServingFiles {
    tls: Option<Arc<Tls>>,
    /// Takes up new certificates.
    certificates: Option<tls::Watch>,
    /// The token of admin calls and of viewers of the status page.
    token: Option<TokenFile>,
}

impl ServingFiles {
    /// Errors: a file that cannot be used.
    fn load(config: &Config) -> Result<Self, String> {
        let (tls, certificates) = config
            .listen
            .tls
            .clone()
            .map(Tls::load)
            .transpose()?
            .unzip();
        let is_used = config.listen.admin.is_some() || status_page::is_served(config);
        let token = config
            .listen
            .admin_token_file
            .as_deref()
            .filter(|_| is_used)
            .map(TokenFile::new);
        token.as_ref().map(TokenFile::check).transpose()?;
        Ok(Self {
            tls,
            certificates,
            token,
        })
    }
}

/// What `limiters` limiters share: the plans of the config, which are taken out of it, and the counts of keys.
fn shared_limiter(config: &mut Config, limiters: usize) -> Arc<Limiter<()>> {
    let settings = settings(config, limiters);
    let limiter = Arc::new(Limiter::without_store(
        std::mem::take(&mut config.plans),
        settings,
        Arc::new(SystemClock),
    ));
    super::top_keys::count(&limiter, &config.status);
    limiter
}

/// The store settings of each of `limiters` limiters.
fn settings(config: &Config, limiters: usize) -> Settings {
    Settings {
        deadline: config.store.deadline,
        // 1 until Redis gives the number of replicas.
        expected_replicas: config.store.expected_replicas.unwrap_or(1),
        // The deny cache is divided among the limiters. Each has its own, so that none waits for another.
        deny_cache_entries: config.deny_cache.entries.div_ceil(limiters),
    }
}

/// Raises the limit of open files, and returns how many connections it allows. Warns when that is less than the servers would
/// take.
fn connection_caps(workers: NonZeroUsize) -> ConnectionCaps {
    let limit = descriptors::raise_limit();
    let caps = descriptors::caps(limit, workers);
    if caps.worker < server::CONNECTIONS_MAX || caps.http < http::CONNECTIONS_MAX {
        tracing::warn!(
            open_files = limit,
            connections_per_worker = caps.worker.min(server::CONNECTIONS_MAX),
            http_connections = caps.http.min(http::CONNECTIONS_MAX),
            "the hard limit of open files allows fewer connections than this server would take; raise it (ulimit -Hn, LimitNOFILE=)"
        );
    }
    caps
}

/// Waits for a stop signal. Returns it with the lame duck: how long everything is still served before the drain.
async fn with_lame_duck(
    signal: impl Future<Output = &'static str>,
    lame_duck: Duration,
) -> (&'static str, Duration) {
    match signal.await {
        // With ^C a person waits at a terminal, and no load balancer checks health: stop at once.
        "SIGINT" => ("SIGINT", Duration::ZERO),
        signal => (signal, lame_duck),
    }
}

/// The servers on the main thread, beside gRPC's decisions.
struct AuxServers {
    http: Option<http::Server>,
    admin: Option<AdminServer>,
}

impl AuxServers {
    /// Waits until one of the servers ends on its own. Returns which one and why.
    async fn lost(&mut self) -> String {
        tokio::select! {
            error = lost(&mut self.http, http::Server::lost) => format!("HTTP: {error}"),
            error = lost(&mut self.admin, AdminServer::lost) => format!("admin: {error}"),
        }
    }

    fn drain(&self) {
        if let Some(http) = &self.http {
            http.drain();
        }
    }

    async fn stop(self) -> Drained {
        let (http, admin) = (
            self.http.map(http::Server::stop),
            self.admin.map(AdminServer::stop),
        );
        match tokio::join!(OptionFuture::from(http), OptionFuture::from(admin)) {
            (None | Some(Drained::Clean), None | Some(Drained::Clean)) => Drained::Clean,
            _ => Drained::Cut,
        }
    }
}

/// Waits until the server ends, and then removes it.
async fn lost<T>(aux_server: &mut Option<T>, wait: impl AsyncFnOnce(&mut T) -> String) -> String {
    let Some(running) = aux_server else {
        return std::future::pending().await;
    };
    let error = wait(running).await;
    *aux_server = None;
    error
}

/// Serves until a signal comes or a server ends on its own, and then drains. HTTP reports at once that it is not ready. It
/// serves on until gRPC is done, so that health checks see a process that is alive and stopping.
async fn serve_until(
    signal: impl Future<Output = (&'static str, Duration)>,
    grpc: Vec<Listener>,
    workers: Workers,
    mut aux_servers: AuxServers,
    announcing: JoinHandle<Option<Announcing>>,
) -> ExitCode {
    let mut failed = false;
    let stopping = async {
        let pause = tokio::select! {
            (signal, pause) = signal => {
                tracing::info!(signal, lame_duck = ?pause, "stopping: not ready from now on");
                pause
            }
            error = aux_servers.lost() => {
                tracing::error!(error, "stopping: a server failed");
                failed = true;
                Duration::ZERO
            }
        };
        service_manager::stopping();
        aux_servers.drain();
        // Announce the end now, since the connections of the workers close with them.
        let announcing = announcing.await.ok().flatten();
        OptionFuture::from(announcing.map(Announcing::leave)).await;
        pause
    };
    let drained = match grpc::serve(grpc, workers, stopping).await {
        Ok(drained) => drained,
        Err(error) => {
            tracing::error!(%error, "stopped: a server failed");
            return ExitCode::FAILURE;
        }
    };
    if (drained, aux_servers.stop().await) == (Drained::Clean, Drained::Clean) {
        tracing::info!("stopped: every call was answered");
    } else {
        tracing::warn!("stopped: some connections did not close in time and were cut");
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Cores that this process may use, by its affinity and the quota of its control group.
fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Makes the store of each worker. With Redis each worker has its own connection and batcher; an embedded store is shared by
/// all.
#[derive(Clone)]
enum Stores {
    Memory(Arc<ConfiguredStore>),
    Redis {
        target: Box<RedisTarget>,
        /// Longest that a call to Redis may take. An embedded store does not wait.
        deadline: Duration,
        made: StoreRegistry,
    },
}

impl Stores {
    fn new(store: &StoreSection) -> Self {
        match &store.url {
            StoreUrl::Memory { capacity } => Self::Memory(Arc::new(ConfiguredStore::Memory(
                MemoryStore::new(*capacity, Arc::new(SystemClock)),
            ))),
            StoreUrl::Redis(target) => {
                let made = StoreRegistry::default()
                    .ready_once_reached(store.ready == Readiness::OnceReached);
                Self::Redis {
                    target: target.clone(),
                    deadline: store.deadline,
                    made,
                }
            }
        }
    }

    /// Whether replicas count each other, through a store that they share.
    fn counts_replicas(&self, config: &Config) -> bool {
        config.store.expected_replicas.is_none() && matches!(self, Self::Redis { .. })
    }

    /// A store for the current runtime.
    async fn store(&self) -> Result<Arc<ConfiguredStore>, String> {
        match self {
            Self::Memory(memory) => Ok(memory.clone()),
            Self::Redis {
                target,
                deadline,
                made,
            } => {
                let store = RedisStore::to(RedisTarget::clone(target), *deadline)?;
                let store = Arc::new(ConfiguredStore::Redis(store));
                made.add(store.clone());
                Ok(store)
            }
        }
    }

    /// The Redis stores made so far and later. An embedded store is not registered.
    fn registry(&self) -> StoreRegistry {
        match self {
            Self::Memory(_) => StoreRegistry::default(),
            Self::Redis { made, .. } => made.clone(),
        }
    }
}

/// A limiter over the configured store.
pub(super) type StoreLimiter = Arc<Limiter<Arc<ConfiguredStore>>>;

/// The workers, the limiter of each in their order, and that of operators: of the admin service and the status page.
type Started = (Workers, Vec<StoreLimiter>, Option<StoreLimiter>);

/// Starts the workers and, if operators are served, the store of theirs, all at the same time.
async fn start(
    count: NonZeroUsize,
    limiter: Arc<Limiter<()>>,
    stores: Stores,
    form: HeaderForm,
    with_operators: bool,
) -> Result<Started, StartError> {
    let (operator_limiter, operator_stores, registry) =
        (limiter.clone(), stores.clone(), stores.registry());
    let made = Arc::new(Mutex::new(BTreeMap::new()));
    let limiters = made.clone();
    let service = move |worker| {
        let (limiter, stores, made) = (limiter.clone(), stores.clone(), made.clone());
        async move {
            let limiter = Arc::new(limiter.beside(stores.store().await?));
            made.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(worker, limiter.clone());
            Ok(Service::new(limiter).with_header_form(form))
        }
    };
    let operators = async {
        match with_operators {
            true => Ok(Some(Arc::new(operator_limiter.beside(
                operator_stores.store().await.map_err(StartError::Service)?,
            )))),
            false => Ok(None),
        }
    };
    let (mut workers, operators) = tokio::try_join!(Workers::start(count, service), operators)?;
    if !registry.is_ready() {
        workers = workers
            .unready_until(async move { registry.ready().await })
            .await;
    }
    let limiters = std::mem::take(&mut *limiters.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((workers, limiters.into_values().collect(), operators))
}

/// Waits for the first connections, announces this replica, logs the start line, and tells the service manager.
async fn announce_start(
    stores: StoreRegistry,
    replicas: Option<Replicas>,
    line: StartLine,
) -> Option<Announcing> {
    stores.connected(FIRST_CONNECTION).await;
    let announcing = OptionFuture::from(replicas.map(Replicas::start)).await;
    line.log();
    service_manager::ready();
    announcing
}
