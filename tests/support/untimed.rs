//! A client that sends a deadline and does not enforce it, so that a test sees the server's answer. Tonic's own channel would end
//! the call at the deadline with an error of its own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tollgate::grpc::pb::rate_limit_service_client::RateLimitServiceClient;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response, Uri};

pub type UntimedClient = RateLimitServiceClient<Untimed>;

/// One connection of its own.
pub async fn untimed(address: &str) -> UntimedClient {
    let (connection, origin) = connect(address).await;
    RateLimitServiceClient::with_origin(connection, origin)
}

/// A connection, and the origin that its requests name.
pub async fn connect(address: &str) -> (Untimed, Uri) {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    (
        Untimed(sender),
        Uri::try_from(format!("http://{address}")).unwrap(),
    )
}

/// A request with this `grpc-timeout`.
pub fn timed<T>(message: T, timeout: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request
        .metadata_mut()
        .insert("grpc-timeout", timeout.parse().unwrap());
    request
}

#[derive(Clone)]
pub struct Untimed(http2::SendRequest<Body>);

impl Service<Request<Body>> for Untimed {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
