//! Several replicas on one Redis, behind nginx. They enforce one exact limit. A killed replica loses only its calls in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::plan::Algorithm;
use tonic::Status;

use crate::support::nginx::Nginx;
use crate::support::plans::{COUNTER, algorithm_fields, named_algorithms};
use crate::support::redis::Redis;
use crate::support::server::{Client, Server, channel_to, request};

/// Beside a plan of each algorithm whose promise is exact.
const PLANS: &str = "
store: { deadline: 10s }
plans:
  five: { limits: [ { quota: 5, window: 1d } ] }
  two: { limits: [ { quota: 1000, window: 1d, algorithm: sliding_window }, { quota: 1000, window: 7d, algorithm: sliding_log } ] }
";

/// Their names, and `two`, which have a quota of 1,000.
fn exact() -> impl Iterator<Item = (&'static str, Option<Algorithm>)> {
    let named = named_algorithms().into_iter();
    let exact = named.filter(|(_, algorithm)| *algorithm != COUNTER);
    let exact = exact.map(|(name, algorithm)| (name, Some(algorithm)));
    exact.chain([("two", None)])
}

/// Clock-aligned windows have a year, so that no test crosses the edge of one.
fn plans() -> String {
    let plan = |(name, algorithm): (_, Option<Algorithm>)| {
        let fields = algorithm_fields(algorithm?);
        Some(format!(
            "  {name}: {{ limits: [ {{ quota: 1000, window: 365d, {fields} }} ] }}\n"
        ))
    };
    PLANS.to_owned() + &exact().filter_map(plan).collect::<String>()
}

const CALLS: u64 = 6_000;
const CONNECTIONS: usize = 8;
const IN_FLIGHT: usize = 200;

struct Deployment {
    replicas: Vec<Server>,
    nginx: Nginx,
    redis: Redis,
}

impl Deployment {
    fn start() -> Self {
        let redis = Redis::start();
        let replicas: Vec<Server> = (0..3)
            .map(|_| Server::start(&plans(), &["--store", &redis.url()]))
            .collect();
        let addresses: Vec<&str> = replicas
            .iter()
            .map(|replica| replica.address.as_str())
            .collect();
        let nginx = Nginx::before(&addresses);
        Self {
            replicas,
            nginx,
            redis,
        }
    }

    async fn clients(&self) -> Vec<Client> {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Client::new(channel_to(&self.nginx.address).await));
        }
        clients
    }
}

/// Makes `CALLS` calls, 200 in flight, and counts answered ones in `done`. Returns the number allowed, and the errors.
async fn storm(
    clients: &[Client],
    key: &str,
    plan: &str,
    done: Arc<AtomicU64>,
) -> (u64, Vec<Status>) {
    let left = Arc::new(AtomicU64::new(CALLS));
    let callers: Vec<_> = (0..IN_FLIGHT)
        .map(|caller| {
            let mut client = clients[caller % CONNECTIONS].clone();
            let left = left.clone();
            let done = done.clone();
            let request = request(key, plan, None);
            tokio::spawn(async move {
                let mut allowed = 0;
                let mut errors = Vec::new();
                while left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                        left.checked_sub(1)
                    })
                    .is_ok()
                {
                    match client.should_allow(request.clone()).await {
                        Ok(answer) => allowed += u64::from(answer.into_inner().allowed),
                        Err(status) => errors.push(status),
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
                (allowed, errors)
            })
        })
        .collect();
    let mut allowed = 0;
    let mut errors = Vec::new();
    for caller in callers {
        let (more, failed) = caller.await.unwrap();
        allowed += more;
        errors.extend(failed);
    }
    (allowed, errors)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_behind_nginx_enforce_one_exact_limit() {
    let deployment = Deployment::start();
    let clients = deployment.clients().await;
    for (plan, _) in exact() {
        let (allowed, errors) = storm(&clients, "one key", plan, Arc::default()).await;
        println!(
            "{plan}: {allowed} of {CALLS} allowed, {} errors",
            errors.len()
        );
        assert_eq!((allowed, errors.len()), (1000, 0), "{plan}: {errors:?}");
    }
    assert_eq!(deployment.redis.keys_without_expiry(), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_19_a_replica_killed_midway_loses_its_calls_in_flight_and_nothing_else() {
    let mut deployment = Deployment::start();
    let url = deployment.redis.url();
    for (plan, _) in exact() {
        let clients = deployment.clients().await;
        let done = Arc::new(AtomicU64::new(0));
        let storm = {
            let clients = clients.clone();
            let done = done.clone();
            tokio::spawn(async move { storm(&clients, "one key", plan, done).await })
        };
        // The replica is killed before the quota is used up. A unit that the kill lost or granted twice then shows in the total.
        while done.load(Ordering::SeqCst) < 400 {
            tokio::task::yield_now().await;
        }
        let mut killed = deployment.replicas.remove(0);
        killed.child.kill().unwrap();
        killed.wait();
        deployment.replicas.push(killed.again(&["--store", &url]));
        let (allowed, errors) = storm.await.unwrap();
        println!(
            "{plan}: {allowed} of {CALLS} allowed, {} calls lost with the replica",
            errors.len()
        );
        assert!(allowed <= 1000, "{plan}: {allowed} were allowed");
        assert!(
            errors.len() <= IN_FLIGHT,
            "{plan}: {} calls failed: {:?}",
            errors.len(),
            errors[0]
        );
        assert!(
            allowed + errors.len() as u64 >= 1000,
            "{plan}: {allowed} and {} lost",
            errors.len()
        );
    }
}

/// A limiter that reads a count and then increments it lets too many pass here. limitador, for one, let 1,029 to 1,124 of a quota
/// of 1,000 pass to 50 to 200 callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_at_once_over_three_replicas_on_a_limit_of_five_let_five_pass_a_hundred_times_in_a_row()
{
    let deployment = Deployment::start();
    let clients = deployment.clients().await;
    for round in 0..100 {
        let calls: Vec<_> = (0..10)
            .map(|caller| {
                let mut client = clients[caller % CONNECTIONS].clone();
                let request = request(&format!("raced {round}"), "five", None);
                tokio::spawn(async move {
                    client
                        .should_allow(request)
                        .await
                        .unwrap()
                        .into_inner()
                        .allowed
                })
            })
            .collect();
        let mut passed = 0;
        for call in calls {
            passed += u32::from(call.await.unwrap());
        }
        assert_eq!(passed, 5, "round {round}");
    }
}
