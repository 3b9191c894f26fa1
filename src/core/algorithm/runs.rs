//! Units by the time at which they were taken, oldest first. `sliding_log` and `sliding_window` share this state.

use std::collections::VecDeque;

use super::Reading;
use crate::plan::Limit;

/// Runs of units that count as taken at one instant. Times and totals rise strictly. Because of the totals, every read is a
/// binary search, however many runs there are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Runs {
    runs: VecDeque<Run>,
    /// Units before the first run, in the same running total.
    before: u64,
}

/// Units that count as taken at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// When they count as taken, in microseconds since 1970.
    pub at_us: u64,
    /// Running total of units up to and including this run. It does not overflow: 2^64 units cannot be taken in a thousand
    /// years.
    pub through: u64,
}

impl Runs {
    /// The time of each run, in microseconds since 1970, and its units; oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().scan(self.before, |before, run| {
            let units = run.through - std::mem::replace(before, run.through);
            Some((run.at_us, units))
        })
    }

    /// `frees_in_us` of the reading answers for `cost`, which is at most the quota.
    pub(super) fn read(&self, limit: &Limit, now_us: u64, cost: u64) -> Reading {
        let live = self.first_live(limit.window_us(), now_us);
        let gone = self.total_before(live);
        let used = self.total_before(self.runs.len()) - gone;
        let newest_us = self.runs.back().map_or(0, |run| run.at_us.min(now_us));
        let frees_in_us = match (used + cost).saturating_sub(limit.quota()) {
            0 => 0,
            units => self.frees_in_us(limit, now_us, gone + units),
        };
        Reading::Log {
            used,
            frees_in_us,
            fresh_in_us: if used == 0 {
                0
            } else {
                newest_us + limit.window_us() - now_us
            },
        }
    }

    /// Moves runs that lie ahead of `now_us` to `now_us`.
    pub(super) fn clamp(&mut self, now_us: u64) {
        let through = self.total_before(self.runs.len());
        while self.runs.back().is_some_and(|run| run.at_us > now_us) {
            self.runs.pop_back();
        }
        let units = through - self.total_before(self.runs.len());
        if units > 0 {
            self.push(now_us, units);
        }
    }

    /// Takes the newest units back.
    pub(super) fn refund(&mut self, limit: &Limit, now_us: u64, units: u64) {
        if self.first_live(limit.window_us(), now_us) == self.runs.len() {
            return;
        }
        self.clamp(now_us);
        self.drop_expired(limit.window_us(), now_us);
        let kept = self
            .total_before(self.runs.len())
            .saturating_sub(units)
            .max(self.before);
        // The oldest run touched keeps the rest of its units. If the kept units end with the run before it, it goes too.
        while self.runs.back().is_some() && self.total_before(self.runs.len() - 1) >= kept {
            self.runs.pop_back();
        }
        if let Some(newest) = self.runs.back_mut() {
            newest.through = kept;
        } else {
            *self = Self::default();
        }
    }

    /// Takes units of that instant back, from the first run that is not before it, if `has_them` is true of the run's time. Returns
    /// whether it was. Units of other runs stay as they are. The runs begin anew where none counts any more.
    pub(super) fn take_back(
        &mut self,
        limit: &Limit,
        now_us: u64,
        (instant_us, units): (u64, u64),
        has_them: impl Fn(u64) -> bool,
    ) -> bool {
        let index = self.runs.partition_point(|run| run.at_us < instant_us);
        let Some(run) = self.runs.get(index).filter(|run| has_them(run.at_us)) else {
            return false;
        };
        let in_run = run.through - self.total_before(index);
        let taken = units.min(in_run);
        self.runs
            .range_mut(index..)
            .for_each(|run| run.through -= taken);
        if taken == in_run {
            self.runs.remove(index);
        }
        if self.first_live(limit.window_us(), now_us) == self.runs.len() {
            *self = Self::default();
        }
        true
    }

    pub(super) fn drop_expired(&mut self, window_us: u64, now_us: u64) {
        let live = self.first_live(window_us, now_us);
        self.before = self.total_before(live);
        self.runs.drain(..live);
    }

    /// Adds units at `now_us`, which must not be before the newest run.
    pub(super) fn push(&mut self, now_us: u64, units: u64) {
        let through = self.total_before(self.runs.len()) + units;
        match self.runs.back_mut() {
            Some(newest) if newest.at_us == now_us => newest.through = through,
            _ => self.runs.push_back(Run {
                at_us: now_us,
                through,
            }),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Makes room for one more run without growing, for a store that has no memory left. It merges the two runs nearest to each
    /// other at the later one's time. So units leave late, never early.
    pub(super) fn merge_nearest(&mut self) {
        let gap = |index: &usize| self.runs[index + 1].at_us - self.runs[*index].at_us;
        if let Some(nearest) = (0..self.runs.len().saturating_sub(1)).min_by_key(gap) {
            self.runs.remove(nearest);
        }
    }

    /// Merges the two newest runs at the later one's time if `same` allows it. Returns whether it did.
    pub(super) fn merge_newest(&mut self, same: impl Fn(u64, u64) -> bool) -> bool {
        let Some(before) = self.runs.len().checked_sub(2) else {
            return false;
        };
        let older = self.runs[before];
        let newest = self.runs[before + 1];
        if !same(older.at_us, newest.at_us) {
            return false;
        }
        self.runs.truncate(before);
        self.runs.push_back(newest);
        true
    }

    /// Merges all neighbours for which `same` allows it, each at the later one's time.
    pub(super) fn merge_all(&mut self, same: impl Fn(u64, u64) -> bool) {
        let mut merged = VecDeque::<Run>::with_capacity(self.runs.len());
        for run in self.runs.drain(..) {
            match merged.back_mut() {
                Some(last) if same(last.at_us, run.at_us) => *last = run,
                _ => merged.push_back(run),
            }
        }
        self.runs = merged;
    }

    /// When nothing counts any more, in microseconds since 1970.
    #[inline]
    pub fn fresh_at_us(&self, window_us: u64) -> u64 {
        self.runs.back().map_or(0, |run| run.at_us + window_us)
    }

    /// Bytes that the runs use, including this struct.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.runs.capacity() * size_of::<Run>()
    }

    #[inline]
    pub(super) fn growth_bytes(&self) -> usize {
        // A full deque doubles its capacity; an empty one starts with four entries.
        if self.runs.len() < self.runs.capacity() {
            0
        } else {
            self.runs.capacity().max(4) * size_of::<Run>()
        }
    }

    /// Running total of the units before this index.
    fn total_before(&self, index: usize) -> u64 {
        index
            .checked_sub(1)
            .and_then(|last| self.runs.get(last))
            .map_or(self.before, |run| run.through)
    }

    /// Index of the oldest run that still counts. Runs ahead of `now_us` count as taken at `now_us`.
    fn first_live(&self, window_us: u64, now_us: u64) -> usize {
        self.runs
            .partition_point(|run| run.at_us + window_us <= now_us)
    }

    /// Time until all units up to `through` have left. `through` is at most the total.
    fn frees_in_us(&self, limit: &Limit, now_us: u64, through: u64) -> u64 {
        let run = self
            .runs
            .get(self.runs.partition_point(|run| run.through < through));
        run.map_or(0, |run| run.at_us.min(now_us) + limit.window_us() - now_us)
    }
}

/// Runs of these times and units. Times must rise strictly.
impl FromIterator<(u64, u64)> for Runs {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(runs: I) -> Self {
        let runs = runs.into_iter();
        let mut through = 0;
        // With a place for the next charge, which would double the memory else.
        let mut totals = VecDeque::with_capacity(runs.size_hint().0 + 1);
        totals.extend(runs.map(|(at_us, units)| {
            through += units;
            Run { at_us, through }
        }));
        Self {
            runs: totals,
            before: 0,
        }
    }
}
