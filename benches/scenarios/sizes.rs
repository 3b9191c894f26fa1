//! Replicas and shards, as many as this machine runs at once, beside what the model says of them.

use super::{MANY, MORE, USUAL};
use crate::harness::{Harness, Row, Scenario, Server, Shape};
use crate::model::{Fleet, MEASURED, Prediction};
use crate::report::{Report, median};

const ROUNDS: usize = 5;
const SERVERS: [Server; 3] = [Server::Redis, Server::Cluster(2), Server::Cluster(3)];
const REPLICAS: [usize; 4] = [1, 2, 4, 8];

/// One size in one shape.
struct Size {
    scenario: Scenario,
    fleet: Fleet,
}

/// Returns the number of errors.
pub async fn sizes(harness: &mut Harness) -> Result<u64, String> {
    let sizes: Vec<Size> = [USUAL, MORE]
        .into_iter()
        .flat_map(|shape| SERVERS.map(|server| (shape, server)))
        .flat_map(all)
        .collect();
    let mut report = Report::default();
    for _ in 0..ROUNDS {
        for size in &sizes {
            report.add(harness.measure(&size.scenario).await?);
        }
    }
    println!("\nMedians of {ROUNDS} rounds, and in brackets what the model says:\n");
    println!(
        "| calls in flight | shards | replicas | server us | Redis us | sum us | decisions/s | p50 us | names a call |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    for (index, size) in sizes.iter().enumerate() {
        let rows: Vec<&Row> = report
            .rows
            .iter()
            .skip(index)
            .step_by(sizes.len())
            .collect();
        println!("{}", size.line(&rows, cores));
    }
    Ok(report.errors())
}

fn all((shape, server): (Shape, Server)) -> [Size; 4] {
    REPLICAS.map(|replicas| {
        let shards = if let Server::Cluster(masters) = server {
            masters
        } else {
            1
        };
        let scenario = Scenario {
            replicas,
            ..Scenario::new(server, shape, MANY, "token_bucket")
        };
        Size {
            scenario,
            fleet: Fleet {
                workers: replicas,
                shards,
            },
        }
    })
}

impl Size {
    fn line(&self, rows: &[&Row], cores: f64) -> String {
        let Shape {
            connections,
            in_flight,
            ..
        } = self.scenario.shape;
        let predicted = MEASURED.closed(self.fleet, connections as f64, in_flight as f64, cores);
        let beside = |decimals: usize, measured: fn(&Row) -> f64, predicted: f64| {
            let measured = median(rows.iter().map(|row| measured(row)).collect());
            format!(
                "{measured:.decimals$} ({predicted:.decimals$}, {:+.0} %)",
                (predicted / measured - 1.0) * 100.0
            )
        };
        let Prediction {
            names,
            server_us,
            redis_us,
            per_second,
            latency_us,
            ..
        } = predicted;
        let figures = [
            beside(1, |row| row.server_us, server_us),
            beside(1, |row| row.redis_us, redis_us),
            beside(1, Row::sum_us, server_us + redis_us),
            beside(0, |row| row.per_second, per_second),
            beside(0, |row| row.latency_us[0], latency_us[0]),
            beside(1, |row| 1.0 / row.script_calls, names),
        ];
        format!(
            "| {} | {} | {} | {} |",
            connections * in_flight,
            self.fleet.shards,
            self.fleet.workers,
            figures.join(" | ")
        )
    }
}
