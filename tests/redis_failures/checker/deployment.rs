//! Three replicas on one Redis, each behind a proxy of its own, and the faults that are applied to them. A seed decides their
//! order.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tollgate::config::{Config, Sources};
use tollgate::grpc::pb;
use tollgate::grpc::pb::admin_service_client::AdminServiceClient;
use tollgate::grpc::pb::plan_override::{Effect, Subject};
use tollgate::plan::{OnStoreFailure, Plan};
use tonic::Code;
use tonic::transport::Channel;

use super::history::{Change, History, Loss};
use super::load::{self, LiveReplica, Shared, now_us};
use crate::support::admin::admin_at;
use crate::support::history::Random;
use crate::support::proxy::Proxy;
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, channel_to};

const REPLICAS: usize = 3;
const WORKERS: usize = 2;

/// Every algorithm alone, most of them also beside a witness limit (see `serial`), and several together. The windows are short,
/// so that each ends several times between two faults. [`config`] adds a plan of each policy.
const PLANS: &str = "
workers: 2
store: { deadline: 50ms, expected_replicas: 3 }
plans:
  clock:    { limits: [ { quota: 9, window: 400ms, algorithm: fixed_window } ] }
  anchored: { limits: [ { quota: 9, window: 400ms, algorithm: fixed_window, anchor: first_request } ] }
  log:      { limits: [ { quota: 12, window: 500ms, algorithm: sliding_log } ], on_store_failure: allow }
  window:   { limits: [ { quota: 9, window: 400ms } ] }
  counter:  { limits: [ { quota: 9, window: 400ms, algorithm: sliding_counter } ], on_store_failure: deny }
  bucket:   { limits: [ { quota: 20, window: 1s, algorithm: token_bucket, burst: 7 } ] }
  seen/anchored: { limits: [ { quota: 9, window: 400ms, algorithm: fixed_window, anchor: first_request }, WITNESS ] }
  seen/log:      { limits: [ { quota: 9, window: 400ms, algorithm: sliding_log }, WITNESS ] }
  seen/window:   { limits: [ { quota: 12, window: 500ms }, WITNESS ] }
  seen/coarse:   { limits: [ { quota: 15, window: 400ms, precision: 4 }, WITNESS ], on_store_failure: deny }
  seen/counter:  { limits: [ { quota: 9, window: 400ms, algorithm: sliding_counter }, WITNESS ] }
  seen/bucket:   { limits: [ { quota: 20, window: 1s, algorithm: token_bucket, burst: 7 }, WITNESS ] }
  overridden:    { limits: [ { quota: 9, window: 400ms }, WITNESS ] }
  override/1:    { limits: [ { quota: 6, window: 400ms, algorithm: sliding_log }, WITNESS ] }
  override/2:    { limits: [ { quota: 15, window: 400ms, algorithm: sliding_log }, WITNESS ], on_store_failure: allow }
  override/3:    { limits: [ { quota: 9, window: 600ms, algorithm: sliding_log }, WITNESS ], on_store_failure: deny }
  seen/several:  { limits: [ { quota: 9, window: 300ms }, { quota: 15, window: 600ms, algorithm: sliding_log },
                             { quota: 20, window: 1s, algorithm: token_bucket, burst: 8 }, WITNESS ] }
";
/// A limit that is never reached. Its window is a year, so that no run crosses the edge of one.
const WITNESS: &str =
    "{ name: witness, quota: 1000000000000, window: 366d, algorithm: fixed_window }";

/// The plan that has an override, for all of its keys.
pub const OVERRIDDEN_PLAN: &str = "overridden";
/// What it is changed to, in turn; `None` deletes it. A state that comes back is too old by then to be taken for the present one.
const USE_PLANS: [Option<&str>; 4] = [
    Some("override/1"),
    Some("override/2"),
    Some("override/3"),
    None,
];
/// How long all is well behind a change, so that it must be in force. Longer than replicas have for it.
const CALM: Duration = Duration::from_millis(1_600);
/// The same behind a fault.
const CALM_AFTER_FAULT: Duration = Duration::from_millis(2_600);

/// A fault that is applied for a while and then removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    RedisStopped,
    RedisKilled,
    RedisPaused,
    RedisDemoted,
    ScriptsFlushed,
    ConnectionsKilled,
    ReplicaKilled,
    ReplicaLags,
    ReplicaCutOff,
}

const FAULTS: [Fault; 9] = [
    Fault::RedisStopped,
    Fault::RedisKilled,
    Fault::RedisPaused,
    Fault::RedisDemoted,
    Fault::ScriptsFlushed,
    Fault::ConnectionsKilled,
    Fault::ReplicaKilled,
    Fault::ReplicaLags,
    Fault::ReplicaCutOff,
];
/// Faults of one replica. They may be applied at the same time as another fault.
const BESIDE: [Fault; 3] = [
    Fault::ReplicaKilled,
    Fault::ReplicaLags,
    Fault::ReplicaCutOff,
];

/// Applies all faults in the order of this seed. Returns the history of all calls, and the schedule in words.
pub fn run(seed: u64) -> (History, Vec<String>) {
    let mut random = Random(seed);
    let mut deployment = Deployment::start();
    let callers: Vec<_> = (0..load::CALLERS as u64)
        .map(|caller| {
            deployment.runtime.spawn(load::call(
                deployment.shared.clone(),
                Random(seed << 8 | caller),
            ))
        })
        .collect();
    deployment.wait_until_well();
    let mut schedule = Vec::new();
    let mut faults = FAULTS;
    for index in (1..faults.len()).rev() {
        faults.swap(index, random.below(index as u64 + 1) as usize);
    }
    for fault in faults {
        let mut together = vec![fault];
        together.extend(
            Some(*random.pick(&BESIDE)).filter(|other| *other != fault && random.below(3) == 0),
        );
        schedule.push(deployment.go_through(&together, &mut random));
    }
    for replica in 0..REPLICAS {
        deployment.change_override(replica);
        std::thread::sleep(CALM);
    }
    deployment.shared.over.store(true, Ordering::SeqCst);
    for caller in callers {
        deployment
            .history
            .calls
            .extend(deployment.runtime.block_on(caller).unwrap());
    }
    (deployment.history, schedule)
}

struct Deployment {
    history: History,
    shared: Arc<Shared>,
    /// The server at each index; `None` while it is killed. It stands before the proxies and Redis, which it uses, because fields
    /// are dropped in their order.
    servers: Vec<Option<Server>>,
    /// The admin service of each.
    admins: Vec<Option<AdminServiceClient<Channel>>>,
    /// Where their admin sockets are.
    folder: tempfile::TempDir,
    /// Number of servers started so far. It gives each its `life`.
    lives: usize,
    proxies: Vec<Proxy>,
    redis: Redis,
    runtime: Runtime,
}

impl Deployment {
    fn start() -> Self {
        let redis = Redis::start();
        let proxies: Vec<Proxy> = (0..REPLICAS).map(|_| Proxy::before(redis.port)).collect();
        let plans = plans();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let shared = Arc::new(Shared::new(
            plans.keys().cloned().collect(),
            vec![None; REPLICAS],
        ));
        let history = History {
            plans,
            replicas: REPLICAS as u64,
            ..History::default()
        };
        let servers = (0..REPLICAS).map(|_| None).collect();
        let mut deployment = Self {
            history,
            shared,
            servers,
            admins: vec![None; REPLICAS],
            folder: tempfile::tempdir().unwrap(),
            lives: 0,
            proxies,
            redis,
            runtime,
        };
        (0..REPLICAS).for_each(|replica| deployment.start_replica(replica));
        deployment
    }

    /// Starts a replica on a new port, so that a client of the one before it cannot reach it by mistake.
    fn start_replica(&mut self, replica: usize) {
        let socket = self.folder.path().join(format!("{}.sock", self.lives));
        let listen = format!("listen.admin=unix:{}", socket.display());
        let store = self.proxies[replica].url();
        let server = Server::start(&config(), &["--store", &store, "--set", &listen]);
        self.admins[replica] = Some(self.runtime.block_on(admin_at(&socket)));
        let clients = (0..WORKERS)
            .map(|_| Client::new(self.runtime.block_on(channel_to(&server.address))))
            .collect();
        self.lives += 1;
        self.servers[replica] = Some(server);
        self.shared.replicas.lock().unwrap()[replica] = Some(LiveReplica {
            life: self.lives,
            clients,
        });
    }

    /// Applies one or two faults, removes them, and waits until the store decides again. Returns what was done, in words.
    fn go_through(&mut self, faults: &[Fault], random: &mut Random) -> String {
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        self.change_override(random.below(REPLICAS as u64) as usize);
        pass(random.below(400));
        let replica = random.below(REPLICAS as u64) as usize;
        let lasts_ms = 50 + random.below(450);
        let lag_ms = 5 + random.below(40);
        let from_us = now_us();
        faults
            .iter()
            .for_each(|fault| self.strike(*fault, replica, lag_ms));
        let other = (replica + 1) % REPLICAS;
        if random.below(4) == 0 {
            self.change_override(other);
        }
        pass(lasts_ms);
        faults.iter().for_each(|fault| self.heal(*fault, replica));
        self.wait_until_well();
        self.history.faults.push((from_us, now_us()));
        if faults.contains(&Fault::RedisKilled) {
            // It came back empty, and gets the overrides back.
            std::thread::sleep(CALM_AFTER_FAULT);
        }
        pass(random.below(400));
        format!("{faults:?} for {lasts_ms} ms, replica {replica}, lag {lag_ms} ms")
    }

    /// Sets the override to the next of [`USE_PLANS`], or deletes it, by this replica. Under a fault it may not be confirmed.
    fn change_override(&mut self, replica: usize) {
        let use_plan = USE_PLANS[self.history.changes.len() % USE_PLANS.len()];
        let mut admin = self.admins[replica].clone().unwrap();
        let life = self.shared.replicas.lock().unwrap()[replica]
            .as_ref()
            .unwrap()
            .life;
        let plan = OVERRIDDEN_PLAN.to_owned();
        let prefix = load::OVERRIDDEN.to_owned();
        let sent_us = now_us();
        let changed = self.runtime.block_on(async {
            let Some(use_plan) = use_plan else {
                let request = pb::DeleteOverrideRequest {
                    plan,
                    subject: Some(pb::delete_override_request::Subject::KeyPrefix(prefix)),
                    if_version: None,
                };
                return admin.delete_override(request).await.map(drop);
            };
            let entry = pb::PlanOverride {
                plan,
                subject: Some(Subject::KeyPrefix(prefix)),
                effect: Some(Effect::UsePlan(use_plan.to_owned())),
                ..Default::default()
            };
            let request = pb::SetOverrideRequest {
                entry: Some(entry),
                ..Default::default()
            };
            admin.set_override(request).await.map(drop)
        });
        if let Err(refused) = &changed {
            assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
            println!("life {life}: {}", refused.message());
        }
        self.history.changes.push(Change {
            plan: OVERRIDDEN_PLAN.to_owned(),
            use_plan: use_plan.map(str::to_owned),
            life,
            sent_us,
            answered_us: changed.is_ok().then(now_us),
        });
    }

    fn strike(&mut self, fault: Fault, replica: usize, lag_ms: u64) {
        match fault {
            Fault::RedisStopped => self.redis.signal("STOP"),
            Fault::RedisKilled => {
                let from_us = now_us();
                self.redis.kill();
                self.history.losses.push(Loss {
                    from_us,
                    to_us: now_us(),
                });
            }
            Fault::RedisPaused => self.tell(&["CLIENT", "PAUSE", &(10 * lag_ms).to_string()]),
            Fault::RedisDemoted => self.tell(&["REPLICAOF", "127.0.0.1", "1"]),
            Fault::ScriptsFlushed => self.tell(&["SCRIPT", "FLUSH"]),
            Fault::ConnectionsKilled => {
                self.redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
            }
            Fault::ReplicaKilled => self.kill_replica(replica),
            Fault::ReplicaLags => self.proxies[replica].delay(Duration::from_millis(lag_ms)),
            Fault::ReplicaCutOff => self.proxies[replica].swallow(),
        }
    }

    fn heal(&mut self, fault: Fault, replica: usize) {
        match fault {
            Fault::RedisStopped => self.redis.signal("CONT"),
            Fault::RedisKilled => self.redis.restart(),
            Fault::RedisDemoted => self.tell(&["REPLICAOF", "NO", "ONE"]),
            Fault::RedisPaused | Fault::ScriptsFlushed | Fault::ConnectionsKilled => {}
            Fault::ReplicaKilled => self.start_replica(replica),
            Fault::ReplicaLags => self.proxies[replica].delay(Duration::ZERO),
            Fault::ReplicaCutOff => self.proxies[replica].let_through(),
        }
    }

    fn tell(&self, command: &[&str]) {
        let answer = self.redis.cli(command);
        assert_eq!(answer, "OK", "{command:?}");
    }

    fn kill_replica(&mut self, replica: usize) {
        let killed = self.shared.replicas.lock().unwrap()[replica]
            .take()
            .unwrap();
        self.history.ends_us.insert(killed.life, now_us());
        let mut server = self.servers[replica].take().unwrap();
        server.child.kill().unwrap();
        server.wait();
    }

    /// Waits until the store decides for each replica.
    fn wait_until_well(&self) {
        let lives: Vec<usize> = self
            .shared
            .replicas
            .lock()
            .unwrap()
            .iter()
            .map(|replica| replica.as_ref().unwrap().life)
            .collect();
        for (life, before) in lives
            .into_iter()
            .map(|life| (life, self.shared.stored_by(life)))
        {
            let since = Instant::now();
            while self.shared.stored_by(life) < before + 5 {
                assert!(
                    since.elapsed() < PATIENCE,
                    "the store does not decide for the replica of life {life}"
                );
                pass(5);
            }
        }
    }
}

fn config() -> String {
    let of_policies = OnStoreFailure::ALL.map(|policy| {
        let name = policy.as_str();
        format!("  policy/{name}: {{ limits: [ {{ quota: 9, window: 400ms }} ], on_store_failure: {name} }}\n")
    });
    PLANS.replace("WITNESS", WITNESS) + &of_policies.concat()
}

/// The plans that the replicas enforce, read by the same code.
pub fn plans() -> BTreeMap<String, Plan> {
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    file.write_all(config().as_bytes()).unwrap();
    let sources = Sources {
        file: Some(file.path().to_owned()),
        ..Sources::default()
    };
    let plans = Config::load(sources)
        .unwrap_or_else(|errors| panic!("{errors:?}"))
        .plans;
    plans
        .iter()
        .map(|plan| (plan.name.to_string(), plan.as_ref().clone()))
        .collect()
}

fn pass(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
