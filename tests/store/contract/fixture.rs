//! The stores that keep the contract: each with a clock of its own, and how a test reads what it keeps.

use super::*;

/// A store, its clock, and the servers that it uses.
pub(super) struct Fixture {
    pub(super) store: ConfiguredStore,
    pub(super) clock: FakeClock,
    pub(super) redis: Option<Arc<Redis>>,
    /// The servers whose keys the tests read.
    pub(super) ports: Vec<u16>,
}

impl Fixture {
    pub(super) fn memory() -> Self {
        let clock = FakeClock::new();
        let store = MemoryStore::new(64 << 20, Arc::new(clock.clone()));
        Self {
            store: ConfiguredStore::Memory(Arc::new(store)),
            clock,
            redis: None,
            ports: Vec::new(),
        }
    }

    /// On a server whose keys the tests may read and change.
    pub(super) fn on(redis: Arc<Redis>) -> Self {
        let fixture = Self::at(&redis.url(), std::slice::from_ref(&*redis));
        Self {
            redis: Some(redis),
            ..fixture
        }
    }

    /// On what others stand on too: servers that all together have what is kept.
    pub(super) fn at(url: &str, servers: &[Redis]) -> Self {
        let clock = FakeClock::new();
        let store = RedisStore::with_injected_clock(url, Arc::new(clock.clone())).unwrap();
        let ports = servers.iter().map(|server| server.port).collect();
        Self {
            store: ConfiguredStore::Redis(store),
            clock,
            redis: None,
            ports,
        }
    }

    pub(super) async fn decide(&self, ask: Check) -> Verdict {
        self.store.decide_one(&ask, PATIENCE).await.unwrap()
    }

    pub(super) async fn fits(&self, plan: &Arc<Plan>, key: &str, cost: u64) -> bool {
        self.decide(ask(plan, key, cost)).await.fits
    }

    /// Units that each limit gave back.
    pub(super) async fn refund(&self, plan: &Arc<Plan>, key: &str, cost: u64) -> Vec<u64> {
        let refund = refund(plan, key, cost);
        let given_back = self.store.refund_batch(&[refund], PATIENCE).await;
        let given_back = given_back[0].as_ref().unwrap();
        assert!(given_back.after.fits);
        given_back.units().to_vec()
    }

    pub(super) async fn reset(&self, group: &str, key: &str) -> bool {
        let subject = Subject {
            key: Key::new(key).unwrap(),
            counts_as: group.into(),
            log_windows_us: Vec::new(),
        };
        self.store.reset(&subject, PATIENCE).await.unwrap()
    }

    /// Keys that are kept, with all that they hold.
    pub(super) fn kept(&self) -> String {
        let dump = "local all = redis.call('KEYS', '*group:*') table.sort(all) local out = '' for _, k in ipairs(all) do out = out .. k .. redis.sha1hex(redis.call('DUMP', k)) .. expires(k) end return out";
        // Redis 6.2 does not report that.
        let expires = "local function expires(k) local ok, at = pcall(redis.call, 'PEXPIRETIME', k) return type(at) == 'number' and at or '' end ";
        match &self.store {
            ConfiguredStore::Redis(_) => self
                .ports
                .iter()
                .map(|port| cli(*port, &["EVAL", &format!("{expires}{dump}"), "0"]))
                .collect(),
            ConfiguredStore::Memory(store) if store.is_empty() => String::new(),
            ConfiguredStore::Memory(store) => format!("{} keys", store.len()),
        }
    }

    pub(super) async fn remaining(&self, plan: &Arc<Plan>, key: &str) -> Vec<u64> {
        let verdict = self.decide(peek(plan, key, 1)).await;
        verdict
            .statuses(plan.limits(), Cost::ONE)
            .iter()
            .map(|status| status.remaining)
            .collect()
    }
}

/// A test of each claim on each store.
macro_rules! every_store_keeps {
    ($($claim:ident,)*) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                super::$claim(super::Fixture::memory()).await;
            })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                super::$claim(super::Fixture::on(std::sync::Arc::new(super::Redis::start()))).await;
            })*
        }
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_cluster_keeps_it_too() {
            let cluster = Cluster::start_with(0, &["redis-server"], &[]);
            $(
                $claim(Fixture::at(&cluster.url(), &cluster.nodes)).await;
                cluster.nodes.iter().for_each(|node| drop(node.cli(&["FLUSHALL"])));
            )*
        }
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn redis_6_2_keeps_it_too() {
            // Which knows no PEXPIRETIME, so when a key expires is not looked at here.
            let redis = Redis::start_by("127.0.0.1", &[&other_make("redis-6.2", "Redis server v=6.2.")], &[]);
            $(
                $claim(Fixture::at(&redis.url(), std::slice::from_ref(&redis))).await;
                redis.cli(&["FLUSHALL"]);
            )*
        }
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn valkey_keeps_it_too() {
            let redis = Arc::new(Redis::start_by("127.0.0.1", &[&other_make("valkey", "Valkey server v=")], &[]));
            $(
                $claim(Fixture::on(redis.clone())).await;
                redis.cli(&["FLUSHALL"]);
            )*
        }
    };
}
