//! How the cost of a decision grows with what should not matter: more keys, limits, plans, longer keys.

use std::fmt::Write as _;

use super::{MANY, USUAL};
use crate::harness::{Harness, KEY_BYTES, Scenario, Server};

/// Names of limits' algorithms, taken in turns, so that a plan of eight holds states of several kinds.
const KINDS: [&str; 2] = ["token_bucket", "fixed_window"];

/// One axis: what grows, and a scenario and the plans it needs for each step.
struct Axis {
    name: &'static str,
    steps: Vec<(String, Scenario, String)>,
}

/// Runs the axes whose name contains `filter` on both stores; how many errors there were.
pub async fn growth(harness: &mut Harness, filter: &str) -> Result<u64, String> {
    let mut errors = 0;
    println!("CPU microseconds a decision, server and Redis, and the ratio to the first column.\n");
    for server in [Server::Memory, Server::Redis] {
        for axis in axes(server)
            .iter()
            .filter(|axis| axis.name.contains(filter))
        {
            errors += measure(harness, server, axis).await?;
        }
    }
    Ok(errors)
}

async fn measure(harness: &mut Harness, server: Server, axis: &Axis) -> Result<u64, String> {
    let mut figures = Vec::new();
    let mut errors = 0;
    for (step, scenario, plans) in &axis.steps {
        harness.configure(plans);
        let row = harness
            .measure(scenario)
            .await
            .map_err(|error| format!("{server:?}, {} {step}: {error}", axis.name))?;
        figures.push(row.sum_us());
        errors += row.errors;
    }
    let steps: Vec<&str> = axis
        .steps
        .iter()
        .map(|(step, _, _)| step.as_str())
        .collect();
    println!(
        "| {server:?}: {} | {} |\n|---|{}",
        axis.name,
        steps.join(" | "),
        "---:|".repeat(steps.len())
    );
    let columns: Vec<String> = figures
        .iter()
        .map(|us| format!("{us:.2} ({:.2})", us / figures[0]))
        .collect();
    println!(
        "| us (ratio), {errors} errors | {} |\n",
        columns.join(" | ")
    );
    Ok(errors)
}

fn axes(server: Server) -> Vec<Axis> {
    let usual = Scenario::new(server, USUAL, MANY, "token_bucket");
    vec![
        more_keys(&usual),
        more_limits(&usual),
        more_plans(&usual),
        longer_keys(&usual),
    ]
}

fn more_keys(usual: &Scenario) -> Axis {
    let steps = [1_000, 10_000, 100_000, 1_000_000].map(|keys: usize| {
        (
            keys.to_string(),
            Scenario {
                keys,
                ..usual.clone()
            },
            String::new(),
        )
    });
    Axis {
        name: "keys",
        steps: steps.into(),
    }
}

fn more_limits(usual: &Scenario) -> Axis {
    let steps = [1, 2, 4, 8].map(|limits: usize| {
        let plan = format!("limits_{limits}");
        (
            limits.to_string(),
            Scenario {
                plan: plan.clone(),
                ..usual.clone()
            },
            plan_of(&plan, limits),
        )
    });
    Axis {
        name: "limits",
        steps: steps.into(),
    }
}

fn more_plans(usual: &Scenario) -> Axis {
    // Ten thousand plans are the most that a config may hold, the usual ones included.
    let steps = [1, 100, 9_900].map(|plans: usize| {
        let middle = format!("plan_{:05}", plans / 2);
        (
            plans.to_string(),
            Scenario {
                plan: middle,
                ..usual.clone()
            },
            (0..plans)
                .map(|index| plan_of(&format!("plan_{index:05}"), 1))
                .collect(),
        )
    });
    Axis {
        name: "plans",
        steps: steps.into(),
    }
}

fn longer_keys(usual: &Scenario) -> Axis {
    let steps = [KEY_BYTES, 512].map(|key_bytes| {
        (
            key_bytes.to_string(),
            Scenario {
                key_bytes,
                ..usual.clone()
            },
            String::new(),
        )
    });
    Axis {
        name: "bytes of a key",
        steps: steps.into(),
    }
}

/// A plan of so many limits that deny nothing, each with a window of its own, so that none shares another's state.
fn plan_of(name: &str, limits: usize) -> String {
    let mut text = format!("  {name}: {{ limits: [");
    for index in 0..limits {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{{ quota: 900000000, window: {}h, algorithm: {} }}, ",
            index + 1,
            KINDS[index % KINDS.len()]
        );
    }
    text.push_str("] }\n");
    text
}
