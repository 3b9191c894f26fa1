//! `tollgate serve`: reads the config, starts logs, store and listeners, and serves until told to stop.

mod aux_servers;
mod listeners;
mod overrides;
mod reload;
mod replicas;
mod start_line;
mod status_page;
mod stores;
mod top_keys;

use std::future::Future;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::task::JoinHandle;

use self::aux_servers::AuxServers;
use self::listeners::Listeners;
use self::reload::Reload;
use self::replicas::{Announcing, Replicas};
use self::start_line::StartLine;
use self::stores::{StoreLimiter, Stores};
use crate::config::{Config, ConfigWatch, Sources};
use crate::descriptors::{self, ConnectionCaps};
use crate::grpc::{
    self, AdminCalls, AdminParts, AdminServer, Reloader, StartError, TokenFile, Workers,
};
use crate::http;
use crate::limiter::{Limiter, LimiterSettings, Overrides, TopKeys};
use crate::standard_error::fail;
use crate::telemetry::{LogFormat, LogQueue};
use crate::tls::{self, Tls};
use crate::transport::{self, Drained, Listener};
use crate::{service_manager, shutdown, telemetry};
use tollgate_store::clock::SystemClock;
use tollgate_store::{StoreError, StoreRegistry};

/// Longest that the log line "tollgate is serving" waits for the first connections to the store. A caller that waits for that
/// line then gets its first calls decided by the store. Earlier calls are accepted, too; while the store is absent, each plan's
/// policy answers them.
const FIRST_CONNECTION: Duration = Duration::from_millis(500);

/// Serves by a config from these sources until a signal comes, and returns the exit code. Standard error has the reason of a failure.
pub fn run(sources: Sources, log_level: &str, log_format: LogFormat) -> ExitCode {
    let mut watch = ConfigWatch::new(sources);
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &format!("cannot start: {error}")),
    };
    let entered = runtime.enter();
    let mut telemetry = match telemetry::start(log_level, log_format) {
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

async fn serve(config: Config, watch: ConfigWatch, log: LogQueue) -> ExitCode {
    // Before anything else, so that an early signal is not lost.
    let signals = shutdown::signals().and_then(|signal| Ok((signal, shutdown::hangup()?)));
    let (signal, hangup) = match signals {
        Ok(signals) => signals,
        Err(error) => return fail(1, &format!("cannot listen for signals: {error}")),
    };
    let mut process = match Process::prepare(config).await {
        Ok(process) => process,
        Err(code) => return code,
    };
    reload::warn_of(&process.config.warnings);
    let beside = stores::beside_decisions(&process.registry, process.operators.as_ref());
    let deadline = process.config.store.deadline;
    let overrides = overrides::start(&process.limiter, beside.clone(), deadline).await;
    let announcing = process.announce(&watch);
    let (reloader, asked) = grpc::reloader();
    let top = top_keys::start(&process.limiter, &process.registry, beside);
    let (status, changes) = status_page::sources(
        &process.config,
        &process.limiter,
        process.operators.clone(),
        (process.files.token.clone(), top.clone()),
    );
    let admin_listener = process.listeners.admin.as_ref();
    let admin_calls = admin_listener.map(|_| AdminCalls::default());
    let http = process.start_http(status, admin_calls.clone(), log);
    let admin_calls = admin_calls.unwrap_or_default();
    let admin = process
        .start_admin((top, overrides), reloader, admin_calls)
        .await;
    let Process {
        config,
        files,
        listeners,
        caps,
        limiter,
        workers,
        ..
    } = process;
    let workers = workers
        .retire_connections_after(config.listen.max_connection_age)
        .with_connections_max(caps.worker);
    let signal = with_lame_duck(signal, config.listen.lame_duck);
    let reload = Reload {
        watch,
        certificates: files.certificates,
        limiter,
        start: config,
        changes,
    };
    let reloading = tokio::spawn(reload.run(hangup, asked));
    let aux_servers = AuxServers { http, admin };
    let code = serve_until(signal, listeners.grpc, workers, aux_servers, announcing).await;
    reloading.abort();
    code
}

/// What is there before the first server starts.
struct Process {
    config: Config,
    files: ServingFiles,
    listeners: Listeners,
    caps: ConnectionCaps,
    limiter: Arc<Limiter<()>>,
    registry: StoreRegistry,
    /// Counts the replicas; `None` where the config has their number, or there is but one.
    replicas: Option<Replicas>,
    workers: Workers,
    worker_count: NonZeroUsize,
    /// The limiter of each worker, in their order.
    limiters: Vec<StoreLimiter>,
    /// The limiter of the admin service and the status page, if either is served.
    operators: Option<StoreLimiter>,
}

impl Process {
    /// Reads files, binds addresses, and starts the workers. Errors: the exit code. Standard error has the reason.
    async fn prepare(mut config: Config) -> Result<Self, ExitCode> {
        let files = ServingFiles::load(&config).map_err(|error| fail(2, &error))?;
        let listeners = Listeners::bind(&config, files.tls.as_ref())
            .await
            .map_err(|error| fail(1, &error))?;
        let worker_count = config.workers.unwrap_or_else(cores);
        let caps = connection_caps(worker_count);
        let limiter = shared_limiter(&mut config, worker_count.get());
        let stores = Stores::new(&config.store).map_err(|error| fail(2, &error))?;
        let registry = stores.registry();
        let replicas = stores
            .counts_replicas(&config)
            .then(|| Replicas::new(registry.clone(), limiter.clone()));
        let form = config.check.headers;
        let with_operators = listeners.admin.is_some() || status_page::is_served(&config);
        let started = stores::start(worker_count, limiter.clone(), stores, form, with_operators);
        let (workers, limiters, operators) = started.await.map_err(|error| {
            // A service fails to start only because of files that the config names.
            let code = if matches!(error, StartError::Service(_)) {
                2
            } else {
                1
            };
            fail(code, &error.to_string())
        })?;
        Ok(Self {
            config,
            files,
            listeners,
            caps,
            limiter,
            registry,
            replicas,
            workers,
            worker_count,
            limiters,
            operators,
        })
    }

    /// Starts the task that announces this replica and logs the start line.
    fn announce(&mut self, watch: &ConfigWatch) -> JoinHandle<Option<Announcing>> {
        let line = StartLine::new(
            &self.limiter,
            self.worker_count,
            (&self.config.store.url, &self.registry),
            watch.origin(),
            &self.listeners,
        );
        let registry = self.registry.clone();
        tokio::spawn(announce_start(registry, self.replicas.take(), line))
    }

    /// Starts HTTP, if it has an address.
    fn start_http(
        &mut self,
        status: Option<http::StatusSources>,
        admin_calls: Option<AdminCalls>,
        log: LogQueue,
    ) -> Option<http::Server> {
        let limiters = std::mem::take(&mut self.limiters);
        let listeners = http::HttpListeners {
            http: self.listeners.http.take(),
            metrics: self.listeners.metrics.take(),
            hosts: self.config.listen.http_hosts.clone().into(),
        };
        if listeners.http.is_none() && listeners.metrics.is_none() {
            return None;
        }
        let sources = http::MetricSources {
            limiter: self.limiter.clone(),
            grpc_connections: self.workers.connections(),
            admin_calls,
            stores: self.registry.clone(),
            tls: self.files.tls.clone(),
            log_lines_dropped: Box::new(move || log.dropped()),
            status,
        };
        let handles = self.workers.take_handles();
        let workers = http::ServingWorkers { handles, limiters };
        let caps = http::Caps {
            http: self.caps.http,
            metrics: self.caps.metrics,
        };
        let settings = self.config.check.clone();
        Some(http::Server::start(
            listeners, workers, settings, sources, caps,
        ))
    }

    /// Starts the admin service, if it has an address.
    async fn start_admin(
        &mut self,
        (top, overrides): (TopKeys, Overrides),
        reloader: Reloader,
        calls: AdminCalls,
    ) -> Option<AdminServer> {
        let operators = self.operators.take();
        let listener = self.listeners.admin.take()?;
        let parts = AdminParts {
            limiter: operators?,
            top,
            overrides,
            stores: self.registry.clone(),
            reloader,
            replicas: self.config.store.expected_replicas,
            token: self.files.token.clone(),
            calls,
            connections: self.caps.admin,
        };
        Some(AdminServer::start(listener, parts).await)
    }
}

/// What serving needs from files that the config names.
struct ServingFiles {
    tls: Option<Arc<Tls>>,
    /// Takes up new certificates.
    certificates: Option<tls::TlsWatch>,
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
    top_keys::count(&limiter, &config.status);
    limiter
}

/// The store settings of each of `limiters` limiters.
fn settings(config: &Config, limiters: usize) -> LimiterSettings {
    LimiterSettings {
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
    let caps = descriptors::connection_caps(limit, workers);
    if caps.worker < transport::CONNECTIONS_MAX || caps.http < http::CONNECTIONS_MAX {
        tracing::warn!(
            open_files = limit,
            connections_per_worker = caps.worker.min(transport::CONNECTIONS_MAX),
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

/// Ends a log line about an error of Redis: what helps, if the user of tollgate lacks a right; else nothing.
fn advice_on_rights(error: &StoreError) -> &'static str {
    // The others are what a script says of a command that its user may not call, in Redis 7.0 and later.
    const LACKING: [&str; 3] = [
        "NOPERM",
        "The user executing the script can't",
        "ACL failure in script",
    ];
    match error {
        StoreError::Refused(why) if LACKING.iter().any(|words| why.contains(words)) => {
            "; give the Redis user the commands that docs/redis.md lists"
        }
        _ => "",
    }
}

/// Cores that this process may use, by its affinity and the quota of its control group.
fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_of_rights_brings_the_advice_on_rights() {
        let refused = |why: &str| advice_on_rights(&StoreError::Refused(why.to_owned()));
        for lacking in [
            "NOPERM User tollgate has no permissions to run the 'hget' command",
            "ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:1.",
            "ERR ACL failure in script: User tollgate has no permissions to run the 'hset' command script: 1, on @user_script:1.",
        ] {
            assert!(refused(lacking).contains("docs/redis.md"), "{lacking}");
        }
        for other in [
            "MISCONF Redis is configured to save RDB snapshots",
            "BUSY Redis is busy running a script.",
            "none of 8 readings of the overrides was a whole one",
        ] {
            assert_eq!(refused(other), "", "{other}");
        }
        assert_eq!(advice_on_rights(&StoreError::Full), "");
    }
}
