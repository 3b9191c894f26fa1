//! The flags by which commands reach a running server, and the run of such a command.

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;

use super::terminal::fail;
use tollgate_core::duration;
use tollgate_server::grpc::{AnswerForm, Target};
use tollgate_server::tls::ClientSettings;

/// Exit code of a command that got no answer.
pub(super) const NO_ANSWER: u8 = 2;
/// Bounds of `--timeout`. An hour is far above any time that a person or a probe waits.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// Flags of every command that asks a server, beside its address.
#[derive(Debug, clap::Args)]
pub(super) struct ConnectArguments {
    /// Encrypt the connection, and trust the authorities of this system. Any other --tls flag encrypts too.
    #[arg(long)]
    tls: bool,
    /// Trust these authorities instead (PEM).
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// The certificate to show to the server (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The name that the server's certificate must have [default: the host of the address].
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Longest wait for the connection, and for each answer.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = timeout)]
    timeout: Duration,
    /// How to print the answer: human lines, or one json object.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// How to print an answer.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum Output {
    /// Lines for people.
    #[default]
    Human,
    /// A JSON object; times are in microseconds.
    Json,
}

impl ConnectArguments {
    /// The server at this address. Errors: a sentence.
    pub(super) fn target(&self, address: &str) -> Result<Target, String> {
        let Self {
            tls_ca,
            tls_cert,
            tls_key,
            tls_server_name,
            ..
        } = self;
        let encrypts =
            self.tls || tls_ca.is_some() || tls_cert.is_some() || tls_server_name.is_some();
        let identity = tls_cert.clone().zip(tls_key.clone());
        let settings = ClientSettings {
            ca_file: tls_ca.clone(),
            identity,
            server_name: tls_server_name.clone(),
        };
        Target::new(address, encrypts.then_some(settings), self.timeout)
    }

    pub(super) fn form(&self) -> AnswerForm {
        match self.output {
            Output::Human => AnswerForm::Human,
            Output::Json => AnswerForm::Json,
        }
    }
}

/// Runs a command that asks a server. Errors of it are printed and are [`NO_ANSWER`].
pub(super) fn run(command: impl Future<Output = Result<ExitCode, String>>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(NO_ANSWER, &format!("cannot start: {error}")),
    };
    let code = runtime
        .block_on(command)
        .unwrap_or_else(|sentence| fail(NO_ANSWER, &sentence));
    // A name that is still being looked up must not hold up the end.
    runtime.shutdown_background();
    code
}

fn timeout(text: &str) -> Result<Duration, String> {
    let parsed = duration::parse(text)?;
    if (TIMEOUT_MIN..=TIMEOUT_MAX).contains(&parsed) {
        Ok(parsed)
    } else {
        Err("a timeout is 1ms to 1h".to_owned())
    }
}
