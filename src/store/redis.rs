//! The shared store: counters in Redis, decided by one script call, so that any number of replicas enforce one limit.
//!
//! Only this module and those below it name fred. The script (`redis/script/*.lua`) reads Redis's own clock, decides and
//! writes atomically; here is what carries requests to it and readings back.

mod batcher;
mod call;
mod client;
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
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};
use tokio::sync::Mutex;

use super::{Ask, Store, StoreError};
use crate::algorithm::Verdict;
use crate::clock::{Clock, monotonic};
use batcher::{Batcher, REQUESTS_WAITING_MAX};
use call::{Call, Request};
use script::Script;

/// Most names in one script call: three quarters of what batching can save, and Redis is held for a tenth of a
/// millisecond at most.
pub const SCRIPT_NAMES_MAX: usize = 32;

/// Counters in one Redis.
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
    batcher: Batcher,
}

struct Shared {
    client: Client,
    script: Script,
    /// Held by the one task that loads the script.
    loading: Mutex<()>,
    /// Times that the script was loaded.
    loads: AtomicU64,
    /// Tests only; see [`RedisStore::with_injected_clock`].
    injected: Option<Arc<dyn Clock>>,
}

impl RedisStore {
    /// Starts connecting to `url` (`redis://[user:password@]host[:port][/db]` or `redis+unix:///path`) and returns at once;
    /// connecting and reconnecting go on in the background for as long as the store lives.
    ///
    /// Must be called within a tokio runtime. Errors: a sentence, when the URL cannot be understood.
    pub fn connect(url: &str) -> Result<Self, String> {
        Self::start(url, None)
    }

    /// A store that decides by `clock` instead of Redis's. For tests: states written this way are not for production, as
    /// their expiry is set by the injected time too.
    pub fn with_injected_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Self, String> {
        Self::start(url, Some(clock))
    }

    fn start(url: &str, injected: Option<Arc<dyn Clock>>) -> Result<Self, String> {
        let client = client::connect(url).map_err(|error| error.details().to_owned())?;
        let script = Script::new(injected.is_some());
        let shared = Arc::new(Shared { client, script, loading: Mutex::new(()), loads: AtomicU64::new(0), injected });
        Ok(Self { batcher: Batcher::start(shared.clone()), shared })
    }

    /// Waits until the first connection is up, but no longer than `patience`; whether it is.
    pub async fn connected(&self, patience: Duration) -> bool {
        tokio::time::timeout(patience, self.shared.client.wait_for_connect()).await.is_ok_and(|up| up.is_ok())
    }
}

impl Store for RedisStore {
    async fn decide_one(&self, ask: &Ask, deadline: Duration) -> Result<Verdict, StoreError> {
        // The batcher answers in time. The call itself belongs to it, and fred bounds it: fred may send a command again on
        // reconnect when its future was dropped.
        let answered = self.batcher.take(Request::of(ask), deadline)?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn decide_batch(&self, asks: &[Ask], deadline: Duration) -> Vec<Result<Verdict, StoreError>> {
        let answers = match self.batcher.take_batch(asks.iter().map(Request::of).collect(), deadline) {
            Ok(answered) => answered.await.map_err(|_| ended()),
            Err(error) => Err(error),
        };
        answers.unwrap_or_else(|error| vec![Err(error); asks.len()])
    }
}

fn ended() -> StoreError {
    StoreError::Unreachable("its batcher has ended".to_owned())
}

impl Shared {
    /// What follows EVALSHA for a call.
    fn command<T>(&self, call: &Call<T>) -> Vec<Value> {
        let keys: Vec<Value> = call.keys().map(|key| Value::String(key.into())).collect();
        let packed = Value::Bytes(wire::pack_call(call).into());
        let clock = self.injected.iter().map(|clock| Value::from(clock.now_us().to_string()));
        let head = [Value::String(self.script.sha.clone()), Value::Integer(keys.len() as i64)];
        head.into_iter().chain(keys).chain([packed]).chain(clock).collect()
    }

    /// One script call; its reply.
    async fn call(&self, command: Vec<Value>, until: Instant) -> Result<Value, StoreError> {
        let deadline = until.saturating_duration_since(monotonic());
        self.evalsha(command, until).await.map_err(|error| store_error(&error, deadline))
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
