//! One connection to one server, from its handshake to its end: script calls, and what came of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::batcher::REQUESTS_WAITING_MAX;
use super::breaker::within;
use super::call::Call;
use super::client::{self, Wire};
use super::keeper::chance;
use super::pace::Failure;
use super::script::Script;
use super::target::{Address, Peer};
use super::{Recipe, replicas, reset};
use crate::clock::monotonic;
use crate::store::StoreError;

/// How long a connection is not used until it is asked whether it is there, and from then on.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How soon that is answered, unless decisions are given longer: a Redis that pauses for less must not lose its connections.
const PING_MAX: Duration = Duration::from_millis(500);
/// Longest pause between two proofs of one connection: as long as Redis needs for some handshakes.
const PROOF_PAUSE_MAX: Duration = Duration::from_millis(50);

pub(super) struct Connection {
    /// As the breaker counts them.
    pub(super) number: u64,
    pub(super) peer: Peer,
    client: Client,
    script: Arc<Script>,
    /// Held by the one task that loads the script.
    loading: Mutex<()>,
    /// Times that the script was loaded.
    loads: AtomicU64,
    /// Calls that were begun, and those of them that are over, in whatever way.
    begun: AtomicU64,
    over: AtomicU64,
}

/// A call that is over when this is dropped, also when its caller goes away.
struct UnderWay<'a>(&'a Connection);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is asked of a server, to be answered by `until`.
#[derive(Clone)]
pub(super) struct Errand {
    pub(super) verb: Verb,
    pub(super) arguments: Vec<Value>,
    pub(super) until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Script,
    Read,
    Delete,
    /// A replica's sign of life; see [`replicas`].
    Announce,
    /// A Reset's; see [`reset`].
    Forget,
}

impl Errand {
    /// The first key that it names.
    pub(super) fn key(&self) -> Option<String> {
        let place = match self.verb {
            // Behind the script's own name and the number of keys.
            Verb::Script | Verb::Announce | Verb::Forget => 2,
            Verb::Read | Verb::Delete => 0,
        };
        self.arguments.get(place)?.as_string()
    }
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Script | Self::Announce | Self::Forget => "EVALSHA",
            Self::Read => "GET",
            Self::Delete => "DEL",
        }
    }
}

/// What a call brought instead of a reply.
#[derive(Debug)]
pub(super) enum Trouble {
    /// What the store's callers are told.
    Error(StoreError),
    /// Nothing was executed: another node of the Cluster has these keys.
    Moved(Address),
    /// Nothing was executed: another node has these keys already, though not yet the others of their slot.
    Ask(Address),
    /// Nothing was executed: some of the keys are on their way to another node and some are not.
    TryAgain,
}

impl Connection {
    /// Connects and loads the script, so that no decision has to wait for that, within `patience` from when its turn comes.
    pub(super) async fn open(
        recipe: &Recipe,
        peer: Peer,
        number: u64,
        patience: Duration,
    ) -> Result<(Self, Wire), (StoreError, Failure)> {
        let target = &recipe.ingredients.target;
        let failed = |error: Error| (store_error(&error, patience), client::failure(target, &error));
        let (client, wire) = client::connect(target, &peer, patience).await.map_err(failed)?;
        let script = recipe.ingredients.script.clone();
        let connection = Self {
            number,
            peer,
            client,
            script,
            loading: Mutex::default(),
            loads: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            over: AtomicU64::new(0),
        };
        connection.load_script(0, wire.up_by).await.map_err(failed)?;
        Ok((connection, wire))
    }

    /// As [`Self::prove`]. Where the handshake cost the server something, a decision that was late is made again until it is
    /// in time, for as long as `patience`: a server that makes many handshakes is late, and would have to make one more.
    pub(super) async fn prove_in(&self, recipe: &Recipe, patience: Duration) -> Result<(), (StoreError, Failure)> {
        let until = monotonic() + patience;
        let encrypted = recipe.ingredients.target.tls.is_some();
        loop {
            match self.prove(recipe).await {
                Ok(()) => return Ok(()),
                Err(StoreError::Deadline(_)) if encrypted && monotonic() < until => {
                    sleep(within(PROOF_PAUSE_MAX, chance())).await;
                }
                Err(error @ StoreError::Deadline(_)) if encrypted => return Err((error, Failure::HandshakeTimedOut)),
                Err(error) => return Err((error, Failure::Cheap)),
            }
        }
    }

    /// Has a decision made, charged to a key of its own, within the recipe's deadline: a Redis that is read-only, still
    /// loading or too slow answers a PING well enough and no decision. A node of a Cluster may say that the key is not its.
    async fn prove(&self, recipe: &Recipe) -> Result<(), StoreError> {
        let until = monotonic() + recipe.ingredients.deadline;
        let trial = recipe.trial().clone();
        let call = Call::trial(trial.name, until);
        let arguments = recipe.ingredients.command(&call)?;
        let reply = match self.call(Errand { verb: Verb::Script, arguments, until }, trial.asking).await {
            Err(Trouble::Error(error)) => return Err(error),
            Err(trouble) if recipe.ingredients.is_clustered() => {
                tracing::debug!(?trouble, peer = %self.peer, "a node that proves itself has another's keys");
                return Ok(());
            }
            Err(trouble) => return Err(trouble.alone()),
            Ok(reply) => reply,
        };
        call.answers(Ok(reply.as_bytes().unwrap_or_default())).try_for_each(|((), answer)| answer.map(drop))
    }

    /// What other questions than script calls are asked with.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// One call; its reply. `asking` at a node that another one named for this once. The batcher drops none of these: fred may
    /// send a command again on reconnect when its future was dropped.
    pub(super) async fn call(&self, errand: Errand, asking: bool) -> Result<Value, Trouble> {
        let Errand { verb, arguments, until } = errand;
        self.begun.fetch_add(1, Ordering::Relaxed);
        let _under_way = UnderWay(self);
        let deadline = until.saturating_duration_since(monotonic());
        loop {
            let loads = self.loads.load(Ordering::Acquire);
            let answer = match asking {
                true => self.send_asking(verb.name(), arguments.clone(), until).await,
                false => self.send(verb.name(), arguments.clone(), until).await,
            };
            let failed = match answer {
                // Nothing was executed, so this is no repeated charge. It ends: each turn needs time, and `until` comes.
                Err(error) if error.details().starts_with("NOSCRIPT") => match verb {
                    Verb::Announce => self.load(&replicas::SCRIPT, until).await,
                    Verb::Forget => self.load(&reset::SCRIPT, until).await,
                    Verb::Script | Verb::Read | Verb::Delete => self.load_script(loads, until).await,
                },
                Err(error) => Err(error),
                Ok(reply) => return Ok(reply),
            };
            failed.map_err(|error| self.trouble(&error, deadline))?;
        }
    }

    /// Sends a command that must be answered by `until`. A time-out of ours around fred's future would leave the command
    /// queued, to be sent after a reconnect, so fred is told; and it is told by way of `custom`, because fred 10.1 has the
    /// scripting commands on the plain client only, where they silently ignore these options.
    async fn send(&self, name: &'static str, arguments: Vec<Value>, until: Instant) -> Result<Value, Error> {
        self.client.with_options(&options(until)?).custom(command(name), arguments).await
    }

    /// What a node is asked for once counts for the command that follows, so both are written with nothing between them.
    async fn send_asking(&self, name: &'static str, arguments: Vec<Value>, until: Instant) -> Result<Value, Error> {
        let pipeline = self.client.pipeline();
        let queue = pipeline.with_options(&options(until)?);
        queue.custom::<Value, Value>(command("ASKING"), Vec::new()).await?;
        queue.custom::<Value, Value>(command(name), arguments).await?;
        pipeline.last().await
    }

    /// Waits until the connection, while it is not used, proves to be gone; why. A device on the way may have forgotten it, which
    /// nothing tells until something is sent: better this than the next decision.
    pub(super) async fn lost_while_idle(&self, deadline: Duration) -> StoreError {
        loop {
            let begun = self.begun.load(Ordering::Relaxed);
            sleep(PING_EVERY).await;
            // What becomes of a call tells as much, and the breaker learns it.
            if self.begun.load(Ordering::Relaxed) != begun || self.over.load(Ordering::Relaxed) != begun {
                continue;
            }
            let patience = deadline.max(PING_MAX);
            let pong = self.send("PING", Vec::new(), monotonic() + patience).await;
            // Whatever else it says, it is there.
            if let Err(error @ (StoreError::Deadline(_) | StoreError::Unreachable(_))) =
                pong.map_err(|error| store_error(&error, patience))
            {
                return error;
            }
        }
    }

    /// What the server says of itself.
    pub(super) async fn info(&self, until: Instant) -> Result<String, Error> {
        self.send("INFO", Vec::new(), until).await?.convert()
    }

    /// Loads the script unless somebody did since `seen`. The lock is held across the call so that of many callers one
    /// loads and the others wait; the call is bounded by its own deadline, and the task is never dropped.
    async fn load_script(&self, seen: u64, until: Instant) -> Result<(), Error> {
        let _loading = self.loading.lock().await;
        if self.loads.load(Ordering::Acquire) == seen {
            self.load(&self.script, until).await?;
            self.loads.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    async fn load(&self, script: &Script, until: Instant) -> Result<(), Error> {
        let load = vec![Value::from_static_str("LOAD"), Value::String(script.text.clone())];
        self.send("SCRIPT", load, until).await.map(drop)
    }

    fn trouble(&self, error: &Error, deadline: Duration) -> Trouble {
        let elsewhere = || self.address_in(error.details());
        match error.details().split(' ').next() {
            Some("MOVED") => elsewhere().map_or_else(|| Trouble::Error(store_error(error, deadline)), Trouble::Moved),
            Some("ASK") => elsewhere().map_or_else(|| Trouble::Error(store_error(error, deadline)), Trouble::Ask),
            Some("TRYAGAIN") => Trouble::TryAgain,
            _ => Trouble::Error(store_error(error, deadline)),
        }
    }

    /// Where `MOVED 3999 host:port` points to; a node that does not know its own name leaves the host out.
    fn address_in(&self, redirection: &str) -> Option<Address> {
        let (host, port) = redirection.split(' ').nth(2)?.rsplit_once(':')?;
        let host = match (host, &self.peer) {
            ("" | "?", Peer::Tcp(here)) => here.host.as_str(),
            (host, _) => host,
        };
        Some(Address { host: host.to_owned(), port: port.parse().ok()? })
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

impl Trouble {
    /// What it means where one server should have all keys.
    pub(super) fn alone(self) -> StoreError {
        match self {
            Self::Error(error) => error,
            Self::Moved(_) | Self::Ask(_) | Self::TryAgain => {
                StoreError::Refused("it is one node of a Cluster; write redis-cluster:// in store.url".to_owned())
            }
        }
    }
}

fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::FirstKey, false)
}

pub(super) fn options(until: Instant) -> Result<Options, Error> {
    let left = until.saturating_duration_since(monotonic());
    if left.is_zero() {
        return Err(Error::new(ErrorKind::Timeout, "no time left"));
    }
    Ok(Options { timeout: Some(left), max_attempts: Some(1), ..Options::default() })
}

/// What the system says of an error. fred shows its parts: `Os { code: 111, kind: ConnectionRefused, message: "…" }`.
fn in_words(details: &str) -> &str {
    let message = details.strip_prefix("Os {").and_then(|parts| parts.split_once("message: \""));
    message.and_then(|(_, message)| message.split_once('"')).map_or(details, |(message, _)| message)
}

pub(super) fn store_error(error: &Error, deadline: Duration) -> StoreError {
    let details = || in_words(error.details()).to_owned();
    match error.kind() {
        ErrorKind::Timeout => StoreError::Deadline(deadline),
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Routing | ErrorKind::Cluster | ErrorKind::Sentinel | ErrorKind::Tls => {
            StoreError::Unreachable(details())
        }
        // A command whose connection was let go of.
        ErrorKind::Unknown if error.details() == "channel closed" => StoreError::Unreachable(details()),
        ErrorKind::Protocol | ErrorKind::Parse => StoreError::Nonsense(details()),
        ErrorKind::Backpressure => StoreError::Overloaded(REQUESTS_WAITING_MAX),
        _ => StoreError::Refused(details()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_is_told_in_its_words() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(in_words(&format!("{refused:?}")), "Connection refused");
        for other in ["WRONGPASS invalid username-password pair", "", "Os { code: 1", "message: \"x\""] {
            assert_eq!(in_words(other), other);
        }
    }
}
