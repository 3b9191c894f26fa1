//! What it costs to renew what streams hold. Run by hand.

use super::*;
use crate::support::redis::Redis;

/// The lease is the default of a plan.
const PLANS: &str = "
plans:
  tokens: { limits: [ { quota: 1000000, window: 1h, algorithm: token_bucket } ] }
";
const STREAMS: usize = 10;
const HOLDS: usize = 100;
/// As long as the lease, which is renewed three times in it.
const MINUTE: Duration = Duration::from_secs(60);

/// Microseconds of server and Redis so far.
fn cpu_us(server: &Server, redis: &Redis) -> [f64; 2] {
    let threads = server.thread_times().into_iter();
    let of_server: Duration = threads.map(|(_, time)| time).sum();
    [of_server.as_secs_f64() * 1e6, redis.cpu_us()]
}

/// What they take in a minute.
async fn minute(server: &Server, redis: &Redis) -> [f64; 2] {
    let before = cpu_us(server, redis);
    tokio::time::sleep(MINUTE).await;
    let after = cpu_us(server, redis);
    [after[0] - before[0], after[1] - before[1]]
}

#[tokio::test]
#[ignore = "by hand: it prints what renewals cost, and takes two minutes; see CONTRIBUTING.md"]
async fn a_thousand_holds_are_renewed_in_a_hundredth_of_a_core() {
    let redis = Redis::start();
    let server = Server::start(PLANS, &["--store", &redis.url()]);
    server
        .wait_until_decided_by(pb::DecidedBy::Store, "tokens")
        .await;
    let idle = minute(&server, &redis).await;
    let mut client = holder(&server).await;
    let mut streams = Vec::new();
    for stream_number in 0..STREAMS {
        let mut stream = Stream::open(&mut client).await;
        for hold in 0..HOLDS {
            let key = format!("key-{stream_number}-{hold}");
            let asked = reserve("tokens", &key, "hold");
            stream.send(hold_request::Call::Reserve(asked)).await;
            let (_, answer) = stream.answer().await;
            assert!(matches!(
                answer,
                hold_response::Result::Reserve(reserved) if reserved.held
            ));
        }
        streams.push(stream);
    }
    let scripts = redis.ran("evalsha");
    let held = minute(&server, &redis).await;
    let calls = redis.ran("evalsha") - scripts;
    let shares = [0, 1].map(|of| (held[of] - idle[of]) / MINUTE.as_secs_f64() / 1e4);
    println!(
        "1,000 holds renewed: server {:.2} %, Redis {:.2} % of a core beyond idle, by {calls} script calls a minute; idle {:.2} and {:.2} %",
        shares[0],
        shares[1],
        idle[0] / MINUTE.as_secs_f64() / 1e4,
        idle[1] / MINUTE.as_secs_f64() / 1e4
    );
    assert!(shares[0] + shares[1] <= 1.0, "{shares:?}");
    drop(streams);
}
