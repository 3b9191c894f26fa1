//! The command line: `serve` (the default), `check`, `try`.
//!
//! Exit codes: 0 done; 1 `check` found mistakes, `try` was denied, or the server could not start or stop as it should;
//! 2 the command line or a named config is wrong, or `try` got no answer.

mod reload;
mod replicas;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{Config, Sources};
use crate::telemetry::LogFormat;

/// A standalone rate-limit service: one exact limit over any number of replicas, asked over gRPC.
///
/// Without a command, serves; without a config, serves example plans from memory.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
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
    /// Validate a config file: prints every mistake with its path. Exits with 0 when it is valid, with 1 when not.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Ask a running server one question and print its answer. Exits with 0 when allowed, 1 when denied, 2 on an error.
    Try(TryArguments),
}

/// What `serve` can be told; each flag beats the environment, which beats the file.
#[derive(Debug, clap::Args)]
pub struct ServeArguments {
    /// Config file (YAML). Without one, example plans are served from memory.
    #[arg(short, long, env = "TOLLGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to serve gRPC: host:port or unix:/path; may be repeated. Same as --set listen.grpc=A,B.
    #[arg(short, long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Let gRPC and HTTP be reached unencrypted from other hosts. Same as --set listen.plaintext=true.
    #[arg(long)]
    plaintext: bool,
    /// Where to keep the counters: memory: or redis://host:6379. Same as --set store.url=URL.
    #[arg(short, long, value_name = "URL")]
    store: Option<String>,
    /// Any setting by its path, such as store.deadline=50ms; may be repeated.
    #[arg(long, value_name = "PATH=VALUE", value_parser = parse_setting)]
    set: Vec<(String, String)>,
    /// How much to log: error, warn, info, debug or trace; or per module, such as info,tollgate=debug.
    #[arg(long, env = "TOLLGATE_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    log_level: String,
    /// How to write logs: lines for people or for machines.
    #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

#[derive(Debug, clap::Args)]
struct TryArguments {
    /// The subject to count.
    #[arg(short, long)]
    key: String,
    /// The plan to decide by.
    #[arg(short, long)]
    plan: String,
    /// Units to ask for [default: 1].
    #[arg(short, long)]
    cost: Option<u64>,
    /// Ask without taking anything.
    #[arg(long)]
    peek: bool,
    /// The server, host:port.
    #[arg(short, long, default_value = "127.0.0.1:50051")]
    address: String,
}

/// Runs what the arguments ask for.
pub fn run(arguments: Arguments) -> ExitCode {
    match arguments.command {
        None => serve::run(arguments.serve),
        Some(Command::Serve(serve)) => serve::run(serve),
        Some(Command::Check { file }) => check(file),
        Some(Command::Try(question)) => ask(question),
    }
}

fn check(file: PathBuf) -> ExitCode {
    let name = file.display().to_string();
    match Config::load(Sources { file: Some(file), ..Sources::default() }) {
        Ok(config) => {
            println!("{name}: valid, {} plans", config.plans.len());
            ExitCode::SUCCESS
        }
        Err(mistakes) => {
            eprintln!("{mistakes}");
            ExitCode::FAILURE
        }
    }
}

fn ask(question: TryArguments) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(2, &format!("cannot start: {error}")),
    };
    let TryArguments { key, plan, cost, peek, address } = question;
    match runtime.block_on(crate::grpc::ask(&address, key, plan, cost, peek)) {
        Ok(answer) => {
            println!("{}", answer.text);
            ExitCode::from(u8::from(!answer.allowed))
        }
        Err(message) => fail(2, &message),
    }
}

fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("tollgate: {message}");
    ExitCode::from(code)
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (path, value) = text.split_once('=').ok_or("write PATH=VALUE, such as store.deadline=50ms")?;
    Ok((path.to_owned(), value.to_owned()))
}

impl ServeArguments {
    fn sources(&self) -> Sources {
        let mut overrides = self.set.clone();
        if !self.listen.is_empty() {
            overrides.push(("listen.grpc".to_owned(), self.listen.join(",")));
        }
        if self.plaintext {
            overrides.push(("listen.plaintext".to_owned(), "true".to_owned()));
        }
        overrides.extend(self.store.clone().map(|url| ("store.url".to_owned(), url)));
        // Names and values that are no UTF-8 cannot be settings of ours.
        let text =
            |(name, value): (std::ffi::OsString, std::ffi::OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        Sources { file: self.config.clone(), environment: std::env::vars_os().filter_map(text).collect(), overrides }
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
        let arguments = Arguments::parse_from(["tollgate", "-l", "a:1", "-l", "b:2", "--set", "store.deadline=1s"]);
        assert!(arguments.command.is_none());
        let overrides = arguments.serve.sources().overrides;
        assert!(overrides.contains(&("listen.grpc".to_owned(), "a:1,b:2".to_owned())), "{overrides:?}");
        assert!(overrides.contains(&("store.deadline".to_owned(), "1s".to_owned())));
    }
}
