//! The commands that ask the admin service of a running server, but for `top`, and how they reach it.

use std::path::PathBuf;
use std::process::ExitCode;

use super::ask::finish;
use super::connect::{ConnectArguments, run};
use tollgate_server::grpc::{AdminAnswer, AdminQuestion, AdminToken, AnswerForm, ClientConnection};
use tollgate_store::small_file;

/// Largest file of a token, in bytes. The server reads no larger one.
const TOKEN_BYTES_MAX: usize = 4096;

/// The key, the plan and the server of an admin command.
#[derive(Debug, clap::Args)]
pub(super) struct AdminArguments {
    /// The subject that is counted.
    #[arg(short, long)]
    key: String,
    /// The shard that the key belongs to [default: none].
    #[arg(long)]
    shard: Option<String>,
    /// The plan that counts it.
    #[arg(short, long)]
    plan: String,
    #[command(flatten)]
    server: AdminServerArguments,
}

/// The server of an admin command.
#[derive(Debug, clap::Args)]
pub(super) struct AdminServerArguments {
    /// The admin listener of the server, unix:/path or host:port.
    #[arg(
        short,
        long,
        value_name = "ADDRESS",
        default_value = "unix:/run/tollgate/admin.sock"
    )]
    admin: String,
    /// The file with the token that the server asks for.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArguments,
}

/// The arguments of `tollgate refund`.
#[derive(Debug, clap::Args)]
pub(super) struct RefundArguments {
    /// Units to give back [default: 1].
    #[arg(short, long)]
    cost: Option<u64>,
    #[command(flatten)]
    admin: AdminArguments,
}

pub(super) fn reset(arguments: &AdminArguments) -> ExitCode {
    arguments
        .run(async |connection, question, token| connection.reset(&question, token.as_ref()).await)
}

pub(super) fn refund(arguments: &RefundArguments) -> ExitCode {
    let cost = arguments.cost;
    arguments
        .admin
        .run(async move |connection, question, token| {
            connection.refund(&question, cost, token.as_ref()).await
        })
}

pub(super) fn explain(arguments: &AdminArguments) -> ExitCode {
    arguments.run(async |connection, question, token| {
        connection.explain(&question, token.as_ref()).await
    })
}

pub(super) fn reload(server: &AdminServerArguments) -> ExitCode {
    server.run(async |connection, token| connection.reload(server.form(), token.as_ref()).await)
}

pub(super) fn replicas(server: &AdminServerArguments) -> ExitCode {
    server.run(async |connection, token| connection.replicas(server.form(), token.as_ref()).await)
}

impl AdminArguments {
    fn run(
        &self,
        command: impl AsyncFnOnce(
            ClientConnection,
            AdminQuestion,
            Option<AdminToken>,
        ) -> Result<AdminAnswer, String>,
    ) -> ExitCode {
        let question = AdminQuestion {
            key: self.key.clone(),
            shard: self.shard.clone().unwrap_or_default(),
            plan: self.plan.clone(),
            form: self.server.form(),
        };
        self.server
            .run(async |connection, token| command(connection, question, token).await)
    }
}

impl AdminServerArguments {
    pub(super) fn run(
        &self,
        command: impl AsyncFnOnce(ClientConnection, Option<AdminToken>) -> Result<AdminAnswer, String>,
    ) -> ExitCode {
        run(async {
            let (connection, token) = self.connect().await?;
            let answer = command(connection, token).await?;
            Ok(finish(&answer.text, answer.yes))
        })
    }

    /// Connects, and reads the token. Errors: a sentence.
    pub(super) async fn connect(&self) -> Result<(ClientConnection, Option<AdminToken>), String> {
        let target = self.connect.target(&self.admin)?;
        let token = self.token()?;
        if token.is_some() && !target.is_private() {
            return Err(format!(
                "the token would travel to {} unencrypted; encrypt the connection by --tls or --tls-ca, or use a tunnel to loopback",
                self.admin
            ));
        }
        Ok((target.connect().await?, token))
    }

    pub(super) fn form(&self) -> AnswerForm {
        self.connect.form()
    }

    fn token(&self) -> Result<Option<AdminToken>, String> {
        let Some(file) = &self.token_file else {
            return Ok(None);
        };
        let contents = small_file::read(file, TOKEN_BYTES_MAX)
            .map_err(|error| format!("the file of --token-file {error}"))?;
        AdminToken::new(&contents.bytes).map(Some)
    }
}
