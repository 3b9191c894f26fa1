//! Checks that a request is a gRPC call, and words what tonic says of a compressed message. Source: gRPC over HTTP/2, "Requests".

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tonic::{Code, Status};

/// The content type of gRPC. `+proto` means the same; any other suffix is another encoding.
const CONTENT: &[u8] = b"application/grpc";
const PROTO: &[u8] = b"+proto";

/// Returns the answer to a request that is not a gRPC call: 405 for a method other than POST, 415 for another content type.
/// Such a request must not be decided. It would charge a key on behalf of a browser, a crawler or a client of another
/// protocol.
pub(super) fn refuse<B, A: Default>(request: &Request<B>) -> Option<Response<A>> {
    if *request.method() != Method::POST {
        let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("POST"));
        return Some(response);
    }
    let content = request
        .headers()
        .get(CONTENT_TYPE)
        .map_or(&[][..], HeaderValue::as_bytes);
    let (name, rest) = content
        .split_at_checked(CONTENT.len())
        .unwrap_or((content, &[]));
    let rest = match rest.split_at_checked(PROTO.len()) {
        Some((suffix, rest)) if suffix.eq_ignore_ascii_case(PROTO) => rest,
        _ => rest,
    };
    let is_grpc = name.eq_ignore_ascii_case(CONTENT)
        && matches!(rest.trim_ascii_start().first(), None | Some(b';'));
    (!is_grpc).then(|| empty(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

fn empty<A: Default>(status: StatusCode) -> Response<A> {
    let mut response = Response::new(A::default());
    *response.status_mut() = status;
    response
}

/// What tonic's statuses for messages begin with that it cannot decompress; the tests send such messages.
const NOT_DECOMPRESSED: &str = "Error decompressing: ";

/// The status for a compressed message that is too large or no gzip. tonic blames the server: RESOURCE_EXHAUSTED, which callers take for
/// a refusal that passes, or INTERNAL. Any other status is returned as it is.
pub(super) fn own_status(status: Status) -> Status {
    match (
        status.code(),
        status.message().strip_prefix(NOT_DECOMPRESSED),
    ) {
        (Code::ResourceExhausted, Some(why)) => {
            Status::out_of_range(format!("the message is too large: {why}"))
        }
        (Code::Internal, Some(_)) => {
            Status::invalid_argument("the message cannot be decompressed; it must be gzip")
        }
        _ => status,
    }
}

/// The answer of tonic's server, with [`own_status`].
pub(super) fn own_answer<B: Default>(answer: Response<B>) -> Response<B> {
    let failed = |answer: &Response<B>| Status::from_header_map(answer.headers());
    let status = answer
        .headers()
        .get(Status::GRPC_STATUS)
        .filter(|code| *code != "0")
        .and_then(|_| failed(&answer));
    match status.filter(|status| status.message().starts_with(NOT_DECOMPRESSED)) {
        Some(status) => own_status(status).into_http(),
        None => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: Method, content: &str) -> Option<StatusCode> {
        let request = Request::builder()
            .method(method)
            .header(CONTENT_TYPE, content)
            .body(())
            .unwrap();
        refuse::<_, ()>(&request).map(|response| response.status())
    }

    #[test]
    fn only_posts_of_protobuf_messages_are_calls() {
        for content in [
            "application/grpc",
            "application/grpc+proto",
            "Application/gRPC",
            "application/grpc; charset=utf-8",
        ] {
            assert_eq!(status(Method::POST, content), None, "{content}");
            assert_eq!(
                status(Method::GET, content),
                Some(StatusCode::METHOD_NOT_ALLOWED),
                "{content}"
            );
        }
        for content in [
            "",
            "application/grp",
            "application/grpc-web",
            "application/grpc+json",
            "application/grpc+protobuf",
            "text/plain",
        ] {
            assert_eq!(
                status(Method::POST, content),
                Some(StatusCode::UNSUPPORTED_MEDIA_TYPE),
                "{content}"
            );
        }
        let untyped = Request::builder().method(Method::POST).body(()).unwrap();
        assert_eq!(
            refuse::<_, ()>(&untyped).unwrap().status(),
            StatusCode::UNSUPPORTED_MEDIA_TYPE
        );
    }
}
