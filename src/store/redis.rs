//! The shared store: counters in Redis, decided by one script call, so that any number of replicas enforce one limit.
//!
//! Only this module and those below it name fred. The script (`redis/script/`) reads Redis's own clock, decides and
//! writes atomically. This module sends requests to it and returns its verdicts.

mod batcher;
mod cluster;
mod command;
mod connection;
mod holds;
mod name;
mod node;
mod overrides;
mod replicas;
mod reset;
mod script;
mod script_codec;
mod sentinel;
mod shared;
mod store;
mod target;
mod top;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Check, JointFailure, StoreDeadline, StoreError, has_charges};
use crate::clock::{Clock, monotonic};
use batcher::call::{Purpose, ScriptRequest};
use batcher::{Answer, Batcher};
use cluster::{Cluster, RedirectFollower};
pub use connection::breaker::BreakerState;
use connection::endpoint::Endpoint;
use connection::manager::ConnectionManager;
use node::{RedisNode, lost_call};
use script::Script;
use sentinel::MasterWatch;
use target::Topology;
pub use target::{RedisTarget, RedisTls};
use tollgate_core::algorithm::{Mode, Verdict};

/// Maximum number of names in one script call. A call of 32 names has three quarters of the saving that larger calls would have.
/// It occupies Redis for a tenth of a millisecond, unless its names have many requests or much state.
pub const SCRIPT_NAMES_MAX: usize = 32;

/// Keeps the counters in one Redis: a server, a master named by Sentinels, or a Cluster.
#[derive(Clone)]
pub struct RedisStore {
    servers: Servers,
    /// Prefix of the name of every key.
    key_prefix: Arc<str>,
}

/// The servers of a store.
#[derive(Clone)]
enum Servers {
    /// One server has all keys.
    One(RedisNode),
    /// Several servers share the keys.
    Many(Arc<Cluster>),
}

/// Health of a store's connection, for metrics. Counts begin at the start of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedisStatus {
    /// State of the circuit breaker. While it is open, Redis is not asked. It is also open until the first connection is up.
    pub breaker: BreakerState,
    /// Times that the breaker opened.
    pub opened: u64,
    /// Connection attempts, including the first.
    pub probes: u64,
    /// Decisions that Redis did not make: it did not answer within the deadline, or it was not asked.
    pub undecided: u64,
    /// Times that a different Redis process answered than before, after a restart or a failover.
    pub replaced: u64,
    /// Whether a connection was ever up.
    pub reached: bool,
}

/// Settings of every connection to one node.
struct ConnectionSettings {
    store_settings: StoreSettings,
    endpoint: Endpoint,
    probe_call: Mutex<ProbeCall>,
}

/// The decision that a new connection is tested with: a charge under a name that no request uses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProbeCall {
    /// See [`name::probe`].
    name: String,
    /// Whether ASKING must precede it, because its slot is still being moved to the node.
    asking: bool,
}

impl ProbeCall {
    /// The probe call of this number. Different numbers have different slots in a Cluster.
    fn numbered(prefix: &str, number: u32) -> Self {
        Self {
            name: name::probe(prefix, number),
            asking: false,
        }
    }
}

impl ConnectionSettings {
    fn new(store_settings: StoreSettings, endpoint: Endpoint, probe_call: ProbeCall) -> Self {
        Self {
            store_settings,
            endpoint,
            probe_call: Mutex::new(probe_call),
        }
    }

    fn probe_call(&self) -> MutexGuard<'_, ProbeCall> {
        // It is replaced as a whole, so a panic leaves no partial value.
        self.probe_call
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settings that all nodes of a store share.
#[derive(Clone)]
struct StoreSettings {
    target: Arc<RedisTarget>,
    script: Arc<Script>,
    /// The time within which a healthy Redis answers.
    deadline: Duration,
    /// The clock to decide by, in tests only; see [`RedisStore::with_injected_clock`].
    injected: Option<Arc<dyn Clock>>,
}

impl RedisStore {
    /// As [`Self::connect_target`], with only a URL.
    ///
    /// Must be called within a tokio runtime. Errors: a sentence, when the URL cannot be understood.
    pub fn connect(url: &str, deadline: Duration) -> Result<Self, String> {
        Self::connect_target(RedisTarget::parse(url)?, deadline)
    }

    /// Starts connecting and returns at once. Connecting and reconnecting go on in the background while the store lives. A
    /// Redis that several times in a row does not answer within `deadline` is not asked until it answers a probe.
    ///
    /// Must be called within a tokio runtime. Errors: a sentence, when a file that connections need cannot be used.
    pub fn connect_target(target: RedisTarget, deadline: Duration) -> Result<Self, String> {
        Self::start(target, deadline, None)
    }

    /// A store that decides by `clock` instead of Redis's clock, for tests. States written this way are not for production, since
    /// their expiry follows the injected time too. Redis has ten seconds for each answer.
    pub fn with_injected_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Self, String> {
        Self::start(
            RedisTarget::parse(url)?,
            Duration::from_secs(10),
            Some(clock),
        )
    }

    fn start(
        target: RedisTarget,
        deadline: Duration,
        injected: Option<Arc<dyn Clock>>,
    ) -> Result<Self, String> {
        connection::client::check_files(&target)?;
        let key_prefix = target.key_prefix.clone();
        let script = Arc::new(Script::new(injected.is_some()));
        let store_settings = StoreSettings {
            target: Arc::new(target),
            script,
            deadline,
            injected,
        };
        let endpoint = match &store_settings.target.topology {
            Topology::Alone(peer) => Endpoint::Fixed(peer.clone()),
            Topology::Sentinel(sentinels) => {
                Endpoint::Named(MasterWatch::start(&store_settings.target, sentinels))
            }
            Topology::Cluster(seeds) => {
                let seeds = seeds.clone();
                return Ok(Self {
                    servers: Servers::Many(Arc::new(Cluster::start(store_settings, seeds))),
                    key_prefix,
                });
            }
        };
        let probe_call = ProbeCall::numbered(&key_prefix, 0);
        let manager = Arc::new(ConnectionManager::start(ConnectionSettings::new(
            store_settings.clone(),
            endpoint,
            probe_call,
        )));
        Ok(Self {
            servers: Servers::One(RedisNode {
                batcher: Batcher::start(store_settings.clone(), manager.clone()),
                holds: Batcher::start(store_settings, manager.clone()),
                manager,
            }),
            key_prefix,
        })
    }

    /// Decides a check that no holds concern.
    async fn decide_plainly(&self, check: &Check, deadline: Duration) -> Answer {
        let request = || ScriptRequest::new(check, &self.key_prefix, monotonic() + deadline);
        match &self.servers {
            Servers::One(node) => node.count_undecided(1, node.decide(request, deadline).await),
            // Boxed, so that the future for one server stays small.
            Servers::Many(cluster) => Box::pin(cluster.decide_one(request(), deadline)).await,
        }
    }

    /// Decides checks that no holds concern.
    async fn decide_all_plainly(&self, checks: &[Check], deadline: Duration) -> Vec<Answer> {
        let until = monotonic() + deadline;
        let requests = checks
            .iter()
            .map(|check| ScriptRequest::new(check, &self.key_prefix, until))
            .collect();
        match &self.servers {
            Servers::One(node) => node.decide_all(requests, deadline).await,
            Servers::Many(cluster) => {
                Box::pin(cluster.decide_batch(requests, until, deadline)).await
            }
        }
    }

    /// Decides checks together as if there were no holds, until then. `deadline` is for what has to be undone after it.
    async fn decide_joint_plainly(
        &self,
        checks: &[Check],
        until: Instant,
        deadline: Duration,
    ) -> Result<Vec<Verdict>, JointFailure> {
        let charges = has_charges(checks);
        let requests = checks.iter().map(|check| {
            let request = ScriptRequest::new(check, &self.key_prefix, until);
            let takes_nothing = charges && check.mode == Mode::Peek;
            request
                .jointly(Purpose::Whole)
                .taking_nothing(takes_nothing)
        });
        match &self.servers {
            Servers::One(node) => {
                let left = until.saturating_duration_since(monotonic());
                Ok(node.decide_joint(requests.collect(), left).await?)
            }
            Servers::Many(cluster) => {
                Box::pin(cluster.decide_joint(requests.collect(), until, deadline)).await
            }
        }
    }

    /// Undoes charges, for tests: a Cluster does this by itself where a joint decision is denied after some of its names were charged.
    /// Each check has the instants of [`tollgate_core::algorithm::undo_instants`]. All are of one slot. Returns how
    /// the keys stand after it.
    pub async fn undo(
        &self,
        charges: &[(Check, Vec<u64>)],
        StoreDeadline(deadline): StoreDeadline,
    ) -> Result<Vec<Verdict>, StoreError> {
        let until = monotonic() + deadline;
        let request = |(check, instants_us): &(Check, Vec<u64>)| {
            let purpose = Purpose::Undo(instants_us.clone().into());
            ScriptRequest::new(check, &self.key_prefix, until).jointly(purpose)
        };
        let requests = charges.iter().map(request).collect();
        match &self.servers {
            Servers::One(node) => node.decide_joint(requests, deadline).await,
            Servers::Many(cluster) => {
                let answers = cluster.ask_joint(requests, until).await?;
                answers.each.into_iter().collect()
            }
        }
    }

    /// Waits until a connection is up, to each node of a Cluster, for at most `time_limit`. Returns whether it is.
    pub async fn connected(&self, time_limit: Duration) -> bool {
        let up = async {
            match &self.servers {
                Servers::One(node) => node.manager.connected().await,
                Servers::Many(cluster) => cluster.connected().await,
            }
        };
        tokio::time::timeout(time_limit, up).await.is_ok()
    }

    /// Health of the connection now. For a Cluster: the worst breaker state of its nodes, and the sums of their counts.
    pub fn status(&self) -> RedisStatus {
        let Servers::Many(cluster) = &self.servers else {
            return self
                .nodes()
                .into_iter()
                .next()
                .map_or(RedisStatus::NONE, |node| node.1);
        };
        let nodes = cluster.status();
        let mut whole = cluster.past_status();
        let states = nodes.iter().map(|(_, status)| status.breaker);
        whole.breaker = states
            .max_by_key(|state| state.severity())
            .unwrap_or(BreakerState::Open);
        nodes.into_iter().for_each(|(_, status)| whole.add(status));
        whole
    }

    /// Health of each node now, with its address. The server that Sentinels name is called `master`.
    pub fn nodes(&self) -> Vec<(String, RedisStatus)> {
        match &self.servers {
            Servers::One(node) => vec![(node.manager.label(), node.manager.status())],
            Servers::Many(cluster) => cluster.status(),
        }
    }
}

impl RedisStatus {
    const NONE: Self = Self {
        breaker: BreakerState::Open,
        opened: 0,
        probes: 0,
        undecided: 0,
        replaced: 0,
        reached: false,
    };

    /// Adds the counts of another status.
    fn add(&mut self, other: Self) {
        self.opened += other.opened;
        self.probes += other.probes;
        self.undecided += other.undecided;
        self.replaced += other.replaced;
        self.reached |= other.reached;
    }
}

impl StoreSettings {
    fn is_clustered(&self) -> bool {
        matches!(self.target.topology, Topology::Cluster(_))
    }
}
