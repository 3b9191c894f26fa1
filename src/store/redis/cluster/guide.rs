//! Carries a node's calls, and follows them where the node sends them.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fred::types::Value;
use tokio::time::{sleep, timeout_at};

use super::super::batcher::{Carrier, Uncarried};
use super::super::call::Call;
use super::super::connection::{Errand, Trouble, Verb};
use super::super::keeper::Keeper;
use super::super::lines::Lines;
use super::super::queue::Waiter;
use super::super::reset::Commands;
use super::super::target::Address;
use super::super::{Trial, name};
use super::Nodes;
use crate::clock::monotonic;
use crate::store::StoreError;

/// Most calls under way to one node, each for the keys of one slot. They are written together as they come, so this is how
/// deep they are pipelined: a third of a millisecond of Redis's time.
pub(super) const CALLS_MAX: usize = 64;
/// Most times that a call is sent on. A node that just took over may send it back once or twice.
const REDIRECTIONS_MAX: usize = 16;
/// From the third time on: two nodes that point at each other need a moment to agree. Also how long keys that are on their
/// way are left alone.
const PAUSE: Duration = Duration::from_millis(2);

pub(in crate::store::redis) struct Guide {
    pub(super) home: Arc<Keeper>,
    pub(super) nodes: Weak<Nodes>,
}

impl Carrier for Guide {
    type Queue<T: Waiter + Send> = Lines<T>;
    const CALLS: usize = CALLS_MAX;

    fn deadline(&self) -> Duration {
        self.home.deadline()
    }

    async fn ready(&self) {
        self.home.ready().await;
    }

    fn command<T>(&self, call: &Call<T>) -> Result<Vec<Value>, StoreError> {
        self.home.command(call)
    }

    async fn carry(&self, command: Vec<Value>, until: Instant, names: usize) -> Result<Value, Uncarried> {
        let errand = Errand { verb: Verb::Script, arguments: command, until };
        if names == 1 {
            return Ok(self.follow(errand).await?);
        }
        // Not waited with until all its names are at one node: its parts need not.
        match self.attempt(&errand).await {
            Err(Trouble::TryAgain) => Err(Uncarried::Apart),
            ended => ended.map_err(|trouble| trouble.alone().into()),
        }
    }
}

impl Commands for Guide {
    async fn send(&self, errand: Errand) -> Result<Value, Trouble> {
        self.attempt(&errand).await
    }
}

impl Guide {
    /// Until its keys are all in one place, or nobody waits any longer.
    pub(in crate::store::redis) async fn follow(&self, errand: Errand) -> Result<Value, StoreError> {
        loop {
            match self.attempt(&errand).await {
                Ok(reply) => return Ok(reply),
                Err(Trouble::TryAgain) => sleep(PAUSE).await,
                Err(trouble) => return Err(trouble.alone()),
            }
            if errand.until <= monotonic() {
                return Err(StoreError::Deadline(self.home.deadline()));
            }
        }
    }

    /// Each time that it is sent on nothing was executed, so sending it anew repeats no charge; it is not done for callers who
    /// wait no longer. Errors: no redirection, those are followed.
    async fn attempt(&self, errand: &Errand) -> Result<Value, Trouble> {
        let until = errand.until;
        let beside = |asking| Trial { name: name::trial_beside(&errand.key().unwrap_or_default()), asking };
        let (mut keeper, mut asking, mut redirections) = (self.home.clone(), false, 0);
        loop {
            match keeper.call(errand.clone(), asking).await {
                Err(Trouble::Moved(address)) => {
                    redirections += 1;
                    (keeper, asking) = (self.at(&address, beside(false), until).await?, false);
                }
                Err(Trouble::Ask(address)) => {
                    redirections += 1;
                    (keeper, asking) = (self.at(&address, beside(true), until).await?, true);
                }
                ended => return ended,
            }
            if redirections > REDIRECTIONS_MAX {
                let why = "the nodes of the Cluster send a call to each other".to_owned();
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

    /// The keeper of another node, once it is known whether that can be asked; by what it proves itself, if it is a new one.
    async fn at(&self, address: &Address, trial: Trial, until: Instant) -> Result<Arc<Keeper>, StoreError> {
        let nodes = self.nodes.upgrade().ok_or_else(|| StoreError::Unreachable("the store is gone".to_owned()))?;
        if !trial.asking {
            // The slot is there for good.
            nodes.look_soon();
        }
        let keeper = nodes.lane(address, || trial).keeper.clone();
        let ready = timeout_at(until.into(), keeper.ready()).await;
        ready.map_err(|_| StoreError::Deadline(self.home.deadline()))?;
        Ok(keeper)
    }
}
