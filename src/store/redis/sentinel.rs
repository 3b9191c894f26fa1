//! Asks Sentinels for the address of the master, and subscribes to its changes.
//!
//! Each Sentinel has a connection of its own. The first one that reports a failover makes us leave the old master, so that it
//! is not written to for long. The answer with the highest failover epoch wins, so that a Sentinel that was cut off and is
//! behind cannot lead back to the old master. The probe of the connection manager checks that the named server accepts writes.

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

use super::connection::breaker::random_within;
use super::connection::manager::CONNECT_MAX;
use super::connection::outage_log::LoggedCauses;
use super::connection::pace::Pace;
use super::connection::{client, wording};
use super::target::{HostAndPort, RedisTarget, Sentinels, ServerAddress};
use crate::random;

const SWITCHED: &str = "+switch-master";
/// Interval between two queries while no event comes. It also bounds how late a silent Sentinel is detected.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Longest pause before a Sentinel that was lost is tried again.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Watches which server the Sentinels name as master. Dropping it closes the connections to them.
pub(super) struct MasterWatch {
    master: watch::Receiver<Option<HostAndPort>>,
    last_error: Arc<Mutex<Option<String>>>,
    tasks: Vec<AbortHandle>,
}

/// State that the tasks of all Sentinels share.
struct SentinelGroup {
    target: Arc<RedisTarget>,
    sentinels: Sentinels,
    /// The last answer of each connected Sentinel, by its address.
    named: Mutex<HashMap<HostAndPort, NamedMaster>>,
    /// A Sentinel and its error: the last error of any of them.
    last_error: Arc<Mutex<Option<String>>>,
    master: watch::Sender<Option<HostAndPort>>,
}

/// The answer of one Sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedMaster {
    /// The configuration epoch, which rises with each failover.
    epoch: u64,
    master: HostAndPort,
}

impl MasterWatch {
    /// Starts asking. Must be called within a tokio runtime.
    pub(super) fn start(target: &Arc<RedisTarget>, sentinels: &Sentinels) -> Self {
        let (sender, master) = watch::channel(None);
        let target = target.clone();
        let sentinels = sentinels.clone();
        let group = Arc::new(SentinelGroup {
            target,
            sentinels,
            named: Mutex::default(),
            last_error: Arc::default(),
            master: sender,
        });
        let follow = |sentinel: &HostAndPort| {
            tokio::spawn(follow_sentinel(group.clone(), sentinel.clone())).abort_handle()
        };
        Self {
            tasks: group.sentinels.nodes.iter().map(follow).collect(),
            last_error: group.last_error.clone(),
            master,
        }
    }

    /// The last error of a Sentinel, after its address.
    pub(super) fn last_error(&self) -> Option<String> {
        let last = self.last_error.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The address of the master now. Waits until a Sentinel has named one.
    pub(super) async fn master(&self) -> HostAndPort {
        let mut master = self.master.clone();
        loop {
            let named = master.borrow_and_update().clone();
            if let Some(address) = named {
                return address;
            }
            if master.changed().await.is_err() {
                // Only when `self` is dropped, since its tasks hold the sender.
                std::future::pending().await
            }
        }
    }

    /// Waits until the Sentinels name a master other than `address`.
    pub(super) async fn master_other_than(&self, address: &HostAndPort) {
        let mut master = self.master.clone();
        while master
            .borrow_and_update()
            .as_ref()
            .is_none_or(|master| master == address)
        {
            if master.changed().await.is_err() {
                std::future::pending().await
            }
        }
    }
}

impl Drop for MasterWatch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Listens to one Sentinel for ever, and reconnects whenever that ends for any reason.
async fn follow_sentinel(group: Arc<SentinelGroup>, sentinel: HostAndPort) {
    let mut logged = LoggedCauses::default();
    let mut pace = Pace::default();
    loop {
        let listening = AssertUnwindSafe(group.listen(&sentinel, &mut logged, &mut pace))
            .catch_unwind()
            .await;
        let error = listening.unwrap_or_else(|_| {
            Error::new(ErrorKind::Unknown, "the task that listens to it panicked")
        });
        group.record(&sentinel, None);
        group.keep_error(&sentinel, wording(&error));
        if logged.add(wording(&error)) {
            let service = group.sentinels.service.as_str();
            tracing::warn!(%sentinel, service, error = wording(&error), "this Sentinel names no master");
        }
        sleep(random_within(pace.pause_max(PAUSE_MAX), random::bits())).await;
    }
}

impl SentinelGroup {
    /// Listens to a Sentinel until it is lost or gives an invalid answer. Clears `logged` when it has answered.
    async fn listen(
        &self,
        sentinel: &HostAndPort,
        logged: &mut LoggedCauses,
        pace: &mut Pace,
    ) -> Error {
        let peer = ServerAddress::Tcp(sentinel.clone());
        let (client, mut task) =
            match client::connect_to_sentinel(&self.target, &peer, pace.time_limit()).await {
                Ok(connected) => connected,
                Err(error) => {
                    pace.failed(client::failure(&self.target, &error));
                    return error;
                }
            };
        pace.succeeded();
        // Subscribed before the query, so that no change after its answer is missed.
        let mut messages = client.message_rx();
        if let Err(error) = client.with_options(&options()).subscribe(SWITCHED).await {
            return error;
        }
        loop {
            let named = match self.ask(&client).await {
                Ok(named) => named,
                Err(error) => return error,
            };
            self.record(sentinel, Some(named));
            logged.clear();
            tokio::select! {
                error = task.ended() => return error,
                // The event may be of another master. The next answer tells whether ours changed, and its epoch.
                _ = messages.recv() => {}
                () = sleep(ASK_EVERY) => {}
            }
        }
    }

    async fn ask(&self, client: &Client) -> Result<NamedMaster, Error> {
        // Both are awaited, so that the error of the first is told wherever both fail.
        let (address, details) = tokio::join!(
            self.ask_about_service(client, "GET-MASTER-ADDR-BY-NAME"),
            self.ask_about_service(client, "MASTER")
        );
        let address = address?;
        let details = details?;
        if address.is_null() {
            return Err(Error::new(
                ErrorKind::Sentinel,
                "it watches no master of that name; see sentinelServiceName in store.url",
            ));
        }
        let (host, port): (String, u16) = address.convert()?;
        let details: HashMap<String, String> = details.convert()?;
        let epoch = details
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok())
            .unwrap_or(0);
        Ok(NamedMaster {
            epoch,
            master: HostAndPort { host, port },
        })
    }

    async fn ask_about_service(
        &self,
        client: &Client,
        question: &'static str,
    ) -> Result<Value, Error> {
        let command = CustomCommand::new_static("SENTINEL", ClusterHash::FirstKey, false);
        let arguments = vec![
            Value::from_static_str(question),
            Value::from(self.sentinels.service.clone()),
        ];
        let client = client.with_options(&options());
        client.custom(command, arguments).await
    }

    fn keep_error(&self, sentinel: &HostAndPort, error: &str) {
        let mut last = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Some(format!("{sentinel}: {error}"));
    }

    /// Weighs what one says, or that it has gone, with what the others said.
    fn record(&self, sentinel: &HostAndPort, named: Option<NamedMaster>) {
        // No code panics while holding this lock.
        let mut all = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        match named {
            Some(named) => all.insert(sentinel.clone(), named),
            None => all.remove(sentinel),
        };
        self.master.send_if_modified(|current| {
            // If two contradict each other within an epoch, the present master stays.
            let best = all.values().max_by_key(|named| (named.epoch, current.as_ref() == Some(&named.master)));
            // If all of them are lost, the last master stays.
            let Some(NamedMaster { master, .. }) = best else { return false };
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
    Options {
        timeout: Some(CONNECT_MAX),
        max_attempts: Some(1),
        ..Options::default()
    }
}
