//! Overrides that are set at runtime: reads them from the store, changes them there, and has the limiters decide by them.
//!
//! All of it is done beside decisions. What an override means among the plans in force, [`OverrideTable`] finds out. A change is made
//! only to the version of the set that this replica knows. So the rules about the set as a whole are checked here, and hold although
//! many replicas change it.

mod codec;
mod known;
mod list;
mod refusal;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::{InForce, Limiter, PlanSnapshot};
pub(super) use known::RuntimeOverrides;
use known::{Unreadable, sort_key};
pub use list::{ListedOverride, OverrideList, OverrideQuery};
pub use refusal::OverrideRefusal;
use refusal::{check_room, with_nearest};
use tollgate_core::key::Key;
use tollgate_core::plan::{
    OverrideEffect, OverrideSource, OverrideSubject, OverrideTable, PlanOverride,
};
use tollgate_store::{
    Expiry, MemoryOverrides, OverrideChange, OverrideNews, OverrideStore, SharedStore, StoreError,
    StoreRegistry,
};

/// Longest that a change waits for the store. Its caller is told within 2 s.
const CHANGE_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Longest that one reading or restoring takes. No decision waits for it.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(1);
/// Numbers of the overrides of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OverrideFigures {
    /// Those that are not expired, of keys and of prefixes, by [`OverrideSource::ALL`].
    pub counts: [[u64; 2]; OverrideSource::ALL.len()],
    /// Of these, those without effect: their plan or limit is gone, or they cannot be read.
    pub without_effect: u64,
    /// The version of those that are set at runtime.
    pub version: u64,
    /// When the store confirmed it last.
    pub confirmed_at: Option<Instant>,
}

impl OverrideFigures {
    pub(super) fn new(
        runtime: &RuntimeOverrides,
        table: &OverrideTable,
        confirmed_at: Option<Instant>,
    ) -> Self {
        Self {
            counts: table.counts,
            without_effect: table.without_effect + runtime.unreadable.len() as u64,
            version: runtime.version.number,
            confirmed_at,
        }
    }
}

/// An override to set.
#[derive(Debug, Clone)]
pub struct NewOverride {
    /// Name of the plan.
    pub plan: String,
    /// Whose limits are other ones.
    pub subject: OverrideSubject,
    /// What holds in place of the plan.
    pub effect: OverrideEffect,
    /// Until when.
    pub expiry: Expiry,
    /// Why.
    pub reason: String,
    /// The version that the present override of this subject must have; 0: there must be none.
    pub if_version: Option<u64>,
}

/// Changes and lists the overrides of a process, and keeps up with its store. Clones share everything.
#[derive(Clone)]
pub struct Overrides(Arc<OverridesParts>);

struct OverridesParts {
    limiter: Arc<Limiter<()>>,
    store: Backend,
    /// Held over an exchange with the store, so that each begins with what the one before it found. No decision waits for it.
    turn: tokio::sync::Mutex<StoreTurn>,
}

#[derive(Default)]
struct StoreTurn {
    /// Index of the store that is asked; it advances after each failure.
    store: usize,
}

/// Where overrides are kept.
enum Backend {
    Memory(Arc<MemoryOverrides>),
    Shared(StoreRegistry),
}

/// A store as it is asked once.
enum AskedStore {
    Memory(Arc<MemoryOverrides>),
    Shared(Arc<dyn SharedStore>),
}

impl AskedStore {
    fn store(&self) -> &dyn OverrideStore {
        match self {
            Self::Memory(store) => &**store,
            Self::Shared(store) => &**store,
        }
    }
}

impl<S> Limiter<S> {
    /// The time of the store's clock, by which overrides expire, in microseconds since 1970. Before the store's first answer, that of
    /// this process.
    pub(super) fn overrides_now_us(&self) -> u64 {
        let clock = &self.common.clock;
        let known = self.common.registry().store_clock;
        known.map_or_else(
            || clock.now_us(),
            |(store_us, at)| {
                let passed = clock.monotonic().saturating_duration_since(at).as_micros();
                store_us.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
            },
        )
    }

    /// The version of the overrides that are set at runtime.
    pub fn overrides_version(&self) -> u64 {
        self.runtime_overrides().version.number
    }

    fn runtime_overrides(&self) -> Arc<RuntimeOverrides> {
        self.common.registry().overrides().clone()
    }
}

impl Overrides {
    /// The overrides of `limiter` and of all beside it, kept in these stores. Without any, they are kept in this process's memory.
    pub fn new(limiter: Arc<Limiter<()>>, stores: StoreRegistry) -> Self {
        let store = if stores.is_empty() {
            let clock = limiter.common.clock.clone();
            Backend::Memory(Arc::new(MemoryOverrides::new(clock)))
        } else {
            Backend::Shared(stores)
        };
        Self(Arc::new(OverridesParts {
            limiter,
            store,
            turn: tokio::sync::Mutex::default(),
        }))
    }

    /// Another replica's overrides, kept in the same memory.
    #[cfg(test)]
    fn other_replica(&self, limiter: Arc<Limiter<()>>) -> Self {
        let Backend::Memory(store) = &self.0.store else {
            unreachable!("tests have no Redis");
        };
        Self(Arc::new(OverridesParts {
            limiter,
            store: Backend::Memory(store.clone()),
            turn: tokio::sync::Mutex::default(),
        }))
    }

    /// Whether other replicas have the same overrides.
    pub fn are_shared(&self) -> bool {
        matches!(self.0.store, Backend::Shared(_))
    }

    /// Takes up what other replicas changed, and gives the store back what it lost. Errors: the store did not answer within `time_limit`,
    /// or refused; what is known stays in force.
    pub async fn keep_up(&self, time_limit: Duration) -> Result<(), StoreError> {
        let mut turn = self.0.turn.lock().await;
        let kept_up = Box::pin(self.refresh(&turn, self.deadline_after(time_limit))).await;
        if kept_up.is_err() {
            turn.store = turn.store.wrapping_add(1);
        }
        let limiter = self.0.limiter.clone();
        let expire = move || {
            let now_us = limiter.overrides_now_us();
            let replaced = |in_force: &InForce| in_force.without_expired(now_us);
            limiter.common.replace(replaced);
        };
        // The task fails only when the process ends.
        let _ = tokio::task::spawn_blocking(expire).await;
        kept_up
    }

    /// [`Self::keep_up`], with the time that one exchange may take.
    pub async fn keep_up_in_time(&self) -> Result<(), StoreError> {
        self.keep_up(EXCHANGE_TIMEOUT).await
    }

    fn deadline_after(&self, time_limit: Duration) -> Instant {
        tollgate_store::clock::monotonic() + time_limit
    }

    /// The store that is asked now.
    fn asked(&self, turn: &StoreTurn) -> Result<AskedStore, StoreError> {
        match &self.0.store {
            Backend::Memory(store) => Ok(AskedStore::Memory(store.clone())),
            Backend::Shared(stores) => {
                stores
                    .one(turn.store)
                    .map(AskedStore::Shared)
                    .ok_or_else(|| {
                        StoreError::Unreachable("there is no store that replicas share".to_owned())
                    })
            }
        }
    }

    /// Reads what is set, and puts it in force.
    async fn refresh(&self, turn: &StoreTurn, until: Instant) -> Result<(), StoreError> {
        let asked = self.asked(turn)?;
        let known = self.0.limiter.runtime_overrides();
        let set = asked.store().read_overrides(known.version, until).await?;
        self.note_time(set.now_us);
        if set.version.number < known.version.number {
            // The store came back empty, or behind.
            let records = codec::records(&known);
            let restored = asked.store();
            restored
                .restore_overrides(known.version, &records, until)
                .await?;
            tracing::warn!(
                version = known.version.number,
                of_store = set.version.number,
                "the store had lost overrides; they were written back"
            );
        }
        if set.news == OverrideNews::None {
            return Ok(());
        }
        let read = move || known.after_news(set.news, set.version);
        let read = tokio::task::spawn_blocking(read).await;
        let read = read.map_err(|error| StoreError::InvalidReply(error.to_string()))?;
        self.apply_overrides(read).await;
        Ok(())
    }

    fn note_time(&self, store_us: u64) {
        let common = &self.0.limiter.common;
        let at = common.clock.monotonic();
        common.registry().store_clock = Some((store_us, at));
    }

    /// Has all limiters decide by these. Takes milliseconds where there are thousands, so it is done on another thread.
    async fn apply_overrides(&self, overrides: Arc<RuntimeOverrides>) {
        let limiter = self.0.limiter.clone();
        let replace = move || {
            let now_us = limiter.overrides_now_us();
            let replaced = |in_force: &InForce| Some(in_force.with_overrides(overrides, now_us));
            limiter.common.replace(replaced);
        };
        // The task fails only when the process ends.
        let _ = tokio::task::spawn_blocking(replace).await;
    }

    /// Sets an override, or replaces it. It is in force in this process before the answer. Errors: [`OverrideRefusal`].
    pub async fn set(&self, new: NewOverride) -> Result<Arc<PlanOverride>, OverrideRefusal> {
        let entry = PlanOverride {
            reason: new.reason.as_str().into(),
            effect: new.effect,
            ..unset(&new.plan, new.subject)
        };
        self.check_effect(&entry)?;
        let name = codec::name(&entry.plan, &entry.subject);
        let payload = codec::payload(&entry);
        let decide = |known: &RuntimeOverrides, now_us| {
            if let Expiry::At(at_us) = new.expiry
                && at_us <= now_us
            {
                let past = "expires_at is in the past by the store's clock";
                return Err(OverrideRefusal::Invalid(past.to_owned()));
            }
            check_room(known, &entry, now_us)?;
            Ok(OverrideStep::Put(&name, new.expiry, &payload))
        };
        let written = self.change(&entry, new.if_version, decide).await?;
        written.ok_or_else(|| {
            let lost = "the store did not tell what it wrote".to_owned();
            StoreError::InvalidReply(lost).into()
        })
    }

    /// Deletes an override that is set at runtime. Returns whether there was one, and the version of the set. Errors:
    /// [`OverrideRefusal`].
    pub async fn delete(
        &self,
        plan: &str,
        subject: OverrideSubject,
        if_version: Option<u64>,
    ) -> Result<(bool, u64), OverrideRefusal> {
        let entry = unset(plan, subject);
        let mut existed = false;
        let decide = |known: &RuntimeOverrides, now_us| {
            let is_same = |other: &&Arc<PlanOverride>| {
                (&other.plan, &other.subject) == (&entry.plan, &entry.subject)
                    && !other.is_expired(now_us)
            };
            existed = known.present(&entry, now_us).is_some() || known.has_unreadable(&entry);
            let snapshot = self.0.limiter.snapshot();
            match existed {
                true => Ok(OverrideStep::Remove),
                false
                    if snapshot
                        .plans()
                        .overrides()
                        .iter()
                        .any(|other| is_same(&other)) =>
                {
                    Err(OverrideRefusal::OfFile)
                }
                false => Ok(OverrideStep::Nothing),
            }
        };
        self.change(&entry, if_version, decide).await?;
        Ok((existed, self.0.limiter.overrides_version()))
    }

    /// Changes the override of this subject as `decide` says, given what is known and the store's time. Repeats where another replica
    /// was faster. Returns the override that was written.
    async fn change<'a>(
        &self,
        entry: &PlanOverride,
        if_version: Option<u64>,
        mut decide: impl FnMut(&RuntimeOverrides, u64) -> Result<OverrideStep<'a>, OverrideRefusal>,
    ) -> Result<Option<Arc<PlanOverride>>, OverrideRefusal> {
        let until = self.deadline_after(CHANGE_TIMEOUT);
        let late = || OverrideRefusal::from(StoreError::Deadline(CHANGE_TIMEOUT));
        let turn = timeout(CHANGE_TIMEOUT, self.0.turn.lock());
        let turn = turn.await.map_err(|_| late())?;
        loop {
            Box::pin(self.refresh(&turn, until)).await?;
            let known = self.0.limiter.runtime_overrides();
            let now_us = self.0.limiter.overrides_now_us();
            let present = known
                .present(entry, now_us)
                .map_or(0, |present| present.version);
            if let Some(expected) = if_version.filter(|expected| *expected != present) {
                return Err(OverrideRefusal::Version { present, expected });
            }
            let put = match decide(&known, now_us)? {
                OverrideStep::Nothing => return Ok(None),
                OverrideStep::Remove => None,
                OverrideStep::Put(name, expiry, payload) => Some((name, expiry, payload)),
            };
            let removed = known.removed_with(entry, put.is_none(), now_us);
            let mut names: Vec<&[u8]> = removed.iter().map(Vec::as_slice).collect();
            let change = OverrideChange {
                known: known.version,
                put,
                removed: names.clone(),
            };
            let asked = self.asked(&turn)?;
            let changed = Box::pin(asked.store().change_overrides(&change, until)).await?;
            self.note_time(changed.now_us);
            let Some(version) = changed.version else {
                if tollgate_store::clock::monotonic() >= until {
                    return Err(late());
                }
                continue;
            };
            let written = put.map(|_| {
                Arc::new(PlanOverride {
                    expires_at_us: changed.expires_at_us,
                    version: version.number,
                    set_at_us: version.mark,
                    ..entry.clone()
                })
            });
            names.extend(put.map(|(name, ..)| name));
            let after = RuntimeOverrides {
                entries: written.iter().cloned().collect(),
                version,
                ..RuntimeOverrides::default()
            };
            self.apply_overrides(Arc::new(known.after_change(&names, after)))
                .await;
            self.forget_denials(entry);
            return Ok(written);
        }
    }

    /// Whether it would have an effect among the plans in force. Errors: with the nearest name.
    fn check_effect(&self, entry: &PlanOverride) -> Result<(), OverrideRefusal> {
        let snapshot: Arc<PlanSnapshot> = self.0.limiter.snapshot();
        match entry.plan_in(snapshot.plans()) {
            Ok(_) => Ok(()),
            Err(error) => Err(with_nearest(entry, snapshot.plans(), error)),
        }
    }

    /// Drops what this process remembers of a key's denials. Those by other limits are of another plan already.
    fn forget_denials(&self, entry: &PlanOverride) {
        let (OverrideSubject::Key(text), snapshot) = (&entry.subject, self.0.limiter.snapshot())
        else {
            return;
        };
        if let (Ok(key), Ok(plan)) = (Key::new(&**text), snapshot.plans().get(&entry.plan)) {
            self.0.limiter.forget_denials(&plan.counts_as, &key);
        }
    }
}

/// What to do with one override.
enum OverrideStep<'a> {
    /// Write it: its name, when it expires, and what it says.
    Put(&'a [u8], Expiry, &'a [u8]),
    Remove,
    Nothing,
}

/// An override of this subject that says nothing yet.
fn unset(plan: &str, subject: OverrideSubject) -> PlanOverride {
    PlanOverride {
        plan: plan.into(),
        subject,
        effect: OverrideEffect::Quotas(Vec::new()),
        expires_at_us: None,
        reason: "".into(),
        source: OverrideSource::Runtime,
        version: 0,
        set_at_us: 0,
    }
}

#[cfg(test)]
mod tests;
