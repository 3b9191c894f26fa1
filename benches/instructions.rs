//! Instructions per decision under callgrind, as multiples of an echo's: a gate that no busy machine can upset.
//!
//!     cargo bench --locked --profile gate --bench instructions             compares with benches/instructions/baseline.txt
//!     cargo bench --locked --profile gate --bench instructions -- --update writes it
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
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use callgrind::Cost;
use cases::{CASES, Case};

/// A case may cost this much more than the baseline says, as a share of it: four times what runs of one program differ by.
const TOLERANCE: f64 = 0.02;
const BASELINE_ROUNDS: usize = 3;
/// The build profile that the baseline is of; another inlines differently.
const PROFILE: &str = "gate";
const COMMAND: &str = "cargo bench --locked --profile gate --bench instructions";

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

fn measure() -> Result<Vec<Figure>, String> {
    let mut figures: Vec<Figure> = Vec::new();
    for case in &CASES {
        let cost = callgrind::per_decision(case)?;
        let echo = figures
            .first()
            .map_or(cost.instructions, |echo| echo.cost.instructions);
        figures.push(Figure {
            case,
            ratio: cost.instructions / echo,
            cost,
        });
    }
    Ok(figures)
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

fn check_profile() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    // Cargo puts it into target/PROFILE/deps.
    let folder = program.ancestors().nth(2).and_then(Path::file_name);
    let right = folder.is_some_and(|folder| folder == PROFILE);
    if right {
        Ok(())
    } else {
        Err(format!(
            "the baseline is of the profile {PROFILE}: {COMMAND}"
        ))
    }
}

fn baseline_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions/baseline.txt")
}

const HEAD: &str = "\
# Instructions per decision as multiples of the echo's, by benches/instructions.rs, which says how to write this file.
";
