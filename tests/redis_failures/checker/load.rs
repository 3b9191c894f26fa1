//! Callers of several replicas. They record every call and its answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::clock::{Clock, SystemClock};
use tollgate::decision::{DecidedBy, Outcome};
use tollgate::grpc::pb::{self, should_allow_result::Result as Inner};
use tonic::Status as Refused;

use super::deployment;
use super::history::{Answer, Call, Joint, Status, Whole};
use crate::support::history::Random;
use crate::support::server::{Client, PATIENCE};

pub const CALLERS: usize = 10;
/// Keys of each plan in use at a time. They are few, so that each is asked for more than its quota.
const KEYS: u64 = 2;
/// Average pause of a caller between calls. A pause is random, up to twice as long.
const PAUSE: Duration = Duration::from_millis(8);
/// Calls that a caller sometimes makes at the same time, so that the batcher puts them into one script call.
const BURST: usize = 4;
/// Keys of the plan that has an override begin so, and no others.
pub const OVERRIDDEN: &str = "o";

/// How several requests are sent in one call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Together {
    Batch,
    Joint,
}

/// A replica that runs.
#[derive(Clone)]
pub struct LiveReplica {
    /// Number of its server process; a replica that is started again has another.
    pub life: usize,
    /// A connection for each of its workers.
    pub clients: Vec<Client>,
}

/// State that the callers share with the code that applies faults.
pub struct Shared {
    /// Set when the run ends.
    pub over: AtomicBool,
    /// A part of every key. It changes with each fault, so that an answer lost to one fault leaves no doubt about later keys.
    pub generation: AtomicU64,
    pub replicas: Mutex<Vec<Option<LiveReplica>>>,
    /// Requests that the store has decided, by the `life` of the replica.
    pub stored: Mutex<BTreeMap<usize, u64>>,
    /// Calls so far, from which each gets its number.
    batches: AtomicU64,
    plans: Vec<String>,
}

pub fn now_us() -> u64 {
    SystemClock.now_us()
}

impl Shared {
    pub fn new(plans: Vec<String>, replicas: Vec<Option<LiveReplica>>) -> Self {
        Self {
            over: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            replicas: Mutex::new(replicas),
            stored: Mutex::default(),
            batches: AtomicU64::new(0),
            plans,
        }
    }

    pub fn stored_by(&self, life: usize) -> u64 {
        self.stored.lock().unwrap().get(&life).copied().unwrap_or(0)
    }
}

/// Makes calls until the run is over. Returns all of them, in no order.
pub async fn call(shared: Arc<Shared>, mut random: Random) -> Vec<Call> {
    let mut calls = Vec::new();
    while !shared.over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_micros(
            random.below(2 * PAUSE.as_micros() as u64),
        ))
        .await;
        let replica = random.pick(&shared.replicas.lock().unwrap()).clone();
        let Some(replica) = replica else { continue };
        let plan = random.pick(&shared.plans).clone();
        let several = if random.below(6) == 0 { BURST } else { 1 };
        let asked = (0..several).map(|_| {
            let (together, requests) = match random.below(4) {
                0 => (Together::Joint, joint_requests(&shared, &plan, &mut random)),
                _ => (Together::Batch, requests(&shared, &plan, &mut random)),
            };
            ask(&shared, &replica, together, requests, &mut random)
        });
        let asked: Vec<_> = asked.map(tokio::spawn).collect();
        for answered in asked {
            calls.extend(
                tokio::time::timeout(PATIENCE, answered)
                    .await
                    .expect("every call is answered")
                    .unwrap(),
            );
        }
    }
    calls
}

/// One to three requests by one plan.
fn requests(shared: &Shared, plan: &str, random: &mut Random) -> Vec<pb::ShouldAllowRequest> {
    let count = [1, 1, 1, 2, 3][random.below(5) as usize];
    (0..count).map(|_| request(shared, plan, random)).collect()
}

/// One to three requests by this plan and others. Some are twice of one key.
fn joint_requests(shared: &Shared, plan: &str, random: &mut Random) -> Vec<pb::ShouldAllowRequest> {
    let mut requests = vec![request(shared, plan, random)];
    for _ in 0..[0, 1, 1, 2][random.below(4) as usize] {
        let plan = match random.below(4) {
            0 => plan,
            _ => random.pick(&shared.plans),
        };
        requests.push(request(shared, plan, random));
    }
    requests
}

fn request(shared: &Shared, plan: &str, random: &mut Random) -> pb::ShouldAllowRequest {
    let generation = shared.generation.load(Ordering::SeqCst);
    let prefix = if plan == deployment::OVERRIDDEN_PLAN {
        OVERRIDDEN
    } else {
        ""
    };
    pb::ShouldAllowRequest {
        key: format!("{prefix}{generation} {}", random.below(KEYS)),
        plan: plan.to_owned(),
        // Sometimes a cost above every capacity.
        cost: Some(if random.below(100) == 0 {
            99
        } else {
            1 + random.below(3)
        }),
        detailed: true,
        http_headers: false,
        ..Default::default()
    }
}

/// Sends the requests in one call, and records them with their answers.
fn ask(
    shared: &Arc<Shared>,
    replica: &LiveReplica,
    together: Together,
    requests: Vec<pb::ShouldAllowRequest>,
    random: &mut Random,
) -> impl Future<Output = Vec<Call>> + use<> {
    let shared = shared.clone();
    let life = replica.life;
    let mut client = random.pick(&replica.clients).clone();
    let batch = shared.batches.fetch_add(1, Ordering::SeqCst) as usize;
    async move {
        let sent_us = now_us();
        let (joint, fates) = match together {
            Together::Batch => (None, fates(&mut client, &requests).await),
            Together::Joint => {
                let (joint, fates) = joint_fates(&mut client, &requests).await;
                (Some(joint), fates)
            }
        };
        let answered_us = now_us();
        let sums = sums(&requests, together);
        let call = |(index, (request, fate)): (usize, (pb::ShouldAllowRequest, _))| {
            let key = request.key;
            let plan = request.plan;
            let cost = request.cost.unwrap();
            Call {
                key,
                plan,
                cost,
                tested: sums[index],
                joint,
                life,
                batch,
                index,
                sent_us,
                answered_us,
                fate,
            }
        };
        let calls: Vec<Call> = requests
            .into_iter()
            .zip(fates)
            .enumerate()
            .map(call)
            .collect();
        let stored = calls.iter().filter(|call| call.stored().is_some()).count() as u64;
        *shared.stored.lock().unwrap().entry(life).or_default() += stored;
        calls
    }
}

/// What each request is tested with. Requests of a batch know nothing of each other.
fn sums(requests: &[pb::ShouldAllowRequest], together: Together) -> Vec<u64> {
    let sum = |(index, request): (usize, &pb::ShouldAllowRequest)| {
        let same = |other: &&pb::ShouldAllowRequest| {
            together == Together::Joint
                && (&other.plan, &other.key) == (&request.plan, &request.key)
        };
        let before = requests[..index].iter().filter(same);
        let units: u64 = before.map(|other| other.cost.unwrap()).sum();
        units + request.cost.unwrap()
    };
    requests.iter().enumerate().map(sum).collect()
}

/// The answer to a joint decision as a whole, and to each of its requests; or its error.
async fn joint_fates(
    client: &mut Client,
    requests: &[pb::ShouldAllowRequest],
) -> (Joint, Vec<Result<Answer, String>>) {
    let joint = pb::ShouldAllowJointRequest {
        requests: requests.to_vec(),
        ..Default::default()
    };
    match client.should_allow_joint(joint).await {
        Ok(answer) => {
            let answer = answer.into_inner();
            let whole = Whole {
                allowed: answer.allowed,
                outcome: Outcome::ALL[answer.outcome as usize - 1],
                retry_us: answer.retry_after.as_ref().map(microseconds),
            };
            let answers = answer
                .responses
                .iter()
                .map(|response| Ok(answer_of(response)));
            (Some(whole), answers.collect())
        }
        Err(refused) => (None, vec![Err(told(refused)); requests.len()]),
    }
}

fn told(refused: Refused) -> String {
    format!("{:?} {}", refused.code(), refused.message())
}

/// The answer to each request, or its error.
async fn fates(
    client: &mut Client,
    requests: &[pb::ShouldAllowRequest],
) -> Vec<Result<Answer, String>> {
    if let [one] = requests {
        return vec![
            client
                .should_allow(one.clone())
                .await
                .map(|answer| answer_of(&answer.into_inner()))
                .map_err(told),
        ];
    }
    let batch = pb::ShouldAllowBatchRequest {
        requests: requests.to_vec(),
    };
    match client.should_allow_batch(batch).await {
        Ok(answers) => answers
            .into_inner()
            .results
            .into_iter()
            .map(|result| result_of(result.result.unwrap()))
            .collect(),
        Err(refused) => vec![Err(told(refused)); requests.len()],
    }
}

fn result_of(result: Inner) -> Result<Answer, String> {
    match result {
        Inner::Response(answer) => Ok(answer_of(&answer)),
        Inner::Error(error) => Err(format!("{} {}", error.code, error.message)),
    }
}

fn answer_of(answer: &pb::ShouldAllowResponse) -> Answer {
    let status = |status: &pb::LimitStatus| Status {
        remaining: status.remaining,
        retry_us: status.retry_after.as_ref().map(microseconds),
        reset_us: status.reset_after.as_ref().map_or(0, microseconds),
    };
    // On the wire, 0 is "unspecified", so each number is one more than the index.
    let outcome = Outcome::ALL[answer.outcome as usize - 1];
    let by = DecidedBy::ALL[answer.decided_by as usize - 1];
    Answer {
        allowed: answer.allowed,
        outcome,
        by,
        plan: Some(answer.plan.clone()).filter(|plan| !plan.is_empty()),
        retry_us: answer.retry_after.as_ref().map(microseconds),
        limits: answer.limits.iter().map(status).collect(),
    }
}

fn microseconds(duration: &prost_types::Duration) -> u64 {
    duration.seconds as u64 * 1_000_000 + duration.nanos as u64 / 1_000
}
