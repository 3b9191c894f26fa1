//! Logs: events with fields, to standard output, for people or for machines. And where spans go, if anywhere.

use clap::ValueEnum;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::trace;

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Human,
    /// A JSON object per line.
    Json,
}

/// Starts logging. `level` is a level, or levels per module, such as `info,fred=warn`. Spans are exported when the
/// environment names where to: must be called within a tokio runtime for that. What is returned must be stopped at the end.
///
/// Errors: a sentence, when the level or the environment cannot be understood.
pub fn start(level: &str, format: LogFormat) -> Result<Option<trace::Exporter>, String> {
    // A bare word that is no level would be taken for a module.
    let sound = level.split(',').all(|part| part.rsplit('=').next().is_some_and(|level| level.parse::<LevelFilter>().is_ok()));
    let filter = level.parse::<Targets>().ok().filter(|_| sound).ok_or_else(|| {
        format!("--log-level is {level:?}; it must be error, warn, info, debug or trace, or per module, such as info,fred=debug")
    })?;
    // fred reports each attempt to connect; what matters of it is logged by the store itself.
    let filter = if level.contains("fred") { filter } else { filter.with_target("fred", LevelFilter::OFF) };
    let filter = filter.with_target(trace::TARGET, LevelFilter::OFF);
    let lines = match format {
        LogFormat::Human => tracing_subscriber::fmt::layer().with_ansi(stdout_is_terminal()).boxed(),
        LogFormat::Json => tracing_subscriber::fmt::layer().json().flatten_event(true).boxed(),
    };
    let exporter = trace::Exporter::from_environment()?;
    let spans = exporter
        .as_ref()
        .map(|exporter| exporter.layer().with_filter(Targets::new().with_target(trace::TARGET, LevelFilter::INFO)));
    let started = tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans).try_init();
    started.map_err(|error| format!("cannot start logging: {error}"))?;
    Ok(exporter)
}

fn stdout_is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdout())
}
