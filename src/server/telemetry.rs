//! Logs: events with fields on standard output, as lines for people or as JSON. Starts the export of spans, if it is
//! configured.
//!
//! Logging never blocks; see [`LogQueue`].

mod log_queue;

use std::time::Duration;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::trace;
pub use log_queue::{LogQueue, QUEUE_BYTES_MAX};

/// Longest that the end of the process waits for the last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Human,
    /// A JSON object per line.
    Json,
}

/// The started logs and spans; see [`start`].
pub struct Telemetry {
    /// Sends spans, if an endpoint is set. Must be stopped at the end.
    pub spans: Option<trace::Exporter>,
    /// The queue of log lines.
    pub log: LogQueue,
}

/// Writes the last lines when dropped, for one second at most.
impl Drop for Telemetry {
    fn drop(&mut self) {
        self.log.flush(FLUSH_TIMEOUT);
    }
}

/// Starts logging. `level` is a level, or levels per module, such as `info,fred=warn`. Spans are exported when the environment
/// names an endpoint; that needs a tokio runtime. Panics are logged too, since standard error may be a pipe without a reader.
///
/// Errors: a sentence, when the level or the environment is not valid.
pub fn start(level: &str, format: LogFormat) -> Result<Telemetry, String> {
    let filter = filter(level)?;
    let log =
        LogQueue::to_standard_output().map_err(|error| format!("cannot start logging: {error}"))?;
    // Errors of the layer itself would be written to standard error, and could block there.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(log.clone())
        .log_internal_errors(false);
    let lines = match format {
        LogFormat::Human => lines.with_ansi(is_coloured()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let spans = trace::Exporter::from_environment()?;
    let exported = spans.as_ref().map(|exporter| {
        exporter
            .layer()
            .with_filter(Targets::new().with_target(trace::TARGET, LevelFilter::INFO))
    });
    let started = tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(exported)
        .try_init();
    started.map_err(|error| format!("cannot start logging: {error}"))?;
    std::panic::set_hook(Box::new(
        |panic| tracing::error!(%panic, "a thread panicked"),
    ));
    Ok(Telemetry { spans, log })
}

/// Errors: a sentence, when the level is none.
pub fn check_level(level: &str) -> Result<(), String> {
    filter(level).map(drop)
}

/// The targets that are logged at this level, or levels per module.
fn filter(level: &str) -> Result<Targets, String> {
    // Without this check, a word that is not a level would be taken for a module.
    let sound = level.split(',').all(|part| {
        part.rsplit('=')
            .next()
            .is_some_and(|level| level.parse::<LevelFilter>().is_ok())
    });
    let filter = level.parse::<Targets>().ok().filter(|_| sound).ok_or_else(|| {
        format!("--log-level is {level:?}; it must be error, warn, info, debug, trace or off, or per module, such as info,tollgate_store=debug")
    })?;
    // fred logs each attempt to connect. The store itself logs what operators need of it.
    let filter = if level.contains("fred") {
        filter
    } else {
        filter.with_target("fred", LevelFilter::OFF)
    };
    Ok(filter.with_target(trace::TARGET, LevelFilter::OFF))
}

fn is_coloured() -> bool {
    // The convention of no-color.org.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !plain && std::io::IsTerminal::is_terminal(&std::io::stdout())
}
