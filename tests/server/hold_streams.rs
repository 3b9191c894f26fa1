//! Streams of holds, through gRPC and the real program: what they hold is renewed, ended with them, and told when it is lost.

mod cost;
mod replicas;

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tollgate::grpc::pb::hold_service_client::HoldServiceClient;
use tollgate::grpc::pb::{self, LostReason, SettleOutcome, hold_request, hold_response};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::support::admin::AdminFixture;
use crate::support::http::Scrape;
use crate::support::server::{PATIENCE, Server, channel_to};

const PLANS: &str = "
listen: { http: '127.0.0.1:0' }
plans:
  jobs: { limits: [ { quota: 5, algorithm: concurrency } ], holds: { ttl: 30s } }
  short: { limits: [ { quota: 5, algorithm: concurrency } ], holds: { ttl: 1s } }
  tokens: { limits: [ { quota: 100, window: 1h } ] }
  refunded: { limits: [ { quota: 100, window: 1h } ], holds: { on_expiry: release } }
  many: { limits: [ { quota: 1000000, window: 1h } ], holds: { max_open: 1000 } }
";
/// Slots of a client that is gone are free within a second, a tenth of this. Leases take three times as long.
const FREE_WITHIN: Duration = Duration::from_secs(10);

type Holder = HoldServiceClient<Channel>;

fn reserve(plan: &str, key: &str, id: &str) -> pb::ReserveRequest {
    pb::ReserveRequest {
        key: key.to_owned(),
        plan: plan.to_owned(),
        request_id: id.to_owned(),
        ..Default::default()
    }
}

fn settle(plan: &str, id: &str) -> pb::SettleRequest {
    pb::SettleRequest {
        key: "acme".to_owned(),
        plan: plan.to_owned(),
        request_id: id.to_owned(),
        ..Default::default()
    }
}

/// One stream of a client.
struct Stream {
    asking: mpsc::Sender<pb::HoldRequest>,
    answers: Streaming<pb::HoldResponse>,
    next_id: u64,
}

impl Stream {
    async fn open(client: &mut Holder) -> Self {
        let (asking, asked) = mpsc::channel(100);
        let answers = client.hold(ReceiverStream::new(asked)).await.unwrap();
        Self {
            asking,
            answers: answers.into_inner(),
            next_id: 100,
        }
    }

    /// Sends a call. Returns its id.
    async fn send(&mut self, call: hold_request::Call) -> u64 {
        self.next_id += 1;
        let request = pb::HoldRequest {
            id: self.next_id,
            call: Some(call),
        };
        self.asking.send(request).await.unwrap();
        self.next_id
    }

    async fn next(&mut self) -> Option<Result<pb::HoldResponse, Status>> {
        let next = tokio::time::timeout(PATIENCE, self.answers.next());
        next.await.expect("the stream says nothing")
    }

    async fn answer(&mut self) -> (u64, hold_response::Result) {
        let answer = self.next().await.unwrap().unwrap();
        (answer.id, answer.result.unwrap())
    }

    async fn reserve(&mut self, plan: &str, id: &str) -> pb::ReserveResponse {
        let asked = reserve(plan, "acme", id);
        let sent = self.send(hold_request::Call::Reserve(asked)).await;
        match self.answer().await {
            (id, hold_response::Result::Reserve(reserved)) if id == sent => reserved,
            other => panic!("{other:?}"),
        }
    }

    async fn settle(&mut self, plan: &str, id: &str) -> pb::SettleResponse {
        let sent = self
            .send(hold_request::Call::Settle(settle(plan, id)))
            .await;
        match self.answer().await {
            (id, hold_response::Result::Settle(settled)) if id == sent => settled,
            other => panic!("{other:?}"),
        }
    }

    async fn lost(&mut self) -> (u64, String, LostReason) {
        match self.answer().await {
            (id, hold_response::Result::Lost(lost)) => {
                let reason = lost.reason();
                (id, lost.request_id, reason)
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn holder(server: &Server) -> Holder {
    HoldServiceClient::new(channel_to(&server.address).await)
}

/// Free slots, or units that remain.
async fn remaining(server: &Server, plan: &str) -> u64 {
    let peek = pb::PeekRequest {
        key: "acme".to_owned(),
        plan: plan.to_owned(),
        ..Default::default()
    };
    let peeked = server.client().await.peek(peek).await.unwrap();
    peeked.into_inner().answer.unwrap().remaining.unwrap()
}

/// Waits until so much remains. Panics where that takes too long.
async fn wait_for(server: &Server, plan: &str, expected: u64) {
    let began = Instant::now();
    while remaining(server, plan).await != expected {
        assert!(
            began.elapsed() < FREE_WITHIN,
            "{plan}: {expected} never remain"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn five_jobs_hold_their_slots_as_long_as_their_stream_lasts() {
    let server = Server::start(PLANS, &[]);
    let mut stream = Stream::open(&mut holder(&server).await).await;
    for job in 1..=5 {
        let reserved = stream.reserve("jobs", &format!("job {job}")).await;
        assert!(reserved.held && !reserved.is_repeated);
        assert_eq!(reserved.expires_after.unwrap().seconds, 30);
    }
    let denied = stream.reserve("jobs", "job 6").await;
    let answer = denied.answer.unwrap();
    assert_eq!((denied.held, &*answer.limit_name), (false, "concurrency"));
    let scrape = Scrape::of(&server.http());
    let gauges = ["tollgate_hold_streams", "tollgate_stream_holds"];
    assert_eq!(gauges.map(|name| scrape.value(name)), [1.0, 5.0]);
    let settled = stream.settle("jobs", "job 1").await;
    assert_eq!(settled.outcome(), SettleOutcome::Settled);
    assert!(stream.reserve("jobs", "job 6").await.held);
    // The client says that it is done. When the stream has ended, so have its holds.
    let Stream {
        asking,
        mut answers,
        ..
    } = stream;
    drop(asking);
    assert!(answers.next().await.is_none());
    assert_eq!(remaining(&server, "jobs").await, 5);
    let scrape = Scrape::of(&server.http());
    assert_eq!(gauges.map(|name| scrape.value(name)), [0.0, 0.0]);
    let expired = "tollgate_holds_total{plan=\"jobs\",event=\"expired\"}";
    assert_eq!(scrape.value(expired), 5.0);
}

#[tokio::test]
async fn fault_101_slots_of_a_client_that_is_gone_are_free_within_a_second() {
    let server = Server::start(PLANS, &[]);
    // It cancels the call.
    let mut stream = Stream::open(&mut holder(&server).await).await;
    for job in 1..=5 {
        assert!(stream.reserve("jobs", &format!("job {job}")).await.held);
    }
    drop(stream);
    wait_for(&server, "jobs", 5).await;
    // Its process is killed: the system closes its sockets.
    let address = server.address.clone();
    let client = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let stream = runtime.block_on(async {
            let channel = channel_to(&address).await;
            let mut stream = Stream::open(&mut HoldServiceClient::new(channel)).await;
            for job in 6..=9 {
                assert!(stream.reserve("jobs", &format!("job {job}")).await.held);
            }
            // One is on its way.
            let asked = reserve("jobs", "acme", "job 10");
            stream.send(hold_request::Call::Reserve(asked)).await;
            stream
        });
        runtime.shutdown_background();
        std::mem::forget(stream);
    });
    client.join().unwrap();
    wait_for(&server, "jobs", 5).await;
}

#[tokio::test]
async fn units_of_a_stream_that_ends_stay_charged_or_come_back_as_the_plan_says() {
    let server = Server::start(PLANS, &[]);
    let mut stream = Stream::open(&mut holder(&server).await).await;
    for plan in ["tokens", "refunded"] {
        let asked = pb::ReserveRequest {
            cost: Some(30),
            ..reserve(plan, "acme", "a")
        };
        stream.send(hold_request::Call::Reserve(asked)).await;
        stream.answer().await;
        assert_eq!(remaining(&server, plan).await, 70);
    }
    drop(stream);
    wait_for(&server, "refunded", 100).await;
    assert_eq!(remaining(&server, "tokens").await, 70);
    // What was used is settled yet.
    let used = pb::SettleRequest {
        actual: Some(12),
        ..settle("refunded", "a")
    };
    let settled = holder(&server)
        .await
        .settle(used)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(settled.outcome(), SettleOutcome::Expired);
    assert_eq!(remaining(&server, "refunded").await, 88);
}

#[tokio::test]
async fn a_deadline_of_the_call_is_that_of_its_stream() {
    let server = Server::start(PLANS, &[]);
    let (asking, asked) = mpsc::channel(100);
    let mut request = tonic::Request::new(ReceiverStream::new(asked));
    request.set_timeout(Duration::from_millis(500));
    let answers = holder(&server).await.hold(request).await.unwrap();
    let mut stream = Stream {
        asking,
        answers: answers.into_inner(),
        next_id: 0,
    };
    assert!(stream.reserve("jobs", "a").await.held);
    let ended = stream.next().await.unwrap().unwrap_err();
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&ended.code()));
    wait_for(&server, "jobs", 5).await;
}

#[tokio::test]
async fn fault_102_what_a_server_ends_is_taken_over_and_nothing_is_lost() {
    let server = Server::start(PLANS, &["--set", "listen.max_connection_age=1s"]);
    let mut stream = Stream::open(&mut holder(&server).await).await;
    for job in 1..=5 {
        assert!(stream.reserve("jobs", &format!("job {job}")).await.held);
    }
    let ended = stream.next().await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    drop(stream);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(remaining(&server, "jobs").await, 0);
    let mut stream = Stream::open(&mut holder(&server).await).await;
    for job in 1..=5 {
        let adopted = stream.reserve("jobs", &format!("job {job}")).await;
        assert!(adopted.held && adopted.is_repeated && adopted.answer.unwrap().allowed);
        assert_eq!(adopted.expires_after.unwrap().seconds, 30);
    }
    // They are the second stream's now, and end with it.
    drop(stream);
    wait_for(&server, "jobs", 5).await;
}

#[tokio::test]
async fn a_lease_is_renewed_as_long_as_its_stream_lasts() {
    let server = Server::start(PLANS, &[]);
    let mut stream = Stream::open(&mut holder(&server).await).await;
    for job in 1..=5 {
        assert!(stream.reserve("short", &format!("job {job}")).await.held);
    }
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(remaining(&server, "short").await, 0);
    for job in 1..=5 {
        let settled = stream.settle("short", &format!("job {job}")).await;
        assert_eq!(settled.outcome(), SettleOutcome::Settled);
    }
}

#[tokio::test]
async fn fault_103_a_stream_is_told_what_it_has_lost() {
    let mut fixture = AdminFixture::start(PLANS, &[]).await;
    let mut client = holder(&fixture.server).await;
    let mut stream = Stream::open(&mut client).await;
    for id in ["settled", "extended", "adopted"] {
        assert!(stream.reserve("short", id).await.held);
    }
    client.settle(settle("short", "settled")).await.unwrap();
    let extend = pb::ExtendRequest {
        key: "acme".to_owned(),
        plan: "short".to_owned(),
        request_id: "extended".to_owned(),
        ttl: Some(prost_types::Duration {
            seconds: 60,
            nanos: 0,
        }),
        ..Default::default()
    };
    client.extend(extend).await.unwrap();
    let mut other = Stream::open(&mut client).await;
    assert!(other.reserve("short", "adopted").await.is_repeated);
    let mut lost = [
        stream.lost().await,
        stream.lost().await,
        stream.lost().await,
    ];
    lost.sort();
    let expected = [
        (101, "settled".to_owned(), LostReason::Settled),
        (102, "extended".to_owned(), LostReason::Moved),
        (103, "adopted".to_owned(), LostReason::Moved),
    ];
    assert_eq!(lost, expected);
    // It ends nothing that is not its own any more.
    drop(stream);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(remaining(&fixture.server, "short").await, 3);
    let reset = pb::ResetRequest {
        key: "acme".to_owned(),
        plan: "short".to_owned(),
        ..Default::default()
    };
    fixture.admin.reset(reset).await.unwrap();
    let forgotten = (101, "adopted".to_owned(), LostReason::Forgotten);
    assert_eq!(other.lost().await, forgotten);
    let scrape = Scrape::of(&fixture.server.http());
    let lost = "tollgate_holds_total{plan=\"short\",event=\"lost\"}";
    assert_eq!(scrape.value(lost), 4.0);
}

#[tokio::test]
async fn fault_104_a_server_that_stood_still_for_longer_than_a_lease_tells_that_it_has_expired() {
    let server = Server::start(PLANS, &[]);
    let mut stream = Stream::open(&mut holder(&server).await).await;
    assert!(stream.reserve("short", "a").await.held);
    server.signal("STOP");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    server.signal("CONT");
    assert_eq!(
        stream.lost().await,
        (101, "a".to_owned(), LostReason::Expired)
    );
    assert_eq!(remaining(&server, "short").await, 5);
}

#[tokio::test]
async fn a_stream_has_a_thousand_holds_and_the_next_reserve_is_refused() {
    let server = Server::start(PLANS, &[]);
    let mut stream = Stream::open(&mut holder(&server).await).await;
    // Up to 64 are under way at once.
    let mut held = 0;
    for some in 0..10 {
        for one in 0..100 {
            let key = format!("key {some}");
            let id = format!("{some} {one}");
            let asked = reserve("many", &key, &id);
            stream.send(hold_request::Call::Reserve(asked)).await;
        }
        for _ in 0..100 {
            match stream.answer().await {
                (_, hold_response::Result::Reserve(reserved)) => held += i32::from(reserved.held),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(held, 1_000);
    let asked = reserve("many", "acme", "one too many");
    let sent = stream.send(hold_request::Call::Reserve(asked)).await;
    match stream.answer().await {
        (id, hold_response::Result::Error(error)) => {
            assert_eq!((id, error.code), (sent, i32::from(Code::ResourceExhausted)));
            assert!(error.message.contains("1000 holds"), "{}", error.message);
        }
        other => panic!("{other:?}"),
    }
    // It was not charged. One that the stream has may be repeated, and a settle makes room.
    assert_eq!(remaining(&server, "many").await, 1_000_000);
    let asked = reserve("many", "key 3", "3 5");
    stream.send(hold_request::Call::Reserve(asked)).await;
    assert!(matches!(
        stream.answer().await.1,
        hold_response::Result::Reserve(_)
    ));
    let asked = pb::SettleRequest {
        key: "key 3".to_owned(),
        ..settle("many", "3 5")
    };
    stream.send(hold_request::Call::Settle(asked)).await;
    assert!(matches!(
        stream.answer().await.1,
        hold_response::Result::Settle(_)
    ));
    assert!(stream.reserve("many", "one more").await.held);
    let scrape = Scrape::of(&server.http());
    assert_eq!(scrape.value("tollgate_stream_holds"), 1_000.0);
}

#[tokio::test]
async fn a_bad_call_gets_its_error_and_the_stream_goes_on() {
    let server = Server::start(PLANS, &[]);
    let mut stream = Stream::open(&mut holder(&server).await).await;
    let long = pb::ReserveRequest {
        ttl: Some(prost_types::Duration {
            seconds: 3_600,
            nanos: 0,
        }),
        ..reserve("jobs", "acme", "a")
    };
    for (call, code, told) in [
        (None, Code::InvalidArgument, "send reserve or settle"),
        (
            Some(hold_request::Call::Reserve(reserve("jobs", "acme", ""))),
            Code::InvalidArgument,
            "request_id is empty",
        ),
        (
            Some(hold_request::Call::Reserve(long)),
            Code::InvalidArgument,
            "ttl is 1h: send 1s to 10m",
        ),
        (
            Some(hold_request::Call::Reserve(reserve("job", "acme", "a"))),
            Code::NotFound,
            "did you mean \"jobs\"?",
        ),
        (
            Some(hold_request::Call::Settle(settle("job", "a"))),
            Code::NotFound,
            "did you mean \"jobs\"?",
        ),
    ] {
        let request = pb::HoldRequest { id: 7, call };
        stream.asking.send(request).await.unwrap();
        match stream.answer().await {
            (7, hold_response::Result::Error(error)) => {
                assert_eq!(error.code, i32::from(code), "{}", error.message);
                assert!(error.message.contains(told), "{}", error.message);
            }
            other => panic!("{other:?}"),
        }
    }
    // A settle of what is not on the stream works as any other.
    let unknown = stream.settle("jobs", "nobody").await;
    assert_eq!(unknown.outcome(), SettleOutcome::Unknown);
    assert!(stream.reserve("jobs", "a").await.held);
}
