//! The batcher over senders that panic or do not answer. It answers every request in time and goes on.

mod cut_calls;

use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::call::{Purpose, REQUESTS_MAX};
use super::*;
use crate::redis::SCRIPT_NAMES_MAX;
use crate::redis::command::RedisCommand;
use crate::redis::target::RedisTarget;
use tollgate_core::algorithm::Mode;
use tollgate_core::plan::{Algorithm, Limit, Plan, Rule, SLIDING_LOG_QUOTA_MAX, SharedLimits};

/// A sender that panics on its first call and refuses the others with [`REFUSAL`].
struct Panics {
    calls: AtomicUsize,
}

const REFUSAL: &str = "a call that was sent";

impl CommandSender for Panics {
    async fn ready(&self) {}

    async fn send(&self, _command: RedisCommand) -> Result<CommandReply, CallError> {
        // So that more requests come while the call is in flight.
        tokio::task::yield_now().await;
        assert!(
            self.calls.fetch_add(1, Ordering::SeqCst) > 0,
            "this test makes the first call panic"
        );
        Err(StoreError::Refused(REFUSAL.to_owned()).into())
    }
}

/// The settings of a store at this URL.
fn settings(url: &str, deadline: Duration) -> StoreSettings {
    StoreSettings {
        target: Arc::new(RedisTarget::parse(url).unwrap()),
        script: Arc::new(Script::new(false)),
        deadline,
        injected: None,
    }
}

fn start(deadline: Duration, commands: Arc<impl CommandSender>) -> Batcher {
    Batcher::start(settings("redis://127.0.0.1:1", deadline), commands)
}

fn request(name: &str, deadline: Duration) -> ScriptRequest {
    let probe = Call::probe_call("{:0}".to_owned(), monotonic());
    ScriptRequest::named(
        name.to_owned(),
        probe.plans[0].plan.clone(),
        1,
        Mode::Charge,
        monotonic() + deadline,
    )
}

#[tokio::test]
async fn a_panic_ends_the_calls_in_flight_and_no_caller_waits_for_ever() {
    let calls = AtomicUsize::new(0);
    let batcher = start(LONG, Arc::new(Panics { calls }));
    let deadline = Duration::from_secs(60);
    let lost = batcher.take(request("lost", deadline), deadline).unwrap();
    let part = batcher
        .take_batch(
            vec![request("a", deadline), request("b", deadline)],
            deadline,
        )
        .unwrap();
    assert!(
        lost.await.is_err() && part.await.is_err(),
        "its sender is dropped, which ends the wait"
    );
    for _ in 0..3 {
        let answer = batcher
            .take(request("next", deadline), deadline)
            .unwrap()
            .await
            .unwrap();
        assert_eq!(answer, Err(StoreError::Refused(REFUSAL.to_owned())));
    }
    assert_eq!(
        batcher.waiting.load(Ordering::SeqCst),
        0,
        "an answered request frees its place"
    );
}

/// A sender that holds every call until it is allowed to return, and then refuses it.
struct Silent {
    ready: Semaphore,
    returns: Semaphore,
    begun: AtomicUsize,
    returned: AtomicUsize,
}

impl Silent {
    fn start(ready: usize) -> (Arc<Self>, Batcher) {
        Self::start_with(ready, LONG)
    }

    fn start_with(ready: usize, deadline: Duration) -> (Arc<Self>, Batcher) {
        let ready = Semaphore::new(ready);
        let returns = Semaphore::new(0);
        let silent = Arc::new(Self {
            ready,
            returns,
            begun: AtomicUsize::new(0),
            returned: AtomicUsize::new(0),
        });
        (silent.clone(), start(deadline, silent))
    }

    /// Calls begun and calls returned.
    fn calls(&self) -> (usize, usize) {
        (
            self.begun.load(Ordering::SeqCst),
            self.returned.load(Ordering::SeqCst),
        )
    }

    /// Waits until a call was sent.
    async fn is_asked(&self) {
        while self.calls().0 == 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl CommandSender for Silent {
    async fn ready(&self) {
        self.ready.acquire().await.unwrap().forget();
    }

    async fn send(&self, _command: RedisCommand) -> Result<CommandReply, CallError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.returns.acquire().await.unwrap().forget();
        self.returned.fetch_add(1, Ordering::SeqCst);
        Err(StoreError::Refused(REFUSAL.to_owned()).into())
    }
}

/// Deadlines so far apart that a pause of a busy machine does not confuse them. They are real time, since the batcher uses the
/// system's clock.
const SHORT: Duration = Duration::from_millis(250);
const LONGER: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(60);

/// Waits for an answer, which must come at least `deadline` after `taken`, and long before [`LONG`].
async fn at_its_deadline<T>(
    taken: Instant,
    deadline: Duration,
    answered: oneshot::Receiver<T>,
) -> T {
    let answer = timeout(LONG / 6, answered)
        .await
        .expect("an answer by the alarm")
        .unwrap();
    assert!(
        taken.elapsed() >= deadline,
        "{:?} of {deadline:?}",
        taken.elapsed()
    );
    answer
}

#[tokio::test]
async fn a_request_in_flight_is_answered_at_its_deadline_and_its_late_reply_is_dropped() {
    let (silent, batcher) = Silent::start(1);
    let taken = monotonic();
    let answered = batcher.take(request("in flight", SHORT), SHORT).unwrap();
    silent.is_asked().await;
    assert_eq!(
        at_its_deadline(taken, SHORT, answered).await,
        Err(StoreError::Deadline(SHORT))
    );
    assert_eq!(silent.calls(), (1, 0), "the call is still in flight");
    assert_eq!(
        batcher.waiting.load(Ordering::SeqCst),
        0,
        "and holds no place"
    );
    // The next request waits for that call, and gets the reply of its own call.
    let answered = batcher.take(request("next", LONG), LONG).unwrap();
    silent.returns.add_permits(2);
    assert_eq!(
        answered.await.unwrap(),
        Err(StoreError::Refused(REFUSAL.to_owned()))
    );
    assert_eq!(silent.calls(), (2, 2));
}

#[tokio::test]
async fn requests_behind_a_stuck_call_are_answered_at_their_own_deadlines_the_shorter_one_first() {
    let (silent, batcher) = Silent::start(1);
    let mut stuck = batcher.take(request("stuck", LONG), LONG).unwrap();
    silent.is_asked().await;
    let taken = monotonic();
    let longer = batcher.take(request("longer", LONGER), LONGER).unwrap();
    let batch = batcher
        .take_batch(vec![request("a", LONGER), request("b", LONGER)], LONGER)
        .unwrap();
    let short = batcher.take(request("short", SHORT), SHORT).unwrap();
    assert_eq!(
        at_its_deadline(taken, SHORT, short).await,
        Err(StoreError::Deadline(SHORT))
    );
    let (longer, batch) = tokio::join!(
        at_its_deadline(taken, LONGER, longer),
        at_its_deadline(taken, LONGER, batch)
    );
    assert_eq!(longer, Err(StoreError::Deadline(LONGER)));
    assert_eq!(batch.each, vec![Err(StoreError::Deadline(LONGER)); 2]);
    assert_eq!(silent.calls(), (1, 0), "none of them was sent");
    assert!(stuck.try_recv().is_err(), "the one in flight has time left");
    silent.returns.add_permits(1);
    assert_eq!(
        stuck.await.unwrap(),
        Err(StoreError::Refused(REFUSAL.to_owned()))
    );
    assert_eq!(batcher.waiting.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_batch_in_flight_is_answered_whole_at_its_deadline() {
    let (silent, batcher) = Silent::start(1);
    let taken = monotonic();
    // More requests than the calls in flight hold, so that the rest of the batch waits behind them.
    let count = SCRIPT_NAMES_MAX * (CALLS_MAX + 1);
    let requests = (0..count)
        .map(|place| request(&place.to_string(), SHORT))
        .collect();
    let answered = batcher.take_batch(requests, SHORT).unwrap();
    silent.is_asked().await;
    assert_eq!(
        at_its_deadline(taken, SHORT, answered).await.each,
        vec![Err(StoreError::Deadline(SHORT)); count]
    );
    assert_eq!(
        silent.calls(),
        (CALLS_MAX, 0),
        "the calls are still in flight"
    );
    assert_eq!(batcher.waiting.load(Ordering::SeqCst), 0);
}

/// Its call may be sent again, as when Redis has lost the script, and what follows it would be decided first.
#[tokio::test]
async fn a_request_of_a_batch_waits_while_one_before_it_for_its_name_is_in_flight_and_delays_no_other()
 {
    let (silent, batcher) = Silent::start(1);
    let ask = |names: &[usize]| {
        let requests = names.iter().map(|name| request(&name.to_string(), LONG));
        batcher.take_batch(requests.collect(), LONG).unwrap()
    };
    let sent_after = async |returns: usize| {
        silent.returns.add_permits(returns);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        silent.calls().0
    };
    // What the first call has no room for is enough for another one.
    let once: Vec<usize> = (0..SCRIPT_NAMES_MAX).collect();
    let all = once.repeat(REQUESTS_MAX / SCRIPT_NAMES_MAX + 1);
    let repeating = ask(&all);
    assert_eq!(sent_after(0).await, 1);
    // Its callers are others, so it does not wait, and goes at once.
    let other = ask(&once);
    assert_eq!(sent_after(0).await, 2);
    assert_eq!(sent_after(1).await, 3, "more of the first batch");
    silent.returns.add_permits(all.len());
    let (repeating, other) = tokio::join!(repeating, other);
    let answers = [repeating.unwrap().each, other.unwrap().each].concat();
    let refusal = Err(StoreError::Refused(REFUSAL.to_owned()));
    assert_eq!(answers, vec![refusal; all.len() + once.len()]);
}

/// A request that searches one log.
fn searching(name: usize) -> ScriptRequest {
    let request = request(&name.to_string(), LONG);
    let limit = Limit::new(
        "log",
        SLIDING_LOG_QUOTA_MAX,
        Duration::from_secs(1),
        Algorithm::SlidingLog,
    )
    .unwrap();
    ScriptRequest {
        own_limits: SharedLimits::count([&limit]),
        plan: Arc::new(Plan {
            rule: Rule::limits([limit]),
            ..(*request.plan).clone()
        }),
        ..request
    }
}

#[tokio::test]
async fn searches_of_logs_in_flight_take_a_part_of_the_deadline_however_many_calls_there_could_be()
{
    // The default deadline, and one that leaves time for as many calls as there may be.
    for (deadline_ms, calls) in [(10, 1), (25, 3), (200, CALLS_MAX)] {
        let (silent, batcher) = Silent::start_with(1, Duration::from_millis(deadline_ms));
        let count = SCRIPT_NAMES_MAX * (CALLS_MAX + 1);
        let answered = batcher
            .take_batch((0..count).map(searching).collect(), LONG)
            .unwrap();
        silent.is_asked().await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(silent.calls(), (calls, 0), "{deadline_ms} ms");
        silent.returns.add_permits(count);
        assert_eq!(
            answered.await.unwrap().each,
            vec![Err(StoreError::Refused(REFUSAL.to_owned())); count]
        );
    }
}

#[tokio::test]
async fn a_request_before_calls_can_be_made_is_answered_at_its_deadline_or_sent_once_they_can() {
    let (silent, batcher) = Silent::start(0);
    let long = batcher.take(request("long", LONG), LONG).unwrap();
    let taken = monotonic();
    let short = batcher.take(request("short", SHORT), SHORT).unwrap();
    assert_eq!(
        at_its_deadline(taken, SHORT, short).await,
        Err(StoreError::Deadline(SHORT))
    );
    assert_eq!(silent.calls(), (0, 0), "nothing was sent");
    silent.ready.add_permits(1);
    silent.returns.add_permits(1);
    assert_eq!(
        long.await.unwrap(),
        Err(StoreError::Refused(REFUSAL.to_owned()))
    );
    assert_eq!(silent.calls(), (1, 1));
}

#[tokio::test]
async fn an_undo_is_taken_although_the_queue_is_full_and_a_charge_is_not() {
    let (silent, batcher) = Silent::start(0);
    let mut waiting = Vec::new();
    for _ in 0..REQUESTS_WAITING_MAX {
        waiting.push(batcher.take(request("name", LONG), LONG).unwrap());
    }
    let part = |purpose| vec![request("joint", LONG).jointly(purpose)];
    let undo = || part(Purpose::Undo(Box::default()));
    assert!(batcher.take_joint(part(Purpose::Part), LONG).is_err());
    let undone = batcher.take_joint(undo(), LONG).unwrap();
    let places = || batcher.waiting.load(Ordering::SeqCst);
    assert_eq!(places(), REQUESTS_WAITING_MAX + 1);
    drop((undone, waiting, silent));
}
