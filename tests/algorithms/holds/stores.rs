//! Holds in Rust and in Lua: random histories of all calls, with and without ids, under several plans of one count, through edits of
//! their limits and steps of the clock. Every answer of Redis must be that of the embedded store.

mod plans;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::holds::{
    HoldCall, HoldEvent, HoldVerdict, IfUnknown, LeaseCall, LeaseEvent,
};
use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Concurrency, HoldTerms, Limit, Plan, Rule};
use tollgate::store::{
    Check, HoldCheck, LeaseCheck, MemoryStore, Mode, RedisStore, Store, StoreDeadline, Subject,
};

use super::{further_seed, steps};
use crate::support::asks::{Ask, ask_in_order, refund_of};
use crate::support::clock::{FakeClock, START_US};
use crate::support::cluster::Cluster;
use crate::support::history::{Random, Times};
use crate::support::plans::{BUCKET, COUNTER, FIXED, LOG, WINDOW};
use crate::support::redis::{Redis, other_make};
use plans::{About, histories, plans};

const S: u64 = 1_000_000;
const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));

fn random_call(random: &mut Random) -> HoldCall {
    let cost = match random.below(12) {
        0 => 1 << random.below(40),
        _ => 1 + random.below(4),
    };
    let ttl_us = S + random.below(4) * S / 2;
    let if_unknown = *random.pick(&[IfUnknown::Charge, IfUnknown::Charge, IfUnknown::Ignore]);
    match random.below(10) {
        0..=2 => HoldCall::Reserve {
            cost: cost.min(4),
            ttl_us,
        },
        3 => HoldCall::Settle {
            actual: None,
            if_unknown,
        },
        4..=5 => HoldCall::Settle {
            actual: Some((cost - 1) / 2),
            if_unknown,
        },
        6 => HoldCall::Record { cost },
        7 => HoldCall::Extend { ttl_us },
        8 => HoldCall::Peek { cost: cost.min(4) },
        _ => HoldCall::Charge { cost: cost.min(4) },
    }
}

/// What happened, so that no history is one-sided.
#[derive(Debug, Default)]
struct Seen {
    decisions: u64,
    held: u64,
    denied: u64,
    repeated: u64,
    refused: u64,
    returned: u64,
    ended: u64,
    renewed: u64,
    renewed_again: u64,
    streams_ended: u64,
    lost: BTreeMap<String, u64>,
}

impl Seen {
    /// Asserts that nothing is missing in histories of so many decisions under several plans.
    fn assert_all_was_met(&self, several: u64) {
        let rare = [
            self.held,
            self.denied,
            self.repeated,
            self.refused,
            self.returned,
            self.ended,
        ];
        assert!(
            rare.iter().all(|seen| seen * 100 > several),
            "{several} decisions of several plans: {self:?}"
        );
        let are_renewed = self.renewed > 0 && self.renewed_again > 0;
        let is_seen = are_renewed && self.streams_ended > 0 && self.lost.len() == 4;
        assert!(is_seen, "{self:?}");
    }

    fn add(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.refused += other.refused;
        self.ended += other.ended;
        self.denied += other.denied;
        self.held += other.held;
        self.returned += other.returned;
        self.repeated += other.repeated;
        self.renewed += other.renewed;
        self.renewed_again += other.renewed_again;
        self.streams_ended += other.streams_ended;
        for (reason, count) in other.lost {
            *self.lost.entry(reason).or_default() += count;
        }
    }

    fn note(&mut self, verdict: &HoldVerdict) {
        self.ended += verdict.ended.expired;
        match &verdict.event {
            HoldEvent::Decided { expires_in_us } if expires_in_us.is_some() => self.held += 1,
            HoldEvent::Decided { .. } => self.denied += u64::from(!verdict.view.verdict.fits),
            HoldEvent::Repeated { .. } => self.repeated += 1,
            HoldEvent::Refused(_) => self.refused += 1,
            HoldEvent::Settled(settled) => self.returned += settled.returned.iter().sum::<u64>(),
            _ => {}
        }
    }
}

struct History {
    random: Random,
    clock: FakeClock,
    redis: RedisStore,
    embedded: MemoryStore,
    plans: Vec<Arc<Plan>>,
    seen: Seen,
    keys: u64,
    first_id: u64,
    /// When leases end by what was told last, by key and id.
    ends_us: HashMap<(Key, Box<str>), u64>,
    /// Key and id of the hold that was reserved last.
    reserved: Option<(Key, Box<str>)>,
    /// The plan of most calls for a while.
    present: usize,
    /// What was asked and answered, for whoever looks for a difference.
    trail: Vec<String>,
}

impl History {
    fn trace(&mut self, what: String) {
        self.trail.push(what);
        if self.trail.len() > 40 {
            self.trail.remove(0);
        }
    }

    fn new(url: &str, (seed, algorithms, about): (u64, &[Algorithm], About)) -> Self {
        let mut random = Random(seed);
        let clock = FakeClock::new();
        let few = if about == About::OnePlan { 40 } else { 5 };
        let max_ids = if seed % 2 == 0 { 1_000 } else { few };
        Self {
            plans: plans(&mut random, algorithms, (max_ids, about)),
            random,
            redis: RedisStore::with_injected_clock(url, Arc::new(clock.clone())).unwrap(),
            embedded: MemoryStore::new(1 << 28, Arc::new(clock.clone())),
            clock,
            seen: Seen::default(),
            present: 0,
            first_id: 0,
            ends_us: HashMap::new(),
            reserved: None,
            keys: if about == About::Blocks { 3 } else { 1 },
            trail: Vec::new(),
        }
    }

    fn key(&mut self) -> Key {
        Key::new(format!("key {}", self.random.below(self.keys))).unwrap()
    }

    async fn step(&mut self, step: u64) {
        if self.random.below(8) == 0 {
            self.present = self.random.below(self.plans.len() as u64) as usize;
        }
        let plan = self.plans[self.present].clone();
        let is_counted = !plan.limits().is_empty() && plan.concurrency().is_none();
        match self.random.below(100) {
            0 if self.keys > 1 => self.reset().await,
            1..=4 => self.figures(&plan, step).await,
            5..=24 if is_counted => self.request(&plan, step).await,
            25..=34 if self.keys > 1 => self.several(&plan, step).await,
            35..=49 => self.leases(&plan, step).await,
            _ => {
                let check = self.check(&plan);
                let found = self.redis.decide_hold(&check, PATIENCE).await;
                self.compare(&check, found, step);
            }
        }
    }

    fn check(&mut self, plan: &Arc<Plan>) -> HoldCheck {
        let mut call = random_call(&mut self.random);
        if plan.limits().is_empty() && matches!(call, HoldCall::Record { .. }) {
            call = HoldCall::Peek { cost: 1 };
        }
        // Where ids are known for long, new ones come.
        self.first_id += u64::from(self.keys == 1 && self.random.below(6) == 0);
        let first = self.first_id;
        let id = match (call, self.random.below(6)) {
            (HoldCall::Peek { .. }, _) | (HoldCall::Record { .. }, 0) => String::new(),
            (_, 0..=4) => format!("{} {}", plan.name, first + self.random.below(3)),
            (_, number) => format!("id {}", first + number),
        };
        HoldCheck {
            key: self.key(),
            plan: plan.clone(),
            id: id.into(),
            call,
        }
    }

    /// What streams ask about their holds: two at a time, and the same once more, as after a lost answer.
    async fn leases(&mut self, plan: &Arc<Plan>, step: u64) {
        let checks = [self.lease(plan), self.lease(plan)];
        self.compare_leases(&checks, step).await;
        self.seen.renewed_again += self.compare_leases(&checks, step).await;
    }

    /// How many leases were prolonged.
    async fn compare_leases(&mut self, checks: &[LeaseCheck], step: u64) -> u64 {
        let mut prolonged = 0;
        let found = self.redis.decide_leases(checks, PATIENCE).await;
        let expected = self.embedded.decide_leases(checks, PATIENCE).await;
        self.trace(format!("{checks:?} -> {expected:?}"));
        for ((check, found), expected) in checks.iter().zip(found).zip(expected) {
            let mut found = found.unwrap();
            let expected = expected.unwrap();
            self.seen.decisions += 1;
            self.seen.ended += expected.ended.expired;
            found.ended.expired = found.ended.expired.min(expected.ended.expired);
            assert_eq!(found, expected, "{step}: {check:?}\n{:#?}", self.trail);
            let name = (check.key.clone(), check.id.clone());
            match expected.event {
                LeaseEvent::Open { expires_us, .. } => {
                    self.seen.renewed += 1;
                    self.ends_us.insert(name, expires_us);
                    prolonged += u64::from(matches!(
                        check.call,
                        LeaseCall::Renew { expires_us, until_us } if expires_us < until_us
                    ));
                }
                LeaseEvent::Ended => self.seen.streams_ended += 1,
                LeaseEvent::Lost(reason) => {
                    *self.seen.lost.entry(format!("{reason:?}")).or_default() += 1
                }
            }
        }
        prolonged
    }

    fn lease(&mut self, plan: &Arc<Plan>) -> LeaseCheck {
        let HoldCheck { key, plan, id, .. } = self.check(plan);
        // Most other ids are of no open hold.
        let reserved = self.reserved.clone();
        let (key, id) = reserved
            .filter(|_| self.random.below(2) == 0)
            .unwrap_or((key, id));
        let told = self.ends_us.get(&(key.clone(), id.clone())).copied();
        let expires_us = told.unwrap_or(START_US + S) + self.random.below(8) / 7;
        let ttl_us = S + self.random.below(4) * S / 2;
        // Of a renewal that nobody has answered, it may be when the lease ends.
        let until_us = expires_us + self.random.below(3) * ttl_us - self.random.below(8) / 7;
        let call = match self.random.below(6) {
            0 => LeaseCall::Take {
                ttl_us,
                is_new: true,
            },
            1 => LeaseCall::Take {
                ttl_us,
                is_new: false,
            },
            2 => LeaseCall::End {
                expires_us,
                until_us,
            },
            _ => LeaseCall::Renew {
                expires_us,
                until_us,
            },
        };
        LeaseCheck {
            key,
            plan,
            id,
            call,
        }
    }

    fn compare(
        &mut self,
        check: &HoldCheck,
        found: Result<HoldVerdict, tollgate::store::StoreError>,
        step: u64,
    ) {
        let expected = self.embedded.hold(check).unwrap();
        self.seen.decisions += 1;
        self.seen.note(&expected);
        if let HoldEvent::Decided {
            expires_in_us: Some(left_us),
        } = expected.event
        {
            let name = (check.key.clone(), check.id.clone());
            let now_us = tollgate::clock::Clock::now_us(&self.clock);
            self.ends_us.insert(name.clone(), now_us + left_us);
            self.reserved = Some(name);
        }
        let mut found = found.unwrap_or_else(|error| panic!("{step}: {error}: {check:?}"));
        if found.ended.expired > expected.ended.expired {
            // The embedded store has dropped holds that nobody can know of any more, and Redis has not yet.
            found.ended.expired = expected.ended.expired;
        }
        let now_us = tollgate::clock::Clock::now_us(&self.clock) % 10_000_000_000;
        self.trace(format!(
            "{now_us} {:?} {} {} {:?} -> {:?} {:?}",
            check.key.as_str(),
            check.plan.name,
            check.id,
            check.call,
            expected.event,
            expected.view
        ));
        assert_eq!(
            found,
            expected,
            "{step}: {check:?}\n{}",
            self.trail.join("\n")
        );
    }

    /// Requests for several keys, which go to Redis in one call.
    async fn several(&mut self, plan: &Arc<Plan>, step: u64) {
        let mut checks: Vec<HoldCheck> = (0..3).map(|_| self.check(plan)).collect();
        for (index, check) in checks.iter_mut().enumerate() {
            check.key = Key::new(format!("key {index}")).unwrap();
        }
        let ask = |index: usize| self.redis.decide_hold(&checks[index], PATIENCE);
        let (first, second, third) = tokio::join!(ask(0), ask(1), ask(2));
        let found = [first, second, third];
        for (check, found) in checks.iter().zip(found) {
            self.compare(check, found, step);
        }
    }

    /// A request without an id.
    async fn request(&mut self, plan: &Arc<Plan>, step: u64) {
        let check = Check {
            key: self.key(),
            plan: plan.clone(),
            cost: Cost::new(1 + self.random.below(4)).unwrap(),
            mode: *self.random.pick(&[Mode::Charge, Mode::Charge, Mode::Peek]),
        };
        let ask = match self.random.below(4) {
            0 => Ask::Refund(refund_of(&check)),
            _ => Ask::Decide(check),
        };
        let expected = ask.by_memory(&self.embedded).unwrap();
        let found = match self.random.below(2) {
            0 => ask.by_store(&self.redis, PATIENCE).await,
            _ => {
                let batch = ask_in_order(&self.redis, std::slice::from_ref(&ask), PATIENCE);
                batch.await.remove(0)
            }
        };
        let found = found.unwrap_or_else(|error| panic!("{step}: {error}: {ask:?}"));
        self.seen.decisions += 1;
        let now_us = tollgate::clock::Clock::now_us(&self.clock) % 10_000_000_000;
        self.trace(format!("{now_us} {ask:?} -> {expected:?}",));
        assert_eq!(
            found,
            expected,
            "{step}: {ask:?}\n{}",
            self.trail.join("\n")
        );
    }

    async fn reset(&mut self) {
        let key = self.key();
        let windows = self.plans.iter().flat_map(|plan| plan.limits());
        let subject = Subject {
            key: key.clone(),
            counts_as: "group".into(),
            log_windows_us: windows.map(Limit::window_us).collect(),
        };
        self.redis.reset(&subject, PATIENCE).await.unwrap();
        self.embedded.forget("group", &key);
    }

    async fn figures(&mut self, plan: &Arc<Plan>, step: u64) {
        let key = self.key();
        let mut found = self.redis.hold_figures(&key, plan, PATIENCE).await.unwrap();
        let expected = self.embedded.figures(&key, plan);
        if found.open == 0 {
            found.first_end_us = None;
        }
        assert_eq!(
            found,
            expected,
            "{step}: {key:?}\n{}",
            self.trail.join("\n")
        );
    }
}

/// Compares both stores for so many steps of each history. Redis is left as it is.
async fn compare(url: &str, steps_each: u64, seed: u64) {
    let mut all = Seen::default();
    let mut several = 0;
    for (number, (algorithms, about)) in (0..).zip(histories()) {
        let mut history = History::new(url, (seed + number + further_seed(), &algorithms, about));
        assert!(history.redis.connected(Duration::from_secs(10)).await);
        let mut times = Times::new(START_US + number * 1_000_000 * S, S / 2);
        let mut latest_us = 0;
        for step in 0..steps_each {
            let mut now_us = times.next(&mut history.random);
            if about == About::Blocks {
                // What has ended is dropped at different times, which shows if the clock then steps back.
                latest_us = latest_us.max(now_us);
                now_us = latest_us;
            }
            history.clock.set(now_us);
            if history.random.below(3) == 0 {
                times.mark(now_us);
            }
            history.step(step).await;
        }
        assert!(
            algorithms.is_empty() || steps_each < 2_000 || history.seen.returned > 0,
            "{algorithms:?}: {:?}",
            history.seen
        );
        let seen = std::mem::take(&mut history.seen);
        several += if about == About::OnePlan {
            0
        } else {
            seen.decisions
        };
        all.add(seen);
        let keys = (0..3).map(|number| Key::new(format!("key {number}")).unwrap());
        for key in keys {
            let subject = Subject {
                key,
                counts_as: "group".into(),
                log_windows_us: (2..6).map(|seconds| seconds * S).collect(),
            };
            history.redis.reset(&subject, PATIENCE).await.unwrap();
        }
    }
    println!("{} decisions, 0 differences: {all:?}", all.decisions);
    all.assert_all_was_met(several);
}

fn steps_each() -> u64 {
    steps() / histories().count() as u64 + 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_answers_calls_with_ids_as_the_embedded_store_does() {
    let redis = Redis::start();
    compare(&redis.url(), steps_each(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_6_2_does_so_too() {
    let server = other_make("redis-6.2", "Redis server v=6.2.");
    let redis = Redis::start_by("127.0.0.1", &[&server], &[]);
    compare(&redis.url(), steps_each(), 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valkey_does_so_too() {
    let server = other_make("valkey", "Valkey server v=");
    let redis = Redis::start_by("127.0.0.1", &[&server], &[]);
    compare(&redis.url(), steps_each(), 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_three_does_so_too() {
    let cluster = Cluster::start();
    compare(&cluster.url(), steps_each(), 300).await;
}
