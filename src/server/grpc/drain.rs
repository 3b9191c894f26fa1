//! How a connection tells its streams to end. Requests that a stream has read are answered, then the stream ends. So a
//! client that keeps a stream open for days reconnects, to this server's successor or to another server.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt, stream};
use tokio::sync::watch;
use tonic::Status;

/// Whether a connection is to end. Its streams find it in the extensions of their request.
#[derive(Clone)]
pub(super) struct DrainSignal(pub(super) watch::Receiver<bool>);

/// Passes on `requests` until the connection is to end; `answer` turns them into answers. If the drain ended the requests,
/// the answers end with UNAVAILABLE.
pub(super) fn until_drain<R, A, T>(
    drain: Option<DrainSignal>,
    requests: R,
    answer: impl FnOnce(UntilDrain<R>) -> A,
) -> impl Stream<Item = A::Item>
where
    R: Stream + Unpin,
    A: Stream<Item = Result<T, Status>>,
{
    let was_cut = Arc::new(AtomicBool::new(false));
    let until = UntilDrain {
        requests,
        flag: drain.clone(),
        draining: drain.map(told),
        was_cut: was_cut.clone(),
    };
    let end =
        stream::once(async move { was_cut.load(Ordering::Relaxed).then(|| Err(going_away())) });
    answer(until).chain(end.filter_map(std::future::ready))
}

/// The status of a stream that this server ends.
pub(super) fn going_away() -> Status {
    Status::unavailable(
        "this connection is to end; what was not answered was not decided: ask it on another stream",
    )
}

pub(super) type DrainFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits until a connection is to end.
pub(super) fn told(DrainSignal(mut drain): DrainSignal) -> DrainFuture {
    Box::pin(async move {
        // An error means that the connection is gone, which also means the end.
        let _ = drain.wait_for(|drain| *drain).await;
    })
}

/// Passes on requests until the connection is to end.
pub(super) struct UntilDrain<R> {
    requests: R,
    flag: Option<DrainSignal>,
    draining: Option<DrainFuture>,
    was_cut: Arc<AtomicBool>,
}

impl<R> UntilDrain<R> {
    fn end(&self) -> Poll<Option<R::Item>>
    where
        R: Stream,
    {
        self.was_cut.store(true, Ordering::Relaxed);
        Poll::Ready(None)
    }
}

impl<R: Stream + Unpin> Stream for UntilDrain<R> {
    type Item = R::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<R::Item>> {
        // Checked before the next request, so that a client that never pauses is told, too. The flag is set once, so any
        // change means the end.
        if self
            .flag
            .as_ref()
            .is_some_and(|DrainSignal(drain)| drain.has_changed().unwrap_or(true))
        {
            return self.end();
        }
        let next = self.requests.poll_next_unpin(context);
        // Polled only when no request is waiting: it costs a lock, and requests may come 100,000 a second.
        let draining = next.is_pending()
            && self
                .draining
                .as_mut()
                .is_some_and(|draining| draining.as_mut().poll(context).is_ready());
        if draining { self.end() } else { next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::{mpsc, oneshot};

    /// A stream that answers each number sent with its double.
    fn doubled() -> (
        mpsc::UnboundedSender<u32>,
        watch::Sender<bool>,
        impl Stream<Item = Result<u32, Status>>,
    ) {
        let (ask, mut asked) = mpsc::unbounded_channel();
        let (draining, drain) = watch::channel(false);
        let requests = stream::poll_fn(move |context| asked.poll_recv(context));
        let answer = |requests: UntilDrain<_>| {
            requests
                .map(|asked: u32| async move { Ok(2 * asked) })
                .buffer_unordered(4)
        };
        (
            ask,
            draining,
            until_drain(Some(DrainSignal(drain)), requests, answer),
        )
    }

    #[tokio::test]
    async fn a_stream_ends_as_unavailable_when_its_connection_is_to_end_and_not_before() {
        let (ask, draining, answers) = doubled();
        let mut answers = std::pin::pin!(answers);
        ask.send(1).unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap(), 2);
        assert!(futures_util::poll!(answers.next()).is_pending());
        draining.send_replace(true);
        assert_eq!(
            answers.next().await.unwrap().unwrap_err().code(),
            tonic::Code::Unavailable
        );
        assert!(answers.next().await.is_none());
    }

    /// Answers `asked` once `gone` resolves.
    async fn once(gone: Option<oneshot::Receiver<()>>, asked: u32) -> Result<u32, Status> {
        gone.unwrap().await.unwrap();
        Ok(asked)
    }

    #[tokio::test]
    async fn requests_already_read_are_answered_first_and_no_more_are_read() {
        let (ask, mut asked) = mpsc::unbounded_channel();
        let (draining, drain) = watch::channel(false);
        let (go, gone) = oneshot::channel();
        let mut gone = Some(gone);
        let requests = stream::poll_fn(move |context| asked.poll_recv(context));
        let answer = |requests: UntilDrain<_>| {
            requests
                .map(move |asked| once(gone.take(), asked))
                .buffer_unordered(4)
        };
        let mut answers = std::pin::pin!(until_drain(Some(DrainSignal(drain)), requests, answer));
        ask.send(7).unwrap();
        assert!(futures_util::poll!(answers.next()).is_pending());
        draining.send_replace(true);
        ask.send(8).unwrap();
        assert!(futures_util::poll!(answers.next()).is_pending());
        go.send(()).unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap(), 7);
        assert_eq!(
            answers.next().await.unwrap().unwrap_err().code(),
            tonic::Code::Unavailable
        );
    }

    #[tokio::test]
    async fn a_stream_that_its_client_ends_has_no_error() {
        let (ask, draining, answers) = doubled();
        ask.send(1).unwrap();
        drop(ask);
        let all: Vec<_> = answers.collect().await;
        assert_eq!(all.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [2]);
        drop(draining);
    }
}
