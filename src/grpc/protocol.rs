//! Checks that a request is a gRPC call. Source: gRPC over HTTP/2, "Requests".

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

/// The content type of gRPC. `+proto` means the same; any other suffix is another encoding.
const CONTENT: &[u8] = b"application/grpc";
const PROTO: &[u8] = b"+proto";

/// Returns the answer to a request that is no gRPC call: 405 for a method other than POST, 415 for another content type.
/// Such a request must not be decided. It would charge a key on behalf of a browser, a crawler or a client of another
/// protocol.
pub(super) fn refuse<B, A: Default>(request: &Request<B>) -> Option<Response<A>> {
    if *request.method() != Method::POST {
        let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Some(response);
    }
    let content = request.headers().get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    let (name, rest) = content.split_at_checked(CONTENT.len()).unwrap_or((content, &[]));
    let rest = match rest.split_at_checked(PROTO.len()) {
        Some((suffix, rest)) if suffix.eq_ignore_ascii_case(PROTO) => rest,
        _ => rest,
    };
    let is_grpc = name.eq_ignore_ascii_case(CONTENT) && matches!(rest.trim_ascii_start().first(), None | Some(b';'));
    (!is_grpc).then(|| empty(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

fn empty<A: Default>(status: StatusCode) -> Response<A> {
    let mut response = Response::new(A::default());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: Method, content: &str) -> Option<StatusCode> {
        let request = Request::builder().method(method).header(CONTENT_TYPE, content).body(()).unwrap();
        refuse::<_, ()>(&request).map(|response| response.status())
    }

    #[test]
    fn only_posts_of_protobuf_messages_are_calls() {
        for content in ["application/grpc", "application/grpc+proto", "Application/gRPC", "application/grpc; charset=utf-8"] {
            assert_eq!(status(Method::POST, content), None, "{content}");
            assert_eq!(status(Method::GET, content), Some(StatusCode::METHOD_NOT_ALLOWED), "{content}");
        }
        for content in
            ["", "application/grp", "application/grpc-web", "application/grpc+json", "application/grpc+protobuf", "text/plain"]
        {
            assert_eq!(status(Method::POST, content), Some(StatusCode::UNSUPPORTED_MEDIA_TYPE), "{content}");
        }
        let untyped = Request::builder().method(Method::POST).body(()).unwrap();
        assert_eq!(refuse::<_, ()>(&untyped).unwrap().status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
}
