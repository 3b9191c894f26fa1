//! The shared store: counters in Redis, decided by one script call, so that any number of replicas enforce one limit.
//!
//! Only this module and those below it name fred. The script (`redis/script/*.lua`) reads Redis's own clock, decides and
//! writes atomically; here is what carries requests to it and readings back.

mod batcher;
mod breaker;
mod call;
mod client;
mod cluster;
mod connection;
mod keeper;
mod lines;
mod looks;
mod name;
mod pace;
mod queue;
mod replicas;
mod reset;
mod script;
mod sentinel;
mod spacing;
mod target;
mod tls;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fred::types::Value;
use tokio::time::timeout_at;

use super::{Ask, Store, StoreDeadline, StoreError, Subject};
use crate::algorithm::Mode;
use crate::clock::{Clock, monotonic};
use batcher::{Answer, Batcher, Carrier};
pub use breaker::BreakerState;
use call::{Call, Request};
use cluster::{Cluster, Guide};
use connection::{Errand, Trouble, Verb};
use keeper::{Keeper, Lead};
use reset::Reset;
use script::Script;
use sentinel::Watch;
use target::Topology;
pub use target::{RedisTarget, Tls};

/// Most names in one script call: three quarters of what batching can save, and Redis is held for a tenth of a
/// millisecond at most.
pub const SCRIPT_NAMES_MAX: usize = 32;

/// Counters in one Redis.
#[derive(Clone)]
pub struct RedisStore {
    lanes: Lanes,
    /// What the name of every key begins with.
    key_prefix: Arc<str>,
}

/// What leads to Redis.
#[derive(Clone)]
enum Lanes {
    /// To the one server that has all keys.
    One(Lane),
    /// To each of those that share them.
    Many(Arc<Cluster>),
}

/// How a store's connection is doing, for metrics. Counts are from the start of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Whether Redis is asked. Open, too, until the first connection is up.
    pub breaker: BreakerState,
    /// Times that the breaker opened.
    pub opened: u64,
    /// Connections tried, the first included.
    pub probes: u64,
    /// Decisions asked for that Redis did not make: no answer within the deadline, or not asked.
    pub undecided: u64,
    /// Times that another process answered than before: a server that was restarted, or another one after a failover.
    pub replaced: u64,
}

/// What leads to one server: a connection that is kept, and what waits to be sent over it.
#[derive(Clone)]
struct Lane {
    keeper: Arc<Keeper>,
    batcher: Batcher,
}

/// What every connection of one lane is made of.
struct Recipe {
    ingredients: Ingredients,
    lead: Lead,
    trial: Mutex<Trial>,
}

/// What a connection proves itself by: a charge under a name that no request has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trial {
    /// See [`name::trial`].
    name: String,
    /// Whether its slot is only on its way to the node, which decides it when asked to.
    asking: bool,
}

impl Trial {
    /// The one of this number.
    fn numbered(prefix: &str, number: u32) -> Self {
        Self { name: name::trial(prefix, number), asking: false }
    }
}

impl Recipe {
    fn new(ingredients: Ingredients, lead: Lead, trial: Trial) -> Self {
        Self { ingredients, lead, trial: Mutex::new(trial) }
    }

    fn trial(&self) -> MutexGuard<'_, Trial> {
        // A trial is put there whole.
        self.trial.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is the same in all lanes of a store.
#[derive(Clone)]
struct Ingredients {
    target: Arc<RedisTarget>,
    script: Arc<Script>,
    /// What a healthy Redis answers within.
    deadline: Duration,
    /// Tests only; see [`RedisStore::with_injected_clock`].
    injected: Option<Arc<dyn Clock>>,
}

impl RedisStore {
    /// As [`Self::to`] with nothing but a URL.
    ///
    /// Must be called within a tokio runtime. Errors: a sentence, when the URL cannot be understood.
    pub fn connect(url: &str, deadline: Duration) -> Result<Self, String> {
        Self::to(RedisTarget::parse(url)?, deadline)
    }

    /// Starts connecting and returns at once; connecting and reconnecting go on in the background for as long as the store
    /// lives. A Redis that does not answer within `deadline` several times in a row is taken for dead until it does.
    ///
    /// Must be called within a tokio runtime. Errors: a sentence, when a file that connections need cannot be used.
    pub fn to(target: RedisTarget, deadline: Duration) -> Result<Self, String> {
        Self::start(target, deadline, None)
    }

    /// A store that decides by `clock` instead of Redis's. For tests: states written this way are not for production, as
    /// their expiry is set by the injected time too. Such a Redis is given ten seconds for each answer.
    pub fn with_injected_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Self, String> {
        Self::start(RedisTarget::parse(url)?, Duration::from_secs(10), Some(clock))
    }

    fn start(target: RedisTarget, deadline: Duration, injected: Option<Arc<dyn Clock>>) -> Result<Self, String> {
        client::check_files(&target)?;
        let key_prefix = target.key_prefix.clone();
        let script = Arc::new(Script::new(injected.is_some()));
        let ingredients = Ingredients { target: Arc::new(target), script, deadline, injected };
        let lead = match &ingredients.target.topology {
            Topology::Alone(peer) => Lead::Fixed(peer.clone()),
            Topology::Sentinel(sentinels) => Lead::Named(Watch::start(&ingredients.target, sentinels)),
            Topology::Cluster(seeds) => {
                let seeds = seeds.clone();
                return Ok(Self { lanes: Lanes::Many(Arc::new(Cluster::start(ingredients, seeds))), key_prefix });
            }
        };
        let trial = Trial::numbered(&key_prefix, 0);
        let keeper = Arc::new(Keeper::start(Recipe::new(ingredients, lead, trial)));
        Ok(Self { lanes: Lanes::One(Lane { batcher: Batcher::start(keeper.clone()), keeper }), key_prefix })
    }

    /// Waits until the first connection is up, to each node of a Cluster, but no longer than `patience`; whether it is.
    pub async fn connected(&self, patience: Duration) -> bool {
        let up = async {
            match &self.lanes {
                Lanes::One(lane) => lane.keeper.connected().await,
                Lanes::Many(cluster) => cluster.connected().await,
            }
        };
        tokio::time::timeout(patience, up).await.is_ok()
    }

    /// How the connection is doing now; of a Cluster's nodes, the worst, and counts together.
    pub fn status(&self) -> Status {
        let Lanes::Many(cluster) = &self.lanes else {
            return self.nodes().into_iter().next().map_or(Status::NONE, |node| node.1);
        };
        let nodes = cluster.status();
        let mut whole = cluster.past();
        let states = nodes.iter().map(|(_, status)| status.breaker);
        whole.breaker = states.max_by_key(|state| state.badness()).unwrap_or(BreakerState::Open);
        nodes.into_iter().for_each(|(_, status)| whole.add(status));
        whole
    }

    /// How each node is doing now, by its address; one server that Sentinels name is `master`.
    pub fn nodes(&self) -> Vec<(String, Status)> {
        match &self.lanes {
            Lanes::One(lane) => vec![(lane.keeper.label(), lane.keeper.status())],
            Lanes::Many(cluster) => cluster.status(),
        }
    }
}

impl Status {
    const NONE: Self = Self { breaker: BreakerState::Open, opened: 0, probes: 0, undecided: 0, replaced: 0 };

    /// Adds what another has counted.
    fn add(&mut self, other: Self) {
        self.opened += other.opened;
        self.probes += other.probes;
        self.undecided += other.undecided;
        self.replaced += other.replaced;
    }
}

impl Lane {
    /// Notes what Redis owed. Decisions that it made cost no more than the look.
    fn noted<T>(&self, asks: usize, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Deadline(_) | StoreError::Unreachable(_)) = answer {
            self.keeper.owed(asks);
        }
        answer
    }

    async fn decide(&self, request: impl FnOnce() -> Request, deadline: Duration) -> Answer {
        self.keeper.refusal().map_or(Ok(()), Err)?;
        self.batcher.take(request(), deadline)?.await.unwrap_or_else(|_| Err(given_up()))
    }

    /// Beside the batcher, so that others' decisions are not kept waiting: it may be given far longer than they are.
    async fn decide_apart(&self, request: Request, deadline: Duration, guide: Option<Guide>) -> Answer {
        self.keeper.refusal().map_or(Ok(()), Err)?;
        let until = monotonic() + deadline;
        timeout_at(until.into(), self.keeper.ready()).await.map_err(|_| StoreError::Deadline(deadline))?;
        let call = Call::alone(request, until);
        let errand = Errand { verb: Verb::Script, arguments: self.keeper.command(&call)?, until };
        let reply = match guide {
            Some(guide) => guide.follow(errand).await?,
            None => self.keeper.call(errand, false).await.map_err(Trouble::alone)?,
        };
        let answer = call.answers(Ok(reply.as_bytes().unwrap_or_default())).next();
        answer.map_or_else(|| Err(StoreError::Nonsense("the script's reply has another shape".to_owned())), |((), answer)| answer)
    }

    async fn decide_all(&self, requests: Vec<Request>, deadline: Duration) -> Vec<Answer> {
        let count = requests.len();
        match self.decide_all_now(requests, deadline).await {
            Ok(answers) => answers.into_iter().map(|answer| self.noted(1, answer)).collect(),
            Err(error) => vec![self.noted(count, Err(error)); count],
        }
    }

    async fn decide_all_now(&self, requests: Vec<Request>, deadline: Duration) -> Result<Vec<Answer>, StoreError> {
        self.keeper.refusal().map_or(Ok(()), Err)?;
        self.batcher.take_batch(requests, deadline)?.await.map_err(|_| given_up())
    }
}

impl Store for RedisStore {
    async fn decide_one(&self, ask: &Ask, StoreDeadline(deadline): StoreDeadline) -> Answer {
        match &self.lanes {
            Lanes::One(lane) if ask.mode == Mode::Refund => {
                Box::pin(lane.decide_apart(Request::of(ask, &self.key_prefix), deadline, None)).await
            }
            Lanes::Many(cluster) if ask.mode == Mode::Refund => {
                Box::pin(cluster.decide_apart(Request::of(ask, &self.key_prefix), deadline)).await
            }
            Lanes::One(lane) => lane.noted(1, lane.decide(|| Request::of(ask, &self.key_prefix), deadline).await),
            // Apart, so that the other is no larger for it.
            Lanes::Many(cluster) => Box::pin(cluster.decide_one(Request::of(ask, &self.key_prefix), deadline)).await,
        }
    }

    async fn decide_batch(&self, asks: &[Ask], StoreDeadline(deadline): StoreDeadline) -> Vec<Answer> {
        let requests = asks.iter().map(|ask| Request::of(ask, &self.key_prefix)).collect();
        match &self.lanes {
            Lanes::One(lane) => lane.decide_all(requests, deadline).await,
            Lanes::Many(cluster) => Box::pin(cluster.decide_batch(requests, deadline)).await,
        }
    }

    /// Beside the batcher: whoever has not been answered yet may be decided before it or after it.
    async fn reset(&self, subject: &Subject, StoreDeadline(deadline): StoreDeadline) -> Result<bool, StoreError> {
        match &self.lanes {
            Lanes::One(lane) => {
                let until = monotonic() + deadline;
                lane.keeper.usable(until, deadline).await?;
                Reset::of(subject, &self.key_prefix).carry_out(&*lane.keeper, until).await
            }
            Lanes::Many(cluster) => Box::pin(cluster.reset(&Reset::of(subject, &self.key_prefix), deadline)).await,
        }
    }
}

/// The batcher answers everybody in time; only a panic takes callers with it.
fn given_up() -> StoreError {
    StoreError::Unreachable("the call was given up".to_owned())
}

impl Ingredients {
    fn is_clustered(&self) -> bool {
        matches!(self.target.topology, Topology::Cluster(_))
    }

    /// What follows EVALSHA for a call. Errors: the call cannot be packed, see [`wire::pack_call`].
    fn command<T>(&self, call: &Call<T>) -> Result<Vec<Value>, StoreError> {
        let keys = call.keys();
        let packed = Value::Bytes(wire::pack_call(call)?.into());
        let clock = self.injected.iter().map(|clock| Value::from(clock.now_us().to_string()));
        // Redis refuses a number that is not that of the keys.
        let keys_len = i64::try_from(keys.len()).unwrap_or(i64::MAX);
        let head = [Value::String(self.script.sha.clone()), Value::Integer(keys_len)];
        Ok(head.into_iter().chain(keys.into_iter().map(Value::Bytes)).chain([packed]).chain(clock).collect())
    }
}
