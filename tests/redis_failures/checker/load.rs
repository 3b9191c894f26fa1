//! Callers of several replicas who write down all that they see.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::clock::{Clock, SystemClock};
use tollgate::decision::{DecidedBy, Outcome};
use tollgate::grpc::pb::{self, should_allow_result::Result as Inner};
use tonic::Status as Refused;

use super::history::{Answer, Call, Status};
use crate::support::history::Random;
use crate::support::server::{Client, PATIENCE};

pub const CALLERS: usize = 10;
/// Keys of each plan that are asked about at a time: few, so that each is asked for more than its quota.
const KEYS: u64 = 2;
/// On average; a caller pauses up to twice as long.
const PAUSE: Duration = Duration::from_millis(8);
/// Questions of one burst, sent side by side: what the batcher puts together.
const BURST: usize = 4;

/// A replica that can be asked.
#[derive(Clone)]
pub struct Seat {
    pub life: usize,
    /// A connection for each of its workers.
    pub clients: Vec<Client>,
}

/// What callers and those who make trouble share.
pub struct Shared {
    pub over: AtomicBool,
    /// Keys change with it, so that an answer lost to one fault leaves no doubt about keys after it.
    pub generation: AtomicU64,
    pub seats: Mutex<Vec<Option<Seat>>>,
    /// Questions that the store has decided, by the life of the replica.
    pub stored: Mutex<BTreeMap<usize, u64>>,
    /// Batches so far, of which each has a number.
    batches: AtomicU64,
    plans: Vec<String>,
}

pub fn now_us() -> u64 {
    SystemClock.now_us()
}

impl Shared {
    pub fn new(plans: Vec<String>, seats: Vec<Option<Seat>>) -> Self {
        Self {
            over: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            seats: Mutex::new(seats),
            stored: Mutex::default(),
            batches: AtomicU64::new(0),
            plans,
        }
    }

    pub fn stored_by(&self, life: usize) -> u64 {
        self.stored.lock().unwrap().get(&life).copied().unwrap_or(0)
    }
}

/// Asks until told to stop; every call, in no order.
pub async fn call(shared: Arc<Shared>, mut random: Random) -> Vec<Call> {
    let mut calls = Vec::new();
    while !shared.over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_micros(random.below(2 * PAUSE.as_micros() as u64))).await;
        let seat = random.pick(&shared.seats.lock().unwrap()).clone();
        let Some(seat) = seat else { continue };
        let plan = random.pick(&shared.plans).clone();
        let several = if random.below(6) == 0 { BURST } else { 1 };
        let questions = (0..several).map(|_| ask(&shared, &seat, questions(&shared, &plan, &mut random), &mut random));
        let questions: Vec<_> = questions.map(tokio::spawn).collect();
        for answered in questions {
            calls.extend(tokio::time::timeout(PATIENCE, answered).await.expect("every call is answered").unwrap());
        }
    }
    calls
}

/// One to three questions about one plan.
fn questions(shared: &Shared, plan: &str, random: &mut Random) -> Vec<pb::ShouldAllowRequest> {
    let generation = shared.generation.load(Ordering::SeqCst);
    let count = [1, 1, 1, 2, 3][random.below(5) as usize];
    let question = |_| pb::ShouldAllowRequest {
        key: format!("{generation} {}", random.below(KEYS)),
        plan: plan.to_owned(),
        // Now and then more than there will ever be.
        cost: Some(if random.below(100) == 0 { 99 } else { 1 + random.below(3) }),
        detailed: true,
        http_headers: false,
    };
    (0..count).map(question).collect()
}

/// Asks them together.
fn ask(
    shared: &Arc<Shared>,
    seat: &Seat,
    requests: Vec<pb::ShouldAllowRequest>,
    random: &mut Random,
) -> impl Future<Output = Vec<Call>> + use<> {
    let (shared, life, mut client) = (shared.clone(), seat.life, random.pick(&seat.clients).clone());
    let batch = shared.batches.fetch_add(1, Ordering::SeqCst) as usize;
    async move {
        let sent_us = now_us();
        let fates = fates(&mut client, &requests).await;
        let answered_us = now_us();
        let call = |(place, (request, fate)): (usize, (pb::ShouldAllowRequest, _))| {
            let (key, plan, cost) = (request.key, request.plan, request.cost.unwrap());
            Call { key, plan, cost, life, batch, place, sent_us, answered_us, fate }
        };
        let calls: Vec<Call> = requests.into_iter().zip(fates).enumerate().map(call).collect();
        let stored = calls.iter().filter(|call| call.stored().is_some()).count() as u64;
        *shared.stored.lock().unwrap().entry(life).or_default() += stored;
        calls
    }
}

async fn fates(client: &mut Client, requests: &[pb::ShouldAllowRequest]) -> Vec<Result<Answer, String>> {
    let told = |refused: Refused| format!("{:?} {}", refused.code(), refused.message());
    if let [one] = requests {
        return vec![client.should_allow(one.clone()).await.map(|answer| understood(&answer.into_inner())).map_err(told)];
    }
    let batch = pb::ShouldAllowBatchRequest { requests: requests.to_vec() };
    match client.should_allow_batch(batch).await {
        Ok(answers) => answers.into_inner().results.into_iter().map(|result| each(result.result.unwrap())).collect(),
        Err(refused) => vec![Err(told(refused)); requests.len()],
    }
}

fn each(result: Inner) -> Result<Answer, String> {
    match result {
        Inner::Response(answer) => Ok(understood(&answer)),
        Inner::Error(error) => Err(format!("{} {}", error.code, error.message)),
    }
}

fn understood(answer: &pb::ShouldAllowResponse) -> Answer {
    let status = |status: &pb::LimitStatus| Status {
        remaining: status.remaining,
        retry_us: status.retry_after.as_ref().map(microseconds),
        reset_us: status.reset_after.as_ref().map_or(0, microseconds),
    };
    // Numbers of the wire, less the unspecified one.
    let outcome = Outcome::ALL[answer.outcome as usize - 1];
    let by = DecidedBy::ALL[answer.decided_by as usize - 1];
    Answer { allowed: answer.allowed, outcome, by, limits: answer.limits.iter().map(status).collect() }
}

fn microseconds(duration: &prost_types::Duration) -> u64 {
    duration.seconds as u64 * 1_000_000 + duration.nanos as u64 / 1_000
}
