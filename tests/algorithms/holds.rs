//! Holds against brute force: a model that keeps every charge and every id. Random histories have reserves, settles, extends, records and
//! requests with ids, many of them sent again, requests without ids, refunds and peeks, under three plans of one count.
//!
//! A second check asks what a bucket may give back: never more than if each hold had been as large as its use from the start.

mod bounds;
mod bucket;
mod model;
mod stores;

use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::holds::{
    HoldCall, HoldEvent, HoldKey, HoldState, HoldVerdict, IfUnknown, Notes, SettleOutcome, call,
    end_holds,
};
use tollgate::algorithm::{Block, Mode, State, decide, refund, test};
use tollgate::key::Cost;
use tollgate::plan::{Algorithm, Concurrency, HoldTerms, Limit, Plan, Rule};

use crate::support::clock::START_US;
use crate::support::history::Random;
use crate::support::plans::{ANCHORED, BUCKET, COARSE, COUNTER, FIXED, LOG, WINDOW};
use model::{Fate, World};

const S: u64 = 1_000_000;
/// Steps of each history, unless `TOLLGATE_HOLD_STEPS` says otherwise.
const STEPS: u64 = 10_000;
const IDS: u64 = 12;

pub fn steps() -> u64 {
    let steps = std::env::var("TOLLGATE_HOLD_STEPS");
    steps.map_or(STEPS, |text| text.parse().unwrap())
}

/// What is added to the seed of each history: 0, unless `TOLLGATE_HOLD_SEED` says otherwise.
pub fn further_seed() -> u64 {
    let seed = std::env::var("TOLLGATE_HOLD_SEED");
    seed.map_or(0, |text| text.parse().unwrap())
}

/// One key, by the code.
struct Subject {
    states: Vec<State>,
    blocks: Vec<Block>,
    notes: Notes,
}

impl Subject {
    fn new(limits: &[Limit]) -> Self {
        Self {
            states: limits.iter().map(State::fresh).collect(),
            blocks: vec![Block::default(); limits.len()],
            notes: Notes::default(),
        }
    }

    fn call(&mut self, plan: &Arc<Plan>, now_us: u64, ask: (&str, HoldCall)) -> HoldVerdict {
        call(plan, self.key(), now_us, ask)
    }

    fn key(&mut self) -> HoldKey<'_> {
        HoldKey {
            states: &mut self.states,
            blocks: &mut self.blocks,
            notes: &mut self.notes,
        }
    }

    /// A request without an id, as a store decides it.
    fn request(&mut self, plan: &Arc<Plan>, now_us: u64, cost: u64) -> bool {
        let limits = plan.limits();
        let fits = test(limits, &self.states, now_us, cost, Mode::Charge).fits;
        if !fits && self.notes.has_units_due(plan, now_us) {
            end_holds(plan, self.key(), now_us);
        }
        let cost = Cost::new(cost).unwrap();
        decide(limits, &mut self.states, now_us, cost, Mode::Charge).fits
    }

    fn refund(&mut self, plan: &Plan, now_us: u64, units: u64) {
        let before = self.states.clone();
        let cost = Cost::new(units).unwrap();
        refund(plan.limits(), &mut self.states, now_us, cost);
        let pair = (&before[..], &self.states[..]);
        self.notes.note_refund(plan.limits(), pair, now_us);
    }
}

/// Plans of one count: one keeps the units of expired holds, one releases them, one has no slots.
fn plans(random: &mut Random, algorithms: &[Algorithm]) -> Vec<Arc<Plan>> {
    let limits: Vec<Limit> = algorithms
        .iter()
        .enumerate()
        .map(|(place, algorithm)| {
            let algorithm = match algorithm {
                Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
                    burst: 4 + random.below(12),
                },
                other => *other,
            };
            let window = Duration::from_secs(2 + place as u64);
            Limit::new(
                format!("l{place}"),
                8 + 2 * random.below(5),
                window,
                algorithm,
            )
            .unwrap()
        })
        .collect();
    let plan = |name: &str, releases, slots: Option<u64>| {
        let holds = HoldTerms {
            ttl: Duration::from_secs(1),
            max_ttl: Duration::from_secs(6),
            release_on_expiry: releases,
            remember: Duration::from_millis(2_500),
            max_open: 3,
            max_ids: 1_000,
            concurrency: slots.map(|quota| Concurrency::new("concurrency", quota, 0).unwrap()),
        };
        Arc::new(Plan {
            counts_as: "group".into(),
            holds: holds.into(),
            ..Plan::new(name, Rule::limits(limits.iter().cloned()))
        })
    };
    vec![
        plan("charges", false, Some(2)),
        plan("releases", true, Some(4)),
        plan("open", true, None),
    ]
}

/// What happened, so that no history is one-sided.
#[derive(Debug, Default)]
struct Seen {
    reserved: u64,
    denied: u64,
    returned: u64,
    excess: u64,
    repeated: u64,
    refused: u64,
    late: u64,
}

struct History {
    subject: Subject,
    world: World,
    plan: Arc<Plan>,
    now_us: u64,
    seen: Seen,
}

impl History {
    /// Whether the id is known for something else; else what is known of it.
    fn known(&mut self, id: &str, fates: &[Fate], cost: Option<u64>) -> Result<Option<Fate>, ()> {
        let now_us = self.now_us;
        let plan = self.plan.clone();
        let Some(note) = self.world.known(&plan, id, now_us) else {
            return Ok(None);
        };
        let is_hold = !matches!(note.fate, Fate::Allowed | Fate::Recorded);
        let is_call = if fates.is_empty() {
            is_hold
        } else {
            fates.contains(&note.fate)
        };
        let is_cost = cost.is_none() || note.cost.is_none() || cost == note.cost;
        match is_call && is_cost && note.plan.name == plan.name {
            true => Ok(Some(note.fate)),
            false => Err(()),
        }
    }

    fn expect_refused(&mut self, verdict: &HoldVerdict) {
        self.seen.refused += 1;
        assert!(
            matches!(verdict.event, HoldEvent::Refused(_)),
            "{verdict:?}"
        );
    }

    /// The key stands in each limit as the model has it.
    fn compare(&self, verdict: &HoldVerdict) {
        let rows = verdict.view.verdict.statuses(self.plan.limits(), Cost::ONE);
        for ((limit, row), ledger) in self.plan.limits().iter().zip(rows).zip(&self.world.ledgers) {
            let expected = ledger.remaining(limit, self.now_us);
            assert_eq!(row.remaining, expected, "{limit:?}");
        }
        let open = self.world.open(self.now_us);
        let mut ends: Vec<u64> = open
            .filter(|note| note.plan.concurrency().is_some())
            .map(|note| note.expires_us - self.now_us)
            .collect();
        ends.sort_unstable();
        let (Some(slots), Some(limit)) = (verdict.view.slots, self.plan.concurrency()) else {
            return;
        };
        let first = ends.first().unwrap_or(&0);
        let last = ends.last().unwrap_or(&0);
        assert_eq!(slots.open as usize, ends.len(), "slots");
        assert_eq!((slots.first_end_us, slots.last_end_us), (*first, *last));
        if !verdict.view.verdict.fits {
            let over = ends.len().checked_sub(limit.quota() as usize);
            assert_eq!(slots.wait_us, over.map_or(0, |over| ends[over]), "wait");
        }
    }

    fn reserve(&mut self, id: &str, cost: u64, ttl_us: u64) {
        let ask = (id, HoldCall::Reserve { cost, ttl_us });
        let plan = self.plan.clone();
        let now_us = self.now_us;
        let verdict = self.subject.call(&plan, now_us, ask);
        let Ok(known) = self.known(id, &[], Some(cost)) else {
            return self.expect_refused(&verdict);
        };
        self.world.first_ends(&plan, now_us);
        if known.is_some() {
            let expires_in_us = self.world.known(&plan, id, now_us).unwrap();
            let is_open = expires_in_us.fate == Fate::Held;
            let expires_in_us = is_open.then(|| expires_in_us.expires_us - now_us);
            assert_eq!(verdict.event, HoldEvent::Repeated { expires_in_us });
            assert!(verdict.view.verdict.fits);
            self.seen.repeated += 1;
            return self.compare(&verdict);
        }
        let world = &mut self.world;
        let rates = world.rates_fit(&plan, now_us, cost);
        let slot = world.has_slot(&plan, now_us);
        let room = world.has_room(&plan, now_us);
        let fits = rates && slot && room;
        assert_eq!(verdict.view.verdict.fits, fits, "{rates} {slot} {room}");
        assert_eq!(verdict.view.full_for_us.is_some(), rates && slot && !room);
        if fits {
            world.charge(&plan, now_us, cost);
            let times = (now_us, now_us + ttl_us);
            world.note(&plan, id, (Some(cost), Fate::Held), times);
            self.seen.reserved += 1;
        } else {
            self.seen.denied += 1;
        }
        let expires_in_us = fits.then_some(ttl_us);
        assert_eq!(verdict.event, HoldEvent::Decided { expires_in_us });
        self.compare(&verdict);
    }

    #[expect(clippy::too_many_lines, reason = "one call, with all that it may find")]
    fn settle(&mut self, id: &str, actual: Option<u64>, if_unknown: IfUnknown) {
        let ask = (id, HoldCall::Settle { actual, if_unknown });
        let plan = self.plan.clone();
        let now_us = self.now_us;
        let verdict = self.subject.call(&plan, now_us, ask);
        let Ok(_) = self.known(id, &[], None) else {
            return self.expect_refused(&verdict);
        };
        self.world.first_ends(&plan, now_us);
        let note = self.world.known(&plan, id, now_us).cloned();
        let held = note.as_ref().and_then(|note| note.cost).unwrap_or(0);
        let charges = if_unknown == IfUnknown::Charge;
        let nothing = vec![0; plan.limits().len()];
        let (outcome, actual, returned, excess) = match note.as_ref().map(|note| note.fate) {
            Some(Fate::Held) => {
                let actual = actual.unwrap_or(held);
                let note = note.as_ref().unwrap();
                let back = held.saturating_sub(actual);
                let returned = self.world.give_back(&plan, note, back, now_us);
                (
                    SettleOutcome::Settled,
                    actual,
                    returned,
                    actual.saturating_sub(held),
                )
            }
            Some(Fate::Settled(actual)) => (SettleOutcome::Repeated, actual, nothing, 0),
            Some(_) => {
                self.seen.late += 1;
                let kept = if plan.holds.release_on_expiry {
                    0
                } else {
                    held
                };
                let used = actual.unwrap_or(held).max(kept);
                let used = if charges { used } else { kept };
                (SettleOutcome::Expired, used, nothing, used - kept)
            }
            None => {
                let used = if charges { actual.unwrap_or(0) } else { 0 };
                (SettleOutcome::Unknown, used, nothing, used)
            }
        };
        self.world.charge_beyond(&plan, now_us, excess);
        match outcome {
            SettleOutcome::Settled => self.world.settled(&plan, id, actual, now_us),
            SettleOutcome::Expired if charges => self.world.settled(&plan, id, actual, now_us),
            SettleOutcome::Unknown if charges => {
                let fate = (None, Fate::Settled(actual));
                self.world.note(&plan, id, fate, (now_us, now_us));
            }
            _ => {}
        }
        let HoldEvent::Settled(settlement) = &verdict.event else {
            panic!("{verdict:?}")
        };
        self.seen.returned += returned.iter().sum::<u64>();
        self.seen.excess += excess;
        assert_eq!(settlement.outcome, outcome);
        assert_eq!(
            (settlement.held, settlement.actual),
            (held, actual),
            "{outcome:?}"
        );
        assert_eq!(settlement.returned.to_vec(), returned);
        assert_eq!(settlement.excess, excess);
        self.compare(&verdict);
    }

    fn extend(&mut self, id: &str, ttl_us: u64) {
        let plan = self.plan.clone();
        let now_us = self.now_us;
        let verdict = self
            .subject
            .call(&plan, now_us, (id, HoldCall::Extend { ttl_us }));
        let Ok(_) = self.known(id, &[], None) else {
            return self.expect_refused(&verdict);
        };
        self.world.first_ends(&plan, now_us);
        let fate = self.world.known(&plan, id, now_us).map(|note| note.fate);
        let (state, expires_in_us) = match fate {
            Some(Fate::Held) => {
                let expires_us = self.world.extended(&plan, id, now_us + ttl_us, now_us);
                (HoldState::Open, Some(expires_us - now_us))
            }
            Some(Fate::Settled(_)) => (HoldState::Settled, None),
            Some(_) => (HoldState::Expired, None),
            None => (HoldState::Unknown, None),
        };
        let expected = HoldEvent::Extended {
            state,
            expires_in_us,
        };
        assert_eq!(verdict.event, expected);
        self.compare(&verdict);
    }

    /// A record, or a request with an id.
    fn charge(&mut self, id: &str, cost: u64, fate: Fate) {
        let plan = self.plan.clone();
        let now_us = self.now_us;
        let ask = match fate {
            Fate::Recorded => HoldCall::Record { cost },
            _ => HoldCall::Charge { cost },
        };
        let verdict = self.subject.call(&plan, now_us, (id, ask));
        let Ok(known) = self.known(id, &[fate], Some(cost)) else {
            return self.expect_refused(&verdict);
        };
        self.world.first_ends(&plan, now_us);
        let fits = fate == Fate::Recorded || self.world.rates_fit(&plan, now_us, cost);
        if known.is_some() {
            self.seen.repeated += 1;
            let expires_in_us = None;
            assert_eq!(verdict.event, HoldEvent::Repeated { expires_in_us });
        } else if fits {
            match fate {
                Fate::Recorded => self.world.charge_beyond(&plan, now_us, cost),
                _ => self.world.charge(&plan, now_us, cost),
            }
            if !id.is_empty() {
                self.world
                    .note(&plan, id, (Some(cost), fate), (now_us, now_us));
            }
        }
        self.compare(&verdict);
    }

    fn without_id(&mut self, random: &mut Random) {
        let plan = self.plan.clone();
        let now_us = self.now_us;
        match random.below(4) {
            0 => {
                let units = 1 + random.below(6);
                self.subject.refund(&plan, now_us, units);
                let ledgers = plan.limits().iter().zip(&mut self.world.ledgers);
                ledgers.for_each(|(limit, ledger)| ledger.refund(limit, now_us, units));
            }
            _ => {
                let cost = 1 + random.below(3);
                let mut fits = self.world.rates_fit(&plan, now_us, cost);
                if !fits && plan.holds.release_on_expiry {
                    self.world.first_ends(&plan, now_us);
                    fits = self.world.rates_fit(&plan, now_us, cost);
                }
                assert_eq!(self.subject.request(&plan, now_us, cost), fits, "no id");
                if fits {
                    self.world.charge(&plan, now_us, cost);
                }
            }
        }
    }

    fn step(&mut self, random: &mut Random) {
        let id = format!("id {}", random.below(IDS));
        let cost = 1 + random.below(4);
        let ttl_us = S + random.below(8) * S / 2;
        let actual = match random.below(6) {
            0 => None,
            1 => Some(0),
            _ => Some(random.below(7)),
        };
        let if_unknown = *random.pick(&[IfUnknown::Charge, IfUnknown::Ignore]);
        match random.below(16) {
            0..=5 => self.reserve(&id, cost, ttl_us),
            6..=9 => self.settle(&id, actual, if_unknown),
            10 => self.extend(&id, ttl_us),
            11 => self.charge(&id, cost, Fate::Recorded),
            12 => self.charge("", cost, Fate::Recorded),
            13 => self.charge(&id, cost, Fate::Allowed),
            _ => self.without_id(random),
        }
    }
}

fn next_time(random: &mut Random, now_us: u64) -> u64 {
    now_us
        + match random.below(12) {
            0..=3 => 0,
            4..=9 => random.below(S / 5),
            10 => S / 2,
            _ => random.below(3 * S),
        }
}

fn check(algorithms: &[Algorithm], seed: u64) {
    let mut random = Random(seed);
    let plans = plans(&mut random, algorithms);
    let limits = plans[0].limits().to_vec();
    let mut history = History {
        subject: Subject::new(&limits),
        world: World::new(limits.len()),
        plan: plans[0].clone(),
        now_us: START_US,
        seen: Seen::default(),
    };
    for step in 0..steps() {
        history.now_us = next_time(&mut random, history.now_us);
        if random.below(4) == 0 {
            history.plan = random.pick(&plans).clone();
        }
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            history.step(&mut random);
        }));
        assert!(told.is_ok(), "{algorithms:?}, seed {seed}, step {step}");
        // What nobody can ask for any more.
        let now_us = history.now_us;
        history
            .world
            .notes
            .retain(|note| note.is_known(now_us) || note.fate == Fate::Held);
    }
    let Seen {
        reserved,
        denied,
        returned,
        excess,
        repeated,
        refused,
        late,
    } = history.seen;
    let all = [reserved, denied, returned, excess, repeated, refused, late];
    assert!(all.iter().all(|seen| *seen > 20), "{algorithms:?}: {all:?}");
}

#[test]
fn holds_are_as_brute_force_has_them() {
    // Runs that were merged are of no charge alone; `stores` compares them.
    let each = Algorithm::EVERY.into_iter().filter(|it| *it != COARSE);
    let several = [[LOG, BUCKET], [FIXED, WINDOW]].map(Vec::from);
    for algorithms in each.map(|algorithm| vec![algorithm]).chain(several) {
        for seed in 0..2 {
            check(&algorithms, seed);
        }
    }
}
