//! Serves the echo with the server that tollgate uses, so that the difference in cost is that of the decisions alone.

use std::num::NonZeroUsize;

use tollgate::grpc::{self, Workers};
use tollgate::server::{Address, Listener};

use crate::echo::Echo;

/// Serves an echo until the process ends, on so many workers.
pub fn serve_echo(address: &str, workers: NonZeroUsize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a thread can wait for sockets");
    runtime.block_on(async {
        let address: Address = address.parse().expect("the benchmark names an address");
        let listener = Listener::bind(&address)
            .await
            .expect("the port was free a moment ago");
        let workers = Workers::start(workers, |_| async { Ok(Echo) })
            .await
            .expect("threads can be started");
        grpc::serve(vec![listener], workers, std::future::pending())
            .await
            .expect("an echo serves until it is killed");
    });
}
