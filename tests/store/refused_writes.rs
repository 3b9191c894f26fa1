//! Redis refuses writes of the script, each in turn. A request that it answers with an error has then charged nothing, whatever the
//! script had written before, and no other key notices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate::plan::{Algorithm, Plan};
use tollgate::store::{Check, MemoryStore, RedisStore, Store, StoreDeadline, StoreError};

use crate::support::asks::{Answer, Ask, ask_in_order};
use crate::support::clock::{FakeClock, START_US};
use crate::support::clocked_store::store_on;
use crate::support::cluster::{Cluster, MASTERS};
use crate::support::history::Random;
use crate::support::plans::{FIXED, LOG, WINDOW, ask, limit, peek, plan, refund};
use crate::support::redis::Redis;
use crate::support::wire::Wire;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
const MINUTE: Duration = Duration::from_secs(60);
/// Uncommon windows, whose logs are listed in the index.
const ODD: Duration = Duration::from_secs(61);
const ODD_TOO: Duration = Duration::from_secs(17);
const PRECISE: Algorithm = Algorithm::SlidingWindow { precision: 5 };
/// Commands by which the script writes.
const WRITES: [&str; 7] = [
    "set",
    "setrange",
    "del",
    "rpush",
    "lpush",
    "ltrim",
    "pexpireat",
];
/// The refusal of every write that may need memory.
const NO_MEMORY: &str = "no memory";
const REQUESTS: u64 = 1_500;

/// Has Redis refuse this, or take it again.
fn refuse(wire: &mut Wire, what: &str, refused: bool) {
    wire.run(&match (what, refused) {
        (NO_MEMORY, true) => "CONFIG SET maxmemory 1".to_owned(),
        (NO_MEMORY, false) => "CONFIG SET maxmemory 0".to_owned(),
        (write, true) => format!("ACL SETUSER default -{write}"),
        (write, false) => format!("ACL SETUSER default +{write}"),
    });
}

/// Redis, whose writes are refused now and then, and the embedded store, which is asked for what Redis has decided.
struct Twins {
    redis: Redis,
    store: RedisStore,
    expected: MemoryStore,
    clock: FakeClock,
    wire: Wire,
    /// How often a request was an error, by what was refused.
    refused: BTreeMap<&'static str, u64>,
}

impl Twins {
    fn start() -> Self {
        let redis = Redis::start();
        let clock = FakeClock::new();
        let store = store_on(&redis, &clock);
        let expected = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
        let wire = Wire::to(&redis);
        Self {
            redis,
            store,
            expected,
            clock,
            wire,
            refused: BTreeMap::new(),
        }
    }

    /// Asks both stores, while this is refused. What Redis answers with an error is not asked of the other.
    async fn ask(
        &mut self,
        asks: &[Ask],
        refusal: Option<&'static str>,
    ) -> Vec<Result<Answer, StoreError>> {
        refusal
            .into_iter()
            .for_each(|what| refuse(&mut self.wire, what, true));
        let answers = match asks {
            [single] => vec![single.by_store(&self.store, PATIENCE).await],
            several => ask_in_order(&self.store, several, PATIENCE).await,
        };
        refusal
            .into_iter()
            .for_each(|what| refuse(&mut self.wire, what, false));
        for (ask, answer) in asks.iter().zip(&answers) {
            match answer {
                Ok(answer) => assert_eq!(
                    *answer,
                    ask.by_memory(&self.expected).unwrap(),
                    "{refusal:?}: {ask:?}"
                ),
                Err(StoreError::Refused(_)) => {
                    *self
                        .refused
                        .entry(refusal.unwrap_or("nothing"))
                        .or_default() += 1
                }
                Err(other) => panic!("{other}"),
            }
        }
        answers
    }
}

/// Whether a refund that is refused cannot be undone: its units are not in the list between two commands. A user who may not make
/// the second has not charged a log either.
fn cannot_be_undone(ask: &Ask, refusal: &str) -> bool {
    let has_log = ask
        .plan()
        .limits()
        .iter()
        .any(|limit| limit.algorithm() == LOG);
    ask.is_refund() && has_log && refusal == "rpush"
}

/// A random history of charges, refunds and peeks, one in two of them under a refusal; `groups` of several requests for one key
/// too. Returns how often each refusal was met.
async fn history(plan: &Arc<Plan>, refusals: &[&'static str]) -> BTreeMap<&'static str, u64> {
    let mut twins = Twins::start();
    let mut random = Random(plan.limits().len() as u64 + 3);
    let most = plan
        .limits()
        .iter()
        .map(tollgate::plan::Limit::capacity)
        .min()
        .unwrap();
    let beside = Ask::Decide(peek(plan, "beside", 1));
    for number in 0..REQUESTS {
        let key = random.pick(&["a", "b"]).to_string();
        // Never back: a refused charge may have dropped what no longer counts, which would then count again.
        let longest = if random.below(12) == 0 {
            140_000_000
        } else {
            4_000_000
        };
        twins.clock.advance(random.below(longest));
        let one = |random: &mut Random| match random.below(8) {
            0 => Ask::Refund(refund(plan, &key, 1 + random.below(most))),
            1 => peek(plan, &key, 1).into(),
            _ => ask(plan, &key, 1 + random.below(most.min(3))).into(),
        };
        let mut asks: Vec<Ask> = (0..*random.pick(&[1, 1, 1, 3]))
            .map(|_| one(&mut random))
            .collect();
        asks.push(beside.clone());
        let refusal = if number % 2 == 0 {
            None
        } else {
            Some(*random.pick(refusals))
        };
        let refusal =
            refusal.filter(|refusal| !asks.iter().any(|ask| cannot_be_undone(ask, refusal)));
        let answers = twins.ask(&asks, refusal).await;
        assert!(
            answers.last().unwrap().is_ok(),
            "another key notices: {answers:?}"
        );
        assert!(
            refusal.is_some() || answers.iter().all(Result::is_ok),
            "{answers:?}"
        );
    }
    println!("{:?}: {:?}", plan.limits(), twins.refused);
    assert_eq!(twins.redis.keys_without_expiry(), "");
    twins.refused
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_86_a_write_that_redis_refuses_charges_nothing_whichever_it_is() {
    let refusals: Vec<&'static str> = WRITES.into_iter().chain([NO_MEMORY]).collect();
    let mut met = BTreeMap::new();
    let small = Algorithm::EVERY
        .into_iter()
        .filter(|algorithm| !algorithm.keeps_instants())
        .map(|algorithm| vec![limit(9, MINUTE, algorithm)]);
    let others = [
        vec![limit(40, MINUTE, PRECISE)],
        vec![limit(90, MINUTE, WINDOW)],
        vec![limit(20, MINUTE, LOG)],
        vec![limit(20, ODD, LOG)],
        vec![limit(9, MINUTE, FIXED), limit(40, ODD, PRECISE)],
        vec![limit(20, MINUTE, FIXED), limit(30, MINUTE, LOG)],
        vec![
            limit(20, MINUTE, LOG),
            limit(9, ODD_TOO, LOG),
            limit(25, ODD, LOG),
            limit(30, ODD, PRECISE),
        ],
    ];
    for limits in small.chain(others) {
        let plan = plan(limits);
        for (refusal, times) in history(&plan, &refusals).await {
            *met.entry(refusal).or_insert(0) += times;
        }
    }
    println!("{met:?}");
    // Every write of the script was refused, again and again.
    assert!(
        refusals
            .iter()
            .all(|refusal| met.get(refusal).is_some_and(|times| *times > 10)),
        "{met:?}"
    );
}

/// A clock that stepped back has a log written as of now. Whatever is refused meanwhile, no unit is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_86_a_clamp_that_redis_refuses_loses_no_unit() {
    for refusal in WRITES.into_iter().chain([NO_MEMORY]) {
        // All charges lie ahead, or only some do.
        for back in [9_000_000, 3_000_000] {
            let mut twins = Twins::start();
            let plan = plan(vec![limit(9, MINUTE, LOG)]);
            for _ in 0..3 {
                twins.ask(&[ask(&plan, "key", 3).into()], None).await;
                twins.clock.advance(2_000_000);
            }
            twins.clock.set(START_US + 6_000_000 - back);
            refuse(&mut twins.wire, refusal, true);
            for cost in [1, 9] {
                let answer = twins
                    .store
                    .decide_one(&ask(&plan, "key", cost), PATIENCE)
                    .await;
                assert!(
                    answer.is_err() || answer.is_ok_and(|verdict| !verdict.fits),
                    "{refusal}"
                );
            }
            refuse(&mut twins.wire, refusal, false);
            let after = twins
                .store
                .decide_one(&peek(&plan, "key", 1), PATIENCE)
                .await
                .unwrap();
            assert_eq!(
                (after.fits, after.readings[0].used(&plan.limits()[0])),
                (false, 9),
                "{refusal}, {back}"
            );
        }
    }
}

/// A `sliding_window` of more runs than it keeps merges those of one cell, and then writes its charge. If Redis refuses that, the
/// units are what they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_86_a_window_whose_runs_were_merged_for_a_charge_that_redis_refuses_is_whole() {
    let refusals = ["set", "setrange", "pexpireat", NO_MEMORY];
    let mut twins = Twins::start();
    let mut random = Random(1);
    let plan = plan(vec![limit(400, MINUTE, WINDOW)]);
    for number in 0..REQUESTS {
        twins.clock.advance(random.below(1_200_000));
        let refusal = (number % 2 == 1).then(|| *random.pick(&refusals));
        let cost = 1 + random.below(5);
        drop(twins.ask(&[ask(&plan, "key", cost).into()], refusal).await);
    }
    println!("{:?}", twins.refused);
    assert!(
        refusals
            .iter()
            .all(|refusal| twins.refused.get(refusal).is_some_and(|times| *times > 0)),
        "{:?}",
        twins.refused
    );
}

/// A slot under migration takes no new key. A log that begins anew there is written over what it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_and_86_in_a_slot_that_moves_a_request_charges_all_its_limits_or_none() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let clock = FakeClock::new();
    let store = RedisStore::with_injected_clock(&cluster.url(), Arc::new(clock.clone())).unwrap();
    assert!(store.connected(PATIENCE.0).await);
    let expected = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let hour = limit(100, 60 * MINUTE, FIXED);
    let log = limit(20, MINUTE, LOG);
    let both = plan(vec![hour, log]);
    let keys: Vec<String> = (0..12).map(|key| format!("key {key}")).collect();
    let all = |cost: u64| -> Vec<Check> { keys.iter().map(|key| ask(&both, key, cost)).collect() };
    let agree = |checks: Vec<Check>| {
        let store = &store;
        let expected = &expected;
        async move {
            let answers = store.decide_batch(&checks, PATIENCE).await;
            for (check, answer) in checks.iter().zip(answers) {
                assert_eq!(answer, Ok(expected.decide(check).unwrap()), "{check:?}");
            }
        }
    };
    agree(all(2)).await;
    let slots: Vec<u16> = keys.iter().map(|key| cluster.slot("group", key)).collect();
    let moves: Vec<(u16, usize, usize)> = slots
        .iter()
        .map(|slot| (*slot, cluster.owner(*slot)))
        .map(|(s, o)| (s, o, (o + 1) % MASTERS))
        .collect();
    moves
        .iter()
        .for_each(|(slot, from, to)| cluster.open(*slot, *from, *to));
    for round in 0..3 {
        // Nothing in the logs counts any more, so each begins anew; then some of it leaves, and it goes on.
        clock.advance(if round == 1 { 30_000_000 } else { 61_000_000 });
        agree(all(3)).await;
    }
    moves.iter().for_each(|(slot, from, _)| {
        drop(cluster.nodes[*from].cli(&["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]))
    });
    agree(keys.iter().map(|key| peek(&both, key, 1)).collect()).await;
    moves
        .iter()
        .for_each(|(slot, from, _)| cluster.close(*slot, *from));
    agree(all(4)).await;
}
