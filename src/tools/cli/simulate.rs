//! `tollgate simulate`: replays a log through the limits of a plan.
//!
//! This part reads the log, spreads its keys over threads and writes the report. What a line means, and what the limits do to it,
//! is in [`crate::simulate`].
//!
//! Exit codes:
//! - 0: replayed and reported.
//! - 1: the log cannot be read, has no request, or needs too much memory; or the report cannot be written.
//! - 2: the command line or a config is wrong, or the log has no such field.

mod input;
mod pipeline;
mod progress;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use super::terminal::{fail, print};
use super::{INPUT, base};
use crate::simulate::fields::Format;
use crate::simulate::line::{LineOptions, LineReader};
use crate::simulate::replay::RequestSpacing;
use crate::simulate::report::{Report, VariantName, html, json, remarks, svg, text};
use input::OpenedLog;
use tollgate_core::plan::{Plan, PlanSet};
use tollgate_server::config::Config;
use tollgate_store::clock::{Clock, SystemClock};

/// Maximum number of plans that are listed in a message.
const PLANS_LISTED_MAX: usize = 20;

/// The settings of `simulate`.
#[derive(Debug, clap::Args)]
pub(super) struct SimulateArguments {
    /// The config with the plan to try; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// The log, plain or compressed by gzip; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    log: PathBuf,
    /// How its lines are written: combined, common, json, csv, or nginx's log_format with its variables.
    #[arg(short, long, default_value = "combined")]
    format: String,
    /// Who is counted: a field of the log, or text with fields, such as '$http_x_api_key+$uri'.
    #[arg(short, long, default_value = "$remote_addr", value_name = "TEMPLATE")]
    key: String,
    /// The plan to decide by: its name, or a field with the name.
    #[arg(short, long)]
    plan: String,
    /// Units of a request: a number, or a field with the number.
    #[arg(long, default_value = "1")]
    cost: String,
    /// The field with the time [default: the first of time_local, time_iso8601, msec, time, timestamp and others].
    #[arg(long, value_name = "FIELD")]
    time: Option<String>,
    /// Another config, replayed beside the first.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// What to print: human lines, or one json object.
    #[arg(short, long, value_enum, default_value_t)]
    output: ReportOutput,
    /// Write a chart by hour to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the report to this file, as one page of HTML.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The maximum number of keys to hold; a key takes about 130 bytes, and 100 more for each further limit or config.
    #[arg(long, default_value_t = 1_000_000, value_name = "KEYS", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    keys_max: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum ReportOutput {
    /// Tables for people.
    #[default]
    Human,
    /// A JSON object.
    Json,
}

/// The plans to replay by.
#[derive(Debug)]
struct Setup {
    /// Names of plans, in the order of `plans`.
    names: Vec<String>,
    /// Each plan as every variant has it.
    plans: Vec<Vec<(Arc<Plan>, RequestSpacing)>>,
    variants: Vec<VariantName>,
    /// For each variant, all plans of its config, with the overrides.
    configs: Vec<PlanSet>,
    /// Index of the plan for names that are not in `names`.
    default: Option<usize>,
    keys_max: usize,
}

/// A sentence, and the exit code that it ends the command with.
type Failure = (u8, String);

/// Runs the command, and returns the exit code.
pub(super) fn run(arguments: SimulateArguments) -> ExitCode {
    match simulate(&arguments) {
        Ok(report) => print(&report).map_or_else(|code| code, |()| ExitCode::SUCCESS),
        Err((code, sentence)) => fail(code, &sentence),
    }
}

fn simulate(arguments: &SimulateArguments) -> Result<String, Failure> {
    let wrong = |sentence: String| (2, sentence);
    if [&arguments.config, &arguments.log]
        .iter()
        .all(|path| path.as_os_str() == INPUT)
    {
        return Err(wrong(
            "--config and --log are both standard input; name a file for one of them".to_owned(),
        ));
    }
    let format =
        Format::parse(&arguments.format).map_err(|error| wrong(format!("--format: {error}")))?;
    let configs = configs(arguments)?;
    let name = arguments.log.display().to_string();
    let mut log =
        OpenedLog::open(&arguments.log).map_err(|error| (1, format!("{name} {error}")))?;
    let sample = log
        .lines
        .sample()
        .map_err(|error| (1, format!("{name} cannot be read: {error}")))?;
    if sample.is_empty() {
        return Err((1, format!("{name} {}", log.lines.why_no_sample())));
    }
    let SimulateArguments {
        key,
        plan,
        cost,
        time,
        ..
    } = arguments;
    let options = LineOptions {
        format,
        key: key.clone(),
        plan: plan.clone(),
        cost: cost.clone(),
        time: time.clone(),
    };
    let reader =
        LineReader::new(&options, &sample).map_err(|error| wrong(format!("{name}: {error}")))?;
    let setup = setup(&configs, arguments, &reader).map_err(wrong)?;
    let (mut summary, parts) =
        pipeline::replay(log, reader, &setup).map_err(|error| (1, format!("{name} {error}")))?;
    (summary.key, summary.made_us) = (key.clone(), SystemClock.now_us());
    let report = Report::new(summary, setup.variants, &setup.names, &parts);
    if report.requests == 0 {
        return Err((
            1,
            format!(
                "{name} has no request to replay: {}",
                remarks(&report).join("; ")
            ),
        ));
    }
    write(arguments.svg.as_deref(), || svg(&report))?;
    write(arguments.html.as_deref(), || html(&report))?;
    Ok(if arguments.output == ReportOutput::Json {
        json(&report)
    } else {
        text(&report)
    })
}

/// The configs, the one to try first, each with its name.
fn configs(arguments: &SimulateArguments) -> Result<Vec<(String, PlanSet)>, Failure> {
    let load = |path: &PathBuf| {
        let sources = base(Some(path), None).map_err(|error| (2, error))?;
        let config = Config::load(sources).map_err(|errors| (2, errors.to_string()))?;
        Ok((path.display().to_string(), config.plans))
    };
    std::iter::once(&arguments.config)
        .chain(&arguments.compare)
        .map(load)
        .collect()
}

fn setup(
    configs: &[(String, PlanSet)],
    arguments: &SimulateArguments,
    reader: &LineReader,
) -> Result<Setup, String> {
    let spacings: &[_] = match reader.is_in_whole_seconds() {
        true => &[
            (RequestSpacing::AsStamped, Some(RequestSpacing::AsStamped)),
            (RequestSpacing::Evenly, Some(RequestSpacing::Evenly)),
        ],
        false => &[(RequestSpacing::AsStamped, None)],
    };
    let mut setup = Setup {
        names: Vec::new(),
        plans: Vec::new(),
        variants: Vec::new(),
        configs: Vec::new(),
        default: None,
        keys_max: 0,
    };
    setup.keys_max = arguments.keys_max.try_into().unwrap_or(usize::MAX);
    let variants = |(config, _): &(String, PlanSet)| {
        spacings
            .iter()
            .map(|(_, spacing)| VariantName {
                config: config.clone(),
                spacing: *spacing,
            })
            .collect::<Vec<_>>()
    };
    setup.variants = configs.iter().flat_map(variants).collect();
    let plans = |(_, plans): &(String, PlanSet)| vec![plans.clone(); spacings.len()];
    setup.configs = configs.iter().flat_map(plans).collect();
    let names = match reader.reads_plans() {
        true => configs
            .iter()
            .flat_map(|(_, plans)| plans.iter().map(|plan| plan.name.to_string()))
            .collect(),
        false => std::collections::BTreeSet::from([arguments.plan.clone()]),
    };
    for name in names {
        let plans: Vec<Arc<Plan>> = configs
            .iter()
            .map(|(config, plans)| plan_of(config, plans, &name))
            .collect::<Result<_, _>>()?;
        let variants = plans
            .iter()
            .flat_map(|plan| spacings.iter().map(|(spacing, _)| (plan.clone(), *spacing)));
        setup.plans.push(variants.collect());
        setup.names.push(name);
    }
    let default = configs
        .first()
        .and_then(|(_, plans)| plans.default_plan())
        .map(|(_, plan)| plan.name.to_string());
    setup.default =
        default.and_then(|default| setup.names.iter().position(|name| *name == default));
    Ok(setup)
}

/// The plan of a config that decides for this name.
fn plan_of(config: &str, plans: &PlanSet, name: &str) -> Result<Arc<Plan>, String> {
    if let Some((_, plan)) = plans.find_if_any(name).or_else(|| plans.default_plan()) {
        if plan.concurrency().is_some() {
            return Err(format!(
                "{config}: plan {name} has a concurrency limit, and a log has no durations; leave the plan out"
            ));
        }
        return Ok(plan.clone());
    }
    let suggested = plans
        .find(name)
        .map_err(|unknown| plans.suggest(unknown))
        .err()
        .and_then(|unknown| unknown.nearest);
    let list: Vec<&str> = plans
        .iter()
        .take(PLANS_LISTED_MAX)
        .map(|plan| &*plan.name)
        .collect();
    Err(match suggested {
        Some(nearest) => {
            format!("{config}: plan {name:?} is not in the config; did you mean {nearest:?}?")
        }
        None => format!(
            "{config}: plan {name:?} is not in the config; there are {}",
            list.join(", ")
        ),
    })
}

fn write(path: Option<&Path>, content: impl Fn() -> String) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, content())
        .map_err(|error| (1, format!("{} cannot be written: {error}", path.display())))
}
