//! Both stores decide alike, and as a count by hand of what was charged since the last edge.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::Reading;
use tollgate::key::Key;
use tollgate::plan::{Calendar, CalendarUnit, Limit, Plan, Zone};
use tollgate::store::{
    Check, GivenBack, MemoryStore, Mode, RedisStore, Store, StoreDeadline, Verdict,
};

use super::edges::{YEARS, days, edges_of};
use crate::support::asks::{Answer, Ask, ask_in_order};
use crate::support::clock::{FakeClock, START_US};
use crate::support::clocked_store::store_on;
use crate::support::history::Random;
use crate::support::plans::{
    ANCHORED, BUCKET, COUNTER, FIXED, LOG, WINDOW, ask, limit, peek, plan, refund,
};
use crate::support::preload::Shift;
use crate::support::redis::Redis;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
const SEED: u64 = 0x0ca1_e4da;
const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;
const DECISIONS: usize = 60_000;
const KEYS: u64 = 5;
/// So that counts have one to five bytes in Redis.
const SCALES: [u64; 5] = [1, 1 << 6, 1 << 14, 1 << 22, 1 << 30];

fn calendar(unit: CalendarUnit, zone: &str) -> Calendar {
    Calendar::new(unit, Zone::find(zone).unwrap())
}

fn by_calendar(quota: u64, unit: CalendarUnit, zone: &str) -> Limit {
    let calendar = calendar(unit, zone);
    Limit::by_calendar(calendar.to_string(), quota, calendar).unwrap()
}

const SHAPES: [(CalendarUnit, &str); 5] = [
    (CalendarUnit::Day, "America/Havana"),
    (CalendarUnit::Day, "UTC"),
    (CalendarUnit::Week { starts: 7 }, "Pacific/Apia"),
    (CalendarUnit::Month { starts: 1 }, "Europe/Berlin"),
    (CalendarUnit::Month { starts: 15 }, "America/Santiago"),
];

/// Plans of calendar limits alone, several together, and beside limits of every other algorithm.
fn plans(random: &mut Random) -> Vec<Arc<Plan>> {
    let quota = |random: &mut Random, scale: u64| scale * *random.pick(&[2, 3, 5, 8, 13]);
    let mut plans = Vec::new();
    for _ in 0..4 {
        for (unit, zone) in SHAPES {
            let scale = *random.pick(&SCALES);
            plans.push(plan(vec![by_calendar(quota(random, scale), unit, zone)]));
        }
        let mut of_calendars: Vec<Limit> = SHAPES
            .iter()
            .map(|(unit, zone)| by_calendar(quota(random, 1), *unit, zone))
            .collect();
        plans.push(plan(of_calendars[..2].to_vec()));
        of_calendars.rotate_left(random.below(5) as usize);
        plans.push(plan(of_calendars.clone()));
        for others in [[FIXED, BUCKET], [ANCHORED, COUNTER], [WINDOW, FIXED]] {
            let hour = Duration::from_secs(3_600);
            let others = others.map(|algorithm| limit(quota(random, 1), hour, algorithm));
            plans.push(plan([&of_calendars[..2], &others].concat()));
        }
    }
    plans
}

/// The next time: mostly a little later or about an edge, sometimes far off, sometimes back.
fn next_time(now_us: u64, random: &mut Random) -> u64 {
    let (unit, zone) = random.pick(&SHAPES);
    let edges = calendar(*unit, zone).edges_at(now_us);
    let beside = random.below(3);
    match random.below(20) {
        0..=5 => now_us + random.below(DAY_US / 4),
        6..=7 => now_us,
        8..=11 => edges.end_us + beside - 1,
        12 => edges.start_us + beside - 1,
        13 => edges.previous_us + beside - 1,
        14 => now_us + random.below(70 * DAY_US),
        15 => now_us - random.below(2 * DAY_US),
        16 => now_us - random.below(60 * DAY_US),
        17 if random.below(8) == 0 => now_us - 400 * DAY_US,
        _ => now_us + 1,
    }
}

fn random_ask(random: &mut Random, plan: &Arc<Plan>) -> Ask {
    let most = plan.limits().iter().map(Limit::capacity).min().unwrap();
    let cost = match random.below(6) {
        0 => most,
        1 => 1 + random.below(most),
        _ => most.div_ceil(4),
    };
    let key = format!("key {}", random.below(KEYS));
    match random.below(20) {
        0..=1 => peek(plan, &key, cost).into(),
        2..=5 => refund(plan, &key, cost).into(),
        _ => ask(plan, &key, cost).into(),
    }
}

fn random_batch(random: &mut Random, plans: &[Arc<Plan>], plan: &Arc<Plan>) -> Vec<Ask> {
    let count = 1 + random.below(16) as usize;
    let mixed = random.below(4) == 0;
    let asks: Vec<Ask> = (0..count)
        .map(|_| {
            let plan = if mixed { random.pick(plans) } else { plan };
            random_ask(random, plan)
        })
        .collect();
    if random.below(3) > 0 {
        return asks;
    }
    // Equal requests for different keys, which the script decides faster.
    (0..count)
        .map(|key| asks[0].clone().with_key(&format!("key {key}")))
        .collect()
}

/// Requests that may be decided together: all are charges, or all are peeks.
fn random_joint(random: &mut Random, plans: &[Arc<Plan>]) -> Vec<Check> {
    let mode = *random.pick(&[Mode::Charge, Mode::Charge, Mode::Peek]);
    (0..2 + random.below(3))
        .map(|_| {
            let plan = random.pick(plans);
            let asked = random_ask(random, plan);
            Check {
                mode,
                ..ask(plan, asked.key().as_str(), asked.cost().units())
            }
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calendar_windows_decide_alike_in_both_stores() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let shared = store_on(&redis, &clock);
    let embedded = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let mut random = Random(SEED);
    let plans = plans(&mut random);
    let mut now_us = START_US + 1_000 * DAY_US;
    let mut plan = &plans[0];
    let mut decisions = 0;
    let mut allowed = 0;
    while decisions < DECISIONS {
        if random.below(4) == 0 {
            plan = random.pick(&plans);
        }
        now_us = next_time(now_us, &mut random).max(START_US + 500 * DAY_US);
        clock.set(now_us);
        if random.below(8) == 0 {
            let joint = random_joint(&mut random, &plans);
            let lua = shared.decide_joint(&joint, PATIENCE).await;
            let lua = lua.map_err(|failure| failure.error);
            let rust = embedded.decide_joint(&joint);
            assert_eq!(lua, rust, "decision {decisions}, at {now_us}: {joint:?}");
            decisions += joint.len();
            continue;
        }
        let asks = random_batch(&mut random, &plans, plan);
        let from_redis = ask_in_order(&shared, &asks, PATIENCE).await;
        let from_memory = ask_in_order(&embedded, &asks, PATIENCE).await;
        for (index, (lua, rust)) in from_redis.iter().zip(&from_memory).enumerate() {
            assert_eq!(
                lua,
                rust,
                "decision {}, at {now_us}: {:?}",
                decisions + index,
                asks[index]
            );
            let fits = rust.as_ref().is_ok_and(Answer::fits);
            allowed += usize::from(!asks[index].is_refund() && fits);
        }
        decisions += asks.len();
    }
    println!("{decisions} decisions equal, {allowed} of them allowed");
    assert!(allowed > decisions / 20 && allowed < decisions * 19 / 20);
}

/// A log beside a calendar's record. Each store drops a log that no plan has at another time, so plans do not change here.
#[tokio::test]
async fn a_calendar_window_beside_a_log_decides_alike_in_both_stores() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let shared = store_on(&redis, &clock);
    let embedded = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let (unit, zone) = SHAPES[0];
    let limits = vec![
        limit(9, Duration::from_secs(20 * 3_600), LOG),
        by_calendar(6, unit, zone),
    ];
    let plans = [plan(limits)];
    let mut random = Random(SEED);
    let mut now_us = START_US + 1_000 * DAY_US;
    for decision in 0..4_000 {
        now_us = next_time(now_us, &mut random).max(START_US + 500 * DAY_US);
        clock.set(now_us);
        let asks = random_batch(&mut random, &plans, &plans[0]);
        let lua = ask_in_order(&shared, &asks, PATIENCE).await;
        let rust = ask_in_order(&embedded, &asks, PATIENCE).await;
        assert_eq!(lua, rust, "decision {decision}, at {now_us}: {asks:?}");
    }
}

/// Counts by hand, with the edges of another implementation.
struct Count {
    edges: Vec<u64>,
    quota: u64,
    /// Units by key, each with its time; refunded units are taken out.
    charged: HashMap<Key, Vec<(u64, u64)>>,
}

impl Count {
    /// What a request must be told, if no request before it had a later time.
    fn answer(&mut self, ask: &Ask, now_us: u64) -> Answer {
        let next = self.edges.partition_point(|edge| *edge <= now_us);
        let start_us = self.edges[next - 1];
        let end_us = self.edges[next];
        let charged = self.charged.entry(ask.key().clone()).or_default();
        charged.retain(|(at_us, _)| *at_us >= start_us);
        let used = |charged: &[(u64, u64)]| charged.iter().map(|(_, units)| units).sum::<u64>();
        let reading = |charged: &[(u64, u64)]| Reading::Calendar {
            count: used(charged),
            ends_in_us: end_us - now_us,
            window_us: end_us - start_us,
        };
        let verdict = |fits, reading: Reading| Verdict {
            fits,
            readings: [reading].into_iter().collect(),
            blocks: None,
            release_in_us: 0,
        };
        let cost = ask.cost().units();
        if ask.is_refund() {
            let before = [reading(charged)].into_iter().collect();
            let left = used(charged).saturating_sub(cost);
            charged.clear();
            charged.push((now_us, left));
            let after = verdict(true, reading(charged));
            return Answer::GivenBack(GivenBack { before, after });
        }
        let fits = used(charged) + cost <= self.quota;
        if fits && ask.is_charge() {
            charged.push((now_us, cost));
        }
        Answer::Decided(verdict(fits, reading(charged)))
    }
}

/// Both stores, at a time that never steps back.
struct Stores<'a> {
    shared: &'a RedisStore,
    embedded: &'a MemoryStore,
    clock: &'a FakeClock,
    now_us: u64,
}

impl Stores<'_> {
    /// Decides requests at a time, or at the last one if that is later, and compares each field with the count. Returns how many
    /// charges were allowed.
    async fn compare(&mut self, asks: &[Ask], at_us: u64, count: &mut Count) -> usize {
        self.now_us = at_us.max(self.now_us);
        self.clock.set(self.now_us);
        let lua = ask_in_order(self.shared, asks, PATIENCE).await;
        let rust = ask_in_order(self.embedded, asks, PATIENCE).await;
        let mut allowed = 0;
        for ((ask, lua), rust) in asks.iter().zip(lua).zip(rust) {
            let expected = Ok(count.answer(ask, self.now_us));
            assert_eq!(rust, expected, "at {}: {ask:?}", self.now_us);
            assert_eq!(lua, expected, "at {}: {ask:?}", self.now_us);
            allowed += usize::from(ask.is_charge() && rust.is_ok_and(|answer| answer.fits()));
        }
        allowed
    }
}

/// Redis's own clock is before all of these years, so that no key expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_between_two_edges_are_counted_as_by_hand_in_both_stores() {
    let shift = Shift::none();
    let real_us = tollgate::clock::Clock::now_us(&tollgate::clock::SystemClock);
    let from_us = days()["UTC"][10].begins_us;
    shift.by_ms((from_us as i64 - real_us as i64) / 1_000);
    let redis = Redis::start_shifted(&shift);
    let clock = FakeClock::new();
    let shared = store_on(&redis, &clock);
    let embedded = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let mut random = Random(SEED);
    let mut decisions = 0;
    let mut allowed = 0;
    for (name, days) in days() {
        for unit in [
            CalendarUnit::Day,
            CalendarUnit::Week { starts: 3 },
            CalendarUnit::Month { starts: 1 },
            CalendarUnit::Month { starts: 15 },
        ] {
            let plan = plan(vec![by_calendar(3, unit, name)]);
            let edges = edges_of(days, unit);
            // Of days and weeks, those whose length is unusual, those around them, and some others. All months.
            let (usual_us, one_in) = match unit {
                CalendarUnit::Day => (DAY_US, 60),
                CalendarUnit::Week { .. } => (7 * DAY_US, 6),
                CalendarUnit::Month { .. } => (0, 1),
            };
            let length = |window: usize| edges[window + 1] - edges[window];
            let mut is_chosen = |edge: &usize| {
                (edge - 2..edge + 2).any(|window| length(window) != usual_us)
                    || random.below(one_in) == 0
            };
            let chosen: Vec<usize> = (4..edges.len() - 4).filter(&mut is_chosen).collect();
            let mut count = Count {
                edges: edges.clone(),
                quota: 3,
                charged: HashMap::new(),
            };
            let mut stores = Stores {
                shared: &shared,
                embedded: &embedded,
                clock: &clock,
                now_us: 0,
            };
            let times = chosen.into_iter().map(|index| edges[index]);
            for at_us in times.flat_map(|edge| [edge - 1, edge, edge + 1, edge + HOUR_US]) {
                let asks: Vec<Ask> = (0..3).map(|_| random_ask(&mut random, &plan)).collect();
                allowed += stores.compare(&asks, at_us, &mut count).await;
                decisions += asks.len();
            }
        }
    }
    println!("{decisions} decisions of {YEARS:?} as by hand, {allowed} of them allowed");
    assert!(decisions > 100_000 && allowed > decisions / 10 && allowed < decisions * 9 / 10);
}
