//! Latency at fixed rates, far below the most that the server can take: how long a caller waits if the server is not busy.

use std::time::Duration;

use super::{MANY, USUAL};
use crate::harness::{Harness, Scenario, Server, WARM_UP, thousands};
use crate::load;

const RATES: [u32; 3] = [1_000, 5_000, 10_000];

/// Runs every rate on an echo and on both stores. Returns the number of errors.
pub async fn paced(harness: &mut Harness) -> Result<u64, String> {
    println!(
        "Redis, round trip of a PING: {:.0} us at p50.\n",
        harness.redis.round_trip_us()
    );
    println!(
        "| what | calls a second | answered | p50 us | p99 us | p99.9 us | errors |\n|---|---:|---:|---:|---:|---:|---:|"
    );
    let mut errors = 0;
    for server in [Server::Echo, Server::Memory, Server::Redis] {
        let scenario = Scenario::new(server, USUAL, MANY, "token_bucket");
        for rate in RATES {
            let running = [harness.start(server)];
            harness.touch(&scenario, &running).await?;
            let tally =
                load::paced::run(&scenario.load(&running), rate, WARM_UP, harness.measured)?;
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| tally.latency_us(quantile));
            let rate = thousands(rate as usize);
            let answered = per_second(tally.decisions, harness.measured);
            let name = scenario.name();
            println!(
                "| {name} | {rate} | {answered} | {p50:.0} | {p99:.0} | {p999:.0} | {} |",
                tally.errors
            );
            tally
                .complaint
                .iter()
                .for_each(|complaint| eprintln!("{name}: {complaint}"));
            errors += tally.errors;
        }
    }
    Ok(errors)
}

fn per_second(decisions: u64, measured: Duration) -> String {
    thousands((decisions as f64 / measured.as_secs_f64()).round() as usize)
}
