//! Counts the instructions of a case: this program again, under callgrind.

use std::process::{Command, Stdio};

use crate::cases::{CASES, CONNECTIONS, Case};

/// What a child of this program is to run: a case's name and a number of calls.
const TASK: &str = "TOLLGATE_BENCH_TASK";

/// The task that this process was given; `None` when it is the one that gives them.
pub fn task() -> Option<(&'static Case, u64)> {
    let task = std::env::var(TASK).ok()?;
    let (name, calls) = task.split_once(' ')?;
    Some((CASES.iter().find(|case| case.name == name)?, calls.parse().ok()?))
}

/// Instructions that a decision takes once everything has settled.
pub fn per_decision(case: &Case) -> Result<f64, String> {
    let (short, long) = (instructions(case, case.calls)?, instructions(case, 2 * case.calls)?);
    let more = long.checked_sub(short).ok_or_else(|| format!("{}: more calls took fewer instructions", case.name))?;
    Ok(more as f64 / (CONNECTIONS * case.calls * case.decisions_per_call()) as f64)
}

fn instructions(case: &Case, calls: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let profile = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", profile.path().display())).arg(program);
    command.env(TASK, format!("{} {calls}", case.name)).stdout(Stdio::null()).stderr(Stdio::piped());
    let ended = command.output().map_err(|error| format!("valgrind is needed ({error}): apt-get install valgrind"))?;
    if !ended.status.success() {
        return Err(format!("{} under valgrind: {}\n{}", case.name, ended.status, String::from_utf8_lossy(&ended.stderr)));
    }
    let counted = std::fs::read_to_string(profile.path()).map_err(|error| error.to_string())?;
    let total = |line: &str| line.strip_prefix("totals: ")?.trim().parse().ok();
    counted.lines().find_map(total).ok_or_else(|| format!("{}: callgrind counted nothing", case.name))
}
