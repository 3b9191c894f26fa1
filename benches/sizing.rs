//! How large a fleet has to be, by a model: replicas and shards for a rate of requests.
//!
//!     cargo bench --bench sizing                                  the table of docs/operations/sizing.md
//!     cargo bench --bench sizing -- --rate 250000 --zipf 1.1      one rate, keys by Zipf's law
//!     cargo bench --bench matrix -- --sizes                       the model beside what this machine shows
//!
//! It measures nothing, and needs nothing.

#![allow(
    unreachable_pub,
    reason = "a program: pub is what its modules offer each other"
)]

mod model;

use clap::Parser;

use model::{KEYS, Keys, LOAD, MEASURED, ROUND_TRIP_US, table};

/// Replicas and shards for a rate of requests, by a model.
#[derive(Parser)]
struct Options {
    /// Requests a second; may be given several times. Without it: some from a thousand to millions.
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    rate: Vec<f64>,
    /// Exponent of Zipf's law, by which keys are asked for; 0: all alike.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0)]
    zipf: f64,
    /// How many keys are asked for.
    #[arg(long, value_name = "NUMBER", default_value_t = KEYS)]
    keys: usize,
    /// Microseconds from a replica to Redis and back, without Redis's own work.
    #[arg(long = "round-trip", value_name = "US", default_value_t = ROUND_TRIP_US, value_parser = positive)]
    round_trip: f64,
    /// How busy workers and shards may be, as a share of a core.
    #[arg(long, value_name = "SHARE", default_value_t = LOAD, value_parser = positive)]
    load: f64,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "this is not a number above 0".to_owned())
}

fn main() {
    let options = Options::parse();
    println!(
        "| requests a second | workers | Redis | worker busy | shard's use | shard busy | names a call | p99 |"
    );
    println!("|---:|---:|---|---:|---:|---:|---:|---:|");
    let keys = Keys::zipf(options.keys.max(1), options.zipf);
    table(
        &MEASURED,
        &options.rate,
        options.round_trip,
        &keys,
        options.load,
    )
    .iter()
    .for_each(|row| println!("{row}"));
}
