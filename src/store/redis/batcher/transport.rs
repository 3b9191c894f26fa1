//! What the batcher needs of the connection that its calls go over.

use std::sync::Arc;
use std::time::Duration;

use fred::types::Value;

use super::CALLS_MAX;
use super::call::Call;
use super::queue::{PendingQueue, Queue};
use crate::StoreError;

/// Sends script calls to Redis and returns the replies.
pub(in crate::redis) trait ScriptTransport: Send + Sync + 'static {
    /// Maximum number of calls in flight.
    const CALLS: usize = CALLS_MAX;

    /// An empty queue, which decides in which order requests are sent, and which of them share a call.
    fn queue(&self) -> PendingQueue {
        PendingQueue::Whole(Queue::default())
    }

    /// The time within which a healthy Redis answers.
    fn deadline(&self) -> Duration;

    /// Waits until it is known whether calls can be sent, which is soon. Requests that arrive meanwhile keep their order, and
    /// are answered at their deadlines.
    fn ready(&self) -> impl Future<Output = ()> + Send;

    /// Encodes a call at once, and makes it when the future is polled. The future always ends with the reply or an error.
    fn call_script(
        self: Arc<Self>,
        call: &Call,
    ) -> impl Future<Output = Result<Value, TransportError>> + Send + use<Self>;
}

/// Why a call has no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::redis) enum TransportError {
    /// All its callers get this error.
    Error(StoreError),
    /// Nothing was executed, and each name must be sent in a call of its own. Occurs only with calls for several names.
    Split,
}

impl From<StoreError> for TransportError {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}
