//! A Redis Cluster for one test: three masters and, if the test wants them, a replica of each.

use std::process::Command;
use std::time::{Duration, Instant};

use super::redis::{Redis, free_port};
use super::server::PATIENCE;

pub const MASTERS: usize = 3;

pub struct Cluster {
    /// All nodes. At the start, the masters are the first ones.
    pub nodes: Vec<Redis>,
}

impl Cluster {
    pub fn start() -> Self {
        Self::start_with(1, &["redis-server"], &[])
    }

    pub fn start_with(replicas: usize, program: &[&str], extra: &[&str]) -> Self {
        let nodes: Vec<Redis> = (0..MASTERS * (1 + replicas))
            .map(|_| node(program, extra))
            .collect();
        let cluster = Self { nodes };
        let addresses = cluster
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port));
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "create"]).args(addresses);
        let created = command
            .args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"])
            .output()
            .unwrap();
        assert!(
            created.status.success(),
            "{}",
            String::from_utf8_lossy(&created.stdout)
        );
        cluster.wait_until(|node| {
            let info = node.cli(&["CLUSTER", "INFO"]);
            let replication = node.cli(&["INFO", "replication"]);
            let in_sync = replication.contains("role:master")
                || replication.contains("master_link_status:up");
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384") && in_sync
        });
        // redis-cli does not promise which nodes become masters.
        let mut cluster = cluster;
        cluster
            .nodes
            .sort_by_key(|node| !node.cli(&["ROLE"]).starts_with("master"));
        cluster
    }

    /// Waits until `ready` is true of every live node.
    pub fn wait_until(&self, ready: impl Fn(&Redis) -> bool) {
        let started = Instant::now();
        while !self.nodes.iter().all(&ready) {
            assert!(started.elapsed() < PATIENCE, "the Cluster does not agree");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A URL that names an address without a server, and then one node.
    pub fn url(&self) -> String {
        format!(
            "redis-cluster://127.0.0.1:1?node=127.0.0.1:{}",
            self.nodes[1].port
        )
    }

    /// The slot of a plan's key.
    pub fn slot(&self, group: &str, key: &str) -> u16 {
        self.nodes[MASTERS - 1]
            .cli(&["CLUSTER", "KEYSLOT", &format!("{{{group}:{key}}}")])
            .parse()
            .unwrap()
    }

    /// Index of the node that has a slot now, by the report of a live node.
    pub fn owner(&self, slot: u16) -> usize {
        let asked = self
            .nodes
            .iter()
            .map(|node| node.cli(&["CLUSTER", "SLOTS"]))
            .find(|answer| !answer.is_empty())
            .unwrap();
        let lines: Vec<&str> = asked.lines().collect();
        let range = |at: &usize| {
            let first = lines[*at].parse::<u16>();
            let last = lines.get(at + 1).and_then(|line| line.parse::<u16>().ok());
            matches!((first, last), (Ok(first), Some(last)) if (first..=last).contains(&slot))
                && lines[at + 2] == "127.0.0.1"
        };
        let at = (0..lines.len().saturating_sub(3)).find(range).unwrap();
        let port: u16 = lines[at + 3].parse().unwrap();
        self.nodes
            .iter()
            .position(|node| node.port == port)
            .unwrap()
    }

    /// Begins to move a slot from one node to another. From now on, new keys of the slot belong to the other node.
    pub fn open(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let from = &self.nodes[from];
        let to = &self.nodes[to];
        assert_eq!(
            to.cli(&[
                "CLUSTER",
                "SETSLOT",
                &slot,
                "IMPORTING",
                &from.cli(&["CLUSTER", "MYID"])
            ]),
            "OK"
        );
        assert_eq!(
            from.cli(&[
                "CLUSTER",
                "SETSLOT",
                &slot,
                "MIGRATING",
                &to.cli(&["CLUSTER", "MYID"])
            ]),
            "OK"
        );
    }

    /// Moves its keys, one by one.
    pub fn migrate(&self, slot: u16, from: usize, to: usize) {
        let from = &self.nodes[from];
        let port = self.nodes[to].port.to_string();
        loop {
            let key = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1"]);
            if key.is_empty() {
                return;
            }
            let moved = from.cli(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
            assert!(moved == "OK" || moved == "NOKEY", "{moved}");
        }
    }

    /// Ends the move: tells all masters that this node has the slot.
    pub fn close(&self, slot: u16, to: usize) {
        let id = self.nodes[to].cli(&["CLUSTER", "MYID"]);
        let masters = [&self.nodes[to]]
            .into_iter()
            .chain(self.nodes[..MASTERS].iter());
        masters.for_each(|node| {
            drop(node.cli(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id]))
        });
    }

    /// How often nodes answered with this error.
    pub fn errors(&self, word: &str) -> u64 {
        let of = |node: &Redis| {
            let stats = node.cli(&["INFO", "errorstats"]);
            let line = stats
                .lines()
                .find_map(|line| line.strip_prefix(&format!("errorstat_{word}:count=")))
                .map(str::trim);
            line.map_or(0, |count| count.parse::<u64>().unwrap())
        };
        self.nodes.iter().map(of).sum()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let masters = self
            .nodes
            .iter_mut()
            .filter_map(|node| node.is_alive().then_some(&*node));
        let masters = masters.filter(|node| node.cli(&["ROLE"]).starts_with("master"));
        let without: Vec<String> = masters
            .map(Redis::keys_without_expiry)
            .filter(|keys| !keys.is_empty())
            .collect();
        assert!(without.is_empty(), "keys without an expiry: {without:?}");
    }
}

fn node(program: &[&str], extra: &[&str]) -> Redis {
    // The bus would be ten thousand above the port, where there may be none.
    let bus = free_port().to_string();
    let own = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-config-file",
        "nodes.conf",
        "--cluster-node-timeout",
        "1000",
        "--cluster-require-full-coverage",
        "no",
        "--repl-diskless-sync-delay",
        "0",
    ];
    Redis::start_by("127.0.0.1", program, &[&own, extra].concat())
}
