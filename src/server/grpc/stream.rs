//! Answers one stream. All requests that have arrived when the stream is polled are decided as one batch.
//!
//! So requests that arrive together cost one future, one place in the store's queue and one wait. A request that arrives
//! alone does not wait for others.

use std::iter::{Zip, zip};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use std::vec;

use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt, stream};
use tonic::Status;

use super::pb::{
    ShouldAllowRequest, ShouldAllowResult, ShouldAllowStreamRequest, ShouldAllowStreamResponse,
};
use super::protocol::own_status;
use crate::transport::account::Charge;

/// Maximum number of requests of one stream that are decided at once. At that number, none is read until an answer has been
/// taken. So neither a flood nor a slow reader costs memory.
const IN_FLIGHT: usize = 64;

/// The answers to requests that were decided together.
pub(super) struct DecidedBatch {
    /// One for each request, in the same order.
    pub results: Vec<ShouldAllowResult>,
    /// Counts them, if they are large, until they are taken.
    pub kept: Option<Charge>,
}

/// Answers each of `requests` once. Answers come in any order, but those to requests read together come together. An error
/// of `requests` comes after the answers to all requests before it.
pub(super) fn decide_in_batches<R, D, F>(requests: R, decide: D) -> BatchedAnswers<R, D, F>
where
    R: Stream<Item = Result<ShouldAllowStreamRequest, Status>> + Unpin,
    D: Fn(Vec<ShouldAllowRequest>) -> F + Unpin,
    F: Future<Output = DecidedBatch>,
{
    BatchedAnswers {
        requests: Some(requests),
        decide,
        deciding: FuturesUnordered::new(),
        ready: zip(Vec::new(), Vec::new()),
        kept: None,
        in_flight: 0,
        error: None,
    }
}

/// See [`decide_in_batches`].
pub(super) struct BatchedAnswers<R, D, F> {
    /// `None` once they have ended.
    requests: Option<R>,
    decide: D,
    deciding: FuturesUnordered<PendingBatch<F>>,
    /// Ids and results of the last batch that was decided, whose answers are being taken.
    ready: Zip<vec::IntoIter<u64>, vec::IntoIter<ShouldAllowResult>>,
    /// Counts them.
    kept: Option<Charge>,
    /// Requests that were read and whose answers were not yet taken.
    in_flight: usize,
    /// The error that the requests ended with.
    error: Option<Status>,
}

/// A batch that is being decided.
struct PendingBatch<F> {
    ids: Vec<u64>,
    decided: Pin<Box<F>>,
}

impl<F: Future<Output = DecidedBatch>> Future for PendingBatch<F> {
    type Output = (Vec<u64>, DecidedBatch);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.decided
            .as_mut()
            .poll(context)
            .map(|decided| (std::mem::take(&mut self.ids), decided))
    }
}

impl<R, D, F> BatchedAnswers<R, D, F>
where
    R: Stream<Item = Result<ShouldAllowStreamRequest, Status>> + Unpin,
    D: Fn(Vec<ShouldAllowRequest>) -> F,
    F: Future<Output = DecidedBatch>,
{
    /// Reads the requests that have arrived, up to [`IN_FLIGHT`], and begins to decide them.
    fn read(&mut self, context: &mut Context<'_>) {
        let mut ids = Vec::new();
        let mut batch = Vec::new();
        while self.in_flight < IN_FLIGHT
            && let Some(requests) = &mut self.requests
            && let Poll::Ready(next) = requests.poll_next_unpin(context)
        {
            match next {
                Some(Ok(ShouldAllowStreamRequest { id, request })) => {
                    ids.push(id);
                    batch.push(request.unwrap_or_default());
                    self.in_flight += 1;
                }
                end => {
                    self.error = end.and_then(Result::err).map(own_status);
                    self.requests = None;
                }
            }
        }
        if !ids.is_empty() {
            self.deciding.push(PendingBatch {
                ids,
                decided: Box::pin((self.decide)(batch)),
            });
        }
    }
}

impl<R, D, F> Stream for BatchedAnswers<R, D, F>
where
    R: Stream<Item = Result<ShouldAllowStreamRequest, Status>> + Unpin,
    D: Fn(Vec<ShouldAllowRequest>) -> F + Unpin,
    F: Future<Output = DecidedBatch>,
{
    type Item = Result<ShouldAllowStreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some((id, result)) = self.ready.next() {
                self.in_flight -= 1;
                return Poll::Ready(Some(Ok(ShouldAllowStreamResponse {
                    id,
                    result: Some(result),
                })));
            }
            self.kept = None;
            self.read(context);
            match self.deciding.poll_next_unpin(context) {
                Poll::Ready(Some((ids, decided))) => {
                    (self.ready, self.kept) = (zip(ids, decided.results), decided.kept);
                }
                Poll::Ready(None) if self.requests.is_none() => {
                    return Poll::Ready(self.error.take().map(Err));
                }
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Passes answers on until the caller's deadline, which is `left` from now. Then they end with DEADLINE_EXCEEDED, as the
/// client's own timer would end the call. Requests without an answer by then may have been charged.
pub(super) fn until_deadline<T>(
    left: Duration,
    answers: impl Stream<Item = Result<T, Status>>,
) -> impl Stream<Item = Result<T, Status>> {
    let passed = Arc::new(AtomicBool::new(false));
    let deadline = {
        let passed = passed.clone();
        async move {
            // A timer would round up, and of no time nothing is left to wait for.
            if !left.is_zero() {
                tokio::time::sleep(left).await;
            }
            passed.store(true, Ordering::Relaxed);
        }
    };
    let end = stream::once(async move { passed.load(Ordering::Relaxed).then(|| Err(too_late())) });
    answers
        .take_until(deadline)
        .chain(end.filter_map(std::future::ready))
}

fn too_late() -> Status {
    Status::deadline_exceeded(
        "the deadline of this stream passed; what was not answered may have been charged",
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use futures_util::{poll, stream};
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    type Asked = Result<ShouldAllowStreamRequest, Status>;
    /// For each batch, its number of requests and a sender that lets its answers go.
    type Batches = Rc<RefCell<Vec<(usize, oneshot::Sender<()>)>>>;

    fn asked(id: u64) -> Asked {
        Ok(ShouldAllowStreamRequest { id, request: None })
    }

    /// A stream whose requests come from the sender. Each batch is recorded, and answered when the test lets it go.
    fn exchange() -> (
        mpsc::UnboundedSender<Asked>,
        Batches,
        impl Stream<Item = Result<ShouldAllowStreamResponse, Status>>,
    ) {
        let (ask, mut requests) = mpsc::unbounded_channel();
        let batches = Batches::default();
        let recorded = batches.clone();
        let decide = move |requests: Vec<ShouldAllowRequest>| {
            let (go, gone) = oneshot::channel();
            recorded.borrow_mut().push((requests.len(), go));
            async move {
                gone.await.unwrap();
                DecidedBatch {
                    results: vec![ShouldAllowResult::default(); requests.len()],
                    kept: None,
                }
            }
        };
        (
            ask,
            batches,
            decide_in_batches(
                stream::poll_fn(move |context| requests.poll_recv(context)),
                decide,
            ),
        )
    }

    fn let_go(batches: &Batches, batch: usize) {
        let_all_go(std::iter::once(batches.borrow_mut().remove(batch)));
    }

    fn let_all_go(batches: impl IntoIterator<Item = (usize, oneshot::Sender<()>)>) {
        batches.into_iter().for_each(|(_, go)| go.send(()).unwrap());
    }

    fn sizes(batches: &Batches) -> Vec<usize> {
        batches.borrow().iter().map(|(size, _)| *size).collect()
    }

    #[tokio::test]
    async fn requests_that_arrived_are_one_batch_and_later_ones_do_not_wait_for_it() {
        let (ask, batches, mut answers) = exchange();
        (0..3).for_each(|id| ask.send(asked(id)).unwrap());
        assert!(poll!(answers.next()).is_pending());
        (3..5).for_each(|id| ask.send(asked(id)).unwrap());
        assert!(poll!(answers.next()).is_pending());
        assert_eq!(sizes(&batches), [3, 2]);
        let_go(&batches, 1);
        assert_eq!(
            [answers.next().await, answers.next().await].map(|answer| answer.unwrap().unwrap().id),
            [3, 4]
        );
        assert!(poll!(answers.next()).is_pending());
        let_go(&batches, 0);
        drop(ask);
        let rest: Vec<u64> = answers.map(|answer| answer.unwrap().id).collect().await;
        assert_eq!(rest, [0, 1, 2]);
    }

    #[tokio::test]
    async fn no_more_is_read_than_may_be_in_flight_until_answers_are_taken() {
        let (ask, batches, mut answers) = exchange();
        (0..100).for_each(|id| ask.send(asked(id)).unwrap());
        assert!(poll!(answers.next()).is_pending());
        assert!(poll!(answers.next()).is_pending());
        assert_eq!(sizes(&batches), [IN_FLIGHT]);
        let_go(&batches, 0);
        for id in 0..IN_FLIGHT as u64 {
            assert!(
                batches.borrow().is_empty(),
                "nothing is read while an answer can be taken"
            );
            assert_eq!(answers.next().await.unwrap().unwrap().id, id);
        }
        assert!(poll!(answers.next()).is_pending());
        assert_eq!(sizes(&batches), [100 - IN_FLIGHT]);
    }

    #[tokio::test]
    async fn an_error_comes_after_the_answers_to_the_requests_before_it() {
        let (ask, batches, mut answers) = exchange();
        for request in [
            asked(1),
            asked(2),
            Err(Status::invalid_argument("no message")),
            asked(3),
        ] {
            ask.send(request).unwrap();
        }
        assert!(poll!(answers.next()).is_pending());
        let_all_go(batches.borrow_mut().drain(..));
        let ids =
            [answers.next().await, answers.next().await].map(|answer| answer.unwrap().unwrap().id);
        assert_eq!(ids, [1, 2]);
        assert_eq!(
            answers.next().await.unwrap().unwrap_err().code(),
            tonic::Code::InvalidArgument
        );
        assert!(answers.next().await.is_none());
    }

    #[tokio::test]
    async fn a_stream_ends_at_its_caller_s_deadline_and_one_without_time_asks_nothing() {
        for left in [Duration::ZERO, Duration::from_millis(1)] {
            let (ask, batches, answers) = exchange();
            let mut answers = std::pin::pin!(until_deadline(left, answers));
            ask.send(asked(1)).unwrap();
            assert_eq!(
                answers.next().await.unwrap().unwrap_err().code(),
                tonic::Code::DeadlineExceeded
            );
            assert!(answers.next().await.is_none());
            assert_eq!(sizes(&batches).len(), usize::from(!left.is_zero()));
        }
        let (ask, batches, answers) = exchange();
        let mut answers = std::pin::pin!(until_deadline(Duration::from_secs(3600), answers));
        ask.send(asked(1)).unwrap();
        assert!(poll!(answers.next()).is_pending());
        let_go(&batches, 0);
        drop(ask);
        assert_eq!(answers.next().await.unwrap().unwrap().id, 1);
        assert!(
            answers.next().await.is_none(),
            "a stream that ends in time ends well"
        );
    }
}
