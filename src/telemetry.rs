//! Logs: events with fields, to standard output, for people or for machines.

use clap::ValueEnum;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Human,
    /// A JSON object per line.
    Json,
}

/// Starts logging. `level` is a level, or levels per module, such as `info,fred=warn`.
///
/// Errors: a sentence, when the level cannot be understood.
pub fn start(level: &str, format: LogFormat) -> Result<(), String> {
    // A bare word that is no level would be taken for a module.
    let sound = level.split(',').all(|part| part.rsplit('=').next().is_some_and(|level| level.parse::<LevelFilter>().is_ok()));
    let filter = level.parse::<Targets>().ok().filter(|_| sound).ok_or_else(|| {
        format!("--log-level is {level:?}; it must be error, warn, info, debug or trace, or per module, such as info,fred=debug")
    })?;
    // fred reports each attempt to connect; what matters of it is logged by the store itself.
    let filter = if level.contains("fred") { filter } else { filter.with_target("fred", LevelFilter::OFF) };
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format {
        LogFormat::Human => registry.with(tracing_subscriber::fmt::layer().with_ansi(stdout_is_terminal())).try_init(),
        LogFormat::Json => registry.with(tracing_subscriber::fmt::layer().json().flatten_event(true)).try_init(),
    };
    started.map_err(|error| format!("cannot start logging: {error}"))
}

fn stdout_is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdout())
}
