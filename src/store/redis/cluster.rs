//! A Redis Cluster: a lane to each node that has keys, and a map of which slots each has.
//!
//! A node that fails is its own lane's trouble: its keys are answered for by policy, those of others are decided as ever.
//! The map is made anew when a node sends a call on, and over and over while a node is down, so that its heir is found.
//! fred's own client for Clusters is not used: it waits for all nodes together when one is lost, and retries by itself.

mod guide;
mod slots;

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fred::error::{Error, ErrorKind};
use fred::types::Value;
use futures_util::future::{join_all, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::{FutureExt, future};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::batcher::{Answer, Batcher};
use super::breaker::within;
use super::call::Request;
use super::connection::Errand;
use super::keeper::{CONNECT_MAX, Keeper, Lead, chance};
use super::pace::Pace;
use super::reset::Reset;
use super::target::{Address, Peer};
use super::{Ingredients, Lane, Recipe, Status, Trial, client, name};
use crate::clock::monotonic;
use crate::store::StoreError;
pub(super) use guide::Guide;
use slots::{Range, SLOTS};

/// Longest pause from one look at the map to the next while there is a reason to look: whoever fails over takes a second or
/// more, and many replicas look.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(200);
/// Nodes that are asked for the map at once, the first answer counting: one may be silent without anybody knowing yet.
const ASKED_AT_ONCE: usize = 3;
/// Most names tried to find one that a node has; of a thousand nodes each has one among so many.
const TRIALS_MAX: u32 = 100_000;

/// Who decides for which slot. Dropped, it lets go of all nodes.
pub(super) struct Cluster {
    nodes: Arc<Nodes>,
    task: AbortHandle,
}

struct Nodes {
    ingredients: Ingredients,
    seeds: Vec<Address>,
    /// Every node that there is a lane to, those that another one pointed to included.
    lanes: Mutex<HashMap<Address, Arc<Lane>>>,
    map: watch::Sender<Knowledge>,
    /// Told when the map is found to be old.
    outdated: Notify,
    /// Of connecting to the nodes that the URL names.
    pace: Mutex<Pace>,
    /// Counts of lanes that are gone.
    past: Mutex<Status>,
}

#[derive(Clone)]
enum Knowledge {
    /// Nobody has answered yet: whoever comes waits, no longer than its deadline.
    Starting,
    Map(Arc<Map>),
    /// Why there is no map.
    Nothing(String),
}

struct Map {
    lanes: Vec<(Address, Arc<Lane>)>,
    /// By slot, the place among the lanes; past their end where nobody has it.
    owners: Vec<u16>,
}

impl Cluster {
    /// Begins to look for the nodes. Must be called within a tokio runtime.
    pub(super) fn start(ingredients: Ingredients, seeds: Vec<Address>) -> Self {
        let (map, lanes) = (watch::Sender::new(Knowledge::Starting), Mutex::default());
        let past = Mutex::new(Status::NONE);
        let nodes = Arc::new(Nodes { ingredients, seeds, lanes, map, outdated: Notify::new(), pace: Mutex::default(), past });
        let task = tokio::spawn(forever(nodes.clone())).abort_handle();
        Self { nodes, task }
    }

    pub(super) async fn decide_one(&self, request: Request, deadline: Duration) -> Answer {
        let until = monotonic() + deadline;
        let map = self.nodes.map(deadline).await?;
        let lane = map.lane(&request.name)?;
        lane.noted(1, lane.decide(|| request, until.saturating_duration_since(monotonic())).await)
    }

    /// Requests of a name keep their order, since they take the same lane.
    pub(super) async fn decide_batch(&self, requests: Vec<Request>, deadline: Duration) -> Vec<Answer> {
        let (until, count) = (monotonic() + deadline, requests.len());
        let map = match self.nodes.map(deadline).await {
            Ok(map) => map,
            Err(error) => return vec![Err(error); count],
        };
        let mut answers: Vec<Option<Answer>> = vec![None; count];
        let mut parts: HashMap<u16, (Vec<usize>, Vec<Request>)> = HashMap::new();
        for (place, request) in requests.into_iter().enumerate() {
            let part = parts.entry(map.owner(&request.name)).or_default();
            part.0.push(place);
            part.1.push(request);
        }
        let decided = parts.into_iter().map(|(owner, (places, requests))| {
            let (lane, left) = (map.at(owner), until.saturating_duration_since(monotonic()));
            async move {
                let answers = match lane {
                    Ok(lane) => lane.decide_all(requests, left).await,
                    Err(error) => vec![Err(error); places.len()],
                };
                (places, answers)
            }
        });
        for (places, part) in join_all(decided).await {
            places.into_iter().zip(part).for_each(|(place, answer)| answers[place] = Some(answer));
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(super::given_up()))).collect()
    }

    /// See [`Lane::decide_apart`].
    pub(super) async fn decide_apart(&self, request: Request, deadline: Duration) -> Answer {
        let until = monotonic() + deadline;
        let map = self.nodes.map(deadline).await?;
        let lane = map.lane(&request.name)?;
        let guide = Guide { home: lane.keeper.clone(), nodes: Arc::downgrade(&self.nodes) };
        lane.decide_apart(request, until.saturating_duration_since(monotonic()), Some(guide)).await
    }

    pub(super) async fn reset(&self, reset: &Reset, deadline: Duration) -> Result<bool, StoreError> {
        let until = monotonic() + deadline;
        let map = self.nodes.map(deadline).await?;
        let lane = map.lane(reset.name())?;
        lane.keeper.usable(until, deadline).await?;
        let guide = Guide { home: lane.keeper.clone(), nodes: Arc::downgrade(&self.nodes) };
        reset.carry_out(&guide, until).await
    }

    /// Asks the node that has this name, if it is connected to; see [`super::RedisStore::tell_of`].
    pub(super) async fn announce(&self, name: &str, errand: Errand) -> Result<Value, StoreError> {
        let map = self.nodes.map(Duration::ZERO).await?;
        let guide = Guide { home: map.lane(name)?.keeper.clone(), nodes: Arc::downgrade(&self.nodes) };
        guide.follow(errand).await
    }

    /// Waits until the map is known and all its nodes are connected to.
    pub(super) async fn connected(&self) {
        let mut known = self.nodes.map.subscribe();
        loop {
            let knowledge = known.borrow_and_update().clone();
            if let Knowledge::Map(map) = knowledge {
                join_all(map.lanes.iter().map(|(_, lane)| lane.keeper.connected())).await;
                return;
            }
            // The sender lives as long as `self`.
            let _ = known.changed().await;
        }
    }

    /// Of each node that there is a lane to, by its address.
    pub(super) fn status(&self) -> Vec<(String, Status)> {
        let lanes = self.nodes.lanes();
        let mut nodes: Vec<_> = lanes.iter().map(|(address, lane)| (address.to_string(), lane.keeper.status())).collect();
        nodes.sort_by(|a, b| a.0.cmp(&b.0));
        nodes
    }

    /// What was counted for nodes that are gone.
    pub(super) fn past(&self) -> Status {
        *lock(&self.nodes.past)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Map {
    fn owner(&self, name: &str) -> u16 {
        self.owners[usize::from(name::slot(name))]
    }

    fn at(&self, owner: u16) -> Result<&Arc<Lane>, StoreError> {
        let lane = self.lanes.get(usize::from(owner)).map(|(_, lane)| lane);
        lane.ok_or_else(|| StoreError::Unreachable("no node of the Cluster has its slot".to_owned()))
    }

    fn lane(&self, name: &str) -> Result<&Arc<Lane>, StoreError> {
        self.at(self.owner(name))
    }
}

impl Nodes {
    fn lanes(&self) -> MutexGuard<'_, HashMap<Address, Arc<Lane>>> {
        lock(&self.lanes)
    }

    /// The map, once there is one.
    async fn map(&self, patience: Duration) -> Result<Arc<Map>, StoreError> {
        let known = |knowledge: &Knowledge| match knowledge {
            Knowledge::Starting => None,
            Knowledge::Map(map) => Some(Ok(map.clone())),
            Knowledge::Nothing(why) => Some(Err(StoreError::Unreachable(why.clone()))),
        };
        if let Some(map) = known(&self.map.borrow()) {
            return map;
        }
        let mut changes = self.map.subscribe();
        let waited = timeout(patience, changes.wait_for(|knowledge| known(knowledge).is_some())).await;
        // The sender lives as long as `self`.
        let found = waited.ok().and_then(Result::ok).and_then(|knowledge| known(&knowledge));
        found.unwrap_or(Err(StoreError::Deadline(patience)))
    }

    fn look_soon(&self) {
        self.outdated.notify_one();
    }

    /// The lane to a node; if there is none it is made, and proves itself by this trial.
    fn lane(self: &Arc<Self>, address: &Address, trial: impl FnOnce() -> Trial) -> Arc<Lane> {
        let make = || {
            let lead = Lead::Fixed(Peer::Tcp(address.clone()));
            let keeper = Arc::new(Keeper::start(Recipe::new(self.ingredients.clone(), lead, trial())));
            let guide = Guide { home: keeper.clone(), nodes: Arc::downgrade(self) };
            Arc::new(Lane { keeper, batcher: Batcher::start(Arc::new(guide)) })
        };
        self.lanes().entry(address.clone()).or_insert_with(make).clone()
    }

    /// Asks nodes for the map: some that are connected to, or if none of those knows, all that the URL names.
    async fn look(&self) -> Result<Vec<Range>, Error> {
        let mut connections: Vec<_> = self.lanes().values().filter_map(|lane| lane.keeper.connection()).collect();
        connections.sort_by_cached_key(|_| chance());
        let until = monotonic() + CONNECT_MAX;
        let connected = connections.iter().take(ASKED_AT_ONCE).filter_map(|connection| match &connection.peer {
            Peer::Tcp(address) => Some(slots::ask(connection.client(), address, until)),
            Peer::Unix(_) => None,
        });
        if let Ok(ranges) = first(connected).await {
            return Ok(ranges);
        }
        let patience = lock(&self.pace).patience();
        let ranges = first(self.seeds.iter().map(|seed| self.ask_seed(seed, patience))).await;
        match &ranges {
            Ok(_) => lock(&self.pace).succeeded(),
            Err(error) => lock(&self.pace).failed(client::failure(&self.ingredients.target, error)),
        }
        ranges
    }

    /// Connects to a node that the URL names, and asks it.
    async fn ask_seed(&self, seed: &Address, patience: Duration) -> Result<Vec<Range>, Error> {
        let (client, wire) = client::connect(&self.ingredients.target, &Peer::Tcp(seed.clone()), patience).await?;
        slots::ask(&client, seed, wire.up_by).await
    }

    fn adopt(self: &Arc<Self>, ranges: Vec<Range>) {
        let mut masters: Vec<&Address> = ranges.iter().map(|range| &range.master).collect();
        masters.sort();
        masters.dedup();
        let has = |master: &Address, trial: &Trial| {
            let slot = name::slot(&trial.name);
            ranges.iter().any(|range| range.master == *master && (range.first..=range.last).contains(&slot))
        };
        let own = |master: &Address| {
            let prefix = &self.ingredients.target.key_prefix;
            let found = (0..TRIALS_MAX).map(|number| Trial::numbered(prefix, number)).find(|trial| has(master, trial));
            found.unwrap_or_else(|| Trial::numbered(prefix, 0))
        };
        let known: HashSet<Address> = self.lanes().keys().cloned().collect();
        let lanes: Vec<_> = masters.iter().map(|master| ((*master).clone(), self.lane(master, || own(master)))).collect();
        // Slots move, and a node that was met on the way had none yet.
        for (master, lane) in &lanes {
            lane.keeper.try_by(|trial| !trial.asking && has(master, trial), || own(master));
        }
        let mut owners = vec![u16::MAX; usize::from(SLOTS)];
        for range in &ranges {
            let owner =
                masters.binary_search(&&range.master).ok().and_then(|place| u16::try_from(place).ok()).unwrap_or(u16::MAX);
            owners[usize::from(range.first)..=usize::from(range.last)].fill(owner);
        }
        self.forget_all_but(&lanes);
        if masters.iter().any(|master| !known.contains(master)) {
            let nodes = masters.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            tracing::info!(nodes, "the Cluster's keys are on these nodes");
        }
        self.map.send_replace(Knowledge::Map(Arc::new(Map { lanes, owners })));
    }

    /// Nodes that have no slots are kept while they answer: slots may be on their way to them.
    fn forget_all_but(&self, kept: &[(Address, Arc<Lane>)]) {
        let mut past = lock(&self.past);
        self.lanes().retain(|address, lane| {
            let needed = lane.keeper.refusal().is_none() || kept.iter().any(|(other, _)| other == address);
            if !needed {
                past.add(lane.keeper.status());
            }
            needed
        });
    }

    /// Looks once; whether there is a reason to look again.
    async fn look_once(self: &Arc<Self>) -> bool {
        match self.look().await {
            Ok(ranges) => self.adopt(ranges),
            Err(error) => self.blind(&error),
        }
        let knowledge = self.map.borrow().clone();
        match knowledge {
            Knowledge::Map(map) => map.lanes.iter().any(|(_, lane)| lane.keeper.refusal().is_some()),
            Knowledge::Starting | Knowledge::Nothing(_) => true,
        }
    }

    /// Nobody tells; a map that was right once is still the best there is.
    fn blind(&self, error: &Error) {
        tracing::debug!(error = error.details(), "no node of the Cluster tells who has which keys");
        self.map.send_if_modified(|knowledge| {
            if matches!(knowledge, Knowledge::Map(_)) {
                return false;
            }
            if matches!(knowledge, Knowledge::Starting) {
                tracing::warn!(error = error.details(), "store out of reach: no node of the Cluster tells who has which keys");
            }
            *knowledge = Knowledge::Nothing(error.details().to_owned());
            true
        });
    }

    /// Waits until a node that has keys goes down.
    async fn loss(&self) {
        let knowledge = self.map.borrow().clone();
        match knowledge {
            Knowledge::Map(map) if !map.lanes.is_empty() => {
                select_all(map.lanes.iter().map(|(_, lane)| Box::pin(lane.keeper.down()))).await;
            }
            _ => future::pending().await,
        }
    }
}

/// The first that is no error, or the last error.
async fn first<T>(questions: impl Iterator<Item = impl Future<Output = Result<T, Error>>>) -> Result<T, Error> {
    let mut answers: FuturesUnordered<_> = questions.collect();
    let mut failed = Error::new(ErrorKind::Cluster, "there is nobody to ask");
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Keeps the map, whatever happens to a turn.
async fn forever(nodes: Arc<Nodes>) {
    loop {
        if AssertUnwindSafe(turn(&nodes)).catch_unwind().await.is_err() {
            tracing::error!("the task that keeps the map of the Cluster panicked; it goes on");
            sleep(LOOK_PAUSE_MAX).await;
        }
    }
}

async fn turn(nodes: &Arc<Nodes>) {
    let again = nodes.look_once().await;
    // Of many calls that are sent on at once, the first is reason enough.
    let pause_max = lock(&nodes.pace).pause_max(LOOK_PAUSE_MAX);
    sleep(within(pause_max, chance())).await;
    if !again {
        tokio::select! {
            () = nodes.outdated.notified() => {}
            () = nodes.loss() => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while one of these is held; if it did, what is in it is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
