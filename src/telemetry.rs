//! Logs: events with fields, to standard output, for people or for machines. And where spans go, if anywhere.
//!
//! Logging never blocks: see [`LogQueue`].

mod log_queue;

use std::time::Duration;

use clap::ValueEnum;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::trace;
pub use log_queue::{LogQueue, QUEUE_BYTES_MAX};

/// Longest that the end of the process waits for the last lines to be written.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Human,
    /// A JSON object per line.
    Json,
}

/// What was started; see [`start`].
pub struct Telemetry {
    /// Sends spans, if they are sent anywhere; must be stopped at the end.
    pub spans: Option<trace::Exporter>,
    /// Where lines of the log wait.
    pub log: LogQueue,
}

/// The last lines are written when this is dropped, or given up after a second.
impl Drop for Telemetry {
    fn drop(&mut self) {
        self.log.flush(FLUSH_WITHIN);
    }
}

/// Starts logging. `level` is a level, or levels per module, such as `info,fred=warn`. Spans are exported when the
/// environment names where to: must be called within a tokio runtime for that. Panics go to the log too, since standard
/// error may be a pipe that nobody reads.
///
/// Errors: a sentence, when the level or the environment cannot be understood.
pub fn start(level: &str, format: LogFormat) -> Result<Telemetry, String> {
    // A bare word that is no level would be taken for a module.
    let sound = level.split(',').all(|part| part.rsplit('=').next().is_some_and(|level| level.parse::<LevelFilter>().is_ok()));
    let filter = level.parse::<Targets>().ok().filter(|_| sound).ok_or_else(|| {
        format!("--log-level is {level:?}; it must be error, warn, info, debug or trace, or per module, such as info,fred=debug")
    })?;
    // fred reports each attempt to connect; what matters of it is logged by the store itself.
    let filter = if level.contains("fred") { filter } else { filter.with_target("fred", LevelFilter::OFF) };
    let filter = filter.with_target(trace::TARGET, LevelFilter::OFF);
    let log = LogQueue::to_standard_output().map_err(|error| format!("cannot start logging: {error}"))?;
    // What the layer itself has to complain of would go to standard error, and block there.
    let lines = tracing_subscriber::fmt::layer().with_writer(log.clone()).log_internal_errors(false);
    let lines = match format {
        LogFormat::Human => lines.with_ansi(is_coloured()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let spans = trace::Exporter::from_environment()?;
    let exported =
        spans.as_ref().map(|exporter| exporter.layer().with_filter(Targets::new().with_target(trace::TARGET, LevelFilter::INFO)));
    let started = tracing_subscriber::registry().with(lines.with_filter(filter)).with(exported).try_init();
    started.map_err(|error| format!("cannot start logging: {error}"))?;
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a thread panicked")));
    Ok(Telemetry { spans, log })
}

fn is_coloured() -> bool {
    // By the convention of no-color.org.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !plain && std::io::IsTerminal::is_terminal(&std::io::stdout())
}
