//! The batcher: requests that arrive while a call to Redis is in flight go with the next call.
//!
//! Requests are never delayed to wait for more of them. An idle Redis is asked at once, and a busy one with as many requests
//! as a call may hold. A Redis that is far away is asked again before its last answer has come (`spacing`).
//!
//! `queue` and `call` decide which requests form a call. This module has the one task that owns the queue and the calls in
//! flight. The task also answers requests whose deadline has passed, by one timer for all of them. A timer per request would
//! cost as much as its share of the call.

pub(super) mod call;
mod caller;
mod queue;
mod slot_queues;
mod spacing;
mod submission;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::Sleep;

use super::StoreSettings;
use super::command::{CommandReply, CommandSender};
use super::connection::CallError;
use super::script::Script;
use crate::StoreError;
use crate::clock::monotonic;
use call::{Call, ScriptRequest, work_in_flight_max};
use caller::Caller;
pub(super) use caller::{Answers, JointNote};
use queue::PendingQueue;
use spacing::Spacing;
pub(super) use submission::Batcher;
use submission::Job;
use tollgate_core::algorithm::Verdict;

/// Maximum number of requests that wait or are in flight; further ones are refused at once. A healthy Redis decides this many
/// within the default deadline, so every accepted request can be answered.
pub(super) const REQUESTS_WAITING_MAX: usize = 4096;
/// Maximum number of calls in flight. Full calls are sent whenever a place is free. Where the round trip is short, one call at a
/// time is enough; where it is long, up to this many overlap.
pub(super) const CALLS_MAX: usize = 4;
/// Maximum number of calls in flight to a node that wants keys, each for those of one slot. It bounds how many calls are
/// pipelined. So many calls take about a third of a millisecond of Redis's time. A node that takes names has [`CALLS_MAX`], of many
/// names each.
const NODE_CALLS_MAX: usize = 64;

/// The result of one request.
pub(super) type Answer = Result<Verdict, StoreError>;

/// The answer to each request of a joint decision that [`JointNote::Apart`] is told of.
fn apart_error() -> StoreError {
    StoreError::Refused("the slot of a joint decision is being moved".to_owned())
}

/// Runs [`drive`], again after a panic. A panic drops the senders of the callers that it affects, which answers them. Requests
/// that were not received yet are still in the channel.
async fn run(
    settings: StoreSettings,
    commands: Arc<impl CommandSender>,
    mut received: mpsc::UnboundedReceiver<Job>,
    answering: Arc<AtomicBool>,
) {
    while AssertUnwindSafe(drive(&settings, &commands, &mut received, &answering))
        .catch_unwind()
        .await
        .is_err()
    {
        tracing::error!(
            "the task that calls the store panicked; its calls are answered by policy, and it goes on"
        );
    }
}

/// The loop of the task that owns the queue and the calls in flight. Returns when all [`Batcher`]s are dropped.
async fn drive<C: CommandSender>(
    settings: &StoreSettings,
    commands: &Arc<C>,
    received: &mut mpsc::UnboundedReceiver<Job>,
    answering: &AtomicBool,
) {
    let mut ready = pin!(commands.ready());
    let mut replies = FuturesUnordered::new();
    let mut driver = Driver::new(settings.clone(), commands.clone());
    loop {
        while let Ok(job) = received.try_recv() {
            driver.admit(job);
        }
        while let Some(call) = driver.next_call() {
            replies.push(driver.start(call, None));
        }
        tokio::select! {
            biased;
            () = &mut ready, if !driver.ready => driver.ready = true,
            Some((place, reply)) = replies.next() => {
                answering.store(reply.is_ok(), Ordering::Relaxed);
                for (part, whole) in driver.settle(place, reply) {
                    replies.push(driver.start(part, Some(whole)));
                }
            }
            job = received.recv() => match job {
                Some(job) => driver.admit(job),
                None => return,
            },
            () = &mut driver.alarm, if driver.armed => driver.expire(),
        }
    }
}

/// The state of the batcher's task.
struct Driver<C: CommandSender> {
    settings: StoreSettings,
    commands: Arc<C>,
    /// Whether calls can be made yet.
    ready: bool,
    queue: PendingQueue,
    /// Calls in flight, by place; a place is `None` when its call has returned. The first `calls_max` places are for
    /// whole calls, further ones for parts of calls.
    calls: Vec<Option<InFlight>>,
    calls_max: usize,
    /// Free places for whole calls.
    free: Vec<usize>,
    /// Work of the calls in flight, and most of it; see [`ScriptRequest::work`].
    work: usize,
    work_max: usize,
    spacing: Spacing,
    alarm: Pin<Box<Sleep>>,
    /// Whether the alarm is set. It is never later than the earliest deadline of all waiting requests.
    armed: bool,
}

/// A call that was sent and has not returned.
struct InFlight {
    call: Call,
    sent: Instant,
    /// Shared by the parts of a split call that have one slot, to recognise the last one that returns. `None` for a whole call.
    whole: Option<Arc<()>>,
}

impl<C: CommandSender> Driver<C> {
    fn new(settings: StoreSettings, commands: Arc<C>) -> Self {
        let is_clustered = settings.is_clustered();
        let calls_max = if is_clustered {
            NODE_CALLS_MAX
        } else {
            CALLS_MAX
        };
        Self {
            commands,
            ready: false,
            queue: PendingQueue::new(is_clustered),
            calls: (0..calls_max).map(|_| None).collect(),
            calls_max,
            free: (0..calls_max).collect(),
            work: 0,
            work_max: work_in_flight_max(settings.deadline),
            spacing: Spacing::new(settings.deadline),
            alarm: Box::pin(tokio::time::sleep(Duration::ZERO)),
            armed: false,
            settings,
        }
    }

    fn admit(&mut self, job: Job) {
        let until = match job {
            Job::Single(request) => {
                let until = request.until;
                self.queue.push(request);
                until
            }
            Job::Batch(requests) => {
                // All requests of a batch have the same deadline.
                let Some(until) = requests.front().map(|request| request.until) else {
                    return;
                };
                self.queue.push_batch(requests);
                until
            }
        };
        // A time that has passed needs no alarm: the loop composes calls next.
        let due = self.spacing.due().filter(|due| *due > monotonic());
        self.wake_by(due.map_or(until, |due| due.min(until)));
    }

    /// Sets the alarm to `at`, unless it is set to an earlier time.
    fn wake_by(&mut self, at: Instant) {
        if !self.armed || at < self.alarm.deadline().into_std() {
            self.arm(at);
        }
    }

    fn arm(&mut self, until: Instant) {
        self.alarm.as_mut().reset(until.into());
        self.armed = true;
    }

    /// The next call, if there is one to send and a free place for it.
    fn next_call(&mut self) -> Option<Call> {
        if !self.ready || self.free.is_empty() {
            return None;
        }
        let in_flight = self.calls_max - self.free.len();
        let due = || self.spacing.due().is_some_and(|due| due <= monotonic());
        if !self.queue.is_ready(in_flight, in_flight == 0 || due()) {
            return None;
        }
        if self.armed && self.alarm.deadline().into_std() <= monotonic() {
            // Requests whose deadline has passed must not be charged.
            self.expire();
        }
        let calls = self.calls.iter().flatten().map(|in_flight| &in_flight.call);
        let work_left = self.work_max.saturating_sub(self.work);
        let mut call = self.queue.compose(work_left, calls);
        call.arrange();
        (!call.groups.is_empty()).then_some(call)
    }

    /// Sends a call, or a part of a split one, and keeps it until it returns. The call must not be empty.
    fn start(
        &mut self,
        call: Call,
        whole: Option<Arc<()>>,
    ) -> impl Future<Output = (usize, Result<CommandReply, CallError>)> + use<C> {
        let now = monotonic();
        let until = now + self.settings.deadline;
        let command = self.settings.script_command(&call, until);
        let commands = self.commands.clone();
        self.spacing.sent(now);
        self.work += call.work;
        let free = if whole.is_none() {
            self.free.pop()
        } else {
            None
        };
        let left_by_part =
            || (self.calls_max..self.calls.len()).find(|place| self.calls[*place].is_none());
        let place = free.or_else(left_by_part).unwrap_or_else(|| {
            self.calls.push(None);
            self.calls.len() - 1
        });
        self.calls[place] = Some(InFlight {
            call,
            sent: now,
            whole,
        });
        let reply = async move { commands.send(command?).await };
        reply.map(move |reply| (place, reply))
    }

    /// Answers the callers of a call that returned. Returns the parts to send instead, if the call must be split or sent again, each
    /// with its [`InFlight::whole`]. Parts take no places of whole calls: one that waits for another node does not delay this node's keys.
    fn settle(
        &mut self,
        place: usize,
        reply: Result<CommandReply, CallError>,
    ) -> Vec<(Call, Arc<()>)> {
        let Some(InFlight {
            mut call,
            sent,
            whole,
        }) = self.calls[place].take()
        else {
            return Vec::new();
        };
        self.work -= call.work;
        if place < self.calls_max {
            self.free.push(place);
        }
        while self.calls.len() > self.calls_max && self.calls.last().is_some_and(Option::is_none) {
            self.calls.pop();
        }
        let reply = match reply {
            Ok(reply) => {
                self.spacing.answered(sent, monotonic());
                if call.is_to_be_sent_again(reply.as_bytes()) {
                    return vec![(call, whole.unwrap_or_default())];
                }
                if call.by_names
                    && let Some(parts) = call.split_refused(reply.as_bytes())
                {
                    return each_alone(parts);
                }
                if let Some(refusals) = self.queue.refusals() {
                    refusals.answered(&call, reply.was_redirected);
                }
                Ok(reply)
            }
            Err(CallError::TryAgain) if call.joint_decisions > 0 => {
                // Its parts would not be all or none. Who asked knows what to do.
                call.note(JointNote::Apart);
                Err(apart_error())
            }
            Err(CallError::TryAgain) => {
                let whole = Arc::new(());
                let parts = call.split().into_iter();
                return parts.map(|part| (part, whole.clone())).collect();
            }
            Err(error) => {
                let error = error.into_store_error();
                if call.by_names && self.wants_keys(&error) {
                    return each_alone(call.split_by_slot());
                }
                Err(error)
            }
        };
        // A split call has returned when its last part has.
        if whole.is_none_or(|whole| Arc::into_inner(whole).is_some()) {
            self.queue.returned(&call);
        }
        call.answer(reply.as_ref().map(CommandReply::as_bytes));
        Vec::new()
    }

    /// Whether the answer to a call by names tells that the node wants keys, and has executed nothing.
    fn wants_keys(&mut self, error: &StoreError) -> bool {
        match (error, self.queue.refusals()) {
            (StoreError::Refused(why), Some(refusals)) => {
                refusals.refused_call(Script::may_have_run(why))
            }
            _ => false,
        }
    }

    /// Answers the requests whose deadline has passed. Sets the alarm to the next deadline, or to when waiting requests may be
    /// sent if that is earlier.
    fn expire(&mut self) {
        let now = monotonic();
        let calls = self
            .calls
            .iter_mut()
            .flatten()
            .flat_map(|in_flight| in_flight.call.expire(now));
        let waiting = self
            .queue
            .expire(now)
            .into_iter()
            .flat_map(ScriptRequest::into_callers);
        let expired: Vec<Caller> = calls.chain(waiting).collect();
        for caller in expired {
            let error = StoreError::Deadline(caller.deadline);
            caller.answer(Err(error));
        }
        self.armed = false;
        let calls = self.calls.iter().flatten();
        let waiting = self.queue.earliest();
        let deadlines = calls
            .filter_map(|in_flight| in_flight.call.earliest())
            .chain(waiting);
        // If that time has passed, no place is free, and the next reply wakes the task.
        let due = self
            .spacing
            .due()
            .filter(|due| waiting.is_some() && *due > now);
        if let Some(next) = deadlines.chain(due).min() {
            self.arm(next);
        }
    }
}

/// Parts that have no slot in common. The slots of each are served again when it has returned.
fn each_alone(parts: Vec<Call>) -> Vec<(Call, Arc<()>)> {
    parts.into_iter().map(|part| (part, Arc::new(()))).collect()
}

#[cfg(test)]
mod tests;
