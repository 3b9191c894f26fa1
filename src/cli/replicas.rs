//! Tells the other replicas through Redis that this one is alive, and shares the quotas among as many as Redis knows.
//!
//! One task of the main thread, whatever the number of workers, over a connection that a worker has. No decision waits for it.
//! While Redis is out of reach the count that was seen last stays in force.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::limiter::Limiter;
use crate::store::{ANNOUNCED_EVERY, ReplicaCount, ReplicaId, Roster, StoreError};

/// Longest that a sign of life waits for Redis: far above `store.deadline`, since what comes late still counts.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// The same of the first, which the start waits for, and of the last, which the stop waits for.
const EDGE_WITHIN: Duration = Duration::from_millis(100);
/// Signs of life at the start that follow each other four times as fast: replicas that start together see each other sooner.
const EAGER: u32 = 4;
/// How much sooner or later than planned each comes, so that replicas that start together do not stay together.
const JITTER: f64 = 0.1;

/// What is told, and what is made of the answers.
pub(super) struct Replicas {
    presence: Presence,
    limiter: Arc<Limiter<()>>,
    count: ReplicaCount,
    /// The count that the limiter has.
    shared_among: u64,
    told: u32,
    /// Which store is asked first: another one after each failure.
    first: usize,
    /// Whether the present trouble is in the log.
    warned: bool,
}

#[derive(Clone)]
struct Presence {
    id: ReplicaId,
    stores: Roster,
}

/// The running task.
pub(super) struct Announcing {
    presence: Presence,
    task: AbortHandle,
}

impl Replicas {
    /// Nothing is told yet.
    pub(super) fn new(stores: Roster, limiter: Arc<Limiter<()>>) -> Self {
        let presence = Presence { id: ReplicaId::random(), stores };
        let count = ReplicaCount::default();
        Self { presence, limiter, count, shared_among: count.in_force(), told: 0, first: 0, warned: false }
    }

    /// Tells of this replica once, so that the first decision finds the others counted, and then goes on telling.
    pub(super) async fn start(mut self) -> Announcing {
        self.announce(EDGE_WITHIN).await;
        let presence = self.presence.clone();
        Announcing { presence, task: tokio::spawn(self.go_on()).abort_handle() }
    }

    async fn go_on(mut self) {
        loop {
            sleep(pause(self.told, random())).await;
            self.announce(ANSWER_WITHIN).await;
        }
    }

    async fn announce(&mut self, within: Duration) {
        self.told = self.told.saturating_add(1);
        // Apart, since the future of a command is large.
        match Box::pin(self.presence.stores.announce(&self.presence.id, self.first, within)).await {
            Ok(count) => {
                self.warned = false;
                let replicas = self.count.note(count);
                self.share_among(replicas).await;
            }
            Err(error) => {
                self.first = self.first.wrapping_add(1);
                self.note(&error);
            }
        }
    }

    /// On a thread that may take its time.
    async fn share_among(&mut self, replicas: u64) {
        if replicas == self.shared_among {
            return;
        }
        tracing::info!(replicas, before = self.shared_among, "another number of replicas shares the quotas while Redis is away");
        self.shared_among = replicas;
        let limiter = self.limiter.clone();
        // It ends early only with the process.
        let _ = tokio::task::spawn_blocking(move || limiter.share_among(replicas)).await;
    }

    /// A Redis that is out of reach is told of by the store. One that refuses this alone would be noticed by nobody.
    fn note(&mut self, error: &StoreError) {
        match error {
            StoreError::Refused(_) | StoreError::Nonsense(_) if !self.warned => {
                self.warned = true;
                tracing::warn!(
                    %error,
                    replicas = self.shared_among,
                    "replicas cannot count each other; give the Redis user the commands that the README lists, or set store.expected_replicas"
                );
            }
            _ => tracing::debug!(%error, "Redis was not told that this replica is alive"),
        }
    }
}

impl Announcing {
    /// Tells that this replica goes.
    pub(super) async fn leave(self) {
        self.task.abort();
        let Presence { id, stores } = &self.presence;
        // Without an answer it counts until the end of its lifetime.
        let _ = timeout(EDGE_WITHIN, Box::pin(stores.leave(id, EDGE_WITHIN))).await;
    }
}

/// How long after so many signs of life the next one comes; `random` is 0 to 1.
fn pause(told: u32, random: f64) -> Duration {
    let planned = if told <= EAGER { ANNOUNCED_EVERY / 4 } else { ANNOUNCED_EVERY };
    planned.mul_f64(1.0 - JITTER + 2.0 * JITTER * random)
}

/// Between 0 and 1, other in each process and each time.
fn random() -> f64 {
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_comes_once_a_second_or_so_and_sooner_at_the_start() {
        for (random, least, most) in [(0.0, 225, 900), (0.5, 250, 1_000), (1.0, 275, 1_100)] {
            assert_eq!(pause(1, random).as_millis(), least);
            assert_eq!(pause(EAGER + 1, random).as_millis(), most);
        }
        assert!((0..1_000).all(|_| (0.0..=1.0).contains(&random())));
    }
}
