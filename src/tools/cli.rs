//! The command line: `serve` (the default), `check`, `simulate`, the commands that ask a running server, and its own manual.
//!
//! Exit codes:
//! - 0: done.
//! - 1: `check` found errors, the answer of a running server is no, or the server could not start or stop properly.
//! - 2: the command line or a named config is wrong, or a running server did not answer.

mod admin;
mod ask;
mod check;
mod connect;
mod convert;
mod descriptor;
mod manual;
mod overrides;
mod simulate;
mod terminal;
mod top;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Parser, Subcommand, ValueEnum};

use terminal::{fail, read_input};
use tollgate_core::plan::ZONE_DATABASE;
use tollgate_server::config::{
    CONFIG_BYTES_MAX, CONFIG_YAML, Flag, Origin, SettingInForce, Sources,
};
use tollgate_server::telemetry;

/// The variable that names the config file.
const CONFIG: &str = "TOLLGATE_CONFIG";
/// The variables of the flags about logs.
const LOG_LEVEL: &str = "TOLLGATE_LOG_LEVEL";
/// The version of the program, and the release of the tz database that is part of it.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = tollgate_server::VERSION_WITH_COMMIT;
    format!("{version}, time zones of {ZONE_DATABASE}")
});
const LOG_FORMAT: &str = "TOLLGATE_LOG_FORMAT";
const LEVEL_DEFAULT: &str = "info";
/// A file name that stands for standard input.
const INPUT: &str = "-";

/// A standalone rate-limit service: one exact limit over any number of replicas, asked over gRPC.
///
/// Without a command it serves. Without a config it serves example plans from memory.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version = VERSION.as_str(), max_term_width = 100, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve decisions (the default).
    Serve(ServeArguments),
    /// Check the config, flags and environment as serving reads them, and print every error with its place. Exits with 0 when
    /// all is valid, 1 when not, 2 on a wrong command line.
    Check(check::CheckArguments),
    /// Replay an access log and print what the limits of a plan would have done to it; no server is needed.
    Simulate(simulate::SimulateArguments),
    /// Convert configs of another rate limiter to one of tollgate, and print it. What has no counterpart is a warning. Exits with 0
    /// when all are converted, with 1 on errors.
    Convert {
        /// What it is a config of.
        #[arg(value_enum)]
        from: convert::From,
        /// The config files, or folders of them; - is standard input.
        #[arg(value_name = "FILE", required = true, num_args = 1..)]
        files: Vec<PathBuf>,
    },
    /// Ask a running server and print the answer. Exits with 0 when all is allowed or done, 1 when something is denied, 2 on an
    /// error.
    Try(ask::TryArguments),
    /// Ask a running server for its health, as probes of containers do. Exits with 0 when it serves, 1 when not, 2 without an
    /// answer.
    Health(ask::HealthArguments),
    /// Tell where a key stands in every limit of a plan, by the admin service. Exits with 0 when its next request would be
    /// allowed, 1 when denied, 2 on an error.
    Explain(admin::AdminArguments),
    /// Show which keys were denied most, or used most, in the last minute, by the admin service. Without a terminal it prints a
    /// table once.
    Top(top::TopArguments),
    /// Print the plans that a running server enforces. Exits with 0 when it answers, 2 on an error.
    Plans(ask::PlansArguments),
    /// Have a running server take up its config file, by the admin service. Exits with 0 when it did, 2 when the file has errors,
    /// or on another error.
    Reload(admin::AdminServerArguments),
    /// Tell how many replicas share each quota while the store cannot decide, by the admin service. Exits with 0 when it answers,
    /// 2 on an error.
    Replicas(admin::AdminServerArguments),
    /// Forget everything that a key has used, by the admin service. Exits with 0 when there was something, 1 when not, 2 on an
    /// error.
    Reset(admin::AdminArguments),
    /// Give units back to a key, by the admin service. Exits with 0 when some were given back, 1 when there were none, 2 on an
    /// error.
    Refund(admin::RefundArguments),
    /// Give keys other limits than their plan's, or list such overrides, by the admin service.
    #[command(subcommand)]
    Override(overrides::OverrideCommand),
    /// Print the script that completes commands and flags in a shell.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page of tollgate, or of one of its commands, for man.
    Man {
        /// The command, such as check, or override set [default: tollgate itself].
        command: Vec<String>,
    },
}

/// The settings of `serve`. Each flag overrides the environment, which overrides the file.
#[derive(Debug, clap::Args)]
pub struct ServeArguments {
    /// The config file (YAML); - is standard input. TOLLGATE_CONFIG_YAML may hold a whole config instead. Without a config,
    /// example plans are served from memory.
    #[arg(short, long, env = CONFIG, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to serve gRPC: host:port or unix:/path; may be repeated. Same as --set listen.grpc=A,B.
    #[arg(short, long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Allow other hosts to reach gRPC and HTTP unencrypted. Same as --set listen.plaintext=true.
    #[arg(long)]
    plaintext: bool,
    /// Where to keep the counters: memory: or redis://host:6379. Same as --set store.url=URL.
    #[arg(short, long, value_name = "URL")]
    store: Option<String>,
    /// Any setting by its path, such as store.deadline=50ms; may be repeated.
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// How much to log: error, warn, info, debug, trace or off; or a level per module, such as info,tollgate=debug.
    #[arg(long, env = LOG_LEVEL, default_value = LEVEL_DEFAULT, value_name = "LEVEL")]
    log_level: String,
    /// How to write logs: human lines, or json with an object per line.
    #[arg(long, env = LOG_FORMAT, value_enum, default_value_t)]
    log_format: LogFormatFlag,
}

/// How log lines are written, as a flag.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum LogFormatFlag {
    /// Lines for people.
    #[default]
    Human,
    /// A JSON object per line.
    Json,
}

impl LogFormatFlag {
    fn name(self) -> Option<String> {
        self.to_possible_value()
            .map(|name| name.get_name().to_owned())
    }
}

impl From<LogFormatFlag> for telemetry::LogFormat {
    fn from(format: LogFormatFlag) -> Self {
        match format {
            LogFormatFlag::Human => Self::Human,
            LogFormatFlag::Json => Self::Json,
        }
    }
}

/// Runs the command that the arguments name, and returns the exit code.
pub fn run(arguments: Arguments) -> ExitCode {
    match arguments.command {
        None => serve(&arguments.serve),
        Some(Command::Serve(arguments)) => serve(&arguments),
        Some(Command::Check(arguments)) => check::check(arguments),
        Some(Command::Simulate(arguments)) => simulate::run(arguments),
        Some(Command::Convert { from, files }) => convert::convert(from, &files),
        Some(Command::Try(arguments)) => ask::try_decisions(&arguments),
        Some(Command::Health(arguments)) => ask::health(arguments),
        Some(Command::Explain(arguments)) => admin::explain(&arguments),
        Some(Command::Reset(arguments)) => admin::reset(&arguments),
        Some(Command::Refund(arguments)) => admin::refund(&arguments),
        Some(Command::Top(arguments)) => top::top(&arguments),
        Some(Command::Plans(arguments)) => ask::plans(&arguments),
        Some(Command::Reload(server)) => admin::reload(&server),
        Some(Command::Replicas(server)) => admin::replicas(&server),
        Some(Command::Override(command)) => overrides::run(command),
        Some(Command::Completions { shell }) => manual::completions(shell),
        Some(Command::Man { command }) => manual::page(&command),
    }
}

fn serve(arguments: &ServeArguments) -> ExitCode {
    match arguments.sources() {
        Ok(sources) => {
            tollgate_server::serve::run(sources, &arguments.log_level, arguments.log_format.into())
        }
        Err(sentence) => fail(2, &sentence),
    }
}

/// The sources of a config: a file, standard input or a variable, in this order. Errors: a sentence, when two are named.
fn base(file: Option<&Path>, variable: Option<String>) -> Result<Sources, String> {
    match (file, variable) {
        (Some(_), Some(_)) => Err(format!(
            "two configs are named, --config (or TOLLGATE_CONFIG) and {CONFIG_YAML}; remove one"
        )),
        (Some(file), None) if file == Path::new(INPUT) => {
            let text = read_input(CONFIG_BYTES_MAX)?;
            Ok(Sources {
                text: Some((Origin::StandardInput, text)),
                ..Sources::default()
            })
        }
        (Some(file), None) => Ok(Sources {
            file: Some(file.to_owned()),
            ..Sources::default()
        }),
        (None, Some(text)) => Ok(Sources {
            text: Some((Origin::Variable, text)),
            ..Sources::default()
        }),
        (None, None) => Ok(Sources::default()),
    }
}

impl ServeArguments {
    /// Names the config file, in place of that of the environment. Errors: a sentence, when a flag names another.
    fn name_config(&mut self, file: PathBuf) -> Result<(), String> {
        let by_variable = std::env::var_os(CONFIG).map(PathBuf::from);
        if self.config.is_some() && self.config != by_variable {
            return Err("two configs are named, FILE and --config; remove one".to_owned());
        }
        self.config = Some(file);
        Ok(())
    }

    /// All sources of the config. Errors: a sentence, when two configs are named or standard input cannot be read.
    fn sources(&self) -> Result<Sources, String> {
        // A variable that is not UTF-8 is kept in a lossy form, so that it is refused and not ignored.
        let text = |(name, value): (OsString, OsString)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        };
        let environment: Vec<(String, String)> = std::env::vars_os().map(text).collect();
        let variable = environment
            .iter()
            .find(|(name, _)| name == CONFIG_YAML)
            .map(|(_, text)| text.clone());
        let sources = base(self.config.as_deref(), variable)?;
        Ok(Sources {
            environment,
            flags: self.flags(),
            ..sources
        })
    }

    /// The flags about logs, which set nothing of the config, with their origins.
    fn log_settings(&self) -> [SettingInForce; 2] {
        [
            log_setting(
                "--log-level",
                LOG_LEVEL,
                Some(self.log_level.clone()),
                Some(LEVEL_DEFAULT),
            ),
            log_setting(
                "--log-format",
                LOG_FORMAT,
                self.log_format.name(),
                LogFormatFlag::default().name().as_deref(),
            ),
        ]
    }

    fn flags(&self) -> Vec<Flag> {
        let set = self.set.iter().map(|text| Flag::for_set(text));
        let own = |name: &str, path: &str, value: String| Flag {
            name: name.to_owned(),
            path: path.to_owned(),
            value: Some(value),
        };
        let listen = (!self.listen.is_empty())
            .then(|| own("--listen", "listen.grpc", self.listen.join(",")));
        let plaintext = self
            .plaintext
            .then(|| own("--plaintext", "listen.plaintext", "true".to_owned()));
        let store = self
            .store
            .clone()
            .map(|url| own("--store", "store.url", url));
        set.chain(listen).chain(plaintext).chain(store).collect()
    }
}

/// A setting that a flag or a variable gives, with its origin.
fn log_setting(
    flag: &str,
    variable: &str,
    value: Option<String>,
    default: Option<&str>,
) -> SettingInForce {
    let is_of_variable = std::env::var(variable)
        .ok()
        .is_some_and(|set| Some(set) == value);
    let origin = match is_of_variable {
        true => format!("variable {variable}"),
        false if value.as_deref() == default => "default".to_owned(),
        false => format!("flag {flag}"),
    };
    SettingInForce {
        path: flag.to_owned(),
        value,
        origin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn serve_is_the_default_and_flags_become_settings() {
        let arguments = Arguments::parse_from([
            "tollgate",
            "-l",
            "a:1",
            "-l",
            "b:2",
            "--set",
            "store.deadline=1s",
        ]);
        assert!(arguments.command.is_none());
        let flags = arguments.serve.flags();
        let value = Some("a:1,b:2".to_owned());
        let listen = Flag {
            name: "--listen".to_owned(),
            path: "listen.grpc".to_owned(),
            value,
        };
        assert_eq!(flags, [Flag::set("store.deadline", "1s"), listen]);
    }
}
