//! The figures to quote: medians of alternating runs, so that other work of the machine affects all scenarios alike.

use super::{MANY, USUAL, echo, print_context};
use crate::harness::{Harness, Row, Scenario, Server};
use crate::report::{Report, median};

const ROUNDS: usize = 5;

/// Runs the rounds. Returns the number of errors.
pub async fn headline(harness: &mut Harness) -> Result<u64, String> {
    let scenarios = [
        echo(USUAL),
        Scenario::new(Server::Memory, USUAL, MANY, "token_bucket"),
        Scenario::new(Server::Redis, USUAL, MANY, "token_bucket"),
        Scenario::new(Server::Redis, USUAL, 1, "denied"),
    ];
    let mut report = Report::default();
    // For each scenario, its cost in each round as a multiple of that round's echo.
    let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); scenarios.len()];
    for _ in 0..ROUNDS {
        for (scenario, ratios) in scenarios.iter().zip(&mut ratios) {
            report.add(harness.measure(scenario).await?);
            let ratio = report.rows.last().and_then(|row| report.ratio(row));
            ratios.push(ratio.unwrap_or(f64::NAN));
        }
    }
    println!(
        "\nMedians of {ROUNDS} rounds:\n\n| what | server us | Redis us | sum us | x echo | decisions/s | p50 | p99 | p99.9 |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (index, (scenario, ratios)) in scenarios.iter().zip(ratios).enumerate() {
        let rows = || report.rows.iter().skip(index).step_by(scenarios.len());
        let of = |figure: fn(&Row) -> f64| median(rows().map(figure).collect());
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {:.0} | {:.0} |",
            scenario.name(),
            of(|row| row.server_us),
            of(|row| row.redis_us),
            of(Row::sum_us),
            median(ratios),
            of(|row| row.per_second),
            of(|row| row.latency_us[0]),
            of(|row| row.latency_us[1]),
            of(|row| row.latency_us[2]),
        );
    }
    print_context(harness);
    Ok(report.errors())
}
