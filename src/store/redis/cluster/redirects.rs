//! Sends the calls of a Cluster node, and follows its redirections to other nodes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fred::types::Value;
use tokio::time::{sleep, timeout_at};

use super::ClusterState;
use crate::StoreError;
use crate::clock::monotonic;
use crate::redis::batcher::call::Call;
use crate::redis::batcher::queue::{NameRefusals, PendingQueue, SlotQueues};
use crate::redis::batcher::{ScriptTransport, TransportError};
use crate::redis::command::RedisCommand;
use crate::redis::connection::CallError;
use crate::redis::connection::manager::ConnectionManager;
use crate::redis::reset::CommandSender;
use crate::redis::script::Script;
use crate::redis::target::HostAndPort;
use crate::redis::{ProbeCall, name};

/// Maximum number of calls in flight to a node that wants keys, each for those of one slot. It bounds how many calls are
/// pipelined. So many calls take about a third of a millisecond of Redis's time. A node that takes names has fewer calls, of many
/// names each.
pub(super) const CALLS_MAX: usize = 64;
/// Maximum number of redirections of one call. A node that just took over may redirect it back once or twice.
const REDIRECTIONS_MAX: usize = 16;
/// Pause before a further attempt, from the third redirection on: two nodes that point at each other need a moment to agree.
/// Also the pause while the keys of a call are being moved.
const PAUSE: Duration = Duration::from_millis(2);

/// Sends commands to the node `home`, and to the nodes that it redirects to.
pub(in crate::redis) struct RedirectFollower {
    home: Arc<ConnectionManager>,
    state: Weak<ClusterState>,
    refusals: Arc<NameRefusals>,
}

impl ScriptTransport for RedirectFollower {
    const CALLS: usize = CALLS_MAX;

    fn queue(&self) -> PendingQueue {
        PendingQueue::BySlot(SlotQueues::new(self.refusals.clone()))
    }

    fn deadline(&self) -> Duration {
        self.home.deadline()
    }

    async fn ready(&self) {
        self.home.ready().await;
    }

    fn call_script(
        self: Arc<Self>,
        call: &Call,
    ) -> impl Future<Output = Result<Value, TransportError>> + Send + use<> {
        let command = self
            .home
            .script_command(call, monotonic() + self.deadline());
        let names = call.groups.len();
        let by_names = call.by_names;
        let was_refused = call.was_refused;
        async move {
            let command = command?;
            if by_names {
                return self.call_by_names(&command).await;
            }
            let mut redirections = 0;
            let reply = if names == 1 {
                self.follow(command, &mut redirections).await?
            } else {
                // It does not wait until all names are on one node: calls for single names need not wait.
                match self.attempt(&command, &mut redirections).await {
                    Err(CallError::TryAgain) => return Err(TransportError::Split),
                    ended => ended.map_err(CallError::into_store_error)?,
                }
            };
            if was_refused && redirections == 0 {
                self.refusals.refused();
            }
            Ok(reply)
        }
    }
}

impl CommandSender for RedirectFollower {
    async fn send(&self, command: RedisCommand) -> Result<Value, CallError> {
        self.attempt(&command, &mut 0).await
    }
}

impl RedirectFollower {
    pub(super) fn new(home: Arc<ConnectionManager>, state: &Arc<ClusterState>) -> Self {
        Self {
            home,
            state: Arc::downgrade(state),
            refusals: Arc::default(),
        }
    }

    /// Sends a call that names no keys, which no node redirects.
    async fn call_by_names(&self, command: &RedisCommand) -> Result<Value, TransportError> {
        match self
            .home
            .call(command.clone(), false)
            .await
            .map_err(CallError::into_store_error)
        {
            // A node that wants keys has executed nothing.
            Err(StoreError::Refused(why))
                if self.refusals.refused_call(Script::may_have_run(&why)) =>
            {
                Err(TransportError::Split)
            }
            Err(error) => Err(error.into()),
            Ok(reply) => {
                if reply
                    .as_bytes()
                    .is_some_and(|bytes| bytes.first() != Some(&b'R'))
                {
                    self.refusals.accepted();
                }
                Ok(reply)
            }
        }
    }

    /// Sends a command, and repeats it until its keys are all on one node, or until its deadline.
    pub(in crate::redis) async fn follow(
        &self,
        command: RedisCommand,
        redirections: &mut usize,
    ) -> Result<Value, StoreError> {
        loop {
            match self.attempt(&command, redirections).await {
                Ok(reply) => return Ok(reply),
                Err(CallError::TryAgain) => sleep(PAUSE).await,
                Err(error) => return Err(error.into_store_error()),
            }
            if command.until <= monotonic() {
                return Err(StoreError::Deadline(self.home.deadline()));
            }
        }
    }

    /// Sends a command and follows redirections until its deadline. A redirected command was not executed, so sending it again
    /// does not charge twice. Errors: never [`CallError::Moved`] or [`CallError::Ask`], which are followed.
    /// Adds the number of redirections to `followed`.
    async fn attempt(
        &self,
        command: &RedisCommand,
        followed: &mut usize,
    ) -> Result<Value, CallError> {
        let until = command.until;
        let probe_in_slot = |asking| ProbeCall {
            name: name::probe_beside(&command.key().unwrap_or_default()),
            asking,
        };
        let mut manager = self.home.clone();
        let mut asking = false;
        let mut redirections = 0;
        loop {
            match manager.call(command.clone(), asking).await {
                Err(CallError::Moved(address)) => {
                    redirections += 1;
                    (manager, asking) = (
                        self.manager_at(&address, probe_in_slot(false), until)
                            .await?,
                        false,
                    );
                }
                Err(CallError::Ask(address)) => {
                    redirections += 1;
                    (manager, asking) = (
                        self.manager_at(&address, probe_in_slot(true), until)
                            .await?,
                        true,
                    );
                }
                ended => return ended,
            }
            *followed += 1;
            if redirections > REDIRECTIONS_MAX {
                let why = "the nodes of the Cluster redirect a call to each other".to_owned();
                return Err(StoreError::Unreachable(why).into());
            }
            if redirections > 2 {
                sleep(PAUSE).await;
            }
            if until <= monotonic() {
                return Err(StoreError::Deadline(self.home.deadline()).into());
            }
        }
    }

    /// The connection manager of another node, once its first probe is over. A new node is probed with `probe_call`.
    async fn manager_at(
        &self,
        address: &HostAndPort,
        probe_call: ProbeCall,
        until: Instant,
    ) -> Result<Arc<ConnectionManager>, StoreError> {
        let state = self
            .state
            .upgrade()
            .ok_or_else(|| StoreError::Unreachable("the store is gone".to_owned()))?;
        if !probe_call.asking {
            // The slot has moved, so the map is outdated.
            state.request_update();
        }
        let manager = state
            .node_elsewhere(address, || probe_call)?
            .manager
            .clone();
        let ready = timeout_at(until.into(), manager.ready()).await;
        ready.map_err(|_| StoreError::Deadline(self.home.deadline()))?;
        Ok(manager)
    }
}
