//! Instructions per decision under callgrind, as multiples of an echo's: a gate that no busy machine can upset.
//!
//!     cargo bench --locked --profile dev --config benches/instructions/profile.toml --bench instructions
//!
//! compares with benches/instructions/baseline.txt; with `-- --update` behind it, writes that file. The build is that of the tests,
//! but for our own crates, so that packages of others are built once for both.
//!
//! Each case runs twice, in a process of its own, with some calls and with more; the difference is what the further calls
//! cost, without the start. Instructions of one program hardly differ between runs, machines and loads, and what a
//! compiler or a library changes changes the echo as well: so ratios are compared. Needs valgrind.

#![allow(
    clippy::panic,
    reason = "a benchmark that cannot run ends by saying so"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "the load client measures latencies, which this benchmark does not use"
)]
#![allow(
    unreachable_pub,
    reason = "a program: pub is what its modules offer each other"
)]

#[path = "instructions/callgrind.rs"]
mod callgrind;
#[path = "instructions/cases.rs"]
mod cases;
mod echo;
mod load;

use std::fmt::Write as _;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use callgrind::Cost;
use cases::{CASES, Case};

/// A case may cost this much more than the baseline says, as a share of it: twice what runs of one program differ by.
const TOLERANCE: f64 = 0.02;
const BASELINE_ROUNDS: usize = 3;
const COMMAND: &str = "cargo bench --locked --profile dev --config benches/instructions/profile.toml --bench instructions";

fn main() -> ExitCode {
    if let Some((case, calls)) = callgrind::task() {
        cases::run(case, calls);
        return ExitCode::SUCCESS;
    }
    let update = std::env::args().any(|argument| argument == "--update");
    match compare(update) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("instructions: {message}");
            ExitCode::FAILURE
        }
    }
}

/// What a case costs.
struct Figure {
    case: &'static Case,
    cost: Cost,
    /// Its instructions as a multiple of the echo, the first case.
    ratio: f64,
}

fn compare(update: bool) -> Result<(), String> {
    check_profile()?;
    if update {
        write_baseline()?;
    }
    judge(&measure()?)
}

/// As many cases at a time as there are cores. More would wait for each other, and a program that waits runs more of what goes by
/// time.
fn measure() -> Result<Vec<Figure>, String> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let waiting = Mutex::new(CASES.iter().enumerate());
    let count_one_by_one = || {
        let mut counted = Vec::new();
        loop {
            let next = waiting.lock().map_err(|error| error.to_string())?.next();
            let Some((index, case)) = next else {
                return Ok(counted);
            };
            counted.push((index, case, callgrind::per_decision(case)?));
        }
    };
    let counted = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(count_one_by_one)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
            .collect::<Result<Vec<_>, String>>()
    })?;
    let mut counted: Vec<_> = counted.into_iter().flatten().collect();
    counted.sort_by_key(|(index, ..)| *index);
    let echo = counted
        .first()
        .map_or(1.0, |(_, _, cost)| cost.instructions);
    Ok(counted
        .into_iter()
        .map(|(_, case, cost)| Figure {
            case,
            ratio: cost.instructions / echo,
            cost,
        })
        .collect())
}

/// Writes the medians of several rounds to the baseline, so that one unusual round has no effect.
fn write_baseline() -> Result<(), String> {
    let rounds: Vec<Vec<Figure>> = (0..BASELINE_ROUNDS)
        .map(|_| measure())
        .collect::<Result<_, _>>()?;
    let mut text = HEAD.to_owned();
    for (index, case) in CASES.iter().enumerate() {
        let mut ratios: Vec<f64> = rounds.iter().map(|figures| figures[index].ratio).collect();
        ratios.sort_by(f64::total_cmp);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {:.4}", case.name, ratios[BASELINE_ROUNDS / 2]);
    }
    std::fs::write(baseline_file(), text)
        .map_err(|error| format!("the baseline cannot be written: {error}"))
}

/// Prints every figure beside its baseline. Errors: those above it.
fn judge(figures: &[Figure]) -> Result<(), String> {
    let baseline = std::fs::read_to_string(baseline_file())
        .map_err(|error| format!("there is no baseline: {error}"))?;
    let mut worse = Vec::new();
    println!(
        "| case | allocations a decision | instructions a decision | x echo | baseline | change |"
    );
    println!("|---|---:|---:|---:|---:|---:|");
    for Figure { case, cost, ratio } in figures {
        let expected = find(&baseline, case.name)
            .ok_or_else(|| format!("{} has no baseline: {COMMAND} -- --update", case.name))?;
        let change = ratio / expected - 1.0;
        let Cost {
            instructions,
            allocations,
        } = cost;
        println!(
            "| {} | {allocations:.1} | {instructions:.0} | {ratio:.4} | {expected:.4} | {:+.2} % |",
            case.name,
            change * 100.0
        );
        if change > TOLERANCE {
            worse.push(format!("{} by {:.1} %", case.name, change * 100.0));
        } else if change < -TOLERANCE {
            println!(
                "{} became cheaper; so that it stays so: {COMMAND} -- --update",
                case.name
            );
        }
    }
    if worse.is_empty() {
        return Ok(());
    }
    Err(format!(
        "decisions cost more instructions than the baseline allows: {}. If that is what it must cost, write the new \
         baseline and commit it with the reason: {COMMAND} -- --update",
        worse.join(", ")
    ))
}

fn find(baseline: &str, name: &str) -> Option<f64> {
    baseline
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Another build inlines differently: its figures tell nothing beside the baseline's.
fn check_profile() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    // Cargo puts it into target/debug/deps.
    let folder = program.ancestors().nth(2).and_then(Path::file_name);
    if folder.is_some_and(|folder| folder == "debug") && !cfg!(debug_assertions) {
        Ok(())
    } else {
        Err(format!("the baseline is of another build: {COMMAND}"))
    }
}

fn baseline_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions/baseline.txt")
}

const HEAD: &str = "\
# Instructions per decision as multiples of the echo's, by benches/instructions.rs, which says how to write this file.
";
