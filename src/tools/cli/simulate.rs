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

use std::collections::BTreeSet;
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
    let report = replay(arguments)?;
    if report.requests == 0 {
        return Err((
            1,
            format!(
                "{} has no request to replay: {}",
                arguments.log.display(),
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

/// Replays the log, and reports what the limits did.
fn replay(arguments: &SimulateArguments) -> Result<Report, Failure> {
    let wrong = |sentence: String| (2, sentence);
    let inputs = [&arguments.config, &arguments.log];
    if inputs.iter().all(|path| path.as_os_str() == INPUT) {
        return Err(wrong(
            "--config and --log are both standard input; name a file for one of them".to_owned(),
        ));
    }
    let options = line_options(arguments).map_err(wrong)?;
    let configs = configs(arguments)?;
    let name = arguments.log.display();
    let mut log =
        OpenedLog::open(&arguments.log).map_err(|error| (1, format!("{name} {error}")))?;
    let reader = line_reader(&options, &mut log, &name.to_string())?;
    let setup = setup(&configs, arguments, &reader).map_err(wrong)?;
    let (mut summary, parts) =
        pipeline::replay(log, reader, &setup).map_err(|error| (1, format!("{name} {error}")))?;
    summary.key.clone_from(&arguments.key);
    summary.made_us = SystemClock.now_us();
    Ok(Report::new(summary, setup.variants, &setup.names, &parts))
}

fn line_options(arguments: &SimulateArguments) -> Result<LineOptions, String> {
    let format = Format::parse(&arguments.format).map_err(|error| format!("--format: {error}"))?;
    Ok(LineOptions {
        format,
        key: arguments.key.clone(),
        plan: arguments.plan.clone(),
        cost: arguments.cost.clone(),
        time: arguments.time.clone(),
    })
}

/// What reads the lines of a log, after a look at the first of them. `name` is the log's.
fn line_reader(
    options: &LineOptions,
    log: &mut OpenedLog,
    name: &str,
) -> Result<LineReader, Failure> {
    let sample = log
        .lines
        .sample()
        .map_err(|error| (1, format!("{name} cannot be read: {error}")))?;
    if sample.is_empty() {
        return Err((1, format!("{name} {}", log.lines.why_no_sample())));
    }
    LineReader::new(options, &sample).map_err(|error| (2, format!("{name}: {error}")))
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
        true => &[RequestSpacing::AsStamped, RequestSpacing::Evenly],
        false => &[RequestSpacing::AsStamped],
    };
    let names = plan_names(configs, arguments, reader);
    let plans = names
        .iter()
        .map(|name| plans_of_variants(configs, spacings, name))
        .collect::<Result<_, _>>()?;
    let plan_sets = |(_, plans): &(String, PlanSet)| vec![plans.clone(); spacings.len()];
    Ok(Setup {
        plans,
        variants: variant_names(configs, spacings),
        configs: configs.iter().flat_map(plan_sets).collect(),
        default: default_plan(configs, &names),
        names,
        keys_max: arguments.keys_max.try_into().unwrap_or(usize::MAX),
    })
}

/// The plans to replay by: all of the configs where lines of the log name one, else the one that is asked for.
fn plan_names(
    configs: &[(String, PlanSet)],
    arguments: &SimulateArguments,
    reader: &LineReader,
) -> Vec<String> {
    if !reader.reads_plans() {
        return vec![arguments.plan.clone()];
    }
    let names: BTreeSet<String> = configs
        .iter()
        .flat_map(|(_, plans)| plans.iter().map(|plan| plan.name.to_string()))
        .collect();
    names.into_iter().collect()
}

/// The plan that each config has for this name, at each spacing.
fn plans_of_variants(
    configs: &[(String, PlanSet)],
    spacings: &[RequestSpacing],
    name: &str,
) -> Result<Vec<(Arc<Plan>, RequestSpacing)>, String> {
    let mut variants = Vec::new();
    for (config, plans) in configs {
        let plan = plan_of(config, plans, name)?;
        variants.extend(spacings.iter().map(|spacing| (plan.clone(), *spacing)));
    }
    Ok(variants)
}

/// Each config at each spacing, which has a name where there are several.
fn variant_names(configs: &[(String, PlanSet)], spacings: &[RequestSpacing]) -> Vec<VariantName> {
    let variants = |(config, _): &(String, PlanSet)| {
        let config = config.clone();
        spacings.iter().map(move |spacing| VariantName {
            config: config.clone(),
            spacing: (spacings.len() > 1).then_some(*spacing),
        })
    };
    configs.iter().flat_map(variants).collect()
}

/// The index of the first config's default plan.
fn default_plan(configs: &[(String, PlanSet)], names: &[String]) -> Option<usize> {
    let (_, plans) = configs.first()?;
    let (_, default) = plans.default_plan()?;
    names.iter().position(|name| **name == *default.name)
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
    Err(unknown_plan(config, plans, name))
}

/// Says that a config has no plan of this name, and which it has.
fn unknown_plan(config: &str, plans: &PlanSet, name: &str) -> String {
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
    match suggested {
        Some(nearest) => {
            format!("{config}: plan {name:?} is not in the config; did you mean {nearest:?}?")
        }
        None => format!(
            "{config}: plan {name:?} is not in the config; there are {}",
            list.join(", ")
        ),
    }
}

fn write(path: Option<&Path>, content: impl Fn() -> String) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, content())
        .map_err(|error| (1, format!("{} cannot be written: {error}", path.display())))
}
