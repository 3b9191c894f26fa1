//! Redirections to addresses that do not end.

use super::*;
use crate::redis::script::Script;
use crate::redis::target::RedisTarget;

#[tokio::test]
async fn redirections_to_ever_new_addresses_make_a_bounded_number_of_nodes() {
    let target = Arc::new(RedisTarget::parse("redis-cluster://127.0.0.1:1").unwrap());
    let script = Arc::new(Script::new(false));
    let deadline = Duration::from_secs(1);
    let cluster = Cluster::start(
        StoreSettings {
            target,
            script,
            deadline,
            injected: None,
        },
        Vec::new(),
    );
    // Addresses of this host, at a port where nobody listens.
    let address = |number: u16| HostAndPort {
        host: format!("127.1.{}.{}", number / 256, number % 256),
        port: 1,
    };
    let redirect = |number| {
        cluster
            .state
            .node_elsewhere(&address(number), || ProbeCall::numbered("", 0))
    };
    let followed = (1..=2_000)
        .filter(|number| redirect(*number).is_ok())
        .count();
    assert_eq!(
        (followed, cluster.state.nodes().len()),
        (MANAGERS_MAX, MANAGERS_MAX)
    );
    assert!(redirect(1).is_ok(), "a known node is followed to");
}
