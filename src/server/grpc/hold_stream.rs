//! Answers one stream of holds: carries out its calls, renews its holds, and ends them with it.
//!
//! Nothing is left behind by a client that goes: its calls are finished and its holds are ended by a task of their own. What its server
//! ends runs on, so that the client takes it over elsewhere.

mod reserve;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use tokio::time::Sleep;
use tonic::Status;

use super::drain::{self, DrainSignal};
use super::pb::{self, HoldRequest, HoldResponse, hold_request, hold_response};
use super::protocol::own_status;
use super::receive::no_bytes_left;
use super::service::Service;
use super::{convert, holds::Stated};
use crate::limiter::leases::{LeaseName, Leases, NewLease};
use crate::limiter::{HoldStreamCount, RequestId};
use crate::transport::account::{Account, Charge};
use reserve::reserve;
use tollgate_core::algorithm::holds::LeaseEvent;
use tollgate_core::key::Key;
use tollgate_store::{Store, StoreError};

/// Maximum number of calls of one stream under way. At that number, none is read until an answer has been taken.
const CALLS_IN_FLIGHT: usize = 64;
/// Maximum number of holds of one stream: so many renewals take a store some milliseconds in each third of a lease.
const HOLDS_MAX: usize = 1_000;
/// Time after which a store that answered nothing is asked again for the ends of holds. It doubles each time, six times at most.
const END_RETRY: Duration = Duration::from_millis(100);
const END_RETRY_MAX: Duration = Duration::from_millis(6_400);
/// Bytes of a hold of a stream, beside its names, which are kept twice.
const HOLD_BYTES: usize = 400;

/// A call under way.
type Calling = Pin<Box<dyn Future<Output = Called> + Send>>;
/// Renewals under way: the numbers of the holds, and what the store told.
type Renewing = Pin<Box<dyn Future<Output = Renewed> + Send>>;
type Renewed = (Vec<u64>, Vec<Result<LeaseEvent, StoreError>>);
/// The end of the holds of a stream.
type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;
/// What a stream keeps beside a hold.
type Tag = (u64, Option<Charge>);

/// A call that was carried out.
struct Called {
    id: u64,
    result: hold_response::Result,
    change: Change,
}

/// What a call changes of the holds of its stream.
enum Change {
    /// It has opened a hold, or taken it over.
    Holds(Box<NewLease<Tag>>),
    /// A reserve opened none.
    NotHeld,
    /// A settle of this key and id told that no such hold is open any more, or failed.
    Settled((Key, RequestId), Option<LeaseName>),
}

/// The stream of answers.
pub(super) struct HoldStream<R, S: Store> {
    /// `None` once they have ended.
    requests: Option<R>,
    drain: Option<DrainSignal>,
    draining: Option<drain::DrainFuture>,
    /// Answers and news that were not yet taken.
    ready: VecDeque<HoldResponse>,
    /// Calls that were read and whose answers were not yet taken.
    in_flight: usize,
    /// `None` once the holds are being ended, or are kept.
    held: Option<HeldByStream<S>>,
    ending: Option<Ending>,
    /// What the stream ends with.
    end: Option<Status>,
    /// Whether this server ended the stream, and not its client.
    is_drained: bool,
}

/// What must not be left behind.
struct HeldByStream<S: Store> {
    service: Service<S>,
    account: Option<Arc<Account>>,
    leases: Leases<Tag>,
    calls: FuturesUnordered<Calling>,
    /// Reserves under way.
    reserving: usize,
    renewing: Option<Renewing>,
    /// Until the next renewal.
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
    count: HoldStreamCount,
}

impl<R, S: Store> HoldStream<R, S> {
    /// Answers each of `requests` once, until they end or `drain` says so.
    pub(super) fn new(
        service: Service<S>,
        account: Option<Arc<Account>>,
        requests: R,
        drain: Option<DrainSignal>,
    ) -> Self {
        let count = service.limiter.hold_stream();
        Self {
            requests: Some(requests),
            draining: drain.clone().map(drain::told),
            drain,
            ready: VecDeque::new(),
            in_flight: 0,
            held: Some(HeldByStream {
                service,
                account,
                leases: Leases::default(),
                calls: FuturesUnordered::new(),
                reserving: 0,
                renewing: None,
                timer: None,
                count,
            }),
            ending: None,
            end: None,
            is_drained: false,
        }
    }

    /// Whether this server drains.
    fn is_draining(&self) -> bool {
        let drained = |DrainSignal(drain): &DrainSignal| *drain.borrow();
        self.drain.as_ref().is_some_and(drained)
    }
}

impl<R, S> HoldStream<R, S>
where
    R: Stream<Item = Result<HoldRequest, Status>> + Unpin,
    S: Store,
{
    /// Reads the calls that have arrived, up to [`CALLS_IN_FLIGHT`], and begins to carry them out.
    fn read(&mut self, context: &mut Context<'_>) {
        if self.requests.is_some()
            && let Some(draining) = &mut self.draining
            && draining.as_mut().poll(context).is_ready()
        {
            self.draining = None;
            if self.is_draining() {
                self.is_drained = true;
                self.requests = None;
                self.end = Some(drain::going_away());
                return;
            }
        }
        while self.in_flight < CALLS_IN_FLIGHT
            && let Some(requests) = &mut self.requests
            && let Poll::Ready(next) = requests.poll_next_unpin(context)
        {
            match (next, &mut self.held) {
                (Some(Ok(request)), Some(held)) => {
                    self.in_flight += 1;
                    self.ready.extend(held.begin(request));
                }
                (end, _) => {
                    self.end = end.and_then(Result::err).map(own_status);
                    self.requests = None;
                }
            }
        }
    }

    /// Ends the holds where the client has ended the stream. Ready when there is nothing more to answer.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Option<Status>> {
        if let Some(held) = self.held.take()
            && !self.is_drained
        {
            self.ending = Some(Box::pin(held.end()));
        }
        if let Some(ending) = &mut self.ending {
            ready!(ending.as_mut().poll(context));
            self.ending = None;
        }
        Poll::Ready(self.end.take())
    }
}

impl<R, S> Stream for HoldStream<R, S>
where
    R: Stream<Item = Result<HoldRequest, Status>> + Unpin,
    S: Store,
{
    type Item = Result<HoldResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = &mut *self;
        loop {
            if let Some(answer) = stream.ready.pop_front() {
                let is_news = matches!(answer.result, Some(hold_response::Result::Lost(_)));
                stream.in_flight -= usize::from(!is_news);
                return Poll::Ready(Some(Ok(answer)));
            }
            stream.read(context);
            if !stream.ready.is_empty() {
                continue;
            }
            let Some(held) = &mut stream.held else {
                return stream.poll_end(context).map(|end| end.map(Err));
            };
            if let Poll::Ready(Some(called)) = held.calls.poll_next_unpin(context) {
                stream.ready.push_back(held.note(called));
            } else if let Poll::Ready(lost) = held.poll_renewals(context) {
                stream.ready.extend(lost);
            } else if stream.requests.is_none() && held.calls.is_empty() {
                return stream.poll_end(context).map(|end| end.map(Err));
            } else {
                return Poll::Pending;
            }
        }
    }
}

impl<R, S: Store> Drop for HoldStream<R, S> {
    /// The client is gone, or its deadline has passed: what was begun is finished, and ends. In a drain it may be the server that drops the
    /// stream, so the holds stay for the client's next one.
    fn drop(&mut self) {
        let is_kept = self.is_drained || self.is_draining() && self.requests.is_some();
        let held = self.held.take().filter(|_| !is_kept);
        let ending = held.map(|held| -> Ending { Box::pin(held.end()) });
        if let Some(ending) = self.ending.take().or(ending)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(ending);
        }
    }
}

impl<S: Store> HeldByStream<S> {
    /// Begins a call. Returns the answer if it is refused at once.
    fn begin(&mut self, HoldRequest { id, call }: HoldRequest) -> Option<HoldResponse> {
        let begun = match call {
            Some(hold_request::Call::Reserve(request)) => self.reserve(id, request),
            Some(hold_request::Call::Settle(request)) => self.settle(id, request),
            None => Err(Status::invalid_argument(
                "the call is missing: send reserve or settle",
            )),
        };
        match begun {
            Ok(calling) => {
                self.calls.push(calling);
                None
            }
            Err(status) => Some(HoldResponse {
                id,
                result: Some(hold_response::Result::Error(convert::error(&status))),
            }),
        }
    }

    fn reserve(&mut self, id: u64, request: pb::ReserveRequest) -> Result<Calling, Status> {
        let stated = Stated::new(request)?;
        // One that it has may be repeated.
        if self.leases.len() + self.reserving >= HOLDS_MAX
            && !self.leases.has(&stated.check.key, &stated.id)
        {
            let told = format!(
                "this stream has {HOLDS_MAX} holds, which is the most: settle some, or open another stream"
            );
            return Err(convert::overloaded(&told));
        }
        let names = stated.check.key.as_str().len() + stated.check.plan.len();
        let bytes = HOLD_BYTES + 2 * (names + stated.id.as_str().len());
        let room = |account: &Arc<Account>| account.reserve(bytes).ok_or_else(no_bytes_left);
        let kept = self.account.as_ref().map(room).transpose()?;
        self.reserving += 1;
        let service = self.service.clone();
        Ok(Box::pin(async move {
            match reserve(&service, stated, (id, kept)).await {
                Ok((response, lease)) => Called {
                    id,
                    result: hold_response::Result::Reserve(response),
                    change: lease.map_or(Change::NotHeld, |lease| Change::Holds(Box::new(lease))),
                },
                Err(status) => Called {
                    id,
                    result: hold_response::Result::Error(convert::error(&status)),
                    change: Change::NotHeld,
                },
            }
        }))
    }

    fn settle(&mut self, id: u64, request: pb::SettleRequest) -> Result<Calling, Status> {
        let detailed = request.detailed;
        let asked = (false, request.http_headers);
        let (subject, settle) = convert::settle(request)?;
        let of = (subject.0.clone(), settle.0.clone());
        self.leases.settle_begins(&of.0, &of.1);
        // Its own hold, wherever the key is led now.
        let held_by = self.leases.decided_by(&of.0, &of.1);
        let service = self.service.clone();
        Ok(Box::pin(async move {
            let settled = match held_by {
                Some(held_by) => {
                    let held = (subject.0, subject.1, &held_by);
                    service.limiter.settle_held(held, settle).await
                }
                None => service.limiter.settle(subject, settle, None).await,
            };
            match settled {
                Ok(settled) => {
                    let answer = service.answer(&settled.decision, &settled.plan, asked);
                    let name = LeaseName {
                        counts_as: settled.plan.counts_as.clone(),
                        key: of.0.clone(),
                        id: of.1.clone(),
                    };
                    let response = convert::settled(&settled, answer, detailed);
                    Called {
                        id,
                        result: hold_response::Result::Settle(response),
                        change: Change::Settled(of, Some(name)),
                    }
                }
                Err(refused) => Called {
                    id,
                    result: hold_response::Result::Error(convert::error(&convert::refusal(
                        &refused,
                    ))),
                    change: Change::Settled(of, None),
                },
            }
        }))
    }

    /// Notes what a call has changed. Returns its answer.
    fn note(&mut self, Called { id, result, change }: Called) -> HoldResponse {
        match change {
            Change::NotHeld => self.reserving -= 1,
            Change::Holds(lease) => {
                self.reserving -= 1;
                self.leases.add(*lease, self.service.limiter.lease_time());
            }
            Change::Settled((key, request_id), name) => {
                self.leases.settle_ends(key, request_id);
                name.iter().for_each(|name| self.leases.remove(name));
            }
        }
        self.count.set(self.leases.len());
        HoldResponse {
            id,
            result: Some(result),
        }
    }

    /// Renews what is due. Ready with the holds that were lost, when some renewals are done.
    fn poll_renewals(&mut self, context: &mut Context<'_>) -> Poll<Vec<HoldResponse>> {
        loop {
            if let Some(renewing) = &mut self.renewing {
                let renewed = ready!(renewing.as_mut().poll(context));
                self.renewing = None;
                return Poll::Ready(self.note_renewals(renewed));
            }
            let Some(due) = self.leases.next_due() else {
                self.timer = None;
                return Poll::Pending;
            };
            let now = self.service.limiter.lease_time();
            if due <= now {
                self.begin_renewals(now);
                continue;
            }
            if self.timer.as_ref().is_none_or(|(at, _)| *at != due) {
                self.timer = Some((due, Box::pin(tokio::time::sleep(due - now))));
            }
            if let Some((_, timer)) = &mut self.timer {
                ready!(timer.as_mut().poll(context));
                self.timer = None;
            }
        }
    }

    fn begin_renewals(&mut self, now: Instant) {
        let (numbers, asked) = self.leases.take_due(now);
        if numbers.is_empty() {
            return;
        }
        let limiter = self.service.limiter.clone();
        self.renewing = Some(Box::pin(
            async move { (numbers, limiter.lease(asked).await) },
        ));
    }

    fn note_renewals(&mut self, (numbers, answers): Renewed) -> Vec<HoldResponse> {
        let limiter = &self.service.limiter;
        let now = limiter.lease_time();
        let answers = numbers.into_iter().zip(answers);
        let lost = answers.filter_map(|(number, answer)| {
            let lost = self.leases.note(number, answer, now)?;
            limiter.count_lost(&lost.plan);
            Some(convert::lost(lost.tag.0, &lost.id, lost.reason))
        });
        let lost = lost.collect();
        self.count.set(self.leases.len());
        lost
    }

    /// Finishes the calls, and ends the holds as if their leases ended now. Where the store does not answer, it is asked again a few times.
    /// What it does not confirm ends with its lease.
    async fn end(mut self) {
        while let Some(called) = self.calls.next().await {
            self.note(called);
        }
        if let Some(renewing) = self.renewing.take() {
            let renewed = renewing.await;
            self.note_renewals(renewed);
        }
        let mut pause = END_RETRY;
        while !self.leases.ends(None).0.is_empty() && pause < END_RETRY_MAX {
            if self.ask_for_ends().await {
                pause = END_RETRY;
            } else {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
    }

    /// Asks once for the end of each hold. Returns whether the store answered some of it.
    async fn ask_for_ends(&mut self) -> bool {
        let mut last = None;
        let mut is_answered = false;
        loop {
            let (numbers, asked) = self.leases.ends(last);
            if numbers.is_empty() {
                return is_answered;
            }
            last = numbers.last().copied();
            let answers = self.service.limiter.lease(asked).await;
            for (number, answer) in numbers.into_iter().zip(&answers) {
                is_answered |= answer.is_ok();
                self.leases.note_end(number, answer);
            }
        }
    }
}

#[cfg(test)]
mod tests;
