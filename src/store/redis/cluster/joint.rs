//! Joint decisions of a Cluster.
//!
//! Where all names lie in one slot, one call decides. Else the requests of each slot are a part. Parts are charged one after another,
//! each by one call, in the order of their first names. So of two rivals, the one that charged the first name of both gets through.
//! The first part that denies ends it: what was charged is undone, and the parts behind are read.
//!
//! A task of its own does this, since an undo must not be lost with the caller. What is lost when the caller goes away: before a
//! part is charged, the rest of the decision, and then the charges so far are undone; behind the last part, the answer alone. A
//! charge that got no answer may have been made. As for a single request, that stays so: nobody knows the instant to undo.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::{Cluster, ClusterState};
use crate::clock::monotonic;
use crate::joint::{Charged, JointFailure, JointUndos, Settled};
use crate::redis::batcher::call::{Purpose, ScriptRequest};
use crate::redis::batcher::{Answer, Answers, JointNote};
use crate::redis::{lost_call, name};
use crate::{StoreError, Verdict};
use tollgate_core::algorithm::{Mode, undo_instants};
use tollgate_core::plan::Plan;

/// Maximum number of joint decisions of several parts under way at one store. A healthy Cluster decides each in a few
/// milliseconds. Each holds at most eight requests, for at most twice the deadline. A further one is refused at once.
const DECISIONS_MAX: usize = 1_024;
/// Pause before the next look whether an undo can be sent. Connections come back within milliseconds, or much later.
const PAUSE: Duration = Duration::from_millis(2);

/// Counts of joint decisions of several parts.
#[derive(Default)]
pub(super) struct JointCounts {
    under_way: AtomicUsize,
    done: AtomicU64,
    unknown: AtomicU64,
}

/// A joint decision of several parts. A part is the indices of its requests.
struct Sequence {
    state: Arc<ClusterState>,
    requests: Vec<JointRequest>,
    /// When the last part must be charged.
    until: Instant,
    /// When an undo must be done.
    undo_until: Instant,
}

/// A request of a joint decision, from which those of each call are made.
struct JointRequest {
    name: String,
    plan: Arc<Plan>,
    cost: u64,
    mode: Mode,
    /// Whether it is a peek among charges: then it takes nothing from those behind it.
    takes_nothing: bool,
}

/// How far a joint decision has come.
struct JointProgress {
    /// Parts that were not charged yet, in their order.
    waiting: VecDeque<Vec<usize>>,
    /// Parts that were charged, and when.
    charged: Vec<(Vec<usize>, u64)>,
    /// What each request was told last.
    verdicts: Vec<Option<Verdict>>,
}

/// How the charges ended.
enum JointEnd {
    /// All parts are charged.
    Charged,
    /// A part denies.
    Denied,
    /// Nobody waits for the decision any more.
    Abandoned,
    Failed(StoreError),
}

type Decided = Result<Vec<Verdict>, JointFailure>;

/// Holds a place of [`DECISIONS_MAX`].
struct Permit(Arc<ClusterState>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.joint.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Cluster {
    /// Decides requests together, of which each is one of [`Purpose::Whole`] and waits until `until`.
    pub(in crate::redis) async fn decide_joint(
        &self,
        requests: Vec<ScriptRequest>,
        until: Instant,
        deadline: Duration,
    ) -> Decided {
        let is_charge = |request: &ScriptRequest| request.mode == Mode::Charge;
        let charges = requests.iter().any(is_charge);
        let sequence = Sequence::new(self.state.clone(), &requests, until, deadline);
        let mut parts = sequence.by_slot();
        if let [part] = &parts[..] {
            let answers = self.state.ask_joint(requests, until).await?;
            if answers.note != Some(JointNote::Apart) {
                return Ok(answers.each.into_iter().collect::<Result<_, _>>()?);
            }
            // The slot is being moved. Each name is on one node.
            parts = sequence.by_name(part);
        }
        if !charges {
            return sequence.peek_all(parts).await;
        }
        let permit = self.permit()?;
        let (reply, decided) = oneshot::channel();
        tokio::spawn(async move {
            sequence.decide(parts, reply).await;
            drop(permit);
        });
        decided.await.unwrap_or_else(|_| Err(lost_call().into()))
    }

    /// Asks for requests of one slot, which are of one joint decision.
    pub(in crate::redis) async fn ask_joint(
        &self,
        requests: Vec<ScriptRequest>,
        until: Instant,
    ) -> Result<Answers, StoreError> {
        self.state.ask_joint(requests, until).await
    }

    /// Counts of undone requests.
    pub(in crate::redis) fn joint_undos(&self) -> JointUndos {
        let counts = &self.state.joint;
        JointUndos {
            done: counts.done.load(Ordering::Relaxed),
            unknown: counts.unknown.load(Ordering::Relaxed),
        }
    }

    fn permit(&self) -> Result<Permit, StoreError> {
        let under_way = &self.state.joint.under_way;
        let before = under_way.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(self.state.clone());
        if before < DECISIONS_MAX {
            Ok(permit)
        } else {
            Err(StoreError::Overloaded(DECISIONS_MAX))
        }
    }
}

impl ClusterState {
    /// Asks the node that has the names of these requests, which are of one joint decision.
    async fn ask_joint(
        &self,
        requests: Vec<ScriptRequest>,
        until: Instant,
    ) -> Result<Answers, StoreError> {
        let left = || until.saturating_duration_since(monotonic());
        let map = self.map(left()).await?;
        let name = requests.first().map_or("", |first| &first.name);
        map.node(name)?.ask_joint(requests, left()).await
    }

    /// Waits until the node that has this name can be asked, or until then.
    async fn can_ask(&self, name: &str, until: Instant) {
        let can_ask = async || {
            let map = self.map(Duration::ZERO).await.ok()?;
            map.node(name)
                .ok()?
                .manager
                .refusal()
                .is_none()
                .then_some(())
        };
        while can_ask().await.is_none() && monotonic() + PAUSE < until {
            sleep(PAUSE).await;
        }
    }
}

impl Sequence {
    fn new(
        state: Arc<ClusterState>,
        requests: &[ScriptRequest],
        until: Instant,
        deadline: Duration,
    ) -> Self {
        let requests = requests.iter().map(|request| JointRequest {
            name: request.name.clone(),
            plan: request.plan.clone(),
            cost: request.cost,
            mode: request.mode,
            takes_nothing: request
                .joint
                .as_ref()
                .is_some_and(|place| place.takes_nothing),
        });
        Self {
            state,
            requests: requests.collect(),
            until,
            undo_until: until + deadline,
        }
    }

    /// Its parts, in their order.
    fn by_slot(&self) -> Vec<Vec<usize>> {
        self.parts(0..self.requests.len(), |request| name::slot(&request.name))
    }

    /// Parts of one name each.
    fn by_name(&self, part: &[usize]) -> Vec<Vec<usize>> {
        self.parts(part.iter().copied(), |request| &request.name)
    }

    fn parts<'a, K: Ord>(
        &'a self,
        indices: impl Iterator<Item = usize>,
        key: impl Fn(&'a JointRequest) -> K,
    ) -> Vec<Vec<usize>> {
        let mut parts = BTreeMap::<K, Vec<usize>>::new();
        for index in indices {
            parts
                .entry(key(&self.requests[index]))
                .or_default()
                .push(index);
        }
        let mut parts: Vec<_> = parts.into_values().collect();
        parts.sort_by_key(|part| self.first_name(part));
        parts
    }

    fn first_name(&self, part: &[usize]) -> Option<&str> {
        part.iter().map(|index| &*self.requests[*index].name).min()
    }

    /// Decides the requests, and does not end before nothing is left of a decision that was not allowed.
    async fn decide(&self, parts: Vec<Vec<usize>>, reply: oneshot::Sender<Decided>) {
        let mut progress = JointProgress {
            waiting: parts.into(),
            charged: Vec::new(),
            verdicts: vec![None; self.requests.len()],
        };
        match self.charge(&mut progress, &reply).await {
            // A caller that has gone by now is charged, as it is for a single request.
            JointEnd::Charged => drop(reply.send(decided(progress.verdicts, None))),
            JointEnd::Denied => drop(reply.send(self.deny(progress).await)),
            JointEnd::Abandoned => self.undo(&mut progress).await,
            JointEnd::Failed(error) => self.fail(progress, error, reply).await,
        }
    }

    async fn charge(
        &self,
        progress: &mut JointProgress,
        reply: &oneshot::Sender<Decided>,
    ) -> JointEnd {
        while let Some(part) = progress.waiting.pop_front() {
            if reply.is_closed() {
                return JointEnd::Abandoned;
            }
            let mode = |index: usize| self.requests[index].mode;
            let ask = |index| self.part_request(index, mode(index));
            let asked = part.iter().map(|index| ask(*index)).collect();
            let charges = part.iter().any(|index| mode(*index) == Mode::Charge);
            let answers = match self.state.ask_joint(asked, self.until).await {
                Ok(answers) => answers,
                Err(error) => return JointEnd::Failed(error),
            };
            let instant_us = match answers.note {
                Some(JointNote::ChargedAt(instant_us)) => Some(instant_us),
                // A part of peeks alone charges nothing.
                None if !charges => None,
                Some(JointNote::Apart) => {
                    progress.waiting.extend(self.by_name(&part));
                    let waiting = progress.waiting.make_contiguous();
                    waiting.sort_by_key(|part| self.first_name(part));
                    continue;
                }
                None => {
                    let why = "the script's reply does not have its instant".to_owned();
                    return JointEnd::Failed(StoreError::InvalidReply(why));
                }
            };
            let fit = progress.take(&part, answers.each, |index| &self.requests[index].plan);
            if !fit {
                return JointEnd::Denied;
            }
            progress
                .charged
                .extend(instant_us.map(|instant_us| (part, instant_us)));
        }
        JointEnd::Charged
    }

    /// Undoes what was charged, and reads the parts behind.
    async fn deny(&self, mut progress: JointProgress) -> Decided {
        let waiting = std::mem::take(&mut progress.waiting);
        let ((), read) = join(self.undo(&mut progress), self.peek(waiting.into())).await;
        let error = progress.take_known(read);
        decided(progress.verdicts, error)
    }

    /// Reads all parts.
    async fn peek_all(&self, parts: Vec<Vec<usize>>) -> Decided {
        let mut progress = JointProgress {
            waiting: VecDeque::new(),
            charged: Vec::new(),
            verdicts: vec![None; self.requests.len()],
        };
        let error = progress.take_known(self.peek(parts).await);
        decided(progress.verdicts, error)
    }

    /// Reports the failure. Whether charges before it stay, who asked decides; without a word they are undone.
    async fn fail(
        &self,
        mut progress: JointProgress,
        error: StoreError,
        reply: oneshot::Sender<Decided>,
    ) {
        let (charged, settled) = Charged::new();
        let failure = JointFailure {
            error,
            answered: progress.verdicts.clone(),
            charged: (!progress.charged.is_empty()).then_some(charged),
        };
        drop(reply.send(Err(failure)));
        match settled.await {
            Ok(Settled::Kept) => {}
            Ok(Settled::Undone(reply)) => {
                self.undo(&mut progress).await;
                drop(reply.send(progress.verdicts));
            }
            Err(_) => self.undo(&mut progress).await,
        }
    }

    /// Undoes all charges. Those of which the undo is answered have the verdicts from after it then. No undo is sent twice: a lost
    /// answer may be that of one that was done.
    async fn undo(&self, progress: &mut JointProgress) {
        let verdicts = &progress.verdicts;
        let undone = progress.charged.iter().map(|(part, instant_us)| async {
            let name = self.first_name(part).unwrap_or_default();
            self.state.can_ask(name, self.undo_until).await;
            let undo = |index| self.undo_request(index, verdicts[index].as_ref(), *instant_us);
            self.ask_each(part, &undo, self.undo_until).await
        });
        let undone: Vec<(usize, Answer)> = join_all(undone).await.into_iter().flatten().collect();
        let counts = &self.state.joint;
        for (index, answer) in &undone {
            let count = if answer.is_ok() {
                &counts.done
            } else {
                &counts.unknown
            };
            let is_charge = self.requests[*index].mode == Mode::Charge;
            let was_charged = verdicts[*index]
                .as_ref()
                .is_some_and(|verdict| verdict.fits && is_charge);
            count.fetch_add(u64::from(was_charged), Ordering::Relaxed);
        }
        // What is not known stands as it was charged.
        progress.take_known(undone);
    }

    /// Undoes a charge of that instant. A request that was not charged, as one by a plan in shadow mode, is only read.
    fn undo_request(
        &self,
        index: usize,
        charged: Option<&Verdict>,
        instant_us: u64,
    ) -> ScriptRequest {
        let limits = self.requests[index].plan.limits();
        let cost = self.requests[index].cost;
        let is_charge = self.requests[index].mode == Mode::Charge;
        let charged = charged.filter(|verdict| verdict.fits && is_charge);
        let instants = charged.map(|verdict| undo_instants(limits, verdict, instant_us, cost));
        let mut request = self.request(index, Mode::Charge);
        request.until = self.undo_until;
        if charged.is_none() {
            request.cost = 0;
        }
        let instants = instants.unwrap_or_default().to_vec();
        request.jointly(Purpose::Undo(instants.into()))
    }

    async fn peek(&self, parts: Vec<Vec<usize>>) -> Vec<(usize, Answer)> {
        let peek = |index| self.part_request(index, Mode::Peek);
        let asked = parts
            .iter()
            .map(|part| self.ask_each(part, &peek, self.until));
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Asks for the requests of a part, by one call or, while its slot is being moved, by one for each name.
    async fn ask_each(
        &self,
        part: &[usize],
        request: &impl Fn(usize) -> ScriptRequest,
        until: Instant,
    ) -> Vec<(usize, Answer)> {
        let ask = async |part: &[usize]| {
            let requests = part.iter().map(|index| request(*index)).collect();
            self.state.ask_joint(requests, until).await
        };
        let whole = ask(part).await;
        let is_apart = matches!(&whole, Ok(answers) if answers.note == Some(JointNote::Apart));
        if !is_apart {
            return each(part, whole);
        }
        let names = self.by_name(part);
        let asked = names
            .iter()
            .map(|name| async { each(name, ask(name).await) });
        join_all(asked).await.into_iter().flatten().collect()
    }

    fn part_request(&self, index: usize, mode: Mode) -> ScriptRequest {
        let takes_nothing = self.requests[index].takes_nothing;
        let request = self.request(index, mode).jointly(Purpose::Part);
        request.taking_nothing(takes_nothing)
    }

    fn request(&self, index: usize, mode: Mode) -> ScriptRequest {
        let JointRequest {
            name, plan, cost, ..
        } = &self.requests[index];
        ScriptRequest::named(name.clone(), plan.clone(), *cost, mode, self.until)
    }
}

impl JointProgress {
    /// Takes the answers to a part. Returns whether all of it fits.
    fn take<'a>(
        &mut self,
        part: &[usize],
        answers: Vec<Answer>,
        plan: impl Fn(usize) -> &'a Arc<Plan>,
    ) -> bool {
        let mut all_fit = true;
        for (index, answer) in part.iter().zip(answers) {
            let verdict = answer.ok();
            let fits = verdict.as_ref().is_some_and(|verdict| verdict.fits);
            all_fit &= fits || plan(*index).shadow;
            self.verdicts[*index] = verdict;
        }
        all_fit
    }

    /// Takes the verdicts among these answers. Returns an error, if there is one.
    fn take_known(&mut self, answers: Vec<(usize, Answer)>) -> Option<StoreError> {
        let mut failed = None;
        for (index, answer) in answers {
            match answer {
                Ok(verdict) => self.verdicts[index] = Some(verdict),
                Err(error) => failed = Some(error),
            }
        }
        failed
    }
}

/// The answer to each request of a part.
fn each(part: &[usize], answers: Result<Answers, StoreError>) -> Vec<(usize, Answer)> {
    let answers = match answers {
        Ok(answers) => answers.each,
        Err(error) => vec![Err(error); part.len()],
    };
    part.iter().copied().zip(answers).collect()
}

/// What was decided, where no charge is left that has to be settled.
fn decided(verdicts: Vec<Option<Verdict>>, error: Option<StoreError>) -> Decided {
    if verdicts.iter().all(Option::is_some) {
        return Ok(verdicts.into_iter().flatten().collect());
    }
    Err(JointFailure {
        answered: verdicts,
        ..error.unwrap_or_else(lost_call).into()
    })
}
