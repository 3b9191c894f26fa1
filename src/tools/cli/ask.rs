//! `tollgate try`, `health` and `plans`: ask a running server, print the answer, and exit with it.

use std::process::ExitCode;
use std::time::Duration;

use super::connect::{ConnectArguments, NO_ANSWER, run};
use super::terminal::{fail, print};
use tollgate_core::duration;
use tollgate_server::grpc::{self, HoldQuestion, Question};

/// Maximum number of questions of one command. So many take some seconds, and a load test needs a tool of its own.
const REPEAT_MAX: u64 = 100_000;
/// A short name for the service whose health is readiness.
const READINESS: &str = "readiness";

/// The arguments of `tollgate try`.
#[derive(Debug, clap::Args)]
pub(super) struct TryArguments {
    /// The subject to count.
    #[arg(short, long)]
    key: String,
    /// The shard that the key belongs to [default: none].
    #[arg(long)]
    shard: Option<String>,
    /// The plan to decide by.
    #[arg(short, long)]
    plan: String,
    /// Units to ask for [default: 1].
    #[arg(short, long)]
    cost: Option<u64>,
    /// Ask without taking anything.
    #[arg(long)]
    peek: bool,
    /// Hold the cost under this id until it is settled, or its lease ends.
    #[arg(long, value_name = "ID", conflicts_with_all = ["peek", "repeat"])]
    reserve: Option<String>,
    /// The lease of what is reserved [default: that of the plan].
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "reserve")]
    ttl: Option<Duration>,
    /// End the hold of this id.
    #[arg(long, value_name = "ID", conflicts_with_all = ["peek", "repeat", "reserve", "cost"])]
    settle: Option<String>,
    /// Units that were used of what is settled; 0 cancels it [default: as many as were held].
    #[arg(long, value_name = "UNITS", requires = "settle")]
    actual: Option<u64>,
    /// Charge the cost, whatever the limits say.
    #[arg(long, conflicts_with_all = ["peek", "repeat", "reserve", "settle"])]
    record: bool,
    /// Ask so often, one request after the other, and print how many were allowed.
    #[arg(short, long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=REPEAT_MAX))]
    repeat: u64,
    /// The server, host:port or unix:/path.
    #[arg(short, long, default_value = "127.0.0.1:50051")]
    address: String,
    #[command(flatten)]
    connect: ConnectArguments,
}

/// The arguments of `tollgate health`.
#[derive(Debug, clap::Args)]
pub(super) struct HealthArguments {
    /// The service to ask for: readiness, or a full name [default: whether the server is alive].
    #[arg(short, long, value_name = "NAME")]
    service: Option<String>,
    /// The server, host:port or unix:/path.
    #[arg(short, long, default_value = "127.0.0.1:50051")]
    address: String,
    #[command(flatten)]
    connect: ConnectArguments,
}

/// The arguments of `tollgate plans`.
#[derive(Debug, clap::Args)]
pub(super) struct PlansArguments {
    /// The server, host:port or unix:/path.
    #[arg(short, long, default_value = "127.0.0.1:50051")]
    address: String,
    #[command(flatten)]
    connect: ConnectArguments,
}

pub(super) fn try_decisions(arguments: &TryArguments) -> ExitCode {
    let question = arguments.question();
    let hold = arguments.hold();
    run(async {
        let target = arguments.connect.target(&arguments.address)?;
        let connection = target.connect().await?;
        let form = arguments.connect.form();
        let answer = match (&hold, arguments.repeat) {
            (Some(hold), _) => connection.ask_for_hold(&question, hold, form).await?,
            (None, 1) => connection.ask(&question, form).await?,
            (None, times) => connection.ask_repeatedly(&question, times, form).await,
        };
        let printed = finish(&answer.text, answer.allowed);
        Ok(answer
            .failure
            .map_or(printed, |sentence| fail(NO_ANSWER, &sentence)))
    })
}

impl TryArguments {
    fn question(&self) -> Question {
        Question {
            key: self.key.clone(),
            shard: self.shard.clone().unwrap_or_default(),
            plan: self.plan.clone(),
            cost: self.cost,
            peek: self.peek,
        }
    }

    /// What to do in place of a check, if anything.
    fn hold(&self) -> Option<HoldQuestion> {
        match (&self.reserve, &self.settle) {
            (Some(id), _) => Some(HoldQuestion::Reserve(id.clone(), self.ttl)),
            (None, Some(id)) => Some(HoldQuestion::Settle(id.clone(), self.actual)),
            (None, None) => self.record.then_some(HoldQuestion::Record),
        }
    }
}

pub(super) fn health(arguments: HealthArguments) -> ExitCode {
    let HealthArguments {
        service,
        address,
        connect,
    } = arguments;
    let service = match service.as_deref() {
        Some(READINESS) => grpc::HEALTH_SERVICE,
        name => name.unwrap_or_default(),
    };
    run(async {
        let health = connect
            .target(&address)?
            .connect()
            .await?
            .health(service, connect.form())
            .await?;
        Ok(finish(&health.text, health.serving))
    })
}

pub(super) fn plans(arguments: &PlansArguments) -> ExitCode {
    let PlansArguments { address, connect } = arguments;
    run(async {
        let text = connect
            .target(address)?
            .connect()
            .await?
            .plans(connect.form())
            .await?;
        Ok(finish(&text, true))
    })
}

/// Prints the answer. Returns 0 for yes, 1 for no, 2 when the answer could not be printed.
pub(super) fn finish(text: &str, yes: bool) -> ExitCode {
    print(text).map_or_else(
        |_| ExitCode::from(NO_ANSWER),
        |()| ExitCode::from(u8::from(!yes)),
    )
}
