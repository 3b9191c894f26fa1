//! Messages of a stream that have arrived and were not read yet. They are counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use h2::RecvStream;
use hyper::body::{Buf, Bytes};
use prost::bytes::BytesMut;

use crate::transport::account::{Account, Charge};

/// The messages of a stream, as they arrive. Clones share them.
///
/// h2 keeps each frame that is not read in a buffer of its own, which takes more than the bytes of a small frame, and counts
/// nothing. So all that has arrived is moved here, though its window is given back only when it is used.
#[derive(Clone)]
pub(in crate::grpc) struct InboundBody(Arc<Mutex<Inbound>>);

struct Inbound {
    /// `None` once it has ended, with an error or without.
    stream: Option<RecvStream>,
    error: Option<h2::Error>,
    /// The task that waits for more, if it is not the one that reads what arrives: h2 wakes the last that polled. Reflection has a task
    /// of its own.
    waiting: Option<Waker>,
    arrived: BytesMut,
    /// For `arrived`.
    charge: Charge,
}

impl InboundBody {
    /// Bytes that are passed on at a time: what tonic keeps of them is not counted.
    const PIECE_BYTES: usize = 4 << 10;

    pub(in crate::grpc) fn new(stream: RecvStream, account: &Arc<Account>) -> Self {
        let charge = account.charge(0);
        Self(Arc::new(Mutex::new(Inbound {
            stream: Some(stream),
            error: None,
            waiting: None,
            arrived: BytesMut::new(),
            charge,
        })))
    }

    /// Moves what has arrived out of h2. The task is woken when more comes.
    pub(in crate::grpc) fn read(&self, context: &mut Context<'_>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .read(context);
    }

    pub(super) fn poll_data(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let mut inbound = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ready!(inbound.charge.account().turn().poll_ready(context));
        if !inbound.arrived.is_empty() {
            return Poll::Ready(Some(Ok(inbound.take(Self::PIECE_BYTES))));
        }
        if let Some(error) = inbound.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let Some(stream) = &mut inbound.stream else {
            return Poll::Ready(None);
        };
        let Poll::Ready(data) = stream.poll_data(context) else {
            let waker = context.waker();
            if !inbound
                .waiting
                .as_ref()
                .is_some_and(|waiting| waiting.will_wake(waker))
            {
                inbound.waiting = Some(waker.clone());
            }
            return Poll::Pending;
        };
        match &data {
            // Fails only when the stream is gone.
            Some(Ok(data)) => drop(stream.flow_control().release_capacity(data.len())),
            Some(Err(_)) | None => inbound.stream = None,
        }
        Poll::Ready(data)
    }
}

impl Inbound {
    fn read(&mut self, context: &mut Context<'_>) {
        let before = self.arrived.len();
        while let Some(stream) = &mut self.stream
            && let Poll::Ready(data) = stream.poll_data(context)
        {
            match data {
                Some(Ok(data)) => self.arrived.extend_from_slice(&data),
                end => {
                    self.error = end.and_then(Result::err);
                    self.stream = None;
                }
            }
        }
        if self.arrived.len() > before {
            self.charge.resize(self.arrived.capacity());
        }
        // Where nothing has come, h2 wakes only this task from now on, and this one then the other.
        let has_news = self.stream.is_none() || !self.arrived.is_empty();
        let waits_elsewhere = |waiting: &mut Waker| !waiting.will_wake(context.waker());
        if has_news && let Some(waiting) = self.waiting.take_if(waits_elsewhere) {
            waiting.wake();
        }
    }

    /// The next bytes, and lets the peer send as many more.
    fn take(&mut self, most: usize) -> Bytes {
        let count = self.arrived.len().min(most);
        let taken = Bytes::copy_from_slice(&self.arrived[..count]);
        self.arrived.advance(count);
        if self.arrived.is_empty() {
            self.arrived = BytesMut::new();
            self.charge.resize(0);
        }
        if let Some(stream) = &mut self.stream {
            // Fails only when the stream is gone.
            let _ = stream.flow_control().release_capacity(count);
        }
        taken
    }
}
