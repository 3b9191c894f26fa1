//! Counts the bytes that a worker keeps for its peers: once for the connection and once for the worker.
//!
//! What is counted: calls and their messages, from their arrival to the end of their answers, and answers until the socket has
//! taken them. So one number bounds what peers can make a worker hold, whatever they send.
//!
//! - Memory for a call is reserved before the call is decided. If there is not enough, the call waits, which slows its peer down.
//! - Memory that is allocated already is counted without a check. If the worker is then above its maximum, it closes the connection that
//!   uses most.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use super::turns::{Turn, WorkerTurns};

/// Maximum number of bytes that a worker keeps for all its peers: as many calls as it holds, and besides some of the largest
/// batches, with what deciding and answering them takes.
pub(crate) const KEPT_MAX: usize = 40 << 20;
/// The part of it that is never reserved: for 1,024 calls whose messages are small, and for what comes of 128 large messages before
/// there is room for them, a window of 64 KiB each.
pub(crate) const UNRESERVED_BYTES: usize = 12 << 20;
/// A connection gets no more once it has 1/`SHARE` of what is free.
pub(crate) const SHARE: usize = 2;
/// A connection for which no more than this is kept gets whatever is free.
const FIRST_BYTES: usize = 256 << 10;

/// Whether somebody who holds `mine` may take `wanted` more of what is free. If `n` take all they can, each ends at one part in
/// `n + SHARE`. `SHARE` such parts stay free for others.
pub(crate) fn may_take(free: usize, mine: usize, wanted: usize) -> bool {
    wanted <= free && (mine + wanted).saturating_mul(SHARE) <= free
}

/// The account of a worker. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct WorkerAccount(Arc<WorkerSum>);

#[derive(Default)]
struct WorkerSum {
    kept: AtomicUsize,
    /// The part of `kept` that goes when the connections that were told to close have closed.
    closing: AtomicUsize,
    /// Grows with the largest number of connections. Contains entries of connections that are gone.
    connections: Mutex<Vec<Weak<Account>>>,
    /// Who waits for room. Each of them is a call that holds a seat, so there are no more than seats.
    waiting: Mutex<Vec<Waker>>,
    /// Whether `waiting` has any, so that bytes are given back without a lock.
    is_waited_for: AtomicBool,
    turns: WorkerTurns,
}

/// The account of a connection.
pub(crate) struct Account {
    worker: Arc<WorkerSum>,
    turn: Arc<Turn>,
    kept: AtomicUsize,
    /// Counts pieces of answers that its peer took.
    taken: AtomicUsize,
    is_closing: AtomicBool,
    close: Notify,
}

/// Bytes that are kept. Dropping it says that they are gone.
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl WorkerAccount {
    /// The account of a worker whose connections have these turns.
    pub(crate) fn new(turns: WorkerTurns) -> Self {
        Self(Arc::new(WorkerSum {
            turns,
            ..WorkerSum::default()
        }))
    }

    /// Opens an account for a connection.
    pub(crate) fn open(&self) -> Arc<Account> {
        let account = Arc::new(Account {
            worker: self.0.clone(),
            turn: self.0.turns.open(),
            kept: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            close: Notify::new(),
        });
        let mut connections = lock(&self.0.connections);
        if connections.len() == connections.capacity() {
            connections.retain(|connection| connection.strong_count() > 0);
        }
        connections.push(Arc::downgrade(&account));
        account
    }

    /// Bytes kept for all connections.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.0.kept.load(Ordering::Relaxed)
    }
}

impl WorkerSum {
    /// Tells the connections for which most is kept to close, until the others are within the bound.
    fn close_heaviest(&self) {
        let connections = lock(&self.connections);
        while self.staying() > KEPT_MAX {
            let open = connections
                .iter()
                .filter_map(Weak::upgrade)
                .filter(|account| !account.is_closing.load(Ordering::Relaxed));
            let Some(heaviest) = open.max_by_key(|account| account.kept()) else {
                return;
            };
            tracing::debug!(
                bytes = heaviest.kept(),
                "a connection is closed: more is kept for peers than may be, and most for this one"
            );
            heaviest.close();
        }
    }

    /// Bytes that are kept, without those of connections that close.
    fn staying(&self) -> usize {
        self.kept
            .load(Ordering::Relaxed)
            .saturating_sub(self.closing.load(Ordering::Relaxed))
    }

    fn wake_waiting(&self) {
        if self.is_waited_for.swap(false, Ordering::Relaxed) {
            let waiting = std::mem::take(&mut *lock(&self.waiting));
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

impl Account {
    /// What the connection has used of its worker's time.
    pub(crate) fn turn(&self) -> &Arc<Turn> {
        &self.turn
    }

    /// Bytes kept for this connection.
    pub(crate) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// Whether there is room for so many bytes of a call. For one whose connection keeps little, the heaviest connection makes it.
    pub(crate) fn has_room_for_call(&self, bytes: usize) -> bool {
        bytes <= self.free() || self.kept() <= FIRST_BYTES
    }

    /// Whether little is kept for this connection, and less than for `other`.
    pub(crate) fn is_light_beside(&self, other: &Self) -> bool {
        self.kept() <= FIRST_BYTES && self.kept() < other.kept()
    }

    /// Bytes that the worker may still keep. What a closing connection keeps is there until its task has run.
    pub(crate) fn free(&self) -> usize {
        KEPT_MAX.saturating_sub(self.worker.kept.load(Ordering::Relaxed))
    }

    /// Bytes that may still be reserved.
    fn reservable(&self) -> usize {
        self.free().saturating_sub(UNRESERVED_BYTES)
    }

    /// Counts bytes that exist, until the result is dropped.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.keep(bytes);
        Charge {
            account: self.clone(),
            bytes,
        }
    }

    /// Waits until there is room for `bytes` and counts them. While too little is free, `evict` is asked to free some of
    /// `evictable`; it returns whether it did.
    pub(crate) fn poll_reserve(
        self: &Arc<Self>,
        bytes: usize,
        evictable: usize,
        mut evict: impl FnMut() -> bool,
        context: &Context<'_>,
    ) -> Poll<Charge> {
        if self.has_room(bytes, evictable) {
            while self.reservable() < bytes && evict() {}
            if self.reservable() >= bytes {
                return Poll::Ready(self.charge(bytes));
            }
        }
        let mut waiting = lock(&self.worker.waiting);
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        self.worker.is_waited_for.store(true, Ordering::Relaxed);
        Poll::Pending
    }

    /// Counts `bytes` if there is room for them.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        self.has_room(bytes, 0).then(|| self.charge(bytes))
    }

    fn has_room(&self, bytes: usize, evictable: usize) -> bool {
        let free = self.reservable() + evictable;
        let kept = self.kept();
        (bytes <= free && kept <= FIRST_BYTES) || may_take(free, kept, bytes)
    }

    /// Counts bytes. [`Self::release`] must be called for as many.
    pub(crate) fn keep(&self, bytes: usize) {
        self.kept.fetch_add(bytes, Ordering::Relaxed);
        let kept = self.worker.kept.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.is_closing.load(Ordering::Relaxed) {
            self.worker.closing.fetch_add(bytes, Ordering::Relaxed);
        }
        if kept > KEPT_MAX {
            self.worker.close_heaviest();
        }
    }

    /// Says that so many of the bytes that were counted are gone.
    pub(crate) fn release(&self, bytes: usize) {
        self.kept.fetch_sub(bytes, Ordering::Relaxed);
        self.worker.kept.fetch_sub(bytes, Ordering::Relaxed);
        if self.is_closing.load(Ordering::Relaxed) {
            self.worker.closing.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.worker.wake_waiting();
    }

    /// Counts a piece of an answer that the peer took.
    pub(crate) fn count_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Pieces of answers that the peer took.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Tells the connection to close.
    pub(crate) fn close(&self) {
        if !self.is_closing.swap(true, Ordering::Relaxed) {
            self.worker
                .closing
                .fetch_add(self.kept(), Ordering::Relaxed);
            self.close.notify_one();
        }
    }

    /// Waits until the connection must close: most is kept for it, or its peer takes nothing.
    pub(crate) async fn close_requested(&self) {
        self.close.notified().await;
    }
}

impl Charge {
    /// The account that counts it.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Counts this many bytes instead.
    pub(crate) fn resize(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.account.keep(more),
            None => self.account.release(self.bytes - bytes),
        }
        self.bytes = bytes;
    }

    /// Bytes that it counts.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.release(self.bytes);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
