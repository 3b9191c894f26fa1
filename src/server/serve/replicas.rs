//! Announces this replica to the others through Redis, and divides the quotas by the number of replicas that Redis knows.
//!
//! It is one task on the main thread, whatever the number of workers, and uses a connection that a worker already has. No
//! decision waits for it. While Redis is out of reach, the last count stays in force.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::advice_on_rights;
use crate::limiter::Limiter;
use tollgate_store::random::{self, jittered};
use tollgate_store::{ANNOUNCED_EVERY, ReplicaCount, ReplicaId, StoreError, StoreRegistry};

/// Longest that an announcement waits for Redis. It is far above the default of `store.deadline`, because a late announcement
/// still counts.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for the first announcement, which the start of the process waits for, and the last, which the stop waits for.
const START_STOP_TIMEOUT: Duration = Duration::from_millis(100);
/// Number of first announcements that come four times as fast, so that replicas that start together see each other sooner.
const FAST_ANNOUNCEMENTS: u32 = 4;
/// Random part of each pause, as a fraction, so that replicas that start together do not stay in step.
const JITTER: f64 = 0.1;

/// State of the task that announces this replica and counts the others.
pub(super) struct Replicas {
    announcer: Announcer,
    limiter: Arc<Limiter<()>>,
    count: ReplicaCount,
    /// The number of replicas that the limiter divides by now.
    shared_among: u64,
    /// Number of announcements so far.
    announced: u32,
    /// Index of the store that is asked first; it advances after each failure.
    first: usize,
    /// Whether the present failure was logged.
    warned: bool,
}

/// The id of this replica, and the stores through which it is announced.
#[derive(Clone)]
struct Announcer {
    id: ReplicaId,
    stores: StoreRegistry,
}

/// The running task of [`Replicas`].
pub(super) struct Announcing {
    announcer: Announcer,
    task: AbortHandle,
}

impl Replicas {
    /// Creates the task. It announces nothing yet.
    pub(super) fn new(stores: StoreRegistry, limiter: Arc<Limiter<()>>) -> Self {
        let announcer = Announcer {
            id: ReplicaId::random(),
            stores,
        };
        let count = ReplicaCount::default();
        Self {
            announcer,
            limiter,
            count,
            shared_among: count.in_force(),
            announced: 0,
            first: 0,
            warned: false,
        }
    }

    /// Announces this replica once, so that the first decision already divides by the right number. Then starts the task.
    pub(super) async fn start(mut self) -> Announcing {
        self.announce(START_STOP_TIMEOUT).await;
        let announcer = self.announcer.clone();
        Announcing {
            announcer,
            task: tokio::spawn(self.run()).abort_handle(),
        }
    }

    async fn run(mut self) {
        loop {
            sleep(pause(self.announced, random::bits())).await;
            self.announce(ANSWER_TIMEOUT).await;
        }
    }

    async fn announce(&mut self, within: Duration) {
        self.announced = self.announced.saturating_add(1);
        // Boxed, since the future of a command is large.
        match Box::pin(
            self.announcer
                .stores
                .announce(&self.announcer.id, self.first, within),
        )
        .await
        {
            Ok(count) => {
                self.warned = false;
                let replicas = self.count.record(count);
                self.share_among(replicas).await;
            }
            Err(error) => {
                self.first = self.first.wrapping_add(1);
                self.log_failure(&error);
            }
        }
    }

    /// Makes the limiter divide the quotas by this number. Done on a blocking thread, since it may take milliseconds.
    async fn share_among(&mut self, replicas: u64) {
        if replicas == self.shared_among {
            return;
        }
        tracing::info!(
            replicas,
            before = self.shared_among,
            "the number of replicas that share the quotas without Redis has changed"
        );
        self.shared_among = replicas;
        let limiter = self.limiter.clone();
        // It fails only when the process ends.
        let _ = tokio::task::spawn_blocking(move || limiter.share_among(replicas)).await;
    }

    /// Logs a failure. The store itself logs that Redis is out of reach, but not that Redis refuses only announcements.
    fn log_failure(&mut self, error: &StoreError) {
        match error {
            StoreError::Refused(_) | StoreError::InvalidReply(_) if !self.warned => {
                self.warned = true;
                let advice = advice_on_rights(error);
                let other = if advice.is_empty() {
                    ""
                } else {
                    ", or set store.expected_replicas"
                };
                tracing::warn!(
                    %error,
                    replicas = self.shared_among,
                    "replicas cannot count each other{advice}{other}"
                );
            }
            _ => tracing::debug!(%error, "Redis did not take the announcement of this replica"),
        }
    }
}

impl Announcing {
    /// Tells the other replicas that this one stops.
    pub(super) async fn leave(self) {
        self.task.abort();
        let Announcer { id, stores } = &self.announcer;
        // Without an answer, the replica counts until its announcement expires.
        let _ = timeout(
            START_STOP_TIMEOUT,
            Box::pin(stores.leave(id, START_STOP_TIMEOUT)),
        )
        .await;
    }
}

/// The pause after this many announcements; `random` is any number.
fn pause(announced: u32, random: u64) -> Duration {
    let planned = if announced <= FAST_ANNOUNCEMENTS {
        ANNOUNCED_EVERY / 4
    } else {
        ANNOUNCED_EVERY
    };
    jittered(planned, JITTER, random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_come_about_once_a_second_and_faster_at_the_start() {
        for (random, least, most) in [
            (0, 225, 900),
            (u64::MAX / 2, 250, 1_000),
            (u64::MAX, 275, 1_100),
        ] {
            assert_eq!(pause(1, random).as_millis(), least);
            assert_eq!(pause(FAST_ANNOUNCEMENTS + 1, random).as_millis(), most);
        }
    }
}
