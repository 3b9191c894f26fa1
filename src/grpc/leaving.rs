//! How a connection tells its streams that it is to end: what they have read is answered, and then they end too, so that
//! a client that would keep one open for days comes again, to this server's successor or to another.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt, stream};
use tokio::sync::watch;
use tonic::Status;

/// Whether a connection is to end, as its streams have it: an extension of their requests.
#[derive(Clone)]
pub(super) struct Leaving(pub(super) watch::Receiver<bool>);

/// Takes from `requests` until the connection is to end; `answer` makes answers of them, and these end as UNAVAILABLE
/// when it was so that they came to an end.
pub(super) fn until<R, A, T>(
    leaving: Option<Leaving>,
    requests: R,
    answer: impl FnOnce(Until<R>) -> A,
) -> impl Stream<Item = A::Item>
where
    R: Stream + Unpin,
    A: Stream<Item = Result<T, Status>>,
{
    let cut = Arc::new(AtomicBool::new(false));
    let until = Until { requests, flag: leaving.clone(), left: leaving.map(left), cut: cut.clone() };
    let end = stream::once(async move { cut.load(Ordering::Relaxed).then(|| Err(going_away())) });
    answer(until).chain(end.filter_map(std::future::ready))
}

fn going_away() -> Status {
    Status::unavailable("this connection is to end; what was not answered was not decided: ask it on another stream")
}

type Left = Pin<Box<dyn Future<Output = ()> + Send>>;

fn left(Leaving(mut leaving): Leaving) -> Left {
    Box::pin(async move {
        // An error means that the connection is gone, which is an end too.
        let _ = leaving.wait_for(|leaving| *leaving).await;
    })
}

/// Requests, until a connection is to end.
pub(super) struct Until<R> {
    requests: R,
    flag: Option<Leaving>,
    left: Option<Left>,
    cut: Arc<AtomicBool>,
}

impl<R> Until<R> {
    fn cut(&self) -> Poll<Option<R::Item>>
    where
        R: Stream,
    {
        self.cut.store(true, Ordering::Relaxed);
        Poll::Ready(None)
    }
}

impl<R: Stream + Unpin> Stream for Until<R> {
    type Item = R::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<R::Item>> {
        // First, else a client that never pauses would never be told.
        // Said once, so that a change is all there is to look for.
        if self.flag.as_ref().is_some_and(|Leaving(leaving)| leaving.has_changed().unwrap_or(true)) {
            return self.cut();
        }
        let next = self.requests.poll_next_unpin(context);
        // Only where there is nothing to do: it costs a lock, and requests come by the hundred thousand.
        let left = next.is_pending() && self.left.as_mut().is_some_and(|left| left.as_mut().poll(context).is_ready());
        if left { self.cut() } else { next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::{mpsc, oneshot};

    /// Answers of a stream whose requests come from where this is sent to, each doubled.
    fn doubled() -> (mpsc::UnboundedSender<u32>, watch::Sender<bool>, impl Stream<Item = Result<u32, Status>>) {
        let ((ask, mut asked), (leave, leaving)) = (mpsc::unbounded_channel(), watch::channel(false));
        let requests = stream::poll_fn(move |context| asked.poll_recv(context));
        let answer = |requests: Until<_>| requests.map(|asked: u32| async move { Ok(2 * asked) }).buffer_unordered(4);
        (ask, leave, until(Some(Leaving(leaving)), requests, answer))
    }

    #[tokio::test]
    async fn a_stream_ends_as_unavailable_when_its_connection_is_to_end_and_not_before() {
        let (ask, leave, answers) = doubled();
        let mut answers = std::pin::pin!(answers);
        ask.send(1).unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap(), 2);
        assert!(futures_util::poll!(answers.next()).is_pending());
        leave.send_replace(true);
        assert_eq!(answers.next().await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
        assert!(answers.next().await.is_none());
    }

    /// The answer, when it may go.
    async fn once(gone: Option<oneshot::Receiver<()>>, asked: u32) -> Result<u32, Status> {
        gone.unwrap().await.unwrap();
        Ok(asked)
    }

    #[tokio::test]
    async fn what_was_read_is_answered_first_and_nothing_more_is_read() {
        let ((ask, mut asked), (leave, leaving)) = (mpsc::unbounded_channel(), watch::channel(false));
        let (go, gone) = oneshot::channel();
        let mut gone = Some(gone);
        let requests = stream::poll_fn(move |context| asked.poll_recv(context));
        let answer = |requests: Until<_>| requests.map(move |asked| once(gone.take(), asked)).buffer_unordered(4);
        let mut answers = std::pin::pin!(until(Some(Leaving(leaving)), requests, answer));
        ask.send(7).unwrap();
        assert!(futures_util::poll!(answers.next()).is_pending());
        leave.send_replace(true);
        ask.send(8).unwrap();
        assert!(futures_util::poll!(answers.next()).is_pending());
        go.send(()).unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap(), 7);
        assert_eq!(answers.next().await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
    }

    #[tokio::test]
    async fn a_stream_that_its_client_ends_ends_well() {
        let (ask, leave, answers) = doubled();
        ask.send(1).unwrap();
        drop(ask);
        let all: Vec<_> = answers.collect().await;
        assert_eq!(all.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [2]);
        drop(leave);
    }
}
