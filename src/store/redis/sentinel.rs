//! Asks Sentinels who the master is, and hears from them when that changes.
//!
//! Each Sentinel has a connection of its own: told of a switch by the first that knows, we let go of the old master before
//! it can be written to for long. Their answers are weighed by the epoch of the failover that they come from, so that one
//! that was cut off and is behind leads nobody back. That the named server is a master and may write is for the keeper's
//! probe to find out.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};
use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::breaker::within;
use super::client;
use super::keeper::{CONNECT_MAX, chance};
use super::pace::Pace;
use super::target::{Address, Peer, RedisTarget, Sentinels};

const SWITCHED: &str = "+switch-master";
/// From one question to the next while nothing is heard; also how soon a Sentinel that went silent is found out.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Longest pause before a Sentinel that was lost is tried again.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What the Sentinels say. Dropped, it lets go of them.
pub(super) struct Watch {
    master: watch::Receiver<Option<Address>>,
    tasks: Vec<AbortHandle>,
}

/// What all of them have said.
struct Council {
    target: Arc<RedisTarget>,
    sentinels: Sentinels,
    /// By the one who says so, while it is connected.
    named: Mutex<HashMap<Address, Named>>,
    master: watch::Sender<Option<Address>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    /// Counts failovers.
    epoch: u64,
    master: Address,
}

impl Watch {
    /// Begins to ask. Must be called within a tokio runtime.
    pub(super) fn start(target: &Arc<RedisTarget>, sentinels: &Sentinels) -> Self {
        let (sender, master) = watch::channel(None);
        let (target, sentinels) = (target.clone(), sentinels.clone());
        let council = Arc::new(Council { target, sentinels, named: Mutex::default(), master: sender });
        let follow = |sentinel: &Address| tokio::spawn(follow(council.clone(), sentinel.clone())).abort_handle();
        Self { tasks: council.sentinels.nodes.iter().map(follow).collect(), master }
    }

    /// Who the master is now, once anybody has said so.
    pub(super) async fn master(&self) -> Address {
        let mut master = self.master.clone();
        loop {
            let named = master.borrow_and_update().clone();
            if let Some(address) = named {
                return address;
            }
            if master.changed().await.is_err() {
                // The tasks hold the sender, and end with `self`.
                std::future::pending().await
            }
        }
    }

    /// Waits until the master is another than this.
    pub(super) async fn master_other_than(&self, address: &Address) {
        let mut master = self.master.clone();
        while master.borrow_and_update().as_ref().is_none_or(|master| master == address) {
            if master.changed().await.is_err() {
                std::future::pending().await
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Keeps listening to one Sentinel, anew whenever that ends, in whatever way.
async fn follow(council: Arc<Council>, sentinel: Address) {
    let (mut trouble, mut pace) = (None, Pace::default());
    loop {
        let listening = AssertUnwindSafe(council.listen(&sentinel, &mut trouble, &mut pace)).catch_unwind().await;
        let error = listening.unwrap_or_else(|_| Error::new(ErrorKind::Unknown, "the task that listens to it panicked"));
        council.heard(&sentinel, None);
        // One that stays out of reach is told of once.
        if trouble.replace(error.details().to_owned()).as_deref() != Some(error.details()) {
            let service = council.sentinels.service.as_str();
            tracing::warn!(%sentinel, service, error = error.details(), "this Sentinel names no master");
        }
        sleep(within(pace.pause_max(PAUSE_MAX), chance())).await;
    }
}

impl Council {
    /// Returns when the Sentinel is lost, or makes no sense; `trouble` is forgotten when it is well.
    async fn listen(&self, sentinel: &Address, trouble: &mut Option<String>, pace: &mut Pace) -> Error {
        let peer = Peer::Tcp(sentinel.clone());
        let (client, mut wire) = match client::connect_to_sentinel(&self.target, &peer, pace.patience()).await {
            Ok(connected) => connected,
            Err(error) => {
                pace.failed(client::failure(&self.target, &error));
                return error;
            }
        };
        pace.succeeded();
        // Before the question, so that nothing is missed between its answer and what follows.
        let mut messages = client.message_rx();
        if let Err(error) = client.with_options(&options()).subscribe(SWITCHED).await {
            return error;
        }
        loop {
            let named = match self.ask(&client).await {
                Ok(named) => named,
                Err(error) => return error,
            };
            self.heard(sentinel, Some(named));
            trouble.take();
            tokio::select! {
                error = wire.ended() => return error,
                // Whatever was switched: the answer tells whether it was ours, and from which epoch on.
                _ = messages.recv() => {}
                () = sleep(ASK_EVERY) => {}
            }
        }
    }

    async fn ask(&self, client: &Client) -> Result<Named, Error> {
        let ask = |question| {
            let command = CustomCommand::new_static("SENTINEL", ClusterHash::FirstKey, false);
            let arguments = vec![Value::from_static_str(question), Value::from(self.sentinels.service.clone())];
            let client = client.clone();
            async move { client.with_options(&options()).custom::<Value, Value>(command, arguments).await }
        };
        let (address, details) = tokio::try_join!(ask("GET-MASTER-ADDR-BY-NAME"), ask("MASTER"))?;
        if address.is_null() {
            return Err(Error::new(ErrorKind::Sentinel, "it watches nothing of that name; see sentinelServiceName in store.url"));
        }
        let (host, port): (String, u16) = address.convert()?;
        let details: HashMap<String, String> = details.convert()?;
        let epoch = details.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Ok(Named { epoch, master: Address { host, port } })
    }

    /// Weighs what one says, or that it has gone, with what the others said.
    fn heard(&self, sentinel: &Address, named: Option<Named>) {
        // Nothing panics while it is held.
        let mut all = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        match named {
            Some(named) => all.insert(sentinel.clone(), named),
            None => all.remove(sentinel),
        };
        self.master.send_if_modified(|current| {
            // Of two that contradict each other within an epoch, neither is a reason to change.
            let best = all.values().max_by_key(|named| (named.epoch, current.as_ref() == Some(&named.master)));
            // With all of them gone, what they said last is the best there is.
            let Some(Named { master, .. }) = best else { return false };
            let switched = current.as_ref() != Some(master);
            if switched {
                tracing::info!(service = self.sentinels.service.as_str(), %master, by = %sentinel, "Sentinel names the master");
                *current = Some(master.clone());
            }
            switched
        });
    }
}

fn options() -> Options {
    Options { timeout: Some(CONNECT_MAX), max_attempts: Some(1), ..Options::default() }
}
