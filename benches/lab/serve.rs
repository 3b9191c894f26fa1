//! How the echo is served: by tollgate's own workers, so that the difference is tollgate's work and nothing else.

use std::num::NonZeroUsize;

use tollgate::grpc::{self, Address, Listener, Workers};

use crate::echo::Echo;

/// Serves an echo until the process ends, by as many workers as tollgate takes.
pub fn serve_echo(address: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread can accept");
    runtime.block_on(async {
        let listener = Listener::bind(&Address::Tcp(address.to_owned())).await.expect("the port was free");
        let count = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let workers = Workers::start(count, |_| async { Ok(Echo) }).await.expect("threads can be started");
        let served = grpc::serve(vec![listener], workers, std::future::pending()).await;
        served.expect("an echo serves until it is killed");
    });
}
