//! One plan at one spacing of time: the counters of its keys, and how high each would have had to go for no denial.
//!
//! The need of a key is the smallest quota at which nothing of it would have been denied. As long as nothing is denied, every
//! request is charged, whatever the quota. So a key's need is the highest count that it reaches when everything is charged. Until
//! its first denial that is its own count. From then on a second count runs beside it, which denies nothing.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Spacing;
use super::worst::Worst;
use crate::algorithm::{Mode, State, decide};
use crate::key::Cost;
use crate::plan::{Algorithm, Limit, Plan, QUOTA_MAX, Rule, SLIDING_LOG_QUOTA_MAX};
use crate::simulate::order::Event;

/// A need above what a limit of this kind can have.
pub const NEED_UNKNOWN: u64 = u64::MAX;

type States = SmallVec<[State; 1]>;

/// The keys of one plan in one variant. Vectors are by key, those of limits by key and limit.
#[derive(Debug)]
pub struct Variant {
    pub(in crate::simulate) plan: Arc<Plan>,
    spacing: Spacing,
    /// Each limit with a quota that denies nothing; see `largest`.
    largest: Vec<Limit>,
    /// Requests that were denied.
    pub(in crate::simulate) denied: Vec<u32>,
    /// What each key needs of each limit.
    pub(in crate::simulate) needs: Vec<u64>,
    /// Counters; `None` for a fresh one.
    states: Vec<Option<State>>,
    /// Counters that deny nothing, of keys that were denied.
    unlimited: HashMap<usize, States>,
    /// Denials by limit; several limits may deny one request.
    pub(in crate::simulate) denied_by: Vec<u64>,
    pub(in crate::simulate) worst: Worst,
    /// Heap memory of the states.
    pub(super) bytes: usize,
}

impl Variant {
    pub(super) fn new(plan: Arc<Plan>, spacing: Spacing) -> Self {
        Self {
            spacing,
            largest: plan.limits().iter().map(largest).collect(),
            denied: Vec::new(),
            needs: Vec::new(),
            states: Vec::new(),
            unlimited: HashMap::new(),
            denied_by: vec![0; plan.limits().len()],
            worst: Worst::default(),
            bytes: 0,
            plan,
        }
    }

    pub(super) fn add_key(&mut self) {
        let limits = self.largest.len();
        self.denied.push(0);
        self.needs.resize(self.needs.len() + limits, 0);
        self.states.resize(self.states.len() + limits, None);
    }

    /// Decides a request of the key with this index. Whether it is denied.
    pub(super) fn denies(&mut self, index: usize, event: &Event, key: &[u8]) -> bool {
        let now_us = match self.spacing {
            Spacing::AsStamped => event.at_us,
            Spacing::Evenly => event.even_us,
        };
        let denied = match self.plan.rule {
            Rule::Unlimited => false,
            Rule::Blocked => true,
            Rule::Limits(_) => self.decide(index, now_us, event.cost),
        };
        if denied {
            self.denied[index] = self.denied[index].saturating_add(1);
            self.worst.record(index, key, &self.denied);
        }
        denied
    }

    fn decide(&mut self, index: usize, now_us: u64, units: u64) -> bool {
        let Ok(cost) = Cost::new(units) else { return false };
        let plan = self.plan.clone();
        let limits = plan.limits();
        let own = index * limits.len()..(index + 1) * limits.len();
        let before: usize = self.states[own.clone()].iter().flatten().map(State::heap_bytes).sum();
        let taken = self.states[own.clone()].iter_mut().zip(limits);
        let mut states: States = taken.map(|(state, limit)| state.take().unwrap_or_else(|| State::fresh(limit))).collect();
        let mut fits = false;
        if plan.never_fits(cost).is_none() {
            let verdict = decide(limits, &mut states, now_us, cost, Mode::Charge);
            fits = verdict.fits;
            let each = verdict.readings.iter().zip(limits).zip(&mut self.denied_by);
            each.for_each(|((reading, limit), denied_by)| *denied_by += u64::from(!fits && reading.wait_us(limit, units) > 0));
            if fits && !self.unlimited.contains_key(&index) {
                let used =
                    verdict.readings.iter().zip(limits).map(|(reading, limit)| limit.capacity() - reading.remaining(limit));
                self.needs[own.clone()].iter_mut().zip(used).for_each(|(need, used)| *need = (*need).max(used));
            }
        } else {
            let over = limits.iter().zip(&mut self.denied_by);
            over.for_each(|(limit, denied_by)| *denied_by += u64::from(units > limit.capacity()));
        }
        if !fits || self.unlimited.contains_key(&index) {
            self.charge_unlimited(index, &states, now_us, cost);
        }
        self.bytes = (self.bytes + heap_bytes(&states)).saturating_sub(before);
        self.states[own].iter_mut().zip(states).for_each(|(place, state)| *place = Some(state));
        !fits
    }

    /// Charges a request to the counters that deny nothing. They begin as a copy of `states`, which a denial did not change.
    fn charge_unlimited(&mut self, index: usize, states: &States, now_us: u64, cost: Cost) {
        let unlimited = self.unlimited.entry(index).or_insert_with(|| {
            self.bytes += heap_bytes(states);
            states.clone()
        });
        let before = heap_bytes(unlimited);
        let needs = &mut self.needs[index * self.largest.len()..];
        for ((limit, state), need) in self.largest.iter().zip(unlimited.iter_mut()).zip(needs) {
            if cost.units() > limit.capacity() {
                *need = NEED_UNKNOWN;
                continue;
            }
            let (limits, states) = (std::slice::from_ref(limit), std::slice::from_mut(state));
            let verdict = decide(limits, states, now_us, cost, Mode::Charge);
            let used = verdict.readings.first().map(|reading| limit.capacity() - reading.remaining(limit));
            *need = (*need).max(used.filter(|_| verdict.fits).unwrap_or(NEED_UNKNOWN));
        }
        self.bytes = (self.bytes + heap_bytes(unlimited)).saturating_sub(before);
    }

    /// Drops the counters that count nothing any more. Returns the heap memory of the others.
    pub(super) fn sweep(&mut self, now_us: u64) -> usize {
        let limits = self.plan.limits();
        if limits.is_empty() {
            return 0;
        }
        self.bytes = 0;
        let is_fresh = |state: &State, limit: &Limit| state.fresh_at_us(limit.window_us()) <= now_us;
        for (states, index) in self.states.chunks_exact_mut(limits.len()).zip(0..) {
            for (place, limit) in states.iter_mut().zip(limits) {
                if place.as_ref().is_some_and(|state| is_fresh(state, limit)) {
                    *place = None;
                }
                self.bytes += place.as_ref().map_or(0, State::heap_bytes);
            }
            let unlimited = self.unlimited.get(&index).filter(|_| states.iter().all(Option::is_none));
            if unlimited.is_some_and(|unlimited| unlimited.iter().zip(limits).all(|(state, limit)| is_fresh(state, limit))) {
                self.unlimited.remove(&index);
            }
        }
        self.bytes += self.unlimited.values().map(heap_bytes).sum::<usize>();
        self.bytes
    }
}

fn heap_bytes(states: &States) -> usize {
    states.iter().map(State::heap_bytes).sum()
}

/// The same limit with a quota that is at least half of the largest that it may have; for a `token_bucket`, with such a burst at
/// the same rate.
fn largest(limit: &Limit) -> Limit {
    let window = std::time::Duration::from_micros(limit.window_us());
    let with = |quota, algorithm| Limit::new(limit.name().clone(), quota, window, algorithm);
    let mut most = match limit.algorithm() {
        Algorithm::SlidingLog => SLIDING_LOG_QUOTA_MAX,
        _ => QUOTA_MAX,
    };
    // The bounds depend on the window; the limit's own check tells which quota is within them.
    while most > limit.capacity() {
        let larger = match limit.algorithm() {
            Algorithm::TokenBucket { .. } => with(limit.quota(), Algorithm::TokenBucket { burst: most }),
            other => with(most, other),
        };
        match larger {
            Ok(larger) => return larger,
            Err(_) => most /= 2,
        }
    }
    limit.clone()
}
