//! Sends the commands of a Cluster node, and follows its redirections to other nodes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fred::types::Value;
use tokio::time::{sleep, timeout_at};

use super::ClusterState;
use crate::StoreError;
use crate::clock::monotonic;
use crate::redis::command::{CommandReply, CommandSender, RedisCommand};
use crate::redis::connection::CallError;
use crate::redis::connection::manager::ConnectionManager;
use crate::redis::target::HostAndPort;
use crate::redis::{ProbeCall, name};

/// Maximum number of redirections of one call. A node that just took over may redirect it back once or twice.
const REDIRECTIONS_MAX: usize = 16;
/// Pause before a further attempt, from the third redirection on: two nodes that point at each other need a moment to agree.
/// Also the pause while the keys of a call are being moved.
const PAUSE: Duration = Duration::from_millis(2);

/// Sends commands to the node `home`, and to the nodes that it redirects to.
pub(in crate::redis) struct RedirectFollower {
    home: Arc<ConnectionManager>,
    state: Weak<ClusterState>,
}

impl CommandSender for RedirectFollower {
    async fn ready(&self) {
        self.home.ready().await;
    }

    /// Repeats a command that may not be split until its keys are all on one node, or until its deadline.
    async fn send(&self, command: RedisCommand) -> Result<CommandReply, CallError> {
        let mut was_redirected = false;
        loop {
            match self.attempt(&command, &mut was_redirected).await {
                Err(CallError::TryAgain) if !command.may_be_split => sleep(PAUSE).await,
                ended => {
                    return ended.map(|value| CommandReply {
                        value,
                        was_redirected,
                    });
                }
            }
            if command.until <= monotonic() {
                return Err(StoreError::Deadline(self.home.deadline()).into());
            }
        }
    }
}

impl RedirectFollower {
    pub(super) fn new(home: Arc<ConnectionManager>, state: &Arc<ClusterState>) -> Self {
        Self {
            home,
            state: Arc::downgrade(state),
        }
    }

    /// Sends a command and follows redirections until its deadline. A redirected command was not executed, so sending it again
    /// does not charge twice. Notes whether it was redirected. One without keys belongs to no other node, and is not followed.
    async fn attempt(
        &self,
        command: &RedisCommand,
        was_redirected: &mut bool,
    ) -> Result<Value, CallError> {
        let until = command.until;
        let mut manager = self.home.clone();
        let mut asking = false;
        let mut redirections = 0;
        loop {
            let ended = manager.call(command.clone(), asking).await;
            let address = match &ended {
                Err(CallError::Moved(address) | CallError::Ask(address)) => address,
                _ => return ended,
            };
            let Some(key) = command.key() else {
                return ended;
            };
            asking = matches!(ended, Err(CallError::Ask(_)));
            let probe_call = ProbeCall {
                name: name::probe_beside(&key),
                asking,
            };
            manager = self.manager_at(address, probe_call, until).await?;
            redirections += 1;
            *was_redirected = true;
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
