//! How the echo is served: as tollgate serves itself, so that the difference is tollgate's work and nothing else.

use tollgate::grpc::pb::rate_limit_service_server::RateLimitServiceServer;
use tonic::transport::Server;

use crate::echo::Echo;

/// Serves an echo until the process ends: on as many threads as tollgate takes, by tonic's own loop, as tollgate does.
pub fn serve_echo(address: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads can be started");
    let address = address.parse().expect("the benchmark names an address");
    let server = Server::builder().add_service(RateLimitServiceServer::new(Echo));
    runtime.block_on(server.serve(address)).expect("an echo serves until it is killed");
}
