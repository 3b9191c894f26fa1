//! Keeps a store connected: one task that probes until a connection proves itself, hands it to the callers, and notices
//! when it is lost. When to do what is the `breaker`'s to say; here are the clock, the dice, the task and the log lines.

use std::convert::Infallible;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fred::types::Value;
use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{timeout, timeout_at};

use super::batcher::{Carrier, Uncarried};
use super::breaker::Breaker;
use super::call::Call;
use super::client::Wire;
use super::connection::{Connection, Errand, Trouble, Verb};
use super::looks::Looks;
use super::pace::Failure;
use super::queue::{Queue, Waiter};
use super::reset::Commands;
use super::sentinel::Watch;
use super::target::Peer;
use super::{Recipe, Status, Trial};
use crate::clock::monotonic;
use crate::store::StoreError;

/// Longest that a probe may take to connect, and to load the script, where none timed out over TLS ([`super::pace`]); its
/// decision has the store's own deadline on top. A probe that the network swallows ends in time for another one within the
/// second that is promised.
pub(super) const CONNECT_MAX: Duration = Duration::from_millis(500);

/// Where a keeper's connections lead.
pub(super) enum Lead {
    Fixed(Peer),
    /// To whomever the Sentinels name.
    Named(Watch),
}

impl Lead {
    /// Where to connect to now; waits for the first to be named.
    async fn peer(&self) -> Peer {
        match self {
            Self::Fixed(peer) => peer.clone(),
            Self::Named(watch) => Peer::Tcp(watch.master().await),
        }
    }

    /// Waits until it leads elsewhere.
    async fn turned_from(&self, peer: &Peer) {
        match (self, peer) {
            (Self::Named(watch), Peer::Tcp(address)) => watch.master_other_than(address).await,
            _ => std::future::pending().await,
        }
    }
}

/// For logs.
impl fmt::Display for Lead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(peer) => write!(out, "{peer}"),
            Self::Named(_) => out.write_str("the master that Sentinels name"),
        }
    }
}

/// Gives calls the connection that is in use, and keeps there being one. Dropped, it takes the connection with it.
pub(super) struct Keeper {
    state: Arc<State>,
    task: AbortHandle,
}

struct State {
    recipe: Recipe,
    breaker: Mutex<Breaker>,
    standing: watch::Sender<Standing>,
    /// Whether `standing` is `Down`: all that a decision looks at while the store is well.
    down: AtomicBool,
    /// Decisions that the store owed, ever; see [`Status::undecided`].
    undecided: AtomicU64,
    /// What `undecided` was when the breaker last opened.
    undecided_before: AtomicU64,
    opened: AtomicU64,
    probes: AtomicU64,
    looks: Looks,
    replaced: AtomicU64,
}

enum Standing {
    /// The first probe is not over: whoever comes waits for it, no longer than its deadline.
    Starting,
    Up(Arc<Connection>),
    /// Why Redis cannot be asked.
    Down(String),
}

impl Standing {
    /// What a call has to go by; `None` while that is not known.
    fn ready(&self) -> Option<Result<Arc<Connection>, StoreError>> {
        match self {
            Self::Starting => None,
            Self::Up(connection) => Some(Ok(connection.clone())),
            Self::Down(why) => Some(Err(StoreError::Unreachable(why.clone()))),
        }
    }
}

impl Keeper {
    /// Begins to connect. Must be called within a tokio runtime.
    pub(super) fn start(recipe: Recipe) -> Self {
        let state = Arc::new(State {
            breaker: Mutex::new(Breaker::new(monotonic(), recipe.ingredients.is_clustered())),
            recipe,
            standing: watch::Sender::new(Standing::Starting),
            down: AtomicBool::new(false),
            undecided: AtomicU64::new(0),
            undecided_before: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            probes: AtomicU64::new(0),
            looks: Looks::default(),
            replaced: AtomicU64::new(0),
        });
        let task = tokio::spawn(forever(state.clone())).abort_handle();
        Self { state, task }
    }

    /// Why nobody should be made to wait for Redis now; `None` when it is asked.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        if !self.state.down.load(Ordering::Acquire) {
            return None;
        }
        self.state.standing.borrow().ready().and_then(Result::err)
    }

    /// Notes that so many decisions were owed.
    pub(super) fn owed(&self, decisions: usize) {
        self.state.undecided.fetch_add(decisions as u64, Ordering::Relaxed);
    }

    /// Waits until a connection is up.
    pub(super) async fn connected(&self) {
        // The sender lives as long as `self`.
        let _ = self.state.standing.subscribe().wait_for(|standing| matches!(standing, Standing::Up(_))).await;
    }

    /// What is in use, if anything is.
    pub(super) fn connection(&self) -> Option<Arc<Connection>> {
        self.state.standing.borrow().ready()?.ok()
    }

    /// Waits until it is known that nothing is in use.
    pub(super) async fn down(&self) {
        let _ = self.state.standing.subscribe().wait_for(|standing| matches!(standing, Standing::Down(_))).await;
    }

    /// What a healthy server answers within.
    pub(super) fn deadline(&self) -> Duration {
        self.state.recipe.ingredients.deadline
    }

    /// Waits until it is known whether commands can be sent, no longer than until `until`; `deadline` is how long that is in all.
    pub(super) async fn usable(&self, until: Instant, deadline: Duration) -> Result<(), StoreError> {
        self.refusal().map_or(Ok(()), Err)?;
        timeout_at(until.into(), self.ready()).await.map_err(|_| StoreError::Deadline(deadline))
    }

    /// One call on the connection in use; `asking` as [`Connection::call`]. A decision's is watched for the store's whole deadline,
    /// whatever is left of its callers': they stop waiting at theirs, and a caller's short deadline says nothing of Redis.
    pub(super) async fn call(&self, mut errand: Errand, asking: bool) -> Result<Value, Trouble> {
        let (connection, sent) = (self.state.connection().map_err(Trouble::Error)?, monotonic());
        if errand.verb == Verb::Script {
            errand.until = errand.until.max(sent + self.deadline());
        }
        let verb = errand.verb;
        let result = connection.call(errand, asking).await;
        // A sign of life may take its time, so it says nothing of whether decisions are made in theirs.
        if verb == Verb::Announce {
            return result;
        }
        self.state.note(connection.number, sent, result.as_ref().err());
        result
    }

    /// What the next connections prove themselves by, unless they do already by what this accepts.
    pub(super) fn try_by(&self, accepts: impl FnOnce(&Trial) -> bool, other: impl FnOnce() -> Trial) {
        let accepted = accepts(&self.state.recipe.trial());
        if !accepted {
            let other = other();
            *self.state.recipe.trial() = other;
        }
    }

    pub(super) fn status(&self) -> Status {
        Status {
            breaker: self.state.breaker().state(),
            opened: self.state.opened.load(Ordering::Relaxed),
            probes: self.state.probes.load(Ordering::Relaxed),
            undecided: self.state.undecided.load(Ordering::Relaxed),
            replaced: self.state.replaced.load(Ordering::Relaxed),
        }
    }

    /// Where it leads, for metrics: the same whether it is up or not.
    pub(super) fn label(&self) -> String {
        match &self.state.recipe.lead {
            Lead::Fixed(peer) => peer.to_string(),
            Lead::Named(_) => "master".to_owned(),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Carrier for Keeper {
    type Queue<T: Waiter + Send> = Queue<T>;

    fn deadline(&self) -> Duration {
        self.state.recipe.ingredients.deadline
    }

    /// The first probe ends by itself.
    async fn ready(&self) {
        // The sender lives as long as `self`.
        let _ = self.state.standing.subscribe().wait_for(|standing| standing.ready().is_some()).await;
    }

    fn command<T>(&self, call: &Call<T>) -> Result<Vec<Value>, StoreError> {
        self.state.recipe.ingredients.command(call)
    }

    async fn carry(&self, command: Vec<Value>, until: Instant, _names: usize) -> Result<Value, Uncarried> {
        let errand = Errand { verb: Verb::Script, arguments: command, until };
        self.call(errand, false).await.map_err(|trouble| trouble.alone().into())
    }
}

impl Commands for Keeper {
    async fn send(&self, errand: Errand) -> Result<Value, Trouble> {
        self.call(errand, false).await
    }
}

impl State {
    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        // Each of the breaker's steps is whole; a panic between two of them leaves a sound one.
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> Result<Arc<Connection>, StoreError> {
        let nobody = || Err(StoreError::Unreachable("it was not tried yet".to_owned()));
        self.standing.borrow().ready().unwrap_or_else(nobody)
    }

    /// What became of a call: whether it was answered is what counts, not what the answer was.
    fn note(&self, connection: u64, sent: Instant, trouble: Option<&Trouble>) {
        let mut breaker = self.breaker();
        match trouble {
            Some(Trouble::Error(error @ (StoreError::Deadline(_) | StoreError::Unreachable(_)))) => {
                if breaker.unanswered(connection, sent, monotonic(), chance()) {
                    self.opened(error);
                }
            }
            _ => breaker.answered(connection),
        }
    }

    /// The breaker has opened: whoever waits or comes is told at once. As in [`Self::closed`], the breaker is locked
    /// meanwhile, so that it and what callers see change together.
    fn opened(&self, error: &StoreError) {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.undecided_before.store(self.undecided.load(Ordering::Relaxed), Ordering::Relaxed);
        self.put_down(error);
        say_out_of_reach(&self.recipe.lead, error);
    }

    fn put_down(&self, error: &StoreError) {
        self.standing.send_replace(Standing::Down(format!("not asked until it answers a probe: {error}")));
        self.down.store(true, Ordering::Release);
    }

    /// Makes a connection to where it leads now, and has a decision made over it.
    async fn probe(&self, number: u64, tried: &mut Option<Peer>) -> Result<(Connection, Wire), (StoreError, Failure)> {
        self.probes.fetch_add(1, Ordering::Relaxed);
        let (lead, patience) = (&self.recipe.lead, self.breaker().patience());
        let unnamed = |_| (StoreError::Unreachable("no Sentinel has named a master yet".to_owned()), Failure::Cheap);
        let peer = tried.insert(timeout(CONNECT_MAX, lead.peer()).await.map_err(unnamed)?);
        let proven = async {
            let (connection, wire) = Connection::open(&self.recipe, peer.clone(), number, patience).await?;
            connection.prove_in(&self.recipe, patience).await?;
            Ok((connection, wire))
        };
        tokio::select! {
            proven = proven => proven,
            () = lead.turned_from(peer) => Err((turned(), Failure::Cheap)),
            never = self.give_up_starting() => match never {},
        }
    }

    /// Callers do not wait for the first probe longer than a probe usually takes: it may wait for its turn to shake hands.
    async fn give_up_starting(&self) -> Infallible {
        tokio::time::sleep(CONNECT_MAX).await;
        self.down_from_the_start(&StoreError::Deadline(CONNECT_MAX));
        std::future::pending().await
    }

    /// Puts it down if it was not up yet.
    fn down_from_the_start(&self, error: &StoreError) {
        let starting = self.standing.borrow().ready().is_none();
        if starting {
            say_out_of_reach(&self.recipe.lead, error);
            self.put_down(error);
        }
    }

    /// Waits until a probe is due; a server other than the one that was tried last is not made to wait for its sins.
    async fn due(&self, tried: Option<&Peer>) {
        let due = || self.breaker().probe_at().unwrap_or_else(monotonic).into();
        let turned = tried.map(|peer| self.recipe.lead.turned_from(peer));
        tokio::select! {
            () = tokio::time::sleep_until(due()) => return,
            Some(()) = OptionFuture::from(turned) => {}
        }
        self.breaker().hasten(monotonic(), chance());
        tokio::time::sleep_until(due()).await;
    }

    /// Probes as the breaker says until a connection proves itself, and puts that to use.
    async fn reconnect(&self) -> (Arc<Connection>, Wire) {
        let mut tried = None;
        loop {
            self.due(tried.as_ref()).await;
            let Some(number) = self.breaker().begin_probe(monotonic()) else { continue };
            match self.probe(number, &mut tried).await {
                Ok((connection, wire)) => {
                    let connection = Arc::new(connection);
                    self.closed(connection.clone());
                    return (connection, wire);
                }
                Err((error, failure)) => {
                    self.breaker().probe_failed(failure, monotonic(), chance());
                    tracing::debug!(%error, "the store did not pass a probe");
                    self.down_from_the_start(&error);
                    self.put_down(&error);
                }
            }
        }
    }

    fn closed(&self, connection: Arc<Connection>) {
        let server = connection.peer.to_string();
        let mut breaker = self.breaker();
        let out = breaker.probe_passed(monotonic()).unwrap_or_default();
        self.standing.send_replace(Standing::Up(connection));
        self.down.store(false, Ordering::Release);
        drop(breaker);
        let before = self.undecided_before.load(Ordering::Relaxed);
        let undecided = self.undecided.load(Ordering::Relaxed) - before;
        // What came to nothing before is told; the next outage counts its own.
        self.undecided_before.store(before + undecided, Ordering::Relaxed);
        tracing::info!(server, out_ms = u64::try_from(out.as_millis()).unwrap_or(u64::MAX), undecided, "store connected");
    }

    /// Takes note of what the server says of itself.
    async fn look(&self, connection: &Connection) -> Infallible {
        if self.looks.at(connection).await {
            self.replaced.fetch_add(1, Ordering::Relaxed);
        }
        std::future::pending().await
    }

    /// Waits until the breaker opens, be it that the connection ends, that calls on it go unanswered, or that it leads to one
    /// who is master no more.
    async fn watch(&self, connection: &Connection, wire: &mut Wire) {
        let mut standing = self.standing.subscribe();
        let error = tokio::select! {
            error = wire.ended() => StoreError::Unreachable(error.details().to_owned()),
            error = connection.lost_while_idle(self.recipe.ingredients.deadline) => error,
            () = self.recipe.lead.turned_from(&connection.peer) => turned(),
            _ = standing.wait_for(|standing| matches!(standing, Standing::Down(_))) => return,
            never = self.look(connection) => match never {},
        };
        let mut breaker = self.breaker();
        if breaker.lost(connection.number, monotonic(), chance()) {
            self.opened(&error);
        }
    }
}

fn turned() -> StoreError {
    StoreError::Unreachable("the Sentinels named another master".to_owned())
}

/// Keeps the connection, anew if a turn should panic.
async fn forever(state: Arc<State>) {
    loop {
        if AssertUnwindSafe(turn(&state)).catch_unwind().await.is_err() {
            tracing::error!("the task that keeps the store connected panicked; it goes on");
            // The connection went with the panic, and so did a probe.
            state.breaker().start_over(monotonic(), chance());
            state.put_down(&StoreError::Unreachable("the task that keeps it connected panicked".to_owned()));
        }
    }
}

/// From the breaker's opening to the next.
async fn turn(state: &State) {
    let (connection, mut wire) = state.reconnect().await;
    state.watch(&connection, &mut wire).await;
}

/// Each worker finds out by itself; those that find the same within a second are told as one.
fn say_out_of_reach(server: &Lead, error: &StoreError) {
    const ALIKE_WITHIN: Duration = Duration::from_secs(1);
    static LAST: Mutex<Option<(String, Instant)>> = Mutex::new(None);
    let (told, now) = (format!("{server}: {error}"), monotonic());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.as_ref().is_some_and(|(last, when)| *last == told && now.saturating_duration_since(*when) < ALIKE_WITHIN) {
        return;
    }
    *last = Some((told, now));
    drop(last);
    tracing::warn!(%server, %error, "store out of reach; answering by each plan's on_store_failure until it is back");
}

/// A number that nobody can tell beforehand; each hasher's keys are random.
pub(super) fn chance() -> u64 {
    RandomState::new().hash_one(0)
}
