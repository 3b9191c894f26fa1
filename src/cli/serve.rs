//! `tollgate serve`: config, logs, store, listeners; then serve until told to stop.

use std::future::Future;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::task::JoinHandle;

use super::ServeArguments;
use super::reload::Reload;
use super::replicas::{Announcing, Replicas};
use super::terminal::fail;
use crate::clock::SystemClock;
use crate::config::{Config, Origin, StoreUrl, Watch};
use crate::descriptors::{self, ConnectionCaps};
use crate::grpc::{
    self, Address, AdminCalls, AdminParts, AdminServer, BindError, Drained, Listener, Service, StartError, TokenFile, Workers,
};
use crate::http;
use crate::limiter::{Limiter, Settings};
use crate::store::{ConfiguredStore, MemoryStore, RedisStore, RedisTarget, Roster};
use crate::telemetry::LogQueue;
use crate::tls::Tls;
use crate::{shutdown, telemetry};

/// How long the start line waits for a store that is there: whoever waits for that line finds the first calls decided by it. Calls
/// that come before are taken as ever, and while the store is absent each plan's policy answers them.
const FIRST_CONNECTION: Duration = Duration::from_millis(500);

pub(super) fn run(arguments: ServeArguments) -> ExitCode {
    let mut watch = match arguments.sources() {
        Ok(sources) => Watch::new(sources),
        Err(sentence) => return fail(2, &sentence),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
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
        Err(mistakes) => return fail(2, &mistakes.to_string()),
    };
    let code = runtime.block_on(async {
        let code = serve(config, watch, telemetry.log.clone()).await;
        if let Some(spans) = telemetry.spans.take() {
            spans.stop().await;
        }
        code
    });
    // What the drain had to cut is not waited for again.
    runtime.shutdown_background();
    code
}

async fn serve(mut config: Config, watch: Watch, log: LogQueue) -> ExitCode {
    // First of all, so that a signal that comes early is not lost.
    let (signal, hangup) = match shutdown::signals().and_then(|signal| Ok((signal, shutdown::hangup()?))) {
        Ok(signals) => signals,
        Err(error) => return fail(1, &format!("cannot listen for signals: {error}")),
    };
    let (tls, certificates) = match config.listen_tls.clone().map(Tls::load).transpose() {
        Ok(loaded) => loaded.unzip(),
        Err(mistake) => return fail(2, &mistake),
    };
    let listeners = match Listeners::bind(&config, tls.as_ref()).await {
        Ok(listeners) => listeners,
        Err(error) => return fail(1, &error.to_string()),
    };
    let token = config.admin_token_file.as_deref().filter(|_| listeners.admin.is_some()).map(TokenFile::new);
    if let Some(Err(message)) = token.as_ref().map(TokenFile::check) {
        return fail(2, &message);
    }
    let count = config.workers.unwrap_or_else(cores);
    let caps = connection_caps(count);
    let settings = settings(&config, count.get() + usize::from(listeners.http.is_some()));
    let limiter = Arc::new(Limiter::without_store(std::mem::take(&mut config.plans), settings, Arc::new(SystemClock)));
    let stores = Stores::new(&config.store_url, config.store_deadline);
    let roster = stores.roster();
    let seen = config.expected_replicas.is_none() && matches!(stores, Stores::Redis { .. });
    let replicas = seen.then(|| Replicas::new(roster.clone(), limiter.clone()));
    let with_main = listeners.http.is_some() || listeners.admin.is_some();
    let (workers, main_store) = match start(count, limiter.clone(), stores, with_main).await {
        Ok(started) => started,
        // The one thing that a service is made of and that may be wrong are files that the config names.
        Err(error @ StartError::Service(_)) => return fail(2, &error.to_string()),
        Err(error) => return fail(1, &error.to_string()),
    };
    super::reload::warn_of(&config.warnings);
    let line = StartLine::new(&limiter, count, &config.store_url, watch.origin(), &listeners);
    let announcing = tokio::spawn(greet(roster.clone(), replicas, line));
    let (reloader, asked) = grpc::reloader();
    let calls = listeners.admin.as_ref().map(|_| AdminCalls::default());
    let http = listeners.http.zip(main_store.clone()).map(|(listener, store)| {
        let log_lines_dropped = Box::new(move || log.dropped());
        let grpc_connections = workers.connections();
        let told = http::Told { grpc_connections, admin_calls: calls.clone(), stores: roster, tls, log_lines_dropped };
        http::Server::start(listener, limiter.beside(store), told, caps.http)
    });
    let admin = match listeners.admin.zip(main_store) {
        Some((listener, store)) => {
            let (limiter, calls) = (limiter.beside(store), calls.unwrap_or_default());
            let parts = AdminParts { limiter, reloader, token, calls, connections: caps.admin };
            Some(AdminServer::start(listener, parts).await)
        }
        None => None,
    };
    let workers = workers.retire_connections_after(config.listen_max_connection_age).with_connections_max(caps.worker);
    let signal = with_pause(signal, config.listen_lame_duck);
    let reloading = tokio::spawn(Reload { watch, certificates, limiter, start: config }.run(hangup, asked));
    let code = serve_until(signal, listeners.grpc, workers, Sides { http, admin }, announcing).await;
    reloading.abort();
    code
}

/// How so many limiters treat their store.
fn settings(config: &Config, limiters: usize) -> Settings {
    Settings {
        deadline: config.store_deadline,
        // Until Redis says how many there are.
        expected_replicas: config.expected_replicas.unwrap_or(1),
        // Each limiter remembers its own denials, so that none waits for another.
        deny_cache_entries: config.deny_cache_entries.div_ceil(limiters),
    }
}

/// Raises the limit of open files, and tells how many connections it leaves room for; warns where they are fewer than the
/// servers would take.
fn connection_caps(workers: NonZeroUsize) -> ConnectionCaps {
    let limit = descriptors::raise_limit();
    let caps = descriptors::caps(limit, workers);
    if caps.worker < grpc::CONNECTIONS_MAX || caps.http < http::CONNECTIONS_MAX {
        tracing::warn!(
            open_files = limit,
            connections_per_worker = caps.worker.min(grpc::CONNECTIONS_MAX),
            http_connections = caps.http.min(http::CONNECTIONS_MAX),
            "the hard limit of open files allows fewer connections than this server would take; raise it (ulimit -Hn, LimitNOFILE=)"
        );
    }
    caps
}

/// Every socket that is listened at.
struct Listeners {
    grpc: Vec<Listener>,
    http: Option<Listener>,
    admin: Option<Listener>,
}

impl Listeners {
    async fn bind(config: &Config, tls: Option<&Arc<Tls>>) -> Result<Self, BindError> {
        let secured = |listener: Listener| match tls {
            Some(tls) => listener.with_tls(tls.clone()),
            None => listener,
        };
        let mut grpc = Vec::new();
        for address in &config.listen_grpc {
            grpc.push(secured(Listener::bind(address).await?));
        }
        let http = match &config.listen_http {
            Some(address) => Some(secured(Listener::bind(address).await?)),
            None => None,
        };
        let admin = match &config.listen_admin {
            Some(address) => Some(Listener::bind(address).await?),
            None => None,
        };
        Ok(Self { grpc, http, admin })
    }

    /// Those where callers shake hands, as text; `None` without any.
    fn encrypted(&self) -> Option<String> {
        let encrypted = self.grpc.iter().chain(&self.http).filter(|listener| listener.is_encrypted());
        let addresses: Vec<String> = encrypted.map(|listener| listener.address().to_string()).collect();
        (!addresses.is_empty()).then(|| addresses.join(","))
    }
}

/// A signal to stop, and for how long everything is served on after it.
async fn with_pause(signal: impl Future<Output = &'static str>, lame_duck: Duration) -> (&'static str, Duration) {
    match signal.await {
        // Whoever types ^C waits for it, and nobody looks whether to leave.
        "SIGINT" => ("SIGINT", Duration::ZERO),
        signal => (signal, lame_duck),
    }
}

/// What is served beside gRPC's decisions, on the main thread.
struct Sides {
    http: Option<http::Server>,
    admin: Option<AdminServer>,
}

impl Sides {
    /// Waits for the end of one that nobody asked for; which, and why.
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
        let (http, admin) = (self.http.map(http::Server::stop), self.admin.map(AdminServer::stop));
        match tokio::join!(OptionFuture::from(http), OptionFuture::from(admin)) {
            (None | Some(Drained::Clean), None | Some(Drained::Clean)) => Drained::Clean,
            _ => Drained::Cut,
        }
    }
}

/// Waits for the end of a side, which then is none any more.
async fn lost<T>(side: &mut Option<T>, wait: impl AsyncFnOnce(&mut T) -> String) -> String {
    let Some(running) = side else { return std::future::pending().await };
    let error = wait(running).await;
    *side = None;
    error
}

/// Serves until the signal, or until something that must not end does; then drains. HTTP says at once that it is not ready
/// and goes on until gRPC is done, so that whoever looks meanwhile sees a process that is alive and on its way out.
async fn serve_until(
    signal: impl Future<Output = (&'static str, Duration)>,
    grpc: Vec<Listener>,
    workers: Workers,
    mut sides: Sides,
    announcing: JoinHandle<Option<Announcing>>,
) -> ExitCode {
    let mut failed = false;
    let stopping = async {
        let pause = tokio::select! {
            (signal, pause) = signal => {
                tracing::info!(signal, lame_duck = ?pause, "stopping: not ready from now on");
                pause
            }
            error = sides.lost() => {
                tracing::error!(error, "stopping: it could not go on");
                failed = true;
                Duration::ZERO
            }
        };
        sides.drain();
        // Now, since the connections of the workers end with them.
        let announcing = announcing.await.ok().flatten();
        OptionFuture::from(announcing.map(Announcing::leave)).await;
        pause
    };
    let drained = match grpc::serve(grpc, workers, stopping).await {
        Ok(drained) => drained,
        Err(error) => {
            tracing::error!(%error, "stopped: it could not go on");
            return ExitCode::FAILURE;
        }
    };
    if (drained, sides.stop().await) == (Drained::Clean, Drained::Clean) {
        tracing::info!("stopped: every call was answered");
    } else {
        tracing::warn!("stopped: some connections did not close in time and were cut");
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Cores that this process may use, by its affinity and the quota of its control group.
fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Where a worker's store comes from: with Redis each has a connection and a batcher of its own, else all share one memory.
#[derive(Clone)]
enum Stores {
    Memory(Arc<ConfiguredStore>),
    Redis {
        target: Box<RedisTarget>,
        /// What it is given for an answer; an embedded store keeps nobody waiting.
        deadline: Duration,
        made: Roster,
    },
}

impl Stores {
    fn new(url: &StoreUrl, deadline: Duration) -> Self {
        match url {
            StoreUrl::Memory { capacity } => {
                Self::Memory(Arc::new(ConfiguredStore::Memory(MemoryStore::new(*capacity, Arc::new(SystemClock)))))
            }
            StoreUrl::Redis(target) => Self::Redis { target: target.clone(), deadline, made: Roster::default() },
        }
    }

    /// A store for the current runtime.
    async fn store(&self) -> Result<Arc<ConfiguredStore>, String> {
        match self {
            Self::Memory(memory) => Ok(memory.clone()),
            Self::Redis { target, deadline, made } => {
                let store = RedisStore::to(RedisTarget::clone(target), *deadline)?;
                let store = Arc::new(ConfiguredStore::Redis(store));
                made.enter(store.clone());
                Ok(store)
            }
        }
    }

    /// Those made so far, and what will be; an embedded one is not told of.
    fn roster(&self) -> Roster {
        match self {
            Self::Memory(_) => Roster::default(),
            Self::Redis { made, .. } => made.clone(),
        }
    }
}

type Started = (Workers, Option<Arc<ConfiguredStore>>);

/// Starts the workers and, if something is served beside them, makes its store, all at the same time.
async fn start(count: NonZeroUsize, limiter: Arc<Limiter<()>>, stores: Stores, with_main: bool) -> Result<Started, StartError> {
    let of_main = stores.clone();
    let service = move |_| {
        let (limiter, stores) = (limiter.clone(), stores.clone());
        async move { Ok(Service::new(Arc::new(limiter.beside(stores.store().await?)))) }
    };
    let main = async {
        match with_main {
            true => of_main.store().await.map(Some).map_err(StartError::Service),
            false => Ok(None),
        }
    };
    tokio::try_join!(Workers::start(count, service), main)
}

/// Waits for the first connections, tells the other replicas of this one, and then whoever waits for the start.
async fn greet(stores: Roster, replicas: Option<Replicas>, line: StartLine) -> Option<Announcing> {
    stores.connected(FIRST_CONNECTION).await;
    let announcing = OptionFuture::from(replicas.map(Replicas::start)).await;
    line.log();
    announcing
}

/// What the start line tells, and, on the example plans, what to paste next.
struct StartLine {
    limiter: Arc<Limiter<()>>,
    workers: NonZeroUsize,
    store: String,
    origin: Origin,
    grpc: Vec<Address>,
    http: Option<Address>,
    admin: Option<Address>,
    tls: Option<String>,
}

impl StartLine {
    fn new(limiter: &Arc<Limiter<()>>, workers: NonZeroUsize, store: &StoreUrl, origin: Origin, listeners: &Listeners) -> Self {
        let address = |listener: &Listener| listener.address().clone();
        Self {
            limiter: limiter.clone(),
            workers,
            store: store.to_string(),
            origin,
            grpc: listeners.grpc.iter().map(address).collect(),
            http: listeners.http.as_ref().map(address),
            admin: listeners.admin.as_ref().map(address),
            tls: listeners.encrypted(),
        }
    }

    fn log(self) {
        let addresses: Vec<String> = self.grpc.iter().map(ToString::to_string).collect();
        let edition = self.limiter.edition();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            config = %self.origin,
            config_hash = edition.config_hash(),
            plans = edition.plans().len(),
            workers = self.workers,
            store = %self.store,
            grpc = addresses.join(","),
            http = self.http.as_ref().map(tracing::field::display),
            admin = self.admin.as_ref().map(tracing::field::display),
            tls = self.tls,
            "tollgate is serving"
        );
        if self.origin == Origin::Example {
            let target = match self.grpc.first() {
                Some(Address::Unix { path, .. }) => format!("-unix {}", path.display()),
                _ => addresses.first().cloned().unwrap_or_default(),
            };
            tracing::info!(
                "no config was named, so these are example plans; try: grpcurl -plaintext -d '{{\"key\":\"alice\",\"plan\":\"free\"}}' \
                 {target} tollgate.v1.RateLimitService/ShouldAllow"
            );
        }
    }
}
