//! Counts the instructions and the allocations of a case. It runs this program again as a child process, under callgrind.

use std::collections::HashSet;
use std::process::{Command, Stdio};

use crate::cases::{CASES, CONNECTIONS, Case};

/// Environment variable that tells a child process what to run: the name of a case and a number of calls.
const TASK: &str = "TOLLGATE_BENCH_TASK";

/// The task of a child process; `None` in the parent.
pub fn task() -> Option<(&'static Case, u64)> {
    let task = std::env::var(TASK).ok()?;
    let (name, calls) = task.split_once(' ')?;
    Some((
        CASES.iter().find(|case| case.name == name)?,
        calls.parse().ok()?,
    ))
}

/// The cost of one decision, without the cost of the start.
pub struct Cost {
    pub instructions: f64,
    /// Blocks taken from the allocator, by server and load alike.
    pub allocations: f64,
}

/// Runs the case twice: with the calls that come before, and with these and those that are counted. The difference is the cost of
/// the latter alone.
pub fn per_decision(case: &Case) -> Result<Cost, String> {
    let before = case.calls.div_ceil(2);
    let short = count(case, before)?;
    let long = count(case, before + case.calls)?;
    let decisions = (CONNECTIONS * case.calls * case.decisions_per_call()) as f64;
    let more = |short: u64, long: u64| {
        let more = long
            .checked_sub(short)
            .ok_or_else(|| format!("{}: more calls took less", case.name))?;
        Ok::<_, String>(more as f64 / decisions)
    };
    Ok(Cost {
        instructions: more(short.instructions, long.instructions)?,
        allocations: more(short.allocations, long.allocations)?,
    })
}

struct Counted {
    instructions: u64,
    allocations: u64,
}

fn count(case: &Case, calls: u64) -> Result<Counted, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let profile = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", profile.path().display()))
        .arg(program);
    command
        .env(TASK, format!("{} {calls}", case.name))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let ended = command
        .output()
        .map_err(|error| format!("valgrind is needed ({error}): apt-get install valgrind"))?;
    if !ended.status.success() {
        return Err(format!(
            "{} under valgrind: {}\n{}",
            case.name,
            ended.status,
            String::from_utf8_lossy(&ended.stderr)
        ));
    }
    let counted = std::fs::read_to_string(profile.path()).map_err(|error| error.to_string())?;
    let total = |line: &str| line.strip_prefix("totals: ")?.trim().parse().ok();
    let instructions = counted
        .lines()
        .find_map(total)
        .ok_or_else(|| format!("{}: callgrind counted nothing", case.name))?;
    Ok(Counted {
        instructions,
        allocations: calls_of_the_allocator(&counted),
    })
}

/// Counts the calls of the C library's functions that allocate a block. In the profile, a call is a line that names the function,
/// `cfn=(12) malloc`, and a line `calls=` with the number of calls. From the second time on, the first line has the function's
/// number only. Source: the Callgrind format specification of valgrind's manual.
fn calls_of_the_allocator(profile: &str) -> u64 {
    const TAKING: [&str; 5] = [
        "malloc",
        "calloc",
        "realloc",
        "posix_memalign",
        "aligned_alloc",
    ];
    let mut taking = HashSet::new();
    let mut called = "";
    let mut calls = 0;
    for line in profile.lines() {
        let function = line
            .strip_prefix("cfn=")
            .or_else(|| line.strip_prefix("fn="));
        if let Some((number, name)) = function.and_then(|function| function.split_once(' '))
            && TAKING.contains(&name)
        {
            taking.insert(number);
        }
        if let Some(function) = line.strip_prefix("cfn=") {
            called = function.split(' ').next().unwrap_or_default();
        } else if let Some(count) = line
            .strip_prefix("calls=")
            .and_then(|rest| rest.split(' ').next())
            && taking.contains(called)
        {
            calls += count.parse::<u64>().unwrap_or_default();
        }
    }
    calls
}
