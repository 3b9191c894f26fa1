//! What holds must do, by brute force. It keeps every charge and every id for ever, and knows nothing of the code but the numbers of a
//! limit. Its clock only goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::plan::{Algorithm, Limit, Plan};

use crate::support::plans::{Counting, LOG, counting, window_start_us};

/// The counts of one limit.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// Units by the instant at which they were charged: of logs; of windows by the start of their window.
    units: BTreeMap<u64, u64>,
    /// Of windows that begin with a request: the start of the present one.
    start_us: u64,
    /// Of a bucket: when it is full, and all that was given back to it.
    full_at_us: u64,
    given_us: u64,
}

impl Ledger {
    fn window(&self, limit: &Limit, now_us: u64) -> u64 {
        let window_us = limit.window_us();
        match counting(limit) {
            Counting::OwnWindow if self.units.values().sum::<u64>() == 0 => now_us,
            Counting::OwnWindow if now_us < self.start_us + window_us => self.start_us,
            _ => window_start_us(limit, now_us),
        }
    }

    /// Units, or of a bucket microseconds, that count now.
    fn used(&self, limit: &Limit, now_us: u64) -> u64 {
        let window_us = limit.window_us();
        let start_us = self.window(limit, now_us);
        let of = |start_us: u64| self.units.get(&start_us).copied().unwrap_or(0);
        match counting(limit) {
            Counting::ClockWindow | Counting::OwnWindow => of(start_us),
            Counting::Instants => {
                let live = self.units.range(now_us.saturating_sub(window_us) + 1..);
                live.map(|(_, units)| units).sum()
            }
            Counting::TwoWindows => {
                let before = of(start_us - window_us) * (window_us - (now_us - start_us));
                of(start_us) + before.div_ceil(window_us)
            }
            Counting::Debt => self.full_at_us.saturating_sub(now_us),
        }
    }

    fn unit_us(limit: &Limit) -> u64 {
        match limit.algorithm() {
            Algorithm::TokenBucket { .. } => limit.window_us().div_ceil(limit.quota()),
            _ => 1,
        }
    }

    pub fn remaining(&self, limit: &Limit, now_us: u64) -> u64 {
        let used = self.used(limit, now_us).div_ceil(Self::unit_us(limit));
        limit.capacity().saturating_sub(used)
    }

    fn charge(&mut self, limit: &Limit, now_us: u64, units: u64) {
        let at_us = match counting(limit) {
            Counting::ClockWindow | Counting::OwnWindow | Counting::TwoWindows => {
                self.window(limit, now_us)
            }
            Counting::Instants | Counting::Debt => now_us,
        };
        if counting(limit) == Counting::OwnWindow && at_us != self.start_us {
            self.units.clear();
            self.start_us = now_us;
        }
        *self.units.entry(at_us).or_default() += units;
        self.full_at_us = self.full_at_us.max(now_us) + units * Self::unit_us(limit);
    }

    /// What has happened. A bucket owes burst and quota at most.
    fn charge_beyond(&mut self, limit: &Limit, now_us: u64, units: u64) {
        let before_us = self.full_at_us;
        self.charge(limit, now_us, units);
        let most_us = (limit.capacity() + limit.quota()) * Self::unit_us(limit);
        self.full_at_us = self.full_at_us.min(now_us + most_us).max(before_us);
    }

    /// Gives back units of a charge at `at_us`, after which a bucket was full at `h.0` and had been given `h.1`.
    fn give_back(
        &mut self,
        limit: &Limit,
        now_us: u64,
        units: u64,
        (at_us, h): (u64, (u64, u64)),
    ) -> u64 {
        let window_us = limit.window_us();
        let from = match counting(limit) {
            counting @ (Counting::ClockWindow | Counting::OwnWindow) => {
                let start_us = match counting {
                    Counting::OwnWindow => self.start_us,
                    _ => window_start_us(limit, at_us),
                };
                Some(start_us).filter(|start| at_us >= *start && now_us < start + window_us)
            }
            Counting::TwoWindows => {
                let start_us = window_start_us(limit, at_us);
                let present_us = window_start_us(limit, now_us);
                Some(start_us).filter(|start| start + window_us >= present_us)
            }
            Counting::Instants if limit.algorithm() == LOG => {
                Some(at_us).filter(|at| at + window_us > now_us)
            }
            Counting::Instants => {
                let mut runs = self.units.range(at_us..).filter(|(_, units)| **units > 0);
                let oldest = runs.next().map(|(at, _)| *at);
                oldest.filter(|_| at_us + window_us > now_us)
            }
            Counting::Debt => {
                return self.give_back_time(limit, now_us, units, h);
            }
        };
        let Some(there) = from.and_then(|from| self.units.get_mut(&from)) else {
            return 0;
        };
        let given = units.min(*there);
        *there -= given;
        given
    }

    fn give_back_time(&mut self, limit: &Limit, now_us: u64, units: u64, h: (u64, u64)) -> u64 {
        let unit_us = Self::unit_us(limit) as i128;
        let now_us = now_us as i128;
        let full_us = self.full_at_us as i128;
        let owed_us = h.0 as i128 - (self.given_us as i128 - h.1 as i128) - now_us;
        let most_us = (units as i128 * unit_us).min(owed_us).min(full_us - now_us);
        let given = most_us.max(0) / unit_us;
        self.full_at_us -= (given * unit_us) as u64;
        self.given_us += (given * unit_us) as u64;
        given as u64
    }

    /// As an operator gives back: the newest first.
    pub fn refund(&mut self, limit: &Limit, now_us: u64, mut units: u64) {
        if let Algorithm::TokenBucket { .. } = limit.algorithm() {
            let owed_us = self.full_at_us.saturating_sub(now_us);
            let given_us = owed_us.min(units * Self::unit_us(limit));
            self.full_at_us -= given_us;
            self.given_us += given_us;
            return;
        }
        let window_us = limit.window_us();
        let start_us = self.window(limit, now_us);
        let counts = |at: u64| match counting(limit) {
            Counting::TwoWindows => at + window_us >= start_us,
            Counting::ClockWindow | Counting::OwnWindow => at == start_us,
            Counting::Instants | Counting::Debt => at + window_us > now_us,
        };
        for (at, there) in self.units.iter_mut().rev() {
            if counts(*at) {
                let given = units.min(*there);
                *there -= given;
                units -= given;
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// A hold, until `expires_us`.
    Held,
    /// Its lease ended, and it was looked at.
    Over,
    Settled(u64),
    Allowed,
    Recorded,
}

/// An id.
#[derive(Debug, Clone)]
pub struct Note {
    pub id: String,
    pub plan: Arc<Plan>,
    /// `None` if it was settled and never reserved.
    pub cost: Option<u64>,
    pub fate: Fate,
    at_us: u64,
    pub expires_us: u64,
    /// Of each limit, when it was full and what had been given back just after the charge.
    h: Vec<(u64, u64)>,
    known_until_us: u64,
}

impl Note {
    fn is_open(&self, now_us: u64) -> bool {
        self.fate == Fate::Held && self.expires_us > now_us
    }

    pub fn is_known(&self, now_us: u64) -> bool {
        match self.fate {
            Fate::Held => now_us < self.expires_us.max(self.known_until_us),
            _ => now_us < self.known_until_us,
        }
    }

    pub fn releases(&self) -> bool {
        self.plan.holds.release_on_expiry
    }
}

/// A key.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub ledgers: Vec<Ledger>,
    pub notes: Vec<Note>,
}

impl World {
    pub fn new(limits: usize) -> Self {
        Self {
            ledgers: vec![Ledger::default(); limits],
            notes: Vec::new(),
        }
    }

    /// What is known of an id by a call under this plan: it ends the plan's holds that have expired.
    pub fn known(&mut self, plan: &Plan, id: &str, now_us: u64) -> Option<&mut Note> {
        let mut notes = self.notes.iter_mut().rev();
        notes.find(|note| {
            let is_over = note.fate == Fate::Held && note.plan.name == plan.name;
            let is_known = match is_over {
                true => now_us < note.expires_us + note.plan.holds.remember.as_micros() as u64,
                false => note.is_known(now_us),
            };
            note.id == id && is_known
        })
    }

    pub fn open(&self, now_us: u64) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(move |note| note.is_open(now_us))
    }

    /// Ends what has expired: of a plan that releases, only when that plan looks.
    pub fn first_ends(&mut self, plan: &Plan, now_us: u64) -> u64 {
        let mut over: Vec<usize> = (0..self.notes.len()).collect();
        over.retain(|at| {
            let note = &self.notes[*at];
            let mine = note.plan.name == plan.name || !note.releases();
            note.fate == Fate::Held && note.expires_us <= now_us && mine
        });
        over.sort_by_key(|at| (self.notes[*at].expires_us, self.notes[*at].id.clone()));
        let mut given = 0;
        for at in over {
            let note = self.notes[at].clone();
            if note.releases() {
                given += self
                    .give_back(plan, &note, note.cost.unwrap(), now_us)
                    .iter()
                    .sum::<u64>();
            }
            let note = &mut self.notes[at];
            note.fate = Fate::Over;
            note.known_until_us = note.expires_us + note.plan.holds.remember.as_micros() as u64;
        }
        given
    }

    pub fn give_back(&mut self, plan: &Plan, note: &Note, units: u64, now_us: u64) -> Vec<u64> {
        let limits = plan.limits().iter().zip(&mut self.ledgers);
        let given = limits
            .zip(&note.h)
            .map(|((limit, ledger), h)| ledger.give_back(limit, now_us, units, (note.at_us, *h)));
        given.collect()
    }

    pub fn rates_fit(&self, plan: &Plan, now_us: u64, cost: u64) -> bool {
        let mut limits = plan.limits().iter().zip(&self.ledgers);
        limits.all(|(limit, ledger)| ledger.remaining(limit, now_us) >= cost)
    }

    pub fn has_slot(&self, plan: &Plan, now_us: u64) -> bool {
        let taken = self
            .open(now_us)
            .filter(|note| note.plan.concurrency().is_some());
        let taken = taken.count();
        plan.concurrency()
            .is_none_or(|slots| taken < slots.quota() as usize)
    }

    pub fn has_room(&self, plan: &Plan, now_us: u64) -> bool {
        let open = self.open(now_us).filter(|note| note.plan.name == plan.name);
        open.count() < plan.holds.max_open as usize
    }

    pub fn charge(&mut self, plan: &Plan, now_us: u64, units: u64) {
        let limits = plan.limits().iter().zip(&mut self.ledgers);
        limits.for_each(|(limit, ledger)| ledger.charge(limit, now_us, units));
    }

    pub fn charge_beyond(&mut self, plan: &Plan, now_us: u64, units: u64) {
        let limits = plan.limits().iter().zip(&mut self.ledgers);
        limits
            .filter(|_| units > 0)
            .for_each(|(limit, ledger)| ledger.charge_beyond(limit, now_us, units));
    }

    pub fn note(
        &mut self,
        plan: &Arc<Plan>,
        id: &str,
        (cost, fate): (Option<u64>, Fate),
        times: (u64, u64),
    ) {
        let (now_us, expires_us) = times;
        let remember_us = plan.holds.remember.as_micros() as u64;
        let h: Vec<(u64, u64)> = self
            .ledgers
            .iter()
            .map(|it| (it.full_at_us, it.given_us))
            .collect();
        // An id of a hold that releases is known as long as its units may count.
        let windows = plan
            .limits()
            .iter()
            .map(|limit| now_us + 2 * limit.window_us());
        let buckets = plan
            .limits()
            .iter()
            .zip(&h)
            .filter(|(limit, _)| matches!(limit.algorithm(), Algorithm::TokenBucket { .. }));
        let counts_us = windows.chain(buckets.map(|(_, h)| h.0)).max().unwrap_or(0);
        let known_until_us = match fate {
            Fate::Held if plan.holds.release_on_expiry => counts_us.max(expires_us + remember_us),
            Fate::Held => expires_us + remember_us,
            _ => now_us + remember_us,
        };
        self.notes.push(Note {
            id: id.to_owned(),
            plan: plan.clone(),
            cost,
            fate,
            at_us: now_us,
            expires_us,
            h,
            known_until_us,
        });
    }

    pub fn settled(&mut self, plan: &Plan, id: &str, actual: u64, now_us: u64) {
        let note = self.known(plan, id, now_us).unwrap();
        note.fate = Fate::Settled(actual);
        note.known_until_us = now_us + note.plan.holds.remember.as_micros() as u64;
    }

    pub fn extended(&mut self, plan: &Plan, id: &str, expires_us: u64, now_us: u64) -> u64 {
        let note = self.known(plan, id, now_us).unwrap();
        note.expires_us = note.expires_us.max(expires_us);
        let remember_us = note.plan.holds.remember.as_micros() as u64;
        note.known_until_us = note.known_until_us.max(note.expires_us + remember_us);
        note.expires_us
    }
}
