//! The scenarios that each mode of the benchmark runs, in their order.

mod growth;
mod paced;
mod rounds;
mod sizes;
mod soak;

use tollgate::plan::Algorithm;

use crate::harness::{BATCH, Harness, Scenario, Server, Shape};
use crate::load::Kind;

pub use growth::growth;
pub use paced::paced;
pub use rounds::{cluster, customers, headline, joint, protocols};
pub use sizes::sizes;
pub use soak::soak;

/// Number of keys in a scenario with many keys. It is more than a batch or a script call holds, yet each key is asked for often.
pub const MANY: usize = 10_000;
/// The usual load: 48 unary calls in flight over 8 connections.
pub const USUAL: Shape = Shape::new(Kind::Unary, 8, 6);
/// An idle server: one call after another.
const IDLE: Shape = Shape::new(Kind::Unary, 1, 1);
/// 256 unary calls in flight.
const MORE: Shape = Shape::new(Kind::Unary, 8, 32);
const BATCHES: Shape = Shape::new(Kind::Batch(BATCH), 8, 1);
const STREAMS: Shape = Shape::new(Kind::Stream, 8, 16);

/// Every shape: 1, 8, 48 and 256 unary calls in flight. At most 32 batches, because 4,096 requests may wait for the store
/// and more are refused by design; streams as they are meant, with 16 in flight on each.
const SHAPES: [Shape; 9] = [
    IDLE,
    Shape::new(Kind::Unary, 8, 1),
    USUAL,
    MORE,
    Shape::new(Kind::Batch(BATCH), 1, 1),
    BATCHES,
    Shape::new(Kind::Batch(BATCH), 8, 4),
    Shape::new(Kind::Stream, 1, 16),
    STREAMS,
];

/// Plans that the algorithms are measured by: one of each, which has its name, and others to compare with.
fn plans_of_algorithms() -> Vec<&'static str> {
    let mut names = Algorithm::EVERY.map(Algorithm::name).to_vec();
    names.dedup();
    let more = ["first_request", "two_limits", "with_candidate"];
    ["unlimited"].into_iter().chain(names).chain(more).collect()
}

/// The bare echo in this shape, with which other rows are compared.
pub fn echo(shape: Shape) -> Scenario {
    Scenario::new(Server::Echo, shape, MANY, "token_bucket")
}

/// Store x keys x outcome in every shape, each shape after its echo.
pub fn combinations() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for shape in SHAPES {
        scenarios.push(echo(shape));
        for server in [Server::Memory, Server::Redis] {
            for keys in [1, MANY] {
                scenarios.extend(
                    ["token_bucket", "denied"].map(|plan| Scenario::new(server, shape, keys, plan)),
                );
            }
        }
    }
    scenarios
}

/// The rows that docs/benchmarks.md quotes.
pub fn quick() -> Vec<Scenario> {
    vec![
        echo(USUAL),
        Scenario::new(Server::Memory, USUAL, MANY, "token_bucket"),
        Scenario::new(Server::Redis, USUAL, MANY, "token_bucket"),
        Scenario::new(Server::Redis, USUAL, 1, "token_bucket"),
        Scenario::new(Server::Redis, USUAL, 1, "denied"),
        Scenario::new(Server::Redis, USUAL, MANY, "denied"),
        echo(BATCHES),
        Scenario::new(Server::Redis, BATCHES, MANY, "token_bucket"),
        echo(STREAMS),
        Scenario::new(Server::Redis, STREAMS, MANY, "token_bucket"),
        echo(IDLE),
        Scenario::new(Server::Redis, IDLE, 1, "token_bucket"),
    ]
}

pub fn algorithms() -> Vec<Scenario> {
    let stores = [Server::Memory, Server::Redis];
    let rows = stores.into_iter().flat_map(|server| {
        plans_of_algorithms()
            .into_iter()
            .map(move |plan| Scenario::new(server, USUAL, MANY, plan))
    });
    [echo(USUAL)].into_iter().chain(rows).collect()
}

/// Prints figures below a table: the cost of Redis alone, and the memory of an idle server.
pub fn print_context(harness: &mut Harness) {
    let round_trip_us = harness.redis.round_trip_us();
    let (increment_us, per_second) = harness.redis.increment();
    let idle =
        |harness: &mut Harness, server| harness.start(server).memory().now_kib as f64 / 1024.0;
    let memory = idle(harness, Server::Memory);
    let redis = idle(harness, Server::Redis);
    println!(
        "\nRedis, native INCR pipelined by 32: {increment_us:.2} us of its CPU each, {per_second:.0} a second."
    );
    println!("Redis, round trip of a PING: {round_trip_us:.0} us at p50.");
    println!("tollgate, resident when idle: {memory:.1} MiB on memory, {redis:.1} MiB on Redis.");
}
