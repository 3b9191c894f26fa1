//! Whatever lies under a name that a key's state may have: that key alone goes by policy, no other key of its call notices, and
//! nothing is charged in part or twice.

use std::sync::Arc;
use std::time::Duration;

use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Limit, Plan};
use tollgate::store::{Check, RedisStore, Store, StoreDeadline, Subject};

use crate::support::asks::{Ask, ask_in_order};
use crate::support::clock::{FakeClock, START_US};
use crate::support::clocked_store::store_on;
use crate::support::cluster::{Cluster, MASTERS};
use crate::support::plans::{BUCKET, FIXED, LOG, WINDOW, ask, limit, peek, plan, refund};
use crate::support::redis::{Redis, other_make};
use crate::support::wire::Wire;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
/// So long that nothing leaves while a test runs.
const DAY: Duration = Duration::from_secs(86_400);
/// Not one of the common windows, so that its log is listed in the index.
const ODD: Duration = Duration::from_secs(86_321);
const QUOTA: u64 = 50_000;
/// Keys whose state is sound. In a Cluster, each node has some.
const SOUND: usize = 12;
/// What the names of the key with garbage have behind their tag.
const NAMES: [&str; 8] = [
    "",
    "log:86400000000",
    "log:86321000000",
    "logs",
    "candidate:other:",
    "candidate:other:log:86400000000",
    "candidate:other:log:86321000000",
    "candidate:other:logs",
];

/// A value of Redis: the command that makes it, and the command's arguments behind the name.
#[derive(Debug, Clone)]
struct Garbage(&'static str, Vec<Vec<u8>>);

impl Garbage {
    fn string(bytes: &[u8]) -> Self {
        Self("SET", vec![bytes.to_vec()])
    }

    fn list(elements: &[&[u8]]) -> Self {
        Self(
            "RPUSH",
            elements.iter().map(|element| element.to_vec()).collect(),
        )
    }
}

/// One value of each type.
fn types() -> Vec<Garbage> {
    let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
    vec![
        Garbage::string(b"hello"),
        Garbage::list(&[b"hello"]),
        Garbage("SADD", words(&["hello"])),
        Garbage("HSET", words(&["hello", "world"])),
        Garbage("ZADD", words(&["1", "hello"])),
        Garbage("XADD", words(&["*", "hello", "world"])),
    ]
}

/// Lists that resemble logs: one in which an element is too short or too long, or numbers contradict each other.
fn lists() -> Vec<Garbage> {
    let header = [0; 10];
    let low = [0; 8];
    let high = [255; 8];
    // A time that is now, so that a look at the list goes on; the total is 7.
    let now = START_US.to_le_bytes();
    let sound: Vec<u8> = [&now[..7], &[0, 0, 0]].concat();
    let charge = |total: u8| [&now[..5], &[now[5] & 0x7f, total, 0]].concat();
    let first = charge(7);
    let second = charge(3);
    let mut lists = Vec::new();
    for length in 0..=40 {
        let bytes = vec![b'x'; length];
        lists.push(Garbage::list(&[&bytes]));
        lists.push(Garbage::list(&[&bytes, &bytes]));
        lists.push(Garbage::list(&[&bytes, &bytes, &bytes, &bytes]));
        lists.push(Garbage::list(&[&header, &bytes]));
        lists.push(Garbage::list(&[&sound, &first, &bytes]));
        lists.push(Garbage::list(&[&sound, &first, &bytes, &second]));
        lists.push(Garbage::list(&[&bytes, &first, &second]));
    }
    for elements in [
        vec![&low, &low],
        vec![&high, &low, &high],
        vec![&low, &high, &low],
        vec![&high, &high],
        vec![&low, &low, &high],
    ] {
        for header in [&sound[..], &header, &[255; 10]] {
            lists.push(Garbage::list(
                &[
                    vec![header],
                    elements.iter().map(|element| &element[..]).collect(),
                ]
                .concat(),
            ));
        }
    }
    // Totals that fall, of charges that are gone and of such that count.
    lists.extend([
        Garbage::list(&[&sound, &first, &second]),
        Garbage::list(&[&sound, &low, &second]),
        Garbage::list(&[&sound]),
    ]);
    lists
}

/// Strings that begin as a packed state does, with each head and at several lengths.
fn strings() -> Vec<Garbage> {
    let fills = [0, 0x2e, 0x7f, 0xff];
    let of = |head: u8| {
        let lengths = [1, 8, 9, 10, 16, 31, 32, 44, 127, 500];
        fills.into_iter().flat_map(move |fill| {
            lengths.map(|length| [&vec![head][..], &vec![fill; length - 1]].concat())
        })
    };
    (0..=255)
        .flat_map(of)
        .map(|bytes| Garbage::string(&bytes))
        .collect()
}

/// Plans with state in every place: alone, beside each other, and under a candidate.
fn plans() -> Vec<Arc<Plan>> {
    let all = Algorithm::EVERY.map(|algorithm| of(DAY, algorithm));
    let mut plans: Vec<Arc<Plan>> = all.into_iter().map(|limit| plan(vec![limit])).collect();
    plans.push(plan(vec![of(ODD, LOG)]));
    let several = vec![of(DAY, FIXED), of(ODD, WINDOW), of(DAY, LOG), of(ODD, LOG)];
    let live = plan(several.clone());
    let other = Plan {
        name: "other".into(),
        counts_as: "other".into(),
        ..(*plan(several)).clone()
    };
    plans.push(live.clone());
    plans.push(Arc::new(other.as_candidate_of(&live)));
    plans
}

fn of(window: Duration, algorithm: Algorithm) -> Limit {
    let algorithm = if let BUCKET = algorithm {
        Algorithm::TokenBucket { burst: QUOTA }
    } else {
        algorithm
    };
    limit(QUOTA, window, algorithm)
}

struct Servers {
    store: RedisStore,
    wires: Vec<Wire>,
    /// Index in `wires` of the server that has the garbage.
    owner: usize,
}

impl Servers {
    fn command(&mut self, command: &str, words: &[Vec<u8>]) {
        let (kind, text) = self.wires[self.owner].call(command, words);
        assert_ne!(kind, b'-', "{command}: {}", String::from_utf8_lossy(&text));
    }

    fn clear(&mut self) {
        self.command(
            "DEL",
            &NAMES.map(|name| format!("{{group:bad}}{name}").into_bytes()),
        );
    }

    /// Units that a key has used under each limit of a plan.
    async fn used(&self, plan: &Arc<Plan>, key: &str) -> Vec<u64> {
        let verdict = self
            .store
            .decide_one(&peek(plan, key, 1), PATIENCE)
            .await
            .unwrap();
        verdict
            .statuses(plan.limits(), Cost::ONE)
            .iter()
            .map(|status| QUOTA - status.remaining)
            .collect()
    }

    async fn reset_sound_keys(&self) {
        for key in 0..SOUND {
            self.reset(&format!("key {key}"), Vec::new()).await;
        }
    }

    /// Resets a key under all plans of this test. Returns whether the live ones had counted it.
    async fn reset(&self, key: &str, log_windows_us: Vec<u64>) -> bool {
        let mut existed = false;
        for counts_as in ["group:other", "group"] {
            let subject = Subject {
                key: Key::new(key).unwrap(),
                counts_as: counts_as.into(),
                log_windows_us: log_windows_us.clone(),
            };
            existed = self.store.reset(&subject, PATIENCE).await.unwrap();
        }
        existed
    }

    /// Each sound key has used so many units.
    async fn have_used(&self, plan: &Arc<Plan>, expected: u64) {
        for key in 0..SOUND {
            let used = self.used(plan, &format!("key {key}")).await;
            assert!(
                used.iter().all(|used| *used == expected),
                "key {key} was charged {expected} times, {used:?}: {:?}",
                plan.limits()
            );
        }
    }

    /// Puts this under a name of one key, and has a call decide that key and others. Returns whether the key was decided.
    async fn meet(&mut self, plan: &Arc<Plan>, name: &str, garbage: &Garbage) -> bool {
        let full_name = format!("{{group:bad}}{name}").into_bytes();
        self.command(
            garbage.0,
            &[vec![full_name.clone()], garbage.1.clone()].concat(),
        );
        self.command("EXPIRE", &[full_name, b"10000".to_vec()]);
        // Among the others, and after them: requests that cost more are decided later.
        let mut checks: Vec<Check> = (0..SOUND)
            .map(|key| ask(plan, &format!("key {key}"), 1))
            .collect();
        checks.push(ask(plan, "bad", 2));
        let answers = self.store.decide_batch(&checks, PATIENCE).await;
        let case = || format!("{garbage:?} under {name:?} of {:?}", plan.limits());
        for answer in &answers[..SOUND] {
            assert!(
                answer.as_ref().is_ok_and(|verdict| verdict.fits),
                "{}: {answer:?}",
                case()
            );
        }
        let decided = answers[SOUND].is_ok();
        for asked in [
            Ask::Decide(peek(plan, "bad", 1)),
            Ask::Refund(refund(plan, "bad", 1)),
            Ask::Decide(ask(plan, "bad", QUOTA)),
        ] {
            let beside = Ask::Decide(peek(plan, "key 0", 1));
            let asks = [beside.clone(), asked, beside];
            let answers = ask_in_order(&self.store, &asks, PATIENCE).await;
            assert!(
                answers[0].is_ok() && answers[2].is_ok(),
                "{}: {answers:?}",
                case()
            );
        }
        if !decided {
            self.command("DEL", &[format!("{{group:bad}}{name}").into_bytes()]);
            assert!(
                self.used(plan, "bad").await.iter().all(|used| *used == 0),
                "{} is charged in part",
                case()
            );
        }
        self.clear();
        decided
    }
}

async fn on_one(redis: Redis, every: usize) {
    let store = store_on(&redis, &FakeClock::new());
    let mut servers = Servers {
        store,
        wires: vec![Wire::to(&redis)],
        owner: 0,
    };
    let mut met = 0;
    let mut undecided = 0;
    for plan in plans() {
        servers.reset_sound_keys().await;
        let mut charged = 0;
        for name in NAMES {
            let layouts = if name.contains("log:") {
                lists()
            } else {
                strings()
            };
            for garbage in types()
                .into_iter()
                .chain(layouts.into_iter().skip(charged % every).step_by(every))
            {
                undecided += usize::from(!servers.meet(&plan, name, &garbage).await);
                charged += 1;
            }
        }
        servers.have_used(&plan, charged as u64).await;
        met += charged;
    }
    println!("{undecided} of {met} by policy");
    assert!(met > 500 && undecided > 100, "{undecided} of {met}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_81_garbage_of_any_type_and_layout_under_any_name_is_the_matter_of_its_key_alone() {
    on_one(Redis::start(), 29).await;
    for (name, version) in [
        ("redis-6.2", "Redis server v=6.2."),
        ("valkey", "Valkey server v="),
    ] {
        on_one(
            Redis::start_by("127.0.0.1", &[&other_make(name, version)], &[]),
            211,
        )
        .await;
    }
}

/// By calls for names of many slots. The first of these of a store finds out whether the node takes such calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_81_garbage_in_a_cluster_has_no_key_charged_twice() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let owner = cluster.owner(cluster.slot("group", "bad"));
    let wires = || cluster.nodes[..MASTERS].iter().map(Wire::to).collect();
    let short = Garbage::list(&[b"x", b"y", b"z"]);
    for (plan, name) in plans()
        .into_iter()
        .flat_map(|plan| NAMES.map(|name| (plan.clone(), name)))
    {
        let store =
            RedisStore::with_injected_clock(&cluster.url(), Arc::new(FakeClock::new())).unwrap();
        assert!(store.connected(PATIENCE.0).await);
        let mut servers = Servers {
            store,
            wires: wires(),
            owner,
        };
        servers.reset_sound_keys().await;
        servers.meet(&plan, name, &short).await;
        servers.have_used(&plan, 1).await;
    }
}

/// Whatever is under any of its names, and if the index of its logs is gone or cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::too_many_lines,
    reason = "laid out by rustfmt's defaults and not yet split"
)]
async fn fault_81_a_reset_leaves_a_key_fresh_whatever_lies_under_its_names() {
    let redis = Redis::start();
    let mut servers = Servers {
        store: store_on(&redis, &FakeClock::new()),
        wires: vec![Wire::to(&redis)],
        owner: 0,
    };
    // No plan in force, but the index, tells of the second log.
    let past = plan(vec![of(ODD + Duration::from_secs(1), LOG)]);
    let several = plan(vec![
        of(DAY, FIXED),
        of(ODD, WINDOW),
        of(DAY, LOG),
        of(ODD, LOG),
    ]);
    let windows_us = vec![86_400_000_000, 86_321_000_000];
    for name in &NAMES[..4] {
        let full_name = format!("{{group:bad}}{name}").into_bytes();
        let cut = Garbage::string(b"x");
        let layouts = if name.contains("log:") {
            lists()
        } else {
            strings()
        };
        for garbage in types()
            .into_iter()
            .chain([cut])
            .chain(layouts.into_iter().step_by(37))
            .map(Some)
            .chain([None])
        {
            for (plan, cost) in [(&several, 30_000), (&past, 1)] {
                assert!(
                    servers
                        .store
                        .decide_one(&ask(plan, "bad", cost), PATIENCE)
                        .await
                        .unwrap()
                        .fits
                );
            }
            let is_list_sound = *name != "logs";
            servers.command("DEL", std::slice::from_ref(&full_name));
            if let Some(garbage) = &garbage {
                servers.command(
                    garbage.0,
                    &[vec![full_name.clone()], garbage.1.clone()].concat(),
                );
            }
            assert!(
                servers.reset("bad", windows_us.clone()).await,
                "{garbage:?} under {name:?}"
            );
            let used = servers.used(&several, "bad").await;
            assert!(
                used.iter().all(|used| *used == 0),
                "{garbage:?} under {name:?}: {used:?}"
            );
            let past_used = servers.used(&past, "bad").await;
            assert_eq!(
                past_used == [0],
                is_list_sound,
                "{garbage:?} under {name:?}"
            );
            redis.cli(&["DEL", "{group:bad}log:86322000000"]);
            assert_eq!(
                redis.cli(&["KEYS", "{group:bad}*"]),
                "",
                "{garbage:?} under {name:?}"
            );
        }
    }
}
