//! What a decision costs, end to end: CPU of server and Redis, latency, memory; beside a bare echo in the same run.
//!
//!     cargo bench --bench matrix                        every combination, about six minutes
//!     cargo bench --bench matrix -- --quick             the rows that tollgate promises something about
//!     cargo bench --bench matrix -- --help              all the rest
//!
//! CPU time of the processes divided by decisions is what to compare: it is steady on a shared machine, and requests per
//! second are not; compare those only within one run. Exits with 1 when any answer was wrong, late without end, or missing.
//! Needs redis-server and redis-benchmark. Servers, Redis and load run on this machine, on loopback ports of their own.

#![allow(
    clippy::panic,
    reason = "a benchmark that cannot run ends by saying so"
)]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(
    unreachable_pub,
    reason = "a program: pub is what its modules offer each other"
)]

mod echo;
mod harness;
mod load;
mod model;
mod report;
mod scenarios;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use harness::{ECHO, Harness, WORKERS, serve_echo};
use report::{Report, chart};

/// That of tollgate, since this program is also the echo that tollgate is compared with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What a decision costs, end to end. Without an option: every combination of store, RPC, keys, outcome and calls in flight.
#[derive(Parser)]
struct Options {
    /// Only the rows that tollgate promises something about.
    #[arg(long)]
    quick: bool,
    /// A row for each algorithm, at 48 calls in flight on 10,000 keys.
    #[arg(long)]
    algorithms: bool,
    /// Five alternating runs of echo, memory, redis and denied; medians and ratios.
    #[arg(long)]
    headline: bool,
    /// Five alternating runs of `ShouldAllow`, Envoy's `ShouldRateLimit` and `/v1/check` through Redis; medians and ratios.
    #[arg(long)]
    protocols: bool,
    /// Five alternating runs of one Redis and a Cluster of three; medians and ratios.
    #[arg(long)]
    cluster: bool,
    /// Five alternating runs of `ShouldAllow` and joint decisions of two and three keys through Redis; medians and ratios.
    #[arg(long)]
    joint: bool,
    /// Five alternating runs of a limit with a block and of one by the calendar, beside the same without; medians and ratios.
    #[arg(long)]
    customers: bool,
    /// One to eight replicas on one to three shards, beside what the model of `sizing` says of them.
    #[arg(long)]
    sizes: bool,
    /// Latency at fixed rates, 1,000 to 10,000 a second, counted from when a call was due.
    #[arg(long)]
    paced: bool,
    /// How cost grows with keys, limits, plans and the key's length.
    #[arg(long)]
    growth: bool,
    /// Full load on Redis for so many minutes, at least 2; fails when memory grows after the first.
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(2..))]
    soak: Option<u64>,
    /// Only rows whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Seconds that each row is measured for, after a second of warm-up.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Workers of every server, the echo's too. One leaves the other cores to load and Redis.
    #[arg(long, default_value = "1")]
    workers: NonZeroUsize,
    /// Where to write a chart of the rows.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    if let Ok(address) = std::env::var(ECHO) {
        let workers = std::env::var(WORKERS)
            .ok()
            .and_then(|workers| workers.parse().ok())
            .unwrap_or(NonZeroUsize::MIN);
        serve_echo(&address, workers);
        return ExitCode::SUCCESS;
    }
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a thread can wait for sockets");
    match runtime.block_on(run(&options)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(errors) => fail(&format!(
            "{errors} errors: some calls got no answer, or not the one they should"
        )),
        Err(message) => fail(&message),
    }
}

fn fail(message: &str) -> ExitCode {
    eprintln!("matrix: {message}");
    ExitCode::FAILURE
}

/// Runs one mode; how many errors there were.
async fn run(options: &Options) -> Result<u64, String> {
    let mut harness = Harness::new(Duration::from_secs_f64(options.seconds), options.workers);
    match options.soak {
        Some(minutes) => return scenarios::soak(&mut harness, minutes).await,
        None if options.headline => return scenarios::headline(&mut harness).await,
        None if options.protocols => return scenarios::protocols(&mut harness).await,
        None if options.joint => return scenarios::joint(&mut harness).await,
        None if options.customers => return scenarios::customers(&mut harness).await,
        None if options.cluster => return scenarios::cluster(&mut harness).await,
        None if options.sizes => return scenarios::sizes(&mut harness).await,
        None if options.growth => return scenarios::growth(&mut harness, &options.filter).await,
        None if options.paced => return scenarios::paced(&mut harness).await,
        None => {}
    }
    let scenarios = match (options.quick, options.algorithms) {
        (true, _) => scenarios::quick(),
        (_, true) => scenarios::algorithms(),
        _ => scenarios::combinations(),
    };
    let mut report = Report::default();
    for scenario in scenarios
        .iter()
        .filter(|scenario| scenario.name().contains(&options.filter))
    {
        report.add(
            harness
                .measure(scenario)
                .await
                .map_err(|error| format!("{}: {error}", scenario.name()))?,
        );
    }
    scenarios::print_context(&mut harness);
    if let Some(file) = &options.svg {
        std::fs::write(file, chart(&report.rows))
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(report.errors())
}
