//! The shared store: counters in Redis, decided by one script call, so that any number of replicas enforce one limit.
//!
//! Only this module and those below it name fred. The script (`redis/script/*.lua`) reads Redis's own clock, decides and
//! writes atomically; here is what carries requests to it and readings back.

mod batcher;
mod breaker;
mod call;
mod client;
mod keeper;
mod name;
mod queue;
mod script;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{Config, Options};
use fred::types::{ClusterHash, CustomCommand, Value};
use tokio::sync::Mutex;

use super::{Ask, Store, StoreError, Subject};
use crate::algorithm::Verdict;
use crate::clock::{Clock, monotonic};
use batcher::{Batcher, REQUESTS_WAITING_MAX};
pub use breaker::BreakerState;
use call::{Call, Request};
use client::Wire;
use keeper::Keeper;
use script::Script;

/// Most names in one script call: three quarters of what batching can save, and Redis is held for a tenth of a
/// millisecond at most.
pub const SCRIPT_NAMES_MAX: usize = 32;

/// Counters in one Redis.
#[derive(Clone)]
pub struct RedisStore {
    keeper: Arc<Keeper>,
    batcher: Batcher,
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
}

/// What every connection of one store is made of.
struct Recipe {
    config: Config,
    script: Arc<Script>,
    /// What a healthy Redis answers within.
    deadline: Duration,
    /// Tests only; see [`RedisStore::with_injected_clock`].
    injected: Option<Arc<dyn Clock>>,
}

/// One connection, from its handshake to its end.
struct Connection {
    /// As the breaker counts them.
    number: u64,
    client: Client,
    script: Arc<Script>,
    /// Held by the one task that loads the script.
    loading: Mutex<()>,
    /// Times that the script was loaded.
    loads: AtomicU64,
}

impl RedisStore {
    /// Starts connecting to `url` (`redis://[user:password@]host[:port][/db]` or `redis+unix:///path`) and returns at once;
    /// connecting and reconnecting go on in the background for as long as the store lives. A Redis that does not answer
    /// within `deadline` several times in a row is taken for dead until it does.
    ///
    /// Must be called within a tokio runtime. Errors: a sentence, when the URL cannot be understood.
    pub fn connect(url: &str, deadline: Duration) -> Result<Self, String> {
        Self::start(url, deadline, None)
    }

    /// A store that decides by `clock` instead of Redis's. For tests: states written this way are not for production, as
    /// their expiry is set by the injected time too. Such a Redis is given ten seconds for each answer.
    pub fn with_injected_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Self, String> {
        Self::start(url, Duration::from_secs(10), Some(clock))
    }

    fn start(url: &str, deadline: Duration, injected: Option<Arc<dyn Clock>>) -> Result<Self, String> {
        let config = client::config(url).map_err(|error| error.details().to_owned())?;
        let script = Arc::new(Script::new(injected.is_some()));
        let keeper = Arc::new(Keeper::start(Recipe { config, script, deadline, injected }));
        Ok(Self { batcher: Batcher::start(keeper.clone()), keeper })
    }

    /// Waits until the first connection is up, but no longer than `patience`; whether it is.
    pub async fn connected(&self, patience: Duration) -> bool {
        tokio::time::timeout(patience, self.keeper.connected()).await.is_ok()
    }

    /// How the connection is doing now.
    pub fn status(&self) -> Status {
        self.keeper.status()
    }

    /// Notes what Redis owed. Decisions that it made cost no more than the look.
    fn noted<T>(&self, asks: usize, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Deadline(_) | StoreError::Unreachable(_)) = answer {
            self.keeper.owed(asks);
        }
        answer
    }

    async fn decide_now(&self, ask: &Ask, deadline: Duration) -> Result<Verdict, StoreError> {
        self.keeper.refusal().map_or(Ok(()), Err)?;
        self.batcher.take(Request::of(ask), deadline)?.await.unwrap_or_else(|_| Err(given_up()))
    }

    async fn decide_all_now(&self, asks: &[Ask], deadline: Duration) -> Result<Vec<Result<Verdict, StoreError>>, StoreError> {
        self.keeper.refusal().map_or(Ok(()), Err)?;
        let answered = self.batcher.take_batch(asks.iter().map(Request::of).collect(), deadline)?;
        answered.await.map_err(|_| given_up())
    }
}

impl Store for RedisStore {
    async fn decide_one(&self, ask: &Ask, deadline: Duration) -> Result<Verdict, StoreError> {
        self.noted(1, self.decide_now(ask, deadline).await)
    }

    async fn decide_batch(&self, asks: &[Ask], deadline: Duration) -> Vec<Result<Verdict, StoreError>> {
        match self.decide_all_now(asks, deadline).await {
            Ok(answers) => answers.into_iter().map(|answer| self.noted(1, answer)).collect(),
            Err(error) => vec![self.noted(asks.len(), Err(error)); asks.len()],
        }
    }

    /// Beside the batcher: whoever has not been answered yet may be decided before it or after it.
    async fn reset(&self, subject: &Subject, deadline: Duration) -> Result<bool, StoreError> {
        self.keeper.refusal().map_or(Ok(()), Err)?;
        self.keeper.delete(name::all_of(subject), deadline).await
    }
}

/// The batcher answers everybody in time; only a panic takes callers with it.
fn given_up() -> StoreError {
    StoreError::Unreachable("the call was given up".to_owned())
}

impl Recipe {
    /// What follows EVALSHA for a call.
    fn command<T>(&self, call: &Call<T>) -> Vec<Value> {
        let keys: Vec<Value> = call.keys().map(|key| Value::String(key.into())).collect();
        let packed = Value::Bytes(wire::pack_call(call).into());
        let clock = self.injected.iter().map(|clock| Value::from(clock.now_us().to_string()));
        let head = [Value::String(self.script.sha.clone()), Value::Integer(keys.len() as i64)];
        head.into_iter().chain(keys).chain([packed]).chain(clock).collect()
    }
}

impl Connection {
    /// Connects and loads the script, so that no decision has to wait for that.
    async fn open(recipe: &Recipe, number: u64) -> Result<(Self, Wire), StoreError> {
        let failed = |error: Error| store_error(&error, keeper::CONNECT_MAX);
        let (client, wire) = client::connect(&recipe.config).await.map_err(failed)?;
        let script = recipe.script.clone();
        let connection = Self { number, client, script, loading: Mutex::new(()), loads: AtomicU64::new(0) };
        connection.load_script(0, monotonic() + keeper::CONNECT_MAX).await.map_err(failed)?;
        Ok((connection, wire))
    }

    /// Has a decision made, charged to a key of its own, within the recipe's deadline: a Redis that is read-only, still
    /// loading or too slow answers a PING well enough and no decision.
    async fn prove(&self, recipe: &Recipe) -> Result<(), StoreError> {
        let until = monotonic() + recipe.deadline;
        let call = Call::trial(until);
        let reply = self.call(recipe.command(&call), until).await?;
        call.answers(Ok(reply.as_bytes().unwrap_or_default())).into_iter().try_for_each(|((), answer)| answer.map(drop))
    }

    /// What it is connected to, without credentials.
    fn server(&self) -> String {
        self.client.client_config().server.hosts().iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// One script call; its reply. The batcher drops none of these: fred may send a command again on reconnect when its
    /// future was dropped.
    async fn call(&self, command: Vec<Value>, until: Instant) -> Result<Value, StoreError> {
        let deadline = until.saturating_duration_since(monotonic());
        self.evalsha(command, until).await.map_err(|error| store_error(&error, deadline))
    }

    /// Deletes what there is under these names; whether there was anything.
    async fn delete(&self, names: Vec<String>, until: Instant) -> Result<bool, StoreError> {
        let deadline = until.saturating_duration_since(monotonic());
        let names = names.into_iter().map(|name| Value::String(name.into())).collect();
        let deleted = self.send("DEL", names, until).await.map_err(|error| store_error(&error, deadline))?;
        deleted.as_u64().map(|count| count > 0).ok_or_else(|| StoreError::Nonsense("DEL is answered by no number".to_owned()))
    }

    async fn evalsha(&self, arguments: Vec<Value>, until: Instant) -> Result<Value, Error> {
        loop {
            let loads = self.loads.load(Ordering::Acquire);
            match self.send("EVALSHA", arguments.clone(), until).await {
                // Nothing was executed, so this is no repeated charge. It ends: each turn needs time, and `until` comes.
                Err(error) if error.details().starts_with("NOSCRIPT") => self.load_script(loads, until).await?,
                answer => return answer,
            }
        }
    }

    /// Sends a command that must be answered by `until`. A time-out of ours around fred's future would leave the command
    /// queued, to be sent after a reconnect, so fred is told; and it is told by way of `custom`, because fred 10.1 has the
    /// scripting commands on the plain client only, where they silently ignore these options.
    async fn send(&self, name: &'static str, arguments: Vec<Value>, until: Instant) -> Result<Value, Error> {
        let left = until.saturating_duration_since(monotonic());
        if left.is_zero() {
            return Err(Error::new(ErrorKind::Timeout, "no time left"));
        }
        let options = Options { timeout: Some(left), max_attempts: Some(1), ..Options::default() };
        let command = CustomCommand::new_static(name, ClusterHash::FirstKey, false);
        self.client.with_options(&options).custom(command, arguments).await
    }

    /// Loads the script unless somebody did since `seen`. The lock is held across the call so that of many callers one
    /// loads and the others wait; the call is bounded by its own deadline, and the task is never dropped.
    async fn load_script(&self, seen: u64, until: Instant) -> Result<(), Error> {
        let _loading = self.loading.lock().await;
        if self.loads.load(Ordering::Acquire) == seen {
            let load = vec![Value::from_static_str("LOAD"), Value::String(self.script.text.clone())];
            self.send("SCRIPT", load, until).await?;
            self.loads.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }
}

fn store_error(error: &Error, deadline: Duration) -> StoreError {
    let details = || error.details().to_owned();
    match error.kind() {
        ErrorKind::Timeout => StoreError::Deadline(deadline),
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Routing | ErrorKind::Cluster | ErrorKind::Sentinel => {
            StoreError::Unreachable(details())
        }
        ErrorKind::Protocol | ErrorKind::Parse => StoreError::Nonsense(details()),
        ErrorKind::Backpressure => StoreError::Overloaded(REQUESTS_WAITING_MAX),
        _ => StoreError::Refused(details()),
    }
}
