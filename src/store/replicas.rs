//! How many replicas share the quotas, as they tell each other through Redis: who tells, and what is made of the counts.
//!
//! A count that rises is in force at once, since more replicas mean smaller shares. One that falls is in force only when
//! [`COUNTS_KEPT`] counts in a row are lower. A Redis that lost its data, was stopped for a while or whose clock stepped knows
//! one replica at first, and the others only when they have told it again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Most replicas that are counted. More would make shares so small that they say nothing.
pub const REPLICAS_MAX: u64 = 10_000;

/// From one sign of life of a replica to the next.
pub const ANNOUNCED_EVERY: Duration = Duration::from_secs(1);

/// How long a replica counts after its last sign of life: four may be lost, by a Redis that fails over or by a host without
/// processor time.
pub const REPLICA_LIFETIME: Duration = Duration::from_secs(5);

/// Counts of which the highest is in force: within so many seconds every replica that is connected has told at least twice.
const COUNTS_KEPT: usize = 4;

/// What tells one replica from another: random, so that a replica that starts again is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaId(String);

impl ReplicaId {
    /// 128 bits that nobody else has.
    pub fn random() -> Self {
        let random = || RandomState::new().hash_one(0);
        Self(format!("{:016x}{:016x}", random(), random()))
    }

    /// As it stands in Redis.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The number of replicas that is in force, from the counts that Redis gave last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaCount {
    counts: [u64; COUNTS_KEPT],
    next: usize,
}

impl Default for ReplicaCount {
    fn default() -> Self {
        Self { counts: [1; COUNTS_KEPT], next: 0 }
    }
}

impl ReplicaCount {
    /// Takes note of a count; what is in force then.
    pub fn note(&mut self, count: u64) -> u64 {
        self.counts[self.next] = count.clamp(1, REPLICAS_MAX);
        self.next = (self.next + 1) % COUNTS_KEPT;
        self.in_force()
    }

    /// At least 1: a replica that has seen nobody, itself included, is alone as far as it can know.
    pub fn in_force(&self) -> u64 {
        self.counts.iter().copied().fold(1, u64::max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rise_counts_at_once_and_a_fall_when_it_lasts() {
        let mut count = ReplicaCount::default();
        assert_eq!(count.in_force(), 1);
        assert_eq!(count.note(3), 3);
        for seen in [1, 1, 2] {
            assert_eq!(count.note(seen), 3);
        }
        assert_eq!((count.note(2), count.note(2), count.note(2)), (2, 2, 2));
    }

    #[test]
    fn no_two_replicas_have_one_id() {
        let ids: std::collections::HashSet<_> = (0..1_000).map(|_| ReplicaId::random().as_str().to_owned()).collect();
        assert!(ids.len() == 1_000 && ids.iter().all(|id| id.len() == 32));
    }

    proptest! {
        #[test]
        fn what_is_in_force_is_the_highest_of_the_last_counts_within_bounds(seen in prop::collection::vec(any::<u64>(), 0..20)) {
            let mut count = ReplicaCount::default();
            for (place, last) in seen.iter().enumerate() {
                let recent = seen[..=place].iter().rev().take(COUNTS_KEPT);
                let highest = recent.map(|count| (*count).clamp(1, REPLICAS_MAX)).max().unwrap();
                prop_assert_eq!(count.note(*last), highest);
            }
        }
    }
}
