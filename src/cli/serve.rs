//! `tollgate serve`: config, logs, store, listeners; then serve until told to stop.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::{ServeArguments, fail};
use crate::clock::SystemClock;
use crate::config::{Config, Origin, StoreUrl};
use crate::grpc::{self, Address, Drained, Listener, Service};
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
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
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
    let store = match open(&config.store_url).await {
        Ok(store) => store,
        Err(message) => return fail(2, &message),
    };
    let settings = Settings {
        deadline: config.store_deadline,
        expected_replicas: config.expected_replicas,
        deny_cache_entries: config.deny_cache_entries,
    };
    let limiter = Arc::new(Limiter::new(config.plans, store, settings, Arc::new(SystemClock)));
    announce(&limiter, &config.store_url, origin, &listeners);
    let stopping = async {
        // Awaited outside of the event: its fields are not evaluated when its level is off.
        let signal = signal.await;
        tracing::info!(signal, "stopping: no new calls, answering those under way");
    };
    match grpc::serve(listeners, Service::new(limiter), stopping).await {
        Drained::Clean => tracing::info!("stopped: every call was answered"),
        Drained::Cut => tracing::warn!("stopped: some connections did not close in time and were cut"),
    }
    ExitCode::SUCCESS
}

async fn open(url: &StoreUrl) -> Result<ConfiguredStore, String> {
    match url {
        StoreUrl::Memory { capacity } => Ok(ConfiguredStore::Memory(MemoryStore::new(*capacity, Arc::new(SystemClock)))),
        StoreUrl::Redis(_) => {
            let store = RedisStore::connect(url.secret()).map_err(|error| format!("store.url is wrong: {error}"))?;
            store.connected(FIRST_CONNECTION).await;
            Ok(ConfiguredStore::Redis(store))
        }
    }
}

/// The start line, and, on the example plans, what to paste next.
fn announce(limiter: &Limiter<ConfiguredStore>, store: &StoreUrl, origin: &Origin, listeners: &[Listener]) {
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config = %origin,
        config_hash = limiter.config_hash(),
        plans = limiter.plans().len(),
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
