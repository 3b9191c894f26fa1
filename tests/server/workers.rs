//! The accept loop and the workers: which worker serves a connection, the limits of a connection, and the drain.

mod connection;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_service_server::RateLimitService as EnvoyService;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate::grpc::pb::hold_service_server::HoldService;
use tollgate::grpc::pb::rate_limit_service_server::RateLimitService;
use tollgate::grpc::{self, StartError, WorkerService, Workers, pb};
use tollgate::server::{Drained, Listener, ServeError};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::support::Guarded;
use crate::support::redis::{Redis, free_port};
use crate::support::server::{Client, PATIENCE, Server, channel_to, decide, request, tollgate};

const PLANS: &str = "plans: { p: { limits: [ { name: day, quota: 1000, window: 1d } ] } }\n";

/// A service that answers with the index of its worker as the limit's name. With the key `panic` it panics; with `wait` it first
/// waits for `go`.
struct Marked {
    worker: usize,
    asked: Arc<Notify>,
    go: Arc<Notify>,
}

#[tonic::async_trait]
impl RateLimitService for Marked {
    async fn should_allow(
        &self,
        request: Request<pb::ShouldAllowRequest>,
    ) -> Result<Response<pb::ShouldAllowResponse>, Status> {
        match request.get_ref().key.as_str() {
            "panic" => panic!("as the caller asked"),
            "wait" => {
                self.asked.notify_one();
                self.go.notified().await;
            }
            _ => {}
        }
        Ok(Response::new(pb::ShouldAllowResponse {
            limit_name: self.worker.to_string(),
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl HoldService for Marked {}

impl WorkerService for Marked {}

#[tonic::async_trait]
impl EnvoyService for Marked {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Err(Status::unimplemented("not asked for here"))
    }
}

/// A server of `Marked` in this process.
struct Fixture {
    address: String,
    asked: Arc<Notify>,
    go: Arc<Notify>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<Drained, ServeError>>,
}

impl Fixture {
    async fn start(workers: usize, address: &str) -> Self {
        Self::over(
            workers,
            Listener::bind(&address.parse().unwrap()).await.unwrap(),
        )
        .await
    }

    async fn over(workers: usize, listener: Listener) -> Self {
        let asked = Arc::new(Notify::new());
        let go = Arc::new(Notify::new());
        let address = listener.address().to_string();
        let marks = (asked.clone(), go.clone());
        let service = move |worker| {
            let (asked, go) = marks.clone();
            async move { Ok(Marked { worker, asked, go }) }
        };
        let workers = Workers::start(NonZeroUsize::new(workers).unwrap(), service)
            .await
            .unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            stopped.await.unwrap();
            Duration::ZERO
        };
        let served = tokio::spawn(grpc::serve(vec![listener], workers, shutdown));
        Self {
            address,
            asked,
            go,
            stop,
            served,
        }
    }

    async fn client(&self) -> Client {
        Client::new(channel_to(&self.address).await)
    }

    async fn stop(self) -> Drained {
        self.stop.send(()).unwrap();
        self.served.await.unwrap().unwrap()
    }
}

async fn worker_of(client: &mut Client) -> usize {
    decide(client, "k", "p").await.limit_name.parse().unwrap()
}

/// How many of these connections each worker serves.
async fn spread(clients: &mut [Client]) -> BTreeMap<usize, usize> {
    let mut spread = BTreeMap::new();
    for client in clients {
        *spread.entry(worker_of(client).await).or_default() += 1;
    }
    spread
}

async fn over_unix(path: &std::path::Path) -> Client {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
    let channel: Channel = endpoint.connect().await.unwrap();
    Client::new(channel)
}

#[tokio::test]
async fn no_worker_gets_a_second_connection_while_another_has_none() {
    let fixture = Fixture::start(4, "127.0.0.1:0").await;
    let mut clients = Vec::new();
    for connections in 1..=12 {
        clients.push(fixture.client().await);
        let spread = spread(&mut clients).await;
        assert_eq!(spread.len(), connections.min(4), "{spread:?}");
        assert!(
            spread
                .values()
                .all(|served| *served <= connections.div_ceil(4)),
            "{spread:?}"
        );
    }
    drop(clients);
    assert_eq!(fixture.stop().await, Drained::Clean);
}

#[tokio::test]
async fn connections_to_a_unix_socket_are_spread_alike() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tollgate.sock");
    let fixture = Fixture::start(3, &format!("unix:{}", path.display())).await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(over_unix(&path).await);
    }
    assert_eq!(
        spread(&mut clients).await,
        BTreeMap::from([(0, 2), (1, 2), (2, 2)])
    );
    drop(clients);
    assert_eq!(fixture.stop().await, Drained::Clean);
}

#[tokio::test]
async fn a_handler_that_panics_costs_its_call_and_nothing_else() {
    let fixture = Fixture::start(1, "127.0.0.1:0").await;
    let mut client = fixture.client().await;
    let mut other = fixture.client().await;
    let waiting = {
        let mut client = client.clone();
        tokio::spawn(async move { client.should_allow(request("wait", "p", None)).await })
    };
    fixture.asked.notified().await;
    for _ in 0..3 {
        assert!(
            client
                .should_allow(request("panic", "p", None))
                .await
                .is_err()
        );
    }
    // Another connection of the worker, and another call of the same connection, are still served.
    assert_eq!(
        (worker_of(&mut other).await, worker_of(&mut client).await),
        (0, 0)
    );
    fixture.go.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap().into_inner().limit_name, "0");
    drop((client, other));
    assert_eq!(fixture.stop().await, Drained::Clean);
}

#[tokio::test]
async fn calls_under_way_are_answered_before_the_end_and_no_new_ones_taken() {
    let fixture = Fixture::start(2, "127.0.0.1:0").await;
    let address = fixture.address.clone();
    let asked = fixture.asked.clone();
    let go = fixture.go.clone();
    let mut client = fixture.client().await;
    let waiting =
        tokio::spawn(async move { client.should_allow(request("wait", "p", None)).await });
    asked.notified().await;
    let stopped = tokio::spawn(fixture.stop());
    while TcpStream::connect(&address).is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    go.notify_one();
    assert!(waiting.await.unwrap().is_ok());
    assert_eq!(stopped.await.unwrap(), Drained::Clean);
}

#[tokio::test]
async fn a_service_that_cannot_be_made_starts_no_server() {
    let two = NonZeroUsize::new(2).unwrap();
    let sentence = |worker: usize| async move {
        if worker == 1 {
            Err("no such store".to_owned())
        } else {
            std::future::ready(Ok(unmarked())).await
        }
    };
    let Err(StartError::Service(said)) = Workers::start(two, sentence).await else {
        panic!("it started")
    };
    assert_eq!(said, "no such store");
    let panics = |worker: usize| async move {
        if worker == 1 {
            panic!("as this test asks")
        } else {
            Ok(unmarked())
        }
    };
    assert!(matches!(
        Workers::start(two, panics).await,
        Err(StartError::Lost)
    ));
}

fn unmarked() -> Marked {
    Marked {
        worker: 0,
        asked: Arc::default(),
        go: Arc::default(),
    }
}

#[tokio::test]
async fn a_listener_that_listens_no_more_ends_the_server() {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let socket = socket2::SockRef::from(&listener).try_clone().unwrap();
    let address = listener.address().clone();
    let fixture = Fixture::over(1, listener).await;
    assert_eq!(worker_of(&mut fixture.client().await).await, 0);
    socket.shutdown(std::net::Shutdown::Both).unwrap();
    let ended = tokio::time::timeout(PATIENCE, fixture.served)
        .await
        .unwrap()
        .unwrap();
    let Err(ServeError::Listener(named, _)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(named, address);
}

#[tokio::test]
async fn as_many_threads_serve_as_the_config_says() {
    let server = Server::start(PLANS, &["--set", "workers=3"]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let names =
        tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    let mut workers: Vec<String> = names.filter(|name| name.starts_with("worker ")).collect();
    workers.sort();
    assert_eq!(workers, ["worker 0\n", "worker 1\n", "worker 2\n"]);
    server.wait_for_line("\"workers\":3,").await;
}

/// Takes a quota of 5 over six connections, which three workers share.
async fn assert_one_limit_for_all_workers(store: &str) -> Server {
    let plans = "plans: { five: { limits: [ { name: day, quota: 5, window: 1d } ] } }\n";
    let server = Server::start(
        plans,
        &[
            "--set",
            "workers=3",
            "--store",
            store,
            "--set",
            "store.deadline=10s",
        ],
    );
    let mut allowed = 0;
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut client = server.client().await;
        let answer = decide(&mut client, "k", "five").await;
        assert_eq!(answer.decided_by(), pb::DecidedBy::Store);
        allowed += u32::from(answer.allowed);
        clients.push(client);
    }
    assert_eq!(allowed, 5);
    server
}

#[tokio::test]
async fn workers_enforce_one_limit_in_the_memory_that_they_share() {
    assert_one_limit_for_all_workers("memory:").await;
}

#[tokio::test]
async fn workers_enforce_one_limit_in_redis_each_by_a_connection_of_its_own() {
    let redis = Redis::start();
    let _server = assert_one_limit_for_all_workers(&redis.url()).await;
    let connected = redis.cli(&["CLIENT", "LIST"]);
    let scripts = connected
        .lines()
        .filter(|client| client.contains("cmd=evalsha"))
        .count();
    assert_eq!(scripts, 3, "{connected}");
}

#[tokio::test]
async fn out_of_descriptors_it_pauses_says_so_and_serves_again() {
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new(tollgate().get_program());
    command
        .args(["--listen", &address, "--set", "workers=1"])
        .env_clear()
        .stdout(Stdio::piped());
    let mut server = Guarded(command.spawn().unwrap());
    let stdout = server.0.stdout.take().unwrap();
    let (said, saying) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::BufRead::lines(std::io::BufReader::new(stdout)).map_while(Result::ok) {
            // The test may have ended by now.
            let _ = said.send(line);
        }
    });
    let wait_for = |sentence: &str| {
        while !saying
            .recv_timeout(PATIENCE)
            .expect(sentence)
            .contains(sentence)
        {}
    };
    wait_for("tollgate is serving");
    // Lowered only now: a server that starts with this limit takes fewer connections and never runs out.
    let limit = Rlimit {
        current: Some(40),
        maximum: Some(40),
    };
    prlimit(Some(Pid::from_child(&server.0)), Resource::Nofile, limit).unwrap();
    let many: Vec<TcpStream> = (0..64)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    wait_for("cannot accept a connection");
    drop(many);
    assert!(
        decide(&mut Client::new(channel_to(&address).await), "k", "free")
            .await
            .allowed
    );
}

#[tokio::test]
async fn a_path_that_no_service_has_is_unimplemented() {
    let server = Server::start(PLANS, &[]);
    let channel = channel_to(&server.address).await;
    for path in [
        "/tollgate.v1.RateLimitService/Nothing",
        "/tollgate.v1.Nothing/ShouldAllow",
        "/",
    ] {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let codec =
            tonic_prost::ProstCodec::<pb::ListPlansRequest, pb::ListPlansResponse>::default();
        let asked = grpc
            .unary(
                Request::new(pb::ListPlansRequest {}),
                path.parse().unwrap(),
                codec,
            )
            .await;
        assert_eq!(asked.unwrap_err().code(), Code::Unimplemented, "{path}");
    }
}
