//! The heaviest keys of this process and of other replicas: begins slots, publishes what was counted here, and answers.
//!
//! All of it is done beside decisions, on the main thread and on a blocking one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::codec::Published;
use super::secret::Secret;
use super::summary::Heavy;
use super::worker::{SLOTS, WorkerTop};
use super::{KeyHash, TOP_MAX, TopAnswer, TopBy, TopError, TopKey, TopQuery, TopSettings};
use crate::limiter::{Limiter, PlanSnapshot};
use tollgate_core::key::Key;
use tollgate_store::{ReplicaId, StoreError, StoreRegistry};

/// Maximum number of keys that a replica publishes, of all plans together: four full lists.
const PUBLISHED_KEYS_MAX: usize = 4 * TOP_MAX;
/// How long one slot is counted in.
const SLOT_LENGTH: Duration = Duration::from_secs(10);
/// How long lists of other replicas are used before they are read again. They are published once a second.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Longest that an exchange with Redis takes. No decision waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Answers who is limited now, and who uses most, for this process and all replicas. Clones share everything.
#[derive(Clone)]
pub struct TopKeys(Arc<ReplicaParts>);

struct ReplicaParts {
    limiter: Arc<Limiter<()>>,
    id: ReplicaId,
    stores: TopStores,
    /// When each slot of the last minute began, the oldest first.
    began: Mutex<VecDeque<Instant>>,
    /// What was read of other replicas last. A reader locks it while it reads, so that others wait for what it gets.
    others: tokio::sync::Mutex<Others>,
}

/// The stores through which replicas exchange lists. Both are empty with an embedded store.
#[derive(Clone, Default)]
pub struct TopStores {
    /// For what is published: 300 kB a second at most.
    pub publish: StoreRegistry,
    /// For what is read: up to two megabytes a second, and only while someone asks. If possible a connection that no decision uses.
    pub read: StoreRegistry,
}

#[derive(Default)]
struct Others {
    read_at: Option<Instant>,
    lists: Arc<Vec<Published>>,
    /// Replicas with lists that were not read, or that cannot be added.
    missing: u64,
    failed: bool,
}

impl<S> Limiter<S> {
    /// The store that decides.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Counts the keys that are limited, and that use most, in every limiter made from now on. See [`TopKeys`].
    pub fn count_keys(&self, settings: TopSettings) {
        self.common.registry().count_keys(settings);
    }

    /// What a key is shown as in lists of the heaviest, in explanations and in the log. Replicas that count keys on the same Redis show
    /// the same, from their first exchange on.
    pub fn key_hash(&self, key: &Key) -> KeyHash {
        self.common.registry().top().secret.key_hash(key)
    }
}

impl TopKeys {
    /// The keys of `limiter` and of all beside it, and of the replicas on these stores.
    pub fn new(limiter: Arc<Limiter<()>>, stores: TopStores) -> Self {
        let began = Mutex::new(VecDeque::from([limiter.common.clock.monotonic()]));
        Self(Arc::new(ReplicaParts {
            limiter,
            id: ReplicaId::random(),
            stores,
            began,
            others: tokio::sync::Mutex::default(),
        }))
    }

    /// Whether keys are counted.
    pub fn is_on(&self) -> bool {
        self.source().is_some()
    }

    /// The heaviest keys of the last minute, of all replicas. Errors: [`TopError`].
    pub async fn top(&self, query: &TopQuery) -> Result<TopAnswer, TopError> {
        let (settings, secret) = self.source().ok_or(TopError::Off)?;
        let snapshot = self.0.limiter.snapshot();
        let asked_plan = query.plan.as_deref();
        let plan = asked_plan
            .map(|name| plan_id(&snapshot, name))
            .transpose()?;
        let (others, missing, failed) = self.others(secret).await;
        let own = self.clone();
        let asked = query.clone();
        let merge = move || {
            let mut all = own.counted(settings, secret);
            let mut summary = all.lists[asked.by as usize].clone();
            others
                .iter()
                .for_each(|other| summary.add(other.list(asked.by).clone()));
            let (heavy, unlisted_max) = summary.heaviest(plan, asked.limit);
            let total = plan.map_or(summary.total, |id| {
                summary.plans.get(&id).map_or(0, |plan| plan.total)
            });
            // Others may show keys in clear.
            let theirs = |hash| {
                others
                    .iter()
                    .filter(|_| settings.in_clear)
                    .find_map(|other| other.names.get(&hash).cloned())
            };
            let name_of = |hash| all.names.remove(&hash).or_else(|| theirs(hash));
            let names: Vec<Option<String>> =
                heavy.iter().map(|heavy| heavy.hash).map(name_of).collect();
            (
                heavy.into_iter().zip(names).collect::<Vec<_>>(),
                unlisted_max,
                total,
                others.len() as u64 + 1,
            )
        };
        // It fails only when the process ends.
        let merged = tokio::task::spawn_blocking(merge).await.unwrap_or_default();
        let (heavy, unlisted_max, total, replicas) = merged;
        let plan_names = snapshot.plan_names();
        let named = |(heavy, key): (Heavy, Option<String>)| {
            let plan = plan_names.get(&heavy.plan)?.clone();
            let hash = secret.shown_as(heavy.hash, heavy.plan);
            Some(top_key(heavy, key, plan, hash))
        };
        Ok(TopAnswer {
            keys: heavy.into_iter().filter_map(named).collect(),
            unlisted_max,
            total,
            window: self.window(),
            replicas,
            replicas_missing: missing,
            this_replica_alone: failed,
        })
    }

    /// Begins a new slot if it is time, and publishes what was counted. To be called about once a second. Errors: what was counted
    /// could not be published.
    pub async fn advance(&self) -> Result<(), StoreError> {
        let Some((settings, secret)) = self.source() else {
            return Ok(());
        };
        self.begin_slot_if_due();
        if self.0.stores.publish.is_empty() {
            return Ok(());
        }
        let own = self.clone();
        let encoded = tokio::task::spawn_blocking(move || own.counted(settings, secret).encode())
            .await
            .unwrap_or_default();
        let publish = self.0.stores.publish.publish_top(
            &self.0.id,
            &encoded,
            secret.to_bytes(),
            ANSWER_TIMEOUT,
        );
        // Boxed, since the future of a command is large.
        let in_use = Secret::from_bytes(Box::pin(publish).await?);
        if in_use != secret {
            self.adopt(settings, in_use);
        }
        Ok(())
    }

    fn begin_slot_if_due(&self) {
        let now = self.0.limiter.common.clock.monotonic();
        let mut began = self.0.began.lock().unwrap_or_else(PoisonError::into_inner);
        if began
            .back()
            .is_some_and(|last| now.saturating_duration_since(*last) < SLOT_LENGTH)
        {
            return;
        }
        if began.len() == SLOTS {
            began.pop_front();
        }
        began.push_back(now);
        self.workers().iter().for_each(|worker| worker.begin_slot());
    }

    /// Counts anew by the secret of the other replicas. That happens at the start, and after Redis lost its data. The counts so far
    /// are lost, so the window begins now.
    pub(super) fn adopt(&self, settings: TopSettings, secret: Secret) {
        self.0.limiter.common.registry().top().secret = secret;
        self.workers()
            .iter()
            .for_each(|worker| worker.start_over(settings, secret));
        *self.0.began.lock().unwrap_or_else(PoisonError::into_inner) =
            VecDeque::from([self.0.limiter.common.clock.monotonic()]);
    }

    /// What this process counted, cut to what replicas publish.
    fn counted(&self, settings: TopSettings, secret: Secret) -> Published {
        let mut counted = Published {
            secret_check: secret.check(),
            ..Published::default()
        };
        for worker in self.workers() {
            for by in [TopBy::Denials, TopBy::Cost] {
                worker
                    .slots(by)
                    .iter()
                    .for_each(|slot| counted.lists[by as usize].add_slot(slot));
            }
            worker.add_names(&mut counted.names);
        }
        counted
            .lists
            .iter_mut()
            .for_each(|list| list.cut(settings.keys_max, PUBLISHED_KEYS_MAX));
        let listed = |hash: &u64| {
            counted
                .lists
                .iter()
                .any(|list| list.plans.values().any(|plan| plan.keys.contains_key(hash)))
        };
        counted.names.retain(|hash, _| listed(hash));
        counted
    }

    /// What other replicas published, how many are missing, and whether they could not be read.
    async fn others(&self, secret: Secret) -> (Arc<Vec<Published>>, u64, bool) {
        if self.0.stores.read.is_empty() {
            return <_>::default();
        }
        let mut others = self.0.others.lock().await;
        let now = self.0.limiter.common.clock.monotonic();
        if others
            .read_at
            .is_none_or(|read_at| now.saturating_duration_since(read_at) >= READ_EVERY)
        {
            let read = Box::pin(self.0.stores.read.read_top(&self.0.id, ANSWER_TIMEOUT)).await;
            *others = match read {
                Ok(read) => {
                    let lists = read.lists.iter().filter_map(|list| Published::decode(list));
                    let lists: Vec<Published> = lists
                        .filter(|list| list.secret_check == secret.check())
                        .collect();
                    let missing = read.replicas.saturating_sub(lists.len() as u64);
                    Others {
                        read_at: Some(now),
                        lists: Arc::new(lists),
                        missing,
                        failed: false,
                    }
                }
                Err(_) => Others {
                    read_at: Some(now),
                    failed: true,
                    ..Others::default()
                },
            };
        }
        (others.lists.clone(), others.missing, others.failed)
    }

    /// How keys are counted, if they are, and by which secret.
    fn source(&self) -> Option<(TopSettings, Secret)> {
        let mut registry = self.0.limiter.common.registry();
        let top = registry.top();
        top.settings.map(|settings| (settings, top.secret))
    }

    fn workers(&self) -> Vec<Arc<WorkerTop>> {
        let workers = self.0.limiter.common.registry().workers();
        workers
            .iter()
            .filter_map(|worker| worker.top.clone())
            .collect()
    }

    fn window(&self) -> Duration {
        let now = self.0.limiter.common.clock.monotonic();
        let began = self.0.began.lock().unwrap_or_else(PoisonError::into_inner);
        began.front().map_or(Duration::ZERO, |first| {
            now.saturating_duration_since(*first)
        })
    }
}

fn top_key(heavy: Heavy, key: Option<String>, plan: Arc<str>, hash: KeyHash) -> TopKey {
    TopKey {
        key,
        hash,
        plan,
        count: heavy.count,
        error: heavy.error,
    }
}

/// The id of a plan that was asked about.
fn plan_id(snapshot: &PlanSnapshot, name: &str) -> Result<u64, TopError> {
    let plans = snapshot.plans();
    let found = plans.find(name).map_err(|unknown| plans.suggest(unknown))?;
    Ok(snapshot.plan_id(found.0))
}
