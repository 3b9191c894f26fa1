//! `tollgate serve`: config, logs, store, listeners; then serve until told to stop.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::{ServeArguments, fail};
use crate::clock::SystemClock;
use crate::config::{Config, Origin, StoreUrl};
use crate::grpc::{self, Address, Drained, Listener, Service, StartError, Workers};
use crate::limiter::{Limiter, Settings};
use crate::store::{ConfiguredStore, MemoryStore, RedisStore};
use crate::{shutdown, telemetry};

/// How long a start waits for a store that is there, so that the first calls are decided by it. One that is absent costs
/// this much once, and then each plan's policy answers until it comes.
const FIRST_CONNECTION: Duration = Duration::from_millis(500);

pub(super) fn run(arguments: ServeArguments) -> ExitCode {
    let sources = arguments.sources();
    let origin = sources.origin();
    if let Err(message) = telemetry::start(&arguments.log_level, arguments.log_format) {
        return fail(2, &message);
    }
    let config = match Config::load(sources) {
        Ok(config) => config,
        Err(mistakes) => return fail(2, &mistakes.to_string()),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &format!("cannot start: {error}")),
    };
    let code = runtime.block_on(serve(config, &origin));
    // What the drain had to cut is not waited for again.
    runtime.shutdown_background();
    code
}

async fn serve(config: Config, origin: &Origin) -> ExitCode {
    // First of all, so that a signal that comes early is not lost.
    let signal = match shutdown::signals() {
        Ok(signal) => signal,
        Err(error) => return fail(1, &format!("cannot listen for signals: {error}")),
    };
    let mut listeners = Vec::new();
    for address in &config.listen_grpc {
        match Listener::bind(address).await {
            Ok(listener) => listeners.push(listener),
            Err(error) => return fail(1, &error.to_string()),
        }
    }
    let count = config.workers.unwrap_or_else(cores);
    let settings = Settings {
        deadline: config.store_deadline,
        expected_replicas: config.expected_replicas,
        // Each worker remembers its own, so that none waits for another.
        deny_cache_entries: config.deny_cache_entries.div_ceil(count.get()),
    };
    let limiter = Arc::new(Limiter::without_store(config.plans, settings, Arc::new(SystemClock)));
    let workers = match start(count, limiter.clone(), config.store_url.clone(), config.store_deadline).await {
        Ok(workers) => workers,
        // The one thing that a service is made of and that may be wrong is the config's URL.
        Err(error @ StartError::Service(_)) => return fail(2, &error.to_string()),
        Err(error) => return fail(1, &error.to_string()),
    };
    announce(&limiter, count, &config.store_url, origin, &listeners);
    let stopping = async {
        // Awaited outside of the event: its fields are not evaluated when its level is off.
        let signal = signal.await;
        tracing::info!(signal, "stopping: no new calls, answering those under way");
    };
    match grpc::serve(listeners, workers, stopping).await {
        Ok(Drained::Clean) => tracing::info!("stopped: every call was answered"),
        Ok(Drained::Cut) => tracing::warn!("stopped: some connections did not close in time and were cut"),
        Err(error) => {
            tracing::error!(%error, "stopped: it could not go on");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Cores that this process may use, by its affinity and the quota of its control group.
fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Starts the workers: with Redis each has a connection and a batcher of its own, else all share the one memory.
async fn start(count: NonZeroUsize, limiter: Arc<Limiter<()>>, url: StoreUrl, deadline: Duration) -> Result<Workers, StartError> {
    let memory = match url {
        StoreUrl::Memory { capacity } => {
            Some(Arc::new(ConfiguredStore::Memory(MemoryStore::new(capacity, Arc::new(SystemClock)))))
        }
        StoreUrl::Redis(_) => None,
    };
    let service = move |_| {
        let (memory, limiter, url) = (memory.clone(), limiter.clone(), url.clone());
        async move {
            let store = match memory {
                Some(memory) => memory,
                None => Arc::new(connect(&url, deadline).await?),
            };
            Ok(Service::new(Arc::new(limiter.beside(store))))
        }
    };
    Workers::start(count, service).await
}

async fn connect(url: &StoreUrl, deadline: Duration) -> Result<ConfiguredStore, String> {
    let store = RedisStore::connect(url.secret(), deadline).map_err(|error| format!("store.url is wrong: {error}"))?;
    store.connected(FIRST_CONNECTION).await;
    Ok(ConfiguredStore::Redis(store))
}

/// The start line, and, on the example plans, what to paste next.
fn announce(limiter: &Limiter<()>, workers: NonZeroUsize, store: &StoreUrl, origin: &Origin, listeners: &[Listener]) {
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config = %origin,
        config_hash = limiter.config_hash(),
        plans = limiter.plans().len(),
        workers,
        store = %store,
        grpc = addresses.join(","),
        "tollgate is serving"
    );
    if *origin == Origin::Example {
        let target = match listeners.first().map(Listener::address) {
            Some(Address::Unix(path)) => format!("-unix {}", path.display()),
            _ => addresses.first().cloned().unwrap_or_default(),
        };
        tracing::info!(
            "no config was named, so these are example plans; try: grpcurl -plaintext -d '{{\"key\":\"alice\",\"plan\":\"free\"}}' \
             {target} tollgate.v1.RateLimitService/ShouldAllow"
        );
    }
}
