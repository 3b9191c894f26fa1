//! How many replicas share the quotas: the id that a replica announces in Redis, and the number derived from the counts of Redis.
//!
//! A count that rises takes effect at once, since more replicas mean smaller shares. A count that falls takes effect only when
//! [`COUNTS_KEPT`] counts in a row are lower. Redis may have lost its data, been stopped for a while, or had its clock stepped.
//! Then it knows one replica at first, and the others only after they have announced themselves again.

use std::time::Duration;

use crate::random;

/// Maximum number of replicas that are counted. More of them would make the shares too small to be useful.
pub const REPLICAS_MAX: u64 = 10_000;

/// Interval between two announcements of a replica.
pub const ANNOUNCED_EVERY: Duration = Duration::from_secs(1);

/// How long a replica counts after its last announcement. Four announcements may be lost, during a failover of Redis or on a
/// host without processor time.
pub const REPLICA_LIFETIME: Duration = Duration::from_secs(5);

/// The number in force is the highest of this many last counts. They come once a second, so within them every connected replica
/// has announced itself at least twice.
const COUNTS_KEPT: usize = 4;

/// Identifies one run of a replica. It is random, so a replica that restarts is a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaId(String);

impl ReplicaId {
    /// A new id of 128 random bits.
    pub fn random() -> Self {
        Self(format!("{:016x}{:016x}", random::bits(), random::bits()))
    }

    /// The id as it is stored in Redis: 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Holds the last counts that Redis gave, and derives the number of replicas in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaCount {
    counts: [u64; COUNTS_KEPT],
    next: usize,
}

impl Default for ReplicaCount {
    fn default() -> Self {
        Self {
            counts: [1; COUNTS_KEPT],
            next: 0,
        }
    }
}

impl ReplicaCount {
    /// Records a count from Redis. Returns the number in force after it.
    pub fn record(&mut self, count: u64) -> u64 {
        self.counts[self.next] = count.clamp(1, REPLICAS_MAX);
        self.next = (self.next + 1) % COUNTS_KEPT;
        self.in_force()
    }

    /// The number of replicas in force, 1 to [`REPLICAS_MAX`]. Without any count from Redis a replica assumes to be the only one.
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
        assert_eq!(count.record(3), 3);
        for seen in [1, 1, 2] {
            assert_eq!(count.record(seen), 3);
        }
        assert_eq!(
            (count.record(2), count.record(2), count.record(2)),
            (2, 2, 2)
        );
    }

    #[test]
    fn no_two_replicas_have_one_id() {
        let ids: std::collections::HashSet<_> = (0..1_000)
            .map(|_| ReplicaId::random().as_str().to_owned())
            .collect();
        assert!(ids.len() == 1_000 && ids.iter().all(|id| id.len() == 32));
    }

    proptest! {
        #[test]
        fn what_is_in_force_is_the_highest_of_the_last_counts_within_bounds(seen in prop::collection::vec(any::<u64>(), 0..20)) {
            let mut count = ReplicaCount::default();
            for (index, last) in seen.iter().enumerate() {
                let recent = seen[..=index].iter().rev().take(COUNTS_KEPT);
                let highest = recent.map(|count| (*count).clamp(1, REPLICAS_MAX)).max().unwrap();
                prop_assert_eq!(count.record(*last), highest);
            }
        }
    }
}
