//! What a fleet costs and how long its answers take: a model of replicas that send script calls to the shards of a Redis.
//!
//! Pure: it measures nothing. Its constants are fitted to what `matrix --sizes` measures, which also prints how far off it is.
//!
//! - A decision costs the server and Redis something of its own, a share of its script call, and a share of a wake-up.
//! - The requests that arrive while a call is under way go with the next one. So the busier a shard is, the more names a call has.
//! - Processes that share cores wake each other: a call costs a server more, the more of them there are.

#![allow(dead_code, reason = "each program uses its part of the model")]

/// Most names in a call, as in `store::redis`.
const NAMES_MAX: f64 = 32.0;

/// Most shards that [`Costs::size`] looks at.
const SHARDS_MAX: usize = 100;

/// Microseconds of CPU.
pub struct Costs {
    /// Of the server: of a decision; the same of a Cluster; of a call; of reading from a connection.
    pub decision: f64,
    pub cluster_decision: f64,
    pub call: f64,
    pub read: f64,
    /// Of Redis: of a name; the same in a Cluster, which reads it by a command of its own; of a call; of a wake-up.
    pub name: f64,
    pub cluster_name: f64,
    pub redis_call: f64,
    pub redis_wake: f64,
    /// Of the load client: of a call, and of reading from a connection.
    pub client: f64,
    pub client_read: f64,
}

/// Token buckets, Redis 7.0, a virtual machine of two cores, 2026-11-23.
pub const MEASURED: Costs = Costs {
    decision: 4.56,
    cluster_decision: 1.53,
    call: 4.02,
    read: 19.53,
    name: 1.51,
    cluster_name: 1.52,
    redis_call: 14.03,
    redis_wake: 4.77,
    client: 0.87,
    client_read: 23.5,
};

/// Replicas of one worker each, and the shards that they share.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    pub workers: usize,
    pub shards: usize,
}

/// What is expected of a fleet.
#[derive(Debug, Clone, Copy)]
pub struct Prediction {
    /// Names in a script call.
    pub names: f64,
    /// CPU of a decision, in microseconds.
    pub server_us: f64,
    pub redis_us: f64,
    pub per_second: f64,
    /// Of a call of a client, at p50 and p99.
    pub latency_us: [f64; 2],
    /// Shares of a core, 0 to 1: of each worker, and of the shard with the hottest keys. The busier a shard is, the fuller are its
    /// calls, and the less a decision costs.
    pub worker_load: f64,
    pub shard_load: f64,
}

/// How requests travel.
struct Traffic {
    names: f64,
    /// Requests of a call for one name.
    requests_a_name: f64,
    /// Processes of tollgate that share cores with each worker, itself included.
    crowd: f64,
    /// Calls in flight on a connection.
    in_flight: f64,
}

impl Costs {
    /// CPU of a decision, of the server and of Redis.
    fn of(&self, fleet: Fleet, traffic: &Traffic) -> (f64, f64) {
        let Traffic {
            names,
            requests_a_name,
            crowd,
            in_flight,
        } = *traffic;
        let cluster = if fleet.shards > 1 { 1.0 } else { 0.0 };
        let server = self.decision
            + self.cluster_decision * cluster
            + self.call * crowd / names
            + self.read / in_flight;
        let name = (self.name + self.cluster_name * cluster) / requests_a_name;
        (
            server,
            name + self.redis_call / names + self.redis_wake / in_flight,
        )
    }

    /// A closed loop, in which each answer is followed by the next request, on a machine with so many cores for all.
    pub fn closed(&self, fleet: Fleet, connections: f64, in_flight: f64, cores: f64) -> Prediction {
        let workers = fleet.workers as f64;
        let shards = fleet.shards as f64;
        let requests = connections * in_flight;
        // Fitted: of the requests that belong to a worker and a shard, these are in the call under way.
        let gathered = 0.56 * (requests / (workers * shards)).powf(0.9) * workers.powf(0.2);
        // What a connection asks at once goes in one call, if one server has all keys.
        let at_once = if fleet.shards == 1 { in_flight } else { 1.0 };
        let names = gathered.max(at_once).min(NAMES_MAX);
        let (server_us, redis_us) = self.of(
            fleet,
            &Traffic {
                names,
                requests_a_name: 1.0,
                crowd: workers,
                in_flight,
            },
        );
        let client_us = self.client + self.client_read / in_flight;
        // Either all cores are busy, or the workers are as busy as waiting for each other lets them be.
        let of_cores = cores / (server_us + redis_us + client_us);
        let of_workers = workers * (0.96 - 0.95 / in_flight) / server_us;
        let per_us = of_cores.min(of_workers);
        let cycle_us = requests / per_us;
        Prediction {
            names,
            server_us,
            redis_us,
            per_second: per_us * 1e6,
            latency_us: [0.94 * cycle_us, 2.1 * cycle_us],
            worker_load: per_us / workers * server_us,
            shard_load: per_us / shards * redis_us,
        }
    }

    /// Requests that arrive at a rate, on machines of their own, with so long a round trip to Redis.
    pub fn open(
        &self,
        fleet: Fleet,
        per_second: f64,
        round_trip_us: f64,
        keys: &Keys,
    ) -> Prediction {
        let workers = fleet.workers as f64;
        let shards = fleet.shards as f64;
        let per_us = per_second / 1e6;
        let share = keys.hottest_share(fleet.shards);
        let mut names = 1.0;
        let mut found = (0.0, 0.0, 0.0);
        // A fixed point: a longer call gathers more names, which make it longer.
        for _ in 0..100 {
            let (server_us, redis_us) = self.of(fleet, &Traffic::usual(names, keys));
            let load = (per_us * share * redis_us).min(0.99);
            let service_us = redis_us * names;
            // The mean wait for a server of fixed service time, M/D/1 (Pollaczek and Khinchine).
            let call_us =
                round_trip_us + self.call + service_us * (1.0 + load / (2.0 * (1.0 - load)));
            names = (names + (per_us / (workers * shards) * call_us).clamp(1.0, NAMES_MAX)) / 2.0;
            found = (server_us, redis_us, call_us);
        }
        let (server_us, redis_us, call_us) = found;
        let shard_load = (per_us * share * redis_us).min(1.0);
        let worker_load = per_us / workers * server_us;
        let waits_us = server_us / (1.0 - worker_load.min(0.99));
        // A request waits for the rest of the call under way, if one is.
        let under_way = (per_us / (workers * shards) * call_us).min(1.0);
        let mean_us = waits_us + call_us * (1.0 + under_way / 2.0);
        Prediction {
            names,
            server_us,
            redis_us,
            per_second,
            latency_us: [0.94 * mean_us, 2.1 * mean_us],
            worker_load,
            shard_load,
        }
    }

    /// The share of its decisions in full calls that the busiest shard is asked for.
    pub fn shard_use(&self, shards: usize, per_second: f64, keys: &Keys) -> f64 {
        let (_, redis_us) = self.of(
            Fleet { workers: 1, shards },
            &Traffic::usual(NAMES_MAX, keys),
        );
        per_second / 1e6 * keys.hottest_share(shards) * redis_us
    }

    /// The least fleet that decides so many requests a second: no worker is busier than `load`, no shard is asked for more than that
    /// share of what it decides in full calls. `None`: a hundred shards are too few.
    pub fn size(
        &self,
        per_second: f64,
        round_trip_us: f64,
        keys: &Keys,
        load: f64,
    ) -> Option<(Fleet, Prediction)> {
        let shards =
            (1..=SHARDS_MAX).find(|shards| self.shard_use(*shards, per_second, keys) <= load)?;
        let predict = |workers| {
            let fleet = Fleet { workers, shards };
            (fleet, self.open(fleet, per_second, round_trip_us, keys))
        };
        let least = (per_second / 1e6 * self.decision / load).ceil().max(1.0);
        (least as usize..)
            .map(predict)
            .find(|(_, predicted)| predicted.worker_load <= load)
    }
}

impl Traffic {
    /// On machines of their own, from callers with a few calls under way.
    fn usual(names: f64, keys: &Keys) -> Self {
        Self {
            names,
            requests_a_name: names / keys.distinct(names),
            crowd: 1.0,
            in_flight: 6.0,
        }
    }
}

/// How requests spread over keys: by Zipf's law, the nth key is asked for in proportion to `1 / n^exponent`.
pub struct Keys {
    /// The share of each of the hottest keys, the hottest first, and of all others together, which are even.
    hot: Vec<f64>,
    rest: f64,
}

/// Keys that are looked at one by one.
const HOT: usize = 500;

impl Keys {
    /// `exponent` 0: all alike.
    pub fn zipf(keys: usize, exponent: f64) -> Self {
        let weight = |rank: usize| (rank as f64).powf(-exponent);
        let total: f64 = (1..=keys).map(weight).sum();
        let hot: Vec<f64> = (1..=keys.min(HOT))
            .map(|rank| weight(rank) / total)
            .collect();
        let rest = 1.0 - hot.iter().sum::<f64>();
        Self { hot, rest }
    }

    /// The share of requests that the busiest of so many shards gets, with the hot keys dealt out as a hash deals them.
    pub fn hottest_share(&self, shards: usize) -> f64 {
        let mut shares = vec![self.rest / shards as f64; shards];
        for (rank, share) in self.hot.iter().enumerate() {
            // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4).
            let hash = (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            shares[hash as usize % shards] += share;
        }
        shares.into_iter().fold(0.0, f64::max)
    }

    /// A row of docs/operations/sizing.md: the shares of the hottest key and of the busiest of eight shards.
    pub fn row(&self, exponent: f64) -> String {
        format!(
            "| {exponent:.1} | {:.1} % | {:.0} % |",
            self.hot[0] * 100.0,
            self.hottest_share(8) * 100.0
        )
    }

    /// How many different names so many requests have.
    pub fn distinct(&self, requests: f64) -> f64 {
        let hot: f64 = self
            .hot
            .iter()
            .map(|share| 1.0 - (1.0 - share).powf(requests))
            .sum();
        (hot + self.rest * requests).clamp(1.0, requests.max(1.0))
    }
}

/// With a comma before each three digits, as in `1,000`.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .filter_map(|group| std::str::from_utf8(group).ok())
        .collect();
    groups.join(",")
}

/// Rates of the table in docs/operations/sizing.md.
const RATES: [f64; 8] = [1e3, 1e4, 5e4, 1e5, 2e5, 5e5, 1e6, 3e6];
/// Workers and shards are at most so busy.
pub const LOAD: f64 = 0.6;
/// Microseconds, between machines of one zone.
pub const ROUND_TRIP_US: f64 = 200.0;
pub const KEYS: usize = 1_000_000;

/// The rows of docs/operations/sizing.md.
pub fn table(
    costs: &Costs,
    rates: &[f64],
    round_trip_us: f64,
    keys: &Keys,
    load: f64,
) -> Vec<String> {
    let rates = if rates.is_empty() { &RATES } else { rates };
    let row = |rate: &f64| match costs.size(*rate, round_trip_us, keys, load) {
        None => format!(
            "| {} | more than {SHARDS_MAX} shards | | | | | | |",
            thousands(*rate)
        ),
        Some((fleet, predicted)) => format!(
            "| {} | {} | {} | {:.0} % | {:.0} % | {:.0} % | {:.0} | {:.1} ms |",
            thousands(*rate),
            fleet.workers,
            if fleet.shards == 1 {
                "one Redis".to_owned()
            } else {
                format!("{} shards", fleet.shards)
            },
            predicted.worker_load * 100.0,
            costs.shard_use(fleet.shards, *rate, keys) * 100.0,
            predicted.shard_load * 100.0,
            predicted.names,
            predicted.latency_us[1] / 1e3,
        ),
    };
    rates.iter().map(row).collect()
}
