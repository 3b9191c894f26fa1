//! The books of all limiters of a process: what each decides by and counts in, and the turn from one edition to the next.
//!
//! A limiter decides by the ledger on its own [`Desk`]. A reload puts a new one on every desk; decisions under way go on
//! with the one that they took, which is closed when the last of them is done. So each decision is by one edition, whole,
//! and what a worker does for this is nothing that another one does.

use std::sync::{Arc, Mutex, PoisonError};

use super::deny_cache::DenyCache;
use super::tally::{Ledger, Reloads, Sums, Tally, Totals};
use super::{Changes, Edition};
use crate::plan::PlanSet;

/// What belongs to one limiter alone.
pub(super) struct Desk {
    pub(super) tally: Tally,
    /// Denials by this limiter's store; `None` when off.
    pub(super) denials: Option<DenyCache>,
    /// What to decide by. Its limiter, on its one thread, takes it from here, and a reload puts another: a lock of one's own,
    /// held for as long as a pointer is copied, which only a reload ever meets.
    ledger: Mutex<Arc<Ledger>>,
}

impl Desk {
    fn new(edition: Arc<Edition>, denials: Option<DenyCache>) -> Self {
        Self { tally: Tally::default(), denials, ledger: Mutex::new(Arc::new(Ledger::new(edition))) }
    }

    /// What to decide by from here on.
    pub(super) fn ledger(&self) -> Arc<Ledger> {
        // A pointer is whole whatever panics.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn open(&self, edition: Arc<Edition>) -> Arc<Ledger> {
        let new = Arc::new(Ledger::new(edition));
        std::mem::replace(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner), new)
    }
}

/// Of every limiter that there ever was: counts only grow.
pub(super) struct Books {
    edition: Arc<Edition>,
    replicas: u64,
    desks: Vec<Arc<Desk>>,
    /// Ledgers of earlier editions that some decision under way may still count in.
    closing: Vec<Arc<Ledger>>,
    /// What those have come to that are closed.
    closed: Sums,
    reloads: Reloads,
}

impl Books {
    pub(super) fn new(plans: PlanSet, replicas: u64) -> Self {
        let edition = Arc::new(Edition::new(plans, replicas));
        let closed = Sums::new(edition.clone());
        Self { edition, replicas, desks: Vec::new(), closing: Vec::new(), closed, reloads: Reloads::default() }
    }

    /// A desk for one more limiter.
    pub(super) fn desk(&mut self, denials: Option<DenyCache>) -> Arc<Desk> {
        let desk = Arc::new(Desk::new(self.edition.clone(), denials));
        self.desks.push(desk.clone());
        desk
    }

    /// Every desk there is.
    pub(super) fn desks(&self) -> Vec<Arc<Desk>> {
        self.desks.clone()
    }

    /// From here on every limiter decides by these plans. Nothing happens when they are what they were.
    pub(super) fn turn_to(&mut self, plans: PlanSet) -> Changes {
        self.reloads.taken_up += 1;
        self.reloads.last_refused = false;
        let (edition, changes) = self.edition.next(plans, self.replicas);
        if changes == Changes::default() && edition.has_default_of(&self.edition) {
            return changes;
        }
        self.edition = Arc::new(edition);
        for desk in &self.desks {
            self.closing.push(desk.open(self.edition.clone()));
        }
        self.closed = std::mem::take(&mut self.closed).under(self.edition.clone());
        self.close();
        changes
    }

    /// From here on each replica's share is that of so many. Plans and what was counted stay.
    pub(super) fn share_among(&mut self, replicas: u64) {
        if self.replicas != replicas {
            self.replicas = replicas;
            self.edition.share_among(replicas);
        }
    }

    /// Other plans came and could not be taken.
    pub(super) fn refused(&mut self) {
        self.reloads.refused += 1;
        self.reloads.last_refused = true;
    }

    pub(super) fn totals(&mut self) -> Totals {
        self.close();
        let mut decisions = self.closed.clone();
        self.closing.iter().for_each(|ledger| decisions.add(ledger));
        self.desks.iter().for_each(|desk| decisions.add(&desk.ledger()));
        let mut totals = Totals::new(decisions, self.reloads);
        totals.replicas = self.replicas;
        for Desk { tally, denials, .. } in self.desks.iter().map(AsRef::as_ref) {
            totals.add(tally);
            totals.deny_cache_entries += denials.as_ref().map_or(0, |denials| denials.entries() as u64);
        }
        totals
    }

    /// Adds up the ledgers that no decision holds any more; none can take one that is on no desk.
    fn close(&mut self) {
        for ledger in std::mem::take(&mut self.closing) {
            match Arc::try_unwrap(ledger) {
                Ok(ledger) => self.closed.add(&ledger),
                Err(ledger) => self.closing.push(ledger),
            }
        }
    }
}

#[cfg(test)]
mod tests;
