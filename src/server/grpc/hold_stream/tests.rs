//! Streams over a store whose answers the test lets go.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{poll, stream};
use tokio::sync::{Semaphore, mpsc, watch};

use super::*;
use crate::limiter::{Limiter, LimiterSettings};
use crate::transport::account::{KEPT_MAX, UNRESERVED_BYTES, WorkerAccount};
use tollgate_core::algorithm::holds::{HoldVerdict, LeaseVerdict};
use tollgate_core::plan::{Algorithm, Anchor, Limit, Plan, PlanSet, Rule};
use tollgate_store::clock::SystemClock;
use tollgate_store::{
    CAPACITY_DEFAULT, Check, HoldCheck, LeaseCheck, MemoryStore, StoreDeadline, Verdict,
};

/// An embedded store that answers reserves and settles when it is let go.
struct Shared(Arc<Gated>);

struct Gated {
    store: MemoryStore,
    gate: Semaphore,
    asked: AtomicUsize,
}

impl Store for Shared {
    async fn decide_batch(
        &self,
        _checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        Vec::new()
    }

    async fn decide_hold(
        &self,
        check: &HoldCheck,
        _deadline: StoreDeadline,
    ) -> Result<HoldVerdict, StoreError> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        self.0.gate.acquire().await.unwrap().forget();
        self.0.store.hold(check)
    }

    async fn decide_leases(
        &self,
        checks: &[LeaseCheck],
        _deadline: StoreDeadline,
    ) -> Vec<Result<LeaseVerdict, StoreError>> {
        checks
            .iter()
            .map(|check| self.0.store.lease(check))
            .collect()
    }

    fn is_embedded(&self) -> bool {
        true
    }
}

impl Gated {
    /// Open holds, and ids that are known and not open.
    fn figures(&self) -> (usize, usize) {
        let key = Key::new("k".to_owned()).unwrap();
        let figures = self.store.figures(&key, &plan());
        (figures.open, figures.known_ids)
    }
}

fn plan() -> Plan {
    let fixed = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };
    let limit = Limit::new("hour", 1_000_000, Duration::from_secs(3_600), fixed).unwrap();
    Plan::new("p", Rule::limits([limit]))
}

type Asked = Result<HoldRequest, Status>;

/// A stream whose calls come from the sender, its store, and what ends its connection.
fn exchange() -> (
    mpsc::UnboundedSender<Asked>,
    Arc<Gated>,
    watch::Sender<bool>,
    impl Stream<Item = Result<HoldResponse, Status>> + Unpin,
) {
    exchange_of(None)
}

/// The same for a connection with this account.
fn exchange_of(
    account: Option<Arc<Account>>,
) -> (
    mpsc::UnboundedSender<Asked>,
    Arc<Gated>,
    watch::Sender<bool>,
    impl Stream<Item = Result<HoldResponse, Status>> + Unpin,
) {
    let clock = Arc::new(SystemClock);
    let store = Arc::new(Gated {
        store: MemoryStore::new(CAPACITY_DEFAULT, clock.clone()),
        gate: Semaphore::new(0),
        asked: AtomicUsize::new(0),
    });
    let settings = LimiterSettings {
        deadline: Duration::from_secs(60),
        expected_replicas: 1,
        deny_cache_entries: 0,
    };
    let plans: PlanSet = [plan()].into_iter().collect();
    let limiter = Limiter::new(plans, Shared(store.clone()), settings, clock);
    let (ask, mut requests) = mpsc::unbounded_channel();
    let (draining, drain) = watch::channel(false);
    let requests = stream::poll_fn(move |context| requests.poll_recv(context));
    let service = Service::new(Arc::new(limiter));
    let stream = HoldStream::new(service, account, requests, Some(DrainSignal(drain)));
    (ask, store, draining, stream)
}

fn reserve(id: u64) -> Asked {
    let request = pb::ReserveRequest {
        key: "k".to_owned(),
        plan: "p".to_owned(),
        request_id: format!("r{id}"),
        ..Default::default()
    };
    Ok(HoldRequest {
        id,
        call: Some(hold_request::Call::Reserve(request)),
    })
}

/// Lets tasks that the stream has left go on.
async fn let_tasks_run() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn no_more_calls_are_read_than_may_be_in_flight() {
    let (ask, store, _draining, mut stream) = exchange();
    (0..65).for_each(|id| ask.send(reserve(id)).unwrap());
    assert!(poll!(stream.next()).is_pending());
    assert!(poll!(stream.next()).is_pending());
    assert_eq!(store.asked.load(Ordering::Relaxed), CALLS_IN_FLIGHT);
    store.gate.add_permits(1);
    assert!(stream.next().await.is_some());
    assert!(poll!(stream.next()).is_pending());
    assert_eq!(store.asked.load(Ordering::Relaxed), 65);
    store.gate.add_permits(64);
    for _ in 0..64 {
        assert!(stream.next().await.is_some());
    }
    assert_eq!(store.figures(), (65, 0));
}

/// Whatever the stream waits for when its client goes.
#[tokio::test]
async fn a_client_that_goes_at_any_await_leaves_nothing_behind() {
    for answered in 0..=3 {
        let (ask, store, _draining, mut stream) = exchange();
        (0..3).for_each(|id| ask.send(reserve(id)).unwrap());
        assert!(poll!(stream.next()).is_pending());
        store.gate.add_permits(answered);
        for _ in 0..answered {
            stream.next().await.unwrap().unwrap();
        }
        assert_eq!(store.figures().0, answered);
        drop(stream);
        let_tasks_run().await;
        // Those that wait for the store are finished, and then end.
        store.gate.add_permits(3 - answered);
        let_tasks_run().await;
        assert_eq!(store.figures(), (0, 3), "{answered}");
    }
}

#[tokio::test]
async fn a_client_that_ends_the_stream_gets_its_answers_and_then_the_end_of_its_holds() {
    let (ask, store, _draining, mut stream) = exchange();
    ask.send(reserve(1)).unwrap();
    drop(ask);
    assert!(poll!(stream.next()).is_pending());
    store.gate.add_permits(1);
    let answer = stream.next().await.unwrap().unwrap();
    assert!(
        matches!(answer.result, Some(hold_response::Result::Reserve(reserved)) if reserved.held)
    );
    assert!(stream.next().await.is_none());
    assert_eq!(store.figures(), (0, 1));
}

#[tokio::test]
async fn a_server_that_ends_the_stream_answers_what_it_has_read_and_ends_nothing() {
    let (ask, store, draining, mut stream) = exchange();
    ask.send(reserve(1)).unwrap();
    assert!(poll!(stream.next()).is_pending());
    draining.send_replace(true);
    ask.send(reserve(2)).unwrap();
    assert!(poll!(stream.next()).is_pending());
    store.gate.add_permits(2);
    assert_eq!(stream.next().await.unwrap().unwrap().id, 1);
    let ended = stream.next().await.unwrap().unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unavailable);
    assert!(stream.next().await.is_none());
    drop(stream);
    let_tasks_run().await;
    assert_eq!(store.figures(), (1, 0));
    // Also where the connection goes before the stream has told.
    let (ask, store, draining, mut stream) = exchange();
    ask.send(reserve(1)).unwrap();
    store.gate.add_permits(1);
    assert!(stream.next().await.is_some());
    draining.send_replace(true);
    drop((draining, stream));
    let_tasks_run().await;
    assert_eq!(store.figures(), (1, 0));
}

#[tokio::test]
async fn an_error_of_the_calls_ends_the_holds_and_is_told_last() {
    let (ask, store, _draining, mut stream) = exchange();
    ask.send(reserve(1)).unwrap();
    ask.send(Err(Status::invalid_argument("no message")))
        .unwrap();
    store.gate.add_permits(1);
    assert!(stream.next().await.unwrap().is_ok());
    let ended = stream.next().await.unwrap().unwrap_err();
    assert_eq!(ended.code(), tonic::Code::InvalidArgument);
    assert!(stream.next().await.is_none());
    assert_eq!(store.figures(), (0, 1));
}

/// What a stream holds is kept for its connection. Where there is no room, nothing is charged.
#[tokio::test]
async fn a_hold_is_counted_for_its_connection_until_it_ends() {
    let account = WorkerAccount::default().open();
    let (ask, store, _draining, mut stream) = exchange_of(Some(account.clone()));
    store.gate.add_permits(2);
    for id in 1..=2 {
        ask.send(reserve(id)).unwrap();
        assert!(stream.next().await.unwrap().is_ok());
    }
    assert!((2 * HOLD_BYTES..3 * HOLD_BYTES).contains(&account.kept()));
    let full = account.charge(KEPT_MAX - UNRESERVED_BYTES - account.kept());
    ask.send(reserve(3)).unwrap();
    match stream.next().await.unwrap().unwrap().result {
        Some(hold_response::Result::Error(error)) => {
            assert_eq!(error.code, i32::from(tonic::Code::ResourceExhausted));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.asked.load(Ordering::Relaxed), 2);
    drop((full, stream));
    let_tasks_run().await;
    assert_eq!((account.kept(), store.figures()), (0, (0, 2)));
}
