//! Full load for a long time: memory must not grow once it has settled, and nothing may fail.

use std::time::{Duration, Instant};

use super::{MANY, USUAL};
use crate::harness::{Harness, Process, Scenario, Server, thousands};
use crate::load::{self, Shared};

/// Time between two rows of the table.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// By then, connections, caches and the allocator have taken the memory that they keep.
const SETTLED_AFTER: Duration = Duration::from_secs(60);
/// Growth that needs no leak, in KiB: the allocator's pages and the kernel's accounting vary by less. A leak of one byte per
/// decision is thirty times as much within ten minutes.
const GROWTH_MAX_KIB: u64 = 1024;

/// Runs the load for so many minutes. Returns 0, the number of errors, because the first error ends the run. Errors: memory grew,
/// or an answer was wrong or missing.
pub async fn soak(harness: &mut Harness, minutes: u64) -> Result<u64, String> {
    let scenario = Scenario::new(Server::Redis, USUAL, MANY, "token_bucket");
    let server = [harness.start(scenario.server)];
    harness.touch(&scenario, &server).await?;
    println!(
        "| seconds | decisions/s | server RSS KiB | Redis RSS KiB | errors |\n|---:|---:|---:|---:|---:|"
    );
    let until = Duration::from_secs(60 * minutes);
    load::run(&scenario.load(&server), async |shared| {
        watch(harness, &server[0], shared, until).await
    })
    .await??;
    // The first error ends the run.
    Ok(0)
}

async fn watch(
    harness: &Harness,
    server: &Process,
    shared: &Shared,
    until: Duration,
) -> Result<(), String> {
    let started = Instant::now();
    let mut settled_kib = 0;
    while started.elapsed() < until {
        tokio::time::sleep(POLL_INTERVAL).await;
        let tally = shared.take();
        let rss_kib = server.memory().now_kib;
        let elapsed = started.elapsed();
        println!(
            "| {} | {} | {} | {} | {} |",
            elapsed.as_secs(),
            thousands((tally.decisions as f64 / POLL_INTERVAL.as_secs_f64()) as usize),
            thousands(rss_kib as usize),
            thousands(harness.redis.process.memory().now_kib as usize),
            tally.errors,
        );
        if elapsed <= SETTLED_AFTER + POLL_INTERVAL / 2 {
            settled_kib = settled_kib.max(rss_kib);
        } else if rss_kib > settled_kib + GROWTH_MAX_KIB {
            return Err(format!(
                "the server's memory grew from {settled_kib} to {rss_kib} KiB after it had settled"
            ));
        }
        if let Some(complaint) = tally.complaint {
            return Err(format!(
                "{} errors after {} s; the first: {complaint}",
                tally.errors,
                elapsed.as_secs()
            ));
        }
    }
    println!(
        "\nSteady: at most {GROWTH_MAX_KIB} KiB above the first minute's {settled_kib}, and no error."
    );
    Ok(())
}
