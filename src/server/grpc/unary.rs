//! Answers unary calls without tonic's server, whose general way was a tenth of what a decision through Redis costs the server.
//!
//! Here a request is one complete message that is not compressed, as nearly all are. tonic's server gets all others. The same
//! handlers answer both, and the tests compare both answers byte by byte. Source: gRPC over HTTP/2, "Requests", "Responses".

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response};
use prost::Message;
use prost::bytes::Buf;
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::{GRPC_CONTENT_TYPE, MetadataMap};

use super::SharedMessage;
use super::answer::AnswerFuture;
use super::codec::{self, CheckParts};
use super::receive::{PREFIX_BYTES, RequestBody, announced_bytes};

/// The field of a request that names its compression.
const ENCODING: &str = "grpc-encoding";
/// The value of [`ENCODING`] for none, which is also the default.
const IDENTITY: &str = "identity";
/// The prefix of a message begins with this byte when the message is not compressed.
const PLAIN: u8 = 0;
/// The status of calls that succeed.
const OK: HeaderValue = HeaderValue::from_static("0");

/// Whether the request is one complete message that is not compressed.
pub(super) fn is_plain(request: &Request<RequestBody>) -> bool {
    let RequestBody::Whole(Some(bytes)) = request.body() else {
        return false;
    };
    let is_whole = bytes.first() == Some(&PLAIN)
        && announced_bytes(bytes).map(|message| PREFIX_BYTES + message) == Some(bytes.len());
    is_whole
        && request
            .headers()
            .get(ENCODING)
            .is_none_or(|encoding| encoding == IDENTITY)
}

/// Decodes the message of a [plain](is_plain) request and answers with what `handle` returns. Messages of too many parts are
/// refused, as `C` says.
pub(super) fn call<C, Q, A, F>(
    request: Request<RequestBody>,
    handle: impl FnOnce(tonic::Request<Q>) -> F,
) -> AnswerFuture
where
    C: CheckParts,
    Q: Message + Default + 'static,
    A: Message,
    F: Future<Output = Result<tonic::Response<A>, Status>> + Send + 'static,
{
    let (parts, body) = request.into_parts();
    let mut message = body.into_bytes();
    message.advance(PREFIX_BYTES.min(message.len()));
    match codec::decode::<Q, C>(&message) {
        Ok(decoded) => {
            drop(message);
            let metadata = MetadataMap::from_headers(parts.headers);
            let handling = handle(tonic::Request::from_parts(
                metadata,
                parts.extensions,
                decoded,
            ));
            Box::pin(async move {
                Ok(handling
                    .await
                    .and_then(success)
                    .unwrap_or_else(Status::into_http))
            })
        }
        Err(status) => Box::pin(std::future::ready(Ok(status.into_http()))),
    }
}

/// Errors: INTERNAL, for an answer whose length the prefix cannot express.
fn success<A: Message>(answer: tonic::Response<A>) -> Result<Response<AnswerBody>, Status> {
    let (metadata, message, extensions) = answer.into_parts();
    let mut response = Response::new(AnswerBody::Message(framed(&message)?.into()));
    *response.headers_mut() = metadata.into_headers();
    *response.extensions_mut() = extensions;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    Ok(response)
}

/// The message with its prefix. Errors: see [`success`].
pub(super) fn framed(message: &impl Message) -> Result<Vec<u8>, Status> {
    let length = message.encoded_len();
    let prefix = u32::try_from(length)
        .map_err(|_| Status::internal(format!("the answer has {length} bytes")))?;
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + length);
    bytes.push(PLAIN);
    bytes.extend(prefix.to_be_bytes());
    codec::append(message, &mut bytes);
    Ok(bytes)
}

/// Answers with a message that other answers share.
pub(super) fn shared(message: SharedMessage) -> AnswerFuture {
    Box::pin(async move {
        Ok(message.await.map_or_else(Status::into_http, |message| {
            let mut response = Response::new(AnswerBody::Shared(Bytes::from_owner(message)));
            response
                .headers_mut()
                .insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
            response
        }))
    })
}

/// The body of an answer.
#[derive(Default)]
pub(super) enum AnswerBody {
    /// By tonic's server.
    Tonic(Body),
    /// One message with its prefix. Trailers with the status come next.
    Message(Bytes),
    /// The same, if other answers share these bytes.
    Shared(Bytes),
    Trailers,
    #[default]
    Ended,
}

impl From<Body> for AnswerBody {
    fn from(body: Body) -> Self {
        Self::Tonic(body)
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Self::Tonic(body) = &mut *self {
            return Pin::new(body).poll_frame(context);
        }
        let (frame, next) = match mem::take(&mut *self) {
            Self::Message(message) | Self::Shared(message) => {
                (Some(Frame::data(message)), Self::Trailers)
            }
            Self::Trailers => (Some(Frame::trailers(trailers())), Self::Ended),
            ended => (None, ended),
        };
        *self = next;
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Tonic(body) => body.is_end_stream(),
            Self::Message(_) | Self::Shared(_) | Self::Trailers => false,
            Self::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Tonic(body) => body.size_hint(),
            Self::Ended => SizeHint::with_exact(0),
            // An exact size would become a content-length, which gRPC's answers do not have.
            Self::Message(_) | Self::Shared(_) | Self::Trailers => SizeHint::default(),
        }
    }
}

fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, OK);
    trailers
}

#[cfg(test)]
mod tests;
