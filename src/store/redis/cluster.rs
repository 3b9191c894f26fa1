//! A Redis Cluster: a connection to each node that has keys, and a map from slots to nodes.
//!
//! The failure of a node affects only its own keys: they are answered by policy, and the keys of other nodes are still
//! decided. The map is fetched again when a node redirects a call, and repeatedly while a node is down, to find its successor.
//! fred's own Cluster client is not used: when one node is lost it waits for all nodes, and it retries by itself.

mod decide;
mod heirs;
mod joint;
mod map;
mod redirects;
mod slots;

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fred::error::{Error, ErrorKind};
use fred::types::Value;
use futures_util::future::{join_all, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::{FutureExt, future};
use hashbrown::HashMap;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::batcher::Batcher;
use super::command::{CommandSender, RedisCommand};
use super::connection::breaker::random_within;
use super::connection::endpoint::Endpoint;
use super::connection::manager::{CONNECT_MAX, ConnectionManager};
use super::connection::pace::Pace;
use super::connection::{CallError, client, wording};
use super::reset::Reset;
use super::target::{HostAndPort, ServerAddress};
use super::{ConnectionSettings, ProbeCall, RedisNode, RedisStatus, StoreSettings};
use crate::clock::{Clock, SystemClock, monotonic};
use crate::random;
use crate::{ConnectionHealth, Outage, StoreError, StoreState};
use joint::JointCounts;
use map::Map;
pub(super) use redirects::RedirectFollower;
use slots::Range;

/// Longest pause between two fetches of the map while one is needed. A failover takes a second or more. A shorter pause would
/// not find its end much sooner, and all replicas fetch.
const FETCH_PAUSE_MAX: Duration = Duration::from_millis(200);
/// Number of nodes that are asked for the map at once. The first answer counts, since one of them may have just gone silent.
const ASKED_AT_ONCE: usize = 3;
/// Maximum number of nodes that have a connection manager when a redirection names a further one. A Cluster has at most a
/// thousand. A node that redirects to ever new addresses has no more made. Nodes of the map are not bounded by it: 16,384 slots
/// bound them.
const MANAGERS_MAX: usize = 1_024;
/// Maximum number of names tried to find one that lies in a node's slots. With a thousand nodes of equal shares, 100,000 names
/// are enough for each.
const PROBE_NAMES_MAX: u32 = 100_000;

/// The nodes of a Cluster and the task that keeps the map. Dropping it closes the connections to all nodes.
pub(super) struct Cluster {
    state: Arc<ClusterState>,
    task: AbortHandle,
}

/// State that the task which keeps the map shares with the calls.
struct ClusterState {
    store_settings: StoreSettings,
    /// Microseconds since 1970.
    started_us: u64,
    seeds: Vec<HostAndPort>,
    /// Every node that has a connection manager, including those that are known only from a redirection.
    nodes: Mutex<HashMap<HostAndPort, Arc<RedisNode>>>,
    map: watch::Sender<KnownTopology>,
    /// Notified when the map turns out to be outdated.
    outdated: Notify,
    /// The pace of connecting to the nodes that the URL names.
    pace: Mutex<Pace>,
    /// Sums of the counts of nodes that were dropped.
    past: Mutex<RedisStatus>,
    joint: JointCounts,
}

#[derive(Clone)]
enum KnownTopology {
    /// No node has answered yet. Callers wait for the map until their deadline.
    Starting,
    Map(Arc<Map>),
    /// There is no map, for this reason.
    Unavailable(String),
}

impl Cluster {
    /// Starts the task that keeps the map of slots, and returns at once. Must be called within a tokio runtime.
    pub(super) fn start(store_settings: StoreSettings, seeds: Vec<HostAndPort>) -> Self {
        let map = watch::Sender::new(KnownTopology::Starting);
        let past = Mutex::new(RedisStatus::NONE);
        let started_us = SystemClock.now_us();
        let state = Arc::new(ClusterState {
            store_settings,
            started_us,
            seeds,
            nodes: Mutex::default(),
            map,
            outdated: Notify::new(),
            pace: Mutex::default(),
            past,
            joint: JointCounts::default(),
        });
        let task = tokio::spawn(run(state.clone())).abort_handle();
        Self { state, task }
    }

    /// Deletes all keys of a subject. Returns whether there were any.
    pub(super) async fn reset(
        &self,
        reset: &Reset,
        deadline: Duration,
    ) -> Result<bool, StoreError> {
        let until = monotonic() + deadline;
        let map = self.state.map(deadline).await?;
        let node = map.node(reset.name())?;
        node.manager.usable(until, deadline).await?;
        let follower = RedirectFollower::new(node.manager.clone(), &self.state);
        reset.execute(&follower, until).await
    }

    /// Sends a command to the node that has this name, if it is connected; see [`super::RedisStore::exchange`].
    pub(super) async fn exchange(
        &self,
        name: &str,
        command: RedisCommand,
    ) -> Result<Value, StoreError> {
        let map = self.state.map(Duration::ZERO).await?;
        let follower = RedirectFollower::new(map.node(name)?.manager.clone(), &self.state);
        let reply = follower.send(command).await;
        Ok(reply.map_err(CallError::into_store_error)?.value)
    }

    /// Waits until the map is known and all its nodes are connected.
    pub(super) async fn connected(&self) {
        let mut known = self.state.map.subscribe();
        loop {
            let topology = known.borrow_and_update().clone();
            if let KnownTopology::Map(map) = topology {
                join_all(map.nodes.iter().map(|(_, node)| node.manager.connected())).await;
                return;
            }
            // The sender lives as long as `self`.
            let _ = known.changed().await;
        }
    }

    /// The status of each node that has a connection manager, sorted by address.
    pub(super) fn status(&self) -> Vec<(String, RedisStatus)> {
        let nodes = self.state.nodes();
        let mut statuses: Vec<_> = nodes
            .iter()
            .map(|(address, node)| (address.to_string(), node.manager.status()))
            .collect();
        statuses.sort_by(|a, b| a.0.cmp(&b.0));
        statuses
    }

    /// The health of each node's connection, or the reason why no node is known.
    pub(super) fn connections(&self) -> Vec<ConnectionHealth> {
        let reached = self.past_status().reached;
        let mut found: Vec<_> = self
            .state
            .nodes()
            .values()
            .map(|node| node.manager.health())
            .collect();
        found
            .iter_mut()
            .for_each(|health| health.reached |= reached);
        if found.is_empty() {
            vec![self.state.health_without_map()]
        } else {
            found
        }
    }

    /// Sums of the counts of nodes that were dropped.
    pub(super) fn past_status(&self) -> RedisStatus {
        *lock(&self.state.past)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ClusterState {
    fn nodes(&self) -> MutexGuard<'_, HashMap<HostAndPort, Arc<RedisNode>>> {
        lock(&self.nodes)
    }

    /// The map. Waits for the first one for at most `time_limit`.
    async fn map(&self, time_limit: Duration) -> Result<Arc<Map>, StoreError> {
        let known = |topology: &KnownTopology| match topology {
            KnownTopology::Starting => None,
            KnownTopology::Map(map) => Some(Ok(map.clone())),
            KnownTopology::Unavailable(why) => Some(Err(StoreError::NotSent(why.clone()))),
        };
        if let Some(map) = known(&self.map.borrow()) {
            return map;
        }
        let mut changes = self.map.subscribe();
        let waited = timeout(
            time_limit,
            changes.wait_for(|topology| known(topology).is_some()),
        )
        .await;
        // The sender lives as long as `self`.
        let found = waited
            .ok()
            .and_then(Result::ok)
            .and_then(|topology| known(&topology));
        found.unwrap_or(Err(StoreError::Deadline(time_limit)))
    }

    /// The health of a Cluster whose nodes are not known.
    fn health_without_map(&self) -> ConnectionHealth {
        let why = match &*self.map.borrow() {
            KnownTopology::Unavailable(why) => why.clone(),
            _ => "no node of the Cluster has told which node has which keys".to_owned(),
        };
        ConnectionHealth {
            reached: false,
            outage: Some(Outage {
                since_us: self.started_us,
                why,
            }),
        }
    }

    fn request_update(&self) {
        self.outdated.notify_one();
    }

    /// The node at an address. A new node starts connecting, with `probe_call` as its probe.
    fn node(
        self: &Arc<Self>,
        address: &HostAndPort,
        probe_call: impl FnOnce() -> ProbeCall,
    ) -> Arc<RedisNode> {
        let make = || {
            let endpoint = Endpoint::Fixed(ServerAddress::Tcp(address.clone()));
            let manager = Arc::new(ConnectionManager::start(ConnectionSettings::new(
                self.store_settings.clone(),
                endpoint,
                probe_call(),
            )));
            let follower = Arc::new(RedirectFollower::new(manager.clone(), self));
            let start = || Batcher::start(self.store_settings.clone(), follower.clone());
            Arc::new(RedisNode {
                batcher: start(),
                holds: start(),
                manager,
            })
        };
        self.nodes()
            .entry(address.clone())
            .or_insert_with(make)
            .clone()
    }

    /// As [`Self::node`], for the address that a redirection names. Errors: there are [`MANAGERS_MAX`] nodes already.
    fn node_elsewhere(
        self: &Arc<Self>,
        address: &HostAndPort,
        probe_call: impl FnOnce() -> ProbeCall,
    ) -> Result<Arc<RedisNode>, StoreError> {
        let nodes = self.nodes();
        let is_one_too_many = nodes.len() >= MANAGERS_MAX && !nodes.contains_key(address);
        drop(nodes);
        if is_one_too_many {
            let why =
                format!("the Cluster redirects to {address}, beyond {MANAGERS_MAX} other nodes");
            return Err(StoreError::Unreachable(why));
        }
        Ok(self.node(address, probe_call))
    }

    /// Asks some connected nodes for the slots. If none of them answers, asks all nodes that the URL names.
    async fn fetch_slots(&self) -> Result<Vec<Range>, Error> {
        if let Ok(ranges) = self.ask_connected_nodes().await {
            return Ok(ranges);
        }
        let time_limit = lock(&self.pace).time_limit();
        let asked = self.seeds.iter();
        let ranges = first_ok(asked.map(|seed| self.ask_seed(seed, time_limit))).await;
        match &ranges {
            Ok(_) => lock(&self.pace).succeeded(),
            Err(error) => {
                lock(&self.pace).failed(client::failure(&self.store_settings.target, error))
            }
        }
        ranges
    }

    async fn ask_connected_nodes(&self) -> Result<Vec<Range>, Error> {
        let mut connections: Vec<_> = self
            .nodes()
            .values()
            .filter_map(|node| node.manager.connection())
            .collect();
        connections.sort_by_cached_key(|_| random::bits());
        let until = monotonic() + CONNECT_MAX;
        let connected = connections
            .iter()
            .take(ASKED_AT_ONCE)
            .filter_map(|connection| match &connection.peer {
                ServerAddress::Tcp(address) => {
                    Some(slots::ask(connection.client(), address, until))
                }
                ServerAddress::Unix(_) => None,
            });
        first_ok(connected).await
    }

    /// Connects to a node that the URL names, and asks it for the slots.
    async fn ask_seed(
        &self,
        seed: &HostAndPort,
        time_limit: Duration,
    ) -> Result<Vec<Range>, Error> {
        let (client, task) = client::connect(
            &self.store_settings.target,
            &ServerAddress::Tcp(seed.clone()),
            time_limit,
        )
        .await?;
        slots::ask(&client, seed, task.up_by).await
    }

    /// Makes a map of the ranges, connects to new nodes, and drops nodes that are not needed.
    fn set_map(self: &Arc<Self>, ranges: Vec<Range>) {
        let mut masters: Vec<&HostAndPort> = ranges.iter().map(|range| &range.master).collect();
        masters.sort();
        masters.dedup();
        let probe_for = |master: &HostAndPort| self.probe_for(master, &ranges);
        let known: HashSet<HostAndPort> = self.nodes().keys().cloned().collect();
        let nodes: Vec<_> = masters
            .iter()
            .map(|master| ((*master).clone(), self.node(master, || probe_for(master))))
            .collect();
        // A probe call must be in a slot of its node. It is set anew where slots have moved, or where only a redirection named the node.
        for (master, node) in &nodes {
            node.manager.set_probe_call_unless(
                |probe_call| !probe_call.asking && slots::owns(master, probe_call, &ranges),
                || probe_for(master),
            );
        }
        let owners = slots::owners(&masters, &ranges);
        self.forget_nodes_except(&nodes);
        if masters.iter().any(|master| !known.contains(master)) {
            let masters = masters
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(",");
            tracing::info!(masters, "the Cluster's keys are on these nodes");
        }
        let map = Map { nodes, owners };
        map.count_heirs(&self.map.borrow());
        self.map.send_replace(KnownTopology::Map(Arc::new(map)));
    }

    /// A probe call in a slot of this master.
    fn probe_for(&self, master: &HostAndPort, ranges: &[Range]) -> ProbeCall {
        let prefix = &self.store_settings.target.key_prefix;
        let found = (0..PROBE_NAMES_MAX)
            .map(|number| ProbeCall::numbered(prefix, number))
            .find(|probe_call| slots::owns(master, probe_call, ranges));
        found.unwrap_or_else(|| ProbeCall::numbered(prefix, 0))
    }

    /// Drops nodes that are not in `kept` and do not answer. Nodes without slots that answer are kept, since slots may be moving
    /// to them.
    fn forget_nodes_except(&self, kept: &[(HostAndPort, Arc<RedisNode>)]) {
        let mut past = lock(&self.past);
        self.nodes().retain(|address, node| {
            let needed =
                node.manager.refusal().is_none() || kept.iter().any(|(other, _)| other == address);
            if !needed {
                past.add(node.manager.status());
            }
            needed
        });
    }

    /// Fetches the map once. Returns whether it must be fetched again soon.
    async fn update_map(self: &Arc<Self>) -> bool {
        match self.fetch_slots().await {
            Ok(ranges) => self.set_map(ranges),
            Err(error) => self.keep_old_map(&error),
        }
        let topology = self.map.borrow().clone();
        match topology {
            KnownTopology::Map(map) => map
                .nodes
                .iter()
                .any(|(_, node)| node.manager.refusal().is_some()),
            KnownTopology::Starting | KnownTopology::Unavailable(_) => true,
        }
    }

    /// Handles a failed fetch. A map that is known already stays in use.
    fn keep_old_map(&self, error: &Error) {
        tracing::debug!(
            error = wording(error),
            "no node of the Cluster tells which node has which keys"
        );
        let before = self.map.borrow().clone();
        if matches!(before, KnownTopology::Map(_)) {
            return;
        }
        self.map
            .send_replace(KnownTopology::Unavailable(wording(error).to_owned()));
        if matches!(before, KnownTopology::Starting) {
            tracing::warn!(
                "store out of reach: {}",
                StoreState::new(&[self.health_without_map()])
            );
        }
    }

    /// Waits until a node that has keys goes down.
    async fn any_node_down(&self) {
        let topology = self.map.borrow().clone();
        match topology {
            KnownTopology::Map(map) if !map.nodes.is_empty() => {
                select_all(
                    map.nodes
                        .iter()
                        .map(|(_, node)| Box::pin(node.manager.wait_until_down())),
                )
                .await;
            }
            _ => future::pending().await,
        }
    }
}

/// The first success, or the last error if all fail.
async fn first_ok<T>(
    attempts: impl Iterator<Item = impl Future<Output = Result<T, Error>>>,
) -> Result<T, Error> {
    let mut answers: FuturesUnordered<_> = attempts.collect();
    let mut failed = Error::new(ErrorKind::Cluster, "there is no node to ask");
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Keeps the map current for ever, also after a panic.
async fn run(state: Arc<ClusterState>) {
    loop {
        if AssertUnwindSafe(keep_current(&state))
            .catch_unwind()
            .await
            .is_err()
        {
            tracing::error!("the task that keeps the map of the Cluster panicked; it goes on");
            sleep(FETCH_PAUSE_MAX).await;
        }
    }
}

/// Fetches the map once, and returns when it must be fetched again.
async fn keep_current(state: &Arc<ClusterState>) {
    let retry = state.update_map().await;
    // Many calls may be redirected at once. After this pause, one fetch serves all of them.
    let pause_max = lock(&state.pace).pause_max(FETCH_PAUSE_MAX);
    sleep(random_within(pause_max, random::bits())).await;
    if !retry {
        tokio::select! {
            () = state.outdated.notified() => {}
            () = state.any_node_down() => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while holding one of these locks. If it did, the contents would still be consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
