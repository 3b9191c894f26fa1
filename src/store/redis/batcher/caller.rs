//! The callers of requests: where their answers go, and their places in the bounded queue.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Answer;
use super::call::HoldAnswer;
use crate::StoreError;

/// The caller of one request. It holds a place of [`super::REQUESTS_WAITING_MAX`] until it is answered or dropped.
pub(in crate::redis) struct Caller {
    reply: Reply,
    /// How long it waits in total, for the error that it gets at its deadline.
    pub(super) deadline: Duration,
}

/// Where an answer is sent.
enum Reply {
    Single {
        reply: oneshot::Sender<Answer>,
        _permit: QueuePermit,
    },
    /// Of a request with an id, or about holds.
    Hold {
        reply: oneshot::Sender<Result<HoldAnswer, StoreError>>,
        _permit: QueuePermit,
    },
    /// The batch of the request, and the index of the answer in it.
    InBatch(Arc<Mutex<BatchReply>>, usize),
}

/// The answers to a batch or a joint decision, in its order.
#[derive(Debug)]
pub(in crate::redis) struct Answers {
    pub(in crate::redis) each: Vec<Answer>,
    /// What the reply to a joint decision says besides them.
    pub(in crate::redis) note: Option<JointNote>,
}

/// What the reply to a joint decision says besides its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::redis) enum JointNote {
    /// The instant at which it was decided, in microseconds since 1970.
    ChargedAt(u64),
    /// Some of its names have moved to another node and others have not, so no node decides it. Nothing was executed.
    Apart,
}

/// Collects the answers of a batch until it is complete.
pub(super) struct BatchReply {
    /// In the order of the batch; `None` until answered.
    answers: Vec<Option<Answer>>,
    missing: usize,
    note: Option<JointNote>,
    /// Taken when the last answer comes.
    all: Option<oneshot::Sender<Answers>>,
    _permit: QueuePermit,
}

/// Holds `places` places of [`super::REQUESTS_WAITING_MAX`], and frees them when dropped.
pub(super) struct QueuePermit {
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) places: usize,
}

impl QueuePermit {
    /// One of its places, for a permit of its own.
    pub(super) fn split_one(&mut self) -> Self {
        self.places -= 1;
        Self {
            waiting: self.waiting.clone(),
            places: 1,
        }
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.places, Ordering::Relaxed);
    }
}

impl Caller {
    /// A caller that waits alone, and where its answer comes.
    pub(super) fn alone(
        permit: QueuePermit,
        deadline: Duration,
    ) -> (Self, oneshot::Receiver<Answer>) {
        let (reply, answered) = oneshot::channel();
        (
            Self {
                reply: Reply::Single {
                    reply,
                    _permit: permit,
                },
                deadline,
            },
            answered,
        )
    }

    /// The same of a request with an id, or about holds.
    pub(super) fn for_hold(
        permit: QueuePermit,
        deadline: Duration,
    ) -> (Self, oneshot::Receiver<Result<HoldAnswer, StoreError>>) {
        let (reply, answered) = oneshot::channel();
        let reply = Reply::Hold {
            reply,
            _permit: permit,
        };
        (Self { reply, deadline }, answered)
    }

    /// The caller of the request at this index of a batch.
    pub(super) fn in_batch(
        batch: Arc<Mutex<BatchReply>>,
        index: usize,
        deadline: Duration,
    ) -> Self {
        Self {
            reply: Reply::InBatch(batch, index),
            deadline,
        }
    }

    /// Whether the caller has stopped waiting. Its request is then not sent.
    pub(super) fn is_gone(&self) -> bool {
        match &self.reply {
            Reply::Single { reply, .. } => reply.is_closed(),
            Reply::Hold { reply, .. } => reply.is_closed(),
            Reply::InBatch(batch, _) => lock(batch)
                .all
                .as_ref()
                .is_none_or(oneshot::Sender::is_closed),
        }
    }

    /// Whether both are of one batch.
    pub(super) fn shares_batch_with(&self, other: &Self) -> bool {
        match (&self.reply, &other.reply) {
            (Reply::InBatch(batch, _), Reply::InBatch(other, _)) => Arc::ptr_eq(batch, other),
            _ => false,
        }
    }

    /// Tells what there is to say of its joint decision. Comes before the answer.
    pub(super) fn note(&self, note: JointNote) {
        if let Reply::InBatch(batch, _) = &self.reply {
            lock(batch).note = Some(note);
        }
    }

    /// Sends the answer. It is dropped if the caller has gone.
    pub(super) fn answer(self, answer: Answer) {
        match self.reply {
            Reply::Single { reply, .. } => drop(reply.send(answer)),
            Reply::Hold { reply, .. } => drop(reply.send(answer.map(HoldAnswer::Verdict))),
            Reply::InBatch(batch, index) => lock(&batch).answer(index, answer),
        }
    }

    /// The same for a request with an id, or about holds.
    pub(super) fn answer_hold(self, answer: Result<HoldAnswer, StoreError>) {
        if let Reply::Hold { reply, .. } = self.reply {
            drop(reply.send(answer));
        }
    }
}

impl BatchReply {
    /// Collects `count` answers, and where they come.
    pub(super) fn new(
        permit: QueuePermit,
        count: usize,
    ) -> (Arc<Mutex<Self>>, oneshot::Receiver<Answers>) {
        let (all, answered) = oneshot::channel();
        let batch = Self {
            answers: (0..count).map(|_| None).collect(),
            missing: count,
            note: None,
            all: Some(all),
            _permit: permit,
        };
        (Arc::new(Mutex::new(batch)), answered)
    }

    fn answer(&mut self, index: usize, answer: Answer) {
        self.answers[index] = Some(answer);
        self.missing -= 1;
        if self.missing == 0
            && let Some(all) = self.all.take()
        {
            let each = std::mem::take(&mut self.answers)
                .into_iter()
                .flatten()
                .collect();
            drop(all.send(Answers {
                each,
                note: self.note,
            }));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while holding one of these locks. If it did, the contents would still be consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl Caller {
    /// A caller that counts as nobody's place. It has gone once the receiver is dropped.
    pub(in crate::redis) fn for_test() -> (Self, oneshot::Receiver<Answer>) {
        Self::alone(
            QueuePermit {
                waiting: Arc::new(AtomicUsize::new(1)),
                places: 1,
            },
            Duration::ZERO,
        )
    }
}
