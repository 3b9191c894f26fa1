//! The figures to quote: medians of alternating runs, so that other work of the machine affects all scenarios alike.

use super::{BATCHES, MANY, MORE, USUAL, echo, print_context};
use crate::harness::{Harness, Row, Scenario, Server, Shape};
use crate::load::Kind;
use crate::report::{Report, median};

const ROUNDS: usize = 5;
/// One call after another on each of 48 connections, as proxies use HTTP/1.1.
const CONNECTIONS: usize = 48;

/// A scenario, and the index of the one that its cost is compared with.
type Compared = (Scenario, usize);

/// The echo, both stores, and a denied key. Returns the number of errors.
pub async fn headline(harness: &mut Harness) -> Result<u64, String> {
    let scenarios = [
        (echo(USUAL), 0),
        (
            Scenario::new(Server::Memory, USUAL, MANY, "token_bucket"),
            0,
        ),
        (Scenario::new(Server::Redis, USUAL, MANY, "token_bucket"), 0),
        (Scenario::new(Server::Redis, USUAL, 1, "denied"), 0),
    ];
    let errors = rounds(harness, "x echo", &scenarios).await?;
    print_context(harness);
    Ok(errors)
}

/// One decision through Redis, by each protocol, beside `ShouldAllow` in the same shape. Returns the number of errors.
pub async fn protocols(harness: &mut Harness) -> Result<u64, String> {
    let scenario = |kind, connections, in_flight| {
        Scenario::new(
            Server::Redis,
            Shape::new(kind, connections, in_flight),
            MANY,
            "token_bucket",
        )
    };
    let scenarios = [
        (scenario(Kind::Unary, USUAL.connections, USUAL.in_flight), 0),
        (scenario(Kind::Envoy, USUAL.connections, USUAL.in_flight), 0),
        (scenario(Kind::Unary, CONNECTIONS, 1), 2),
        (scenario(Kind::Envoy, CONNECTIONS, 1), 2),
        (scenario(Kind::Http, CONNECTIONS, 1), 2),
    ];
    rounds(harness, "x ShouldAllow", &scenarios).await
}

/// Joint decisions through Redis beside `ShouldAllow` in the same shape: of two and three keys. Returns the number of errors.
pub async fn joint(harness: &mut Harness) -> Result<u64, String> {
    let mut scenarios = Vec::new();
    for plan in ["token_bucket", "sliding_window", "sliding_log"] {
        let base = scenarios.len();
        let of = |kind| {
            let shape = Shape::new(kind, USUAL.connections, USUAL.in_flight);
            (Scenario::new(Server::Redis, shape, MANY, plan), base)
        };
        scenarios.extend([Kind::Unary, Kind::Joint(2), Kind::Joint(3)].map(of));
    }
    rounds(harness, "x ShouldAllow", &scenarios).await
}

/// A block that nobody has earned and a window of the calendar, each beside the same limit without. Returns the number of errors.
pub async fn customers(harness: &mut Harness) -> Result<u64, String> {
    let of = |plan, base| (Scenario::new(Server::Redis, USUAL, MANY, plan), base);
    let scenarios = [
        of("token_bucket", 0),
        of("idle_block", 0),
        of("fixed_window", 2),
        of("calendar", 2),
    ];
    rounds(harness, "x without", &scenarios).await
}

/// A Cluster of three beside one Redis, in the same shape. Returns the number of errors.
pub async fn cluster(harness: &mut Harness) -> Result<u64, String> {
    let mut scenarios = Vec::new();
    for shape in [USUAL, MORE, BATCHES] {
        let base = scenarios.len();
        let of = |server| (Scenario::new(server, shape, MANY, "token_bucket"), base);
        scenarios.extend([Server::Redis, Server::Cluster(3)].map(of));
    }
    rounds(harness, "x one Redis", &scenarios).await
}

/// Runs the rounds and prints the medians. Returns the number of errors.
async fn rounds(harness: &mut Harness, ratio: &str, scenarios: &[Compared]) -> Result<u64, String> {
    let mut report = Report::default();
    for _ in 0..ROUNDS {
        for (scenario, _) in scenarios {
            report.add(harness.measure(scenario).await?);
        }
    }
    println!(
        "\nMedians of {ROUNDS} rounds:\n\n| what | server us | Redis us | sum us | {ratio} | decisions/s | p50 | p99 | p99.9 | script calls |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let rows = |index: usize| report.rows.iter().skip(index).step_by(scenarios.len());
    for (index, (scenario, base)) in scenarios.iter().enumerate() {
        let of = |figure: fn(&Row) -> f64| median(rows(index).map(figure).collect());
        let ratios = rows(index)
            .zip(rows(*base))
            .map(|(row, base)| row.sum_us() / base.sum_us());
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {:.0} | {:.0} | {:.3} |",
            scenario.name(),
            of(|row| row.server_us),
            of(|row| row.redis_us),
            of(Row::sum_us),
            median(ratios.collect()),
            of(|row| row.per_second),
            of(|row| row.latency_us[0]),
            of(|row| row.latency_us[1]),
            of(|row| row.latency_us[2]),
            of(|row| row.script_calls),
        );
    }
    Ok(report.errors())
}
