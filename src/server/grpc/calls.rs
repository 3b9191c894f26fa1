//! Limits how many calls a worker holds. Each call has a permit, from its headers to the end of its answer.
//!
//! A call takes memory while it waits for a store, for the rest of its request, or for a peer that does not read. So each
//! kind of call has a limit, and calls beyond it are refused at once, whichever store is used. What calls take is counted in the
//! account of their connection; see [`crate::transport::account`].
//!
//! The more permits are in use, the fewer one connection may have; see [`may_take`]. So connections that use all they can
//! leave permits to those that use few.
//!
//! A call whose request is incomplete keeps its permit only until another call of its kind needs it, and its bytes until any call
//! needs them. The call that has waited longest, or has held bytes longest, is evicted first. One of a connection that is light beside
//! the one that needs room is spared.

mod kind;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use super::receive::SMALL_BYTES_MAX;
use crate::transport::Usage;
use crate::transport::account::{Account, Charge, KEPT_MAX, WorkerAccount, may_take};
use crate::transport::turns::WorkerTurns;
pub(super) use kind::CallKind;
#[cfg(test)]
use kind::{CALL_BYTES, CALLS_MAX, LARGE_CALLS_MAX};

/// Maximum number of calls that hold reserved bytes: smaller requests reserve none.
const HOLDERS_MAX: usize = KEPT_MAX / SMALL_BYTES_MAX;
/// Maximum number of calls that were read and not yet polled, give or take one turn of reading. Without the limit, all that
/// clients send at once would become calls in memory.
const UNPOLLED_MAX: usize = 1024;
/// Maximum number of calls that are spared because their connections are light beside the one that needs room. If more wait for
/// their requests, these are hardly the calls of somebody who is about to send the rest.
const SPARED_MAX: usize = 64;

/// What calls hold, of a worker or of one of its connections.
#[derive(Default)]
struct Occupancy {
    calls: [Cell<usize>; CallKind::COUNT],
    /// Reserved bytes, where they are counted here at all.
    bytes: Cell<usize>,
}

/// The limits of a worker. Clones share them.
#[derive(Clone)]
pub(super) struct CallLimits(Rc<WorkerCalls>);

struct WorkerCalls {
    used: Occupancy,
    /// The part of `used` that is held by calls whose request is incomplete.
    unfinished: Occupancy,
    account: WorkerAccount,
    /// Those calls by kind, the oldest first. Contains entries of calls that no longer wait.
    waiting: [RefCell<VecDeque<Weak<Unfinished>>>; CallKind::COUNT],
    /// Those of any kind that hold bytes, by when they got them. Contains entries of calls that no longer wait.
    holding_bytes: RefCell<VecDeque<Weak<Unfinished>>>,
    /// Calls that were read and not yet polled.
    unpolled: Cell<usize>,
    refused: Arc<AtomicU64>,
}

impl WorkerCalls {
    fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Evicts the oldest of `waiting`, but spares those of connections that are light beside the one that asks, unless they are many.
    /// Returns whether there was one.
    fn evict(&self, waiting: &RefCell<VecDeque<Weak<Unfinished>>>, asking: &Account) -> bool {
        let Some(evicted) = next_to_evict(&mut waiting.borrow_mut(), asking) else {
            return false;
        };
        drop(evicted.release());
        evicted.is_evicted.set(true);
        self.count_refused();
        evicted.waker.take().into_iter().for_each(Waker::wake);
        true
    }
}

/// Removes the next call to evict from the list, and those before it that no longer wait.
fn next_to_evict(
    waiting: &mut VecDeque<Weak<Unfinished>>,
    asking: &Account,
) -> Option<Rc<Unfinished>> {
    let mut spared = 0;
    while spared < SPARED_MAX {
        match waiting.get(spared)?.upgrade() {
            Some(call) if call.is_waiting() => {
                if !call.calls.account.is_light_beside(asking) {
                    waiting.remove(spared);
                    return Some(call);
                }
                spared += 1;
            }
            _ => drop(waiting.remove(spared)),
        }
    }
    waiting.pop_front()?.upgrade()
}

impl CallLimits {
    /// Limits without any call. `refused` counts the calls that get no permit.
    pub(super) fn new(refused: Arc<AtomicU64>, turns: WorkerTurns) -> Self {
        Self(Rc::new(WorkerCalls {
            used: Occupancy::default(),
            unfinished: Occupancy::default(),
            account: WorkerAccount::new(turns),
            waiting: Default::default(),
            holding_bytes: RefCell::default(),
            unpolled: Cell::default(),
            refused,
        }))
    }

    /// Whether so many calls wait for their first poll that no more should be read.
    pub(super) fn is_backlogged(&self) -> bool {
        self.0.unpolled.get() >= UNPOLLED_MAX
    }

    /// Returns the limits of a new connection.
    pub(super) fn connection(&self, usage: Arc<Usage>) -> Rc<ConnectionCallLimits> {
        let account = self.0.account.open();
        Rc::new(ConnectionCallLimits {
            worker: self.0.clone(),
            usage,
            used: Occupancy::default(),
            account,
        })
    }
}

/// The limits of one connection.
pub(super) struct ConnectionCallLimits {
    worker: Rc<WorkerCalls>,
    used: Occupancy,
    usage: Arc<Usage>,
    account: Arc<Account>,
}

impl ConnectionCallLimits {
    /// Counts what is kept for the connection.
    pub(super) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Counts a call that was read, until the result is dropped.
    pub(super) fn unpolled(self: &Rc<Self>) -> UnpolledCall {
        self.worker.unpolled.set(self.worker.unpolled.get() + 1);
        UnpolledCall(self.clone())
    }

    /// Returns a permit for a call of this kind, if the limits allow it.
    pub(super) fn permit(self: &Rc<Self>, kind: CallKind) -> Option<CallPermit> {
        let all = &self.worker.used.calls[kind as usize];
        let mine = &self.used.calls[kind as usize];
        let free = kind.calls_max().saturating_sub(all.get());
        let unfinished = self.worker.unfinished.calls[kind as usize].get();
        let may_have =
            mine.get() == 0 && free + unfinished > 0 || may_take(free + unfinished, mine.get(), 1);
        let must_evict = free == 0
            || CallKind::NEED_ROOM.contains(&kind) && !self.account.has_room_for_call(kind.bytes());
        let evict = || {
            self.worker
                .evict(&self.worker.waiting[kind as usize], &self.account)
        };
        if !may_have || (must_evict && !evict()) {
            self.worker.count_refused();
            return None;
        }
        all.set(all.get() + 1);
        mine.set(mine.get() + 1);
        self.account.keep(kind.bytes());
        Some(CallPermit {
            calls: self.clone(),
            kind,
            is_busy: false,
        })
    }

    /// Waits until there is room for a large request, and counts it. Requests that are incomplete make room, those first that
    /// have held bytes longest.
    pub(super) fn poll_reserve(&self, bytes: usize, context: &Context<'_>) -> Poll<Charge> {
        let worker = &self.worker;
        let unfinished = &self.worker.unfinished;
        let taken = |kind: CallKind| unfinished.calls[kind as usize].get() * kind.bytes();
        let evictable =
            unfinished.bytes.get() + CallKind::NEED_ROOM.into_iter().map(taken).sum::<usize>();
        let evict = || {
            worker.evict(&worker.holding_bytes, &self.account)
                || CallKind::NEED_ROOM
                    .iter()
                    .any(|kind| worker.evict(&worker.waiting[*kind as usize], &self.account))
        };
        self.account.poll_reserve(bytes, evictable, evict, context)
    }

    /// Records that a call waits for its request. It keeps its grants until the request is complete or the call is evicted.
    pub(super) fn wait(
        self: &Rc<Self>,
        permit: CallPermit,
        reservation: Option<Charge>,
    ) -> Rc<Unfinished> {
        let kind = permit.kind;
        let unfinished = Rc::new(Unfinished {
            calls: self.clone(),
            kind,
            bytes: Cell::new(0),
            granted: Cell::new(Some((permit, None))),
            is_evicted: Cell::new(false),
            waker: Cell::new(None),
        });
        let count = &self.worker.unfinished.calls[kind as usize];
        count.set(count.get() + 1);
        reservation
            .into_iter()
            .for_each(|reservation| unfinished.add(reservation));
        enlist(
            &self.worker.waiting[kind as usize],
            &unfinished,
            kind.calls_max(),
        );
        unfinished
    }
}

/// The permit of a call, and the bytes reserved for it once they are.
pub(super) type CallGrants = (CallPermit, Option<Charge>);

/// A call that waits for its request, and what it holds.
pub(super) struct Unfinished {
    calls: Rc<ConnectionCallLimits>,
    kind: CallKind,
    /// Bytes of its reservation.
    bytes: Cell<usize>,
    /// `None` once it is released.
    granted: Cell<Option<CallGrants>>,
    is_evicted: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Unfinished {
    /// Adds a reservation, the only one. If the call was evicted meanwhile, the reservation is dropped.
    pub(super) fn add(self: &Rc<Self>, reservation: Charge) {
        if let Some((permit, _)) = self.granted.take() {
            let bytes = &self.calls.worker.unfinished.bytes;
            bytes.set(bytes.get() + reservation.bytes());
            self.bytes.set(reservation.bytes());
            self.granted.set(Some((permit, Some(reservation))));
            enlist(&self.calls.worker.holding_bytes, self, HOLDERS_MAX);
        }
    }

    /// Takes what the call holds; `None` when it was evicted.
    pub(super) fn release(&self) -> Option<CallGrants> {
        let granted = self.granted.take()?;
        let unfinished = &self.calls.worker.unfinished;
        let count = &unfinished.calls[self.kind as usize];
        count.set(count.get() - 1);
        unfinished
            .bytes
            .set(unfinished.bytes.get() - self.bytes.take());
        Some(granted)
    }

    fn is_waiting(&self) -> bool {
        let granted = self.granted.take();
        let is_waiting = granted.is_some();
        self.granted.set(granted);
        is_waiting
    }

    /// Whether the call was evicted. `waker` is woken when that happens later.
    pub(super) fn is_evicted(&self, waker: &Waker) -> bool {
        self.waker.set(Some(waker.clone()));
        self.is_evicted.get()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        drop(self.release());
    }
}

/// Appends a call to a list, and drops entries of calls that are gone: the oldest ones, and all once there are twice as many
/// entries as calls can be.
fn enlist(
    list: &RefCell<VecDeque<Weak<Unfinished>>>,
    unfinished: &Rc<Unfinished>,
    calls_max: usize,
) {
    let mut list = list.borrow_mut();
    while list
        .front()
        .is_some_and(|oldest| oldest.strong_count() == 0)
    {
        list.pop_front();
    }
    if list.len() >= 2 * calls_max {
        list.retain(|unfinished| unfinished.strong_count() > 0);
    }
    list.push_back(Rc::downgrade(unfinished));
}

/// A call before its first poll, refused or not.
pub(super) struct UnpolledCall(Rc<ConnectionCallLimits>);

impl Drop for UnpolledCall {
    fn drop(&mut self) {
        self.0.worker.unpolled.set(self.0.worker.unpolled.get() - 1);
    }
}

/// A call's permit. Dropping it gives it back.
pub(super) struct CallPermit {
    calls: Rc<ConnectionCallLimits>,
    kind: CallKind,
    /// Whether the request is complete, so that the call counts as use of its connection.
    is_busy: bool,
}

impl CallPermit {
    /// Records that the request is complete.
    pub(super) fn begin(&mut self) {
        self.is_busy = true;
        self.calls.usage.begin();
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        if self.is_busy {
            self.calls.usage.end();
        }
        for used in [&self.calls.worker.used, &self.calls.used] {
            let count = &used.calls[self.kind as usize];
            count.set(count.get() - 1);
        }
        self.calls.account.release(self.kind.bytes());
    }
}

#[cfg(test)]
mod tests;
