//! The benchmark's own Redis Cluster: masters that each have as many slots.

use std::path::Path;
use std::time::{Duration, Instant};

use super::redis::Redis;

const SLOTS: usize = 16_384;
const AGREE_WITHIN: Duration = Duration::from_secs(30);

pub struct Cluster {
    nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts so many nodes, whose files are below `directory`, and waits until they agree.
    pub fn start(directory: &Path, masters: usize) -> Self {
        let node = |index: usize| {
            let own = directory.join(format!("{index} of {masters}"));
            std::fs::create_dir(&own).expect("there is room for a folder");
            let (mut node, bus) = Redis::start_in_cluster(&own);
            let first = SLOTS * index / masters;
            let last = SLOTS * (index + 1) / masters - 1;
            assert_eq!(
                node.ask(&format!("CLUSTER ADDSLOTSRANGE {first} {last}")),
                "+OK"
            );
            (node, bus)
        };
        let mut nodes: Vec<(Redis, u16)> = (0..masters).map(node).collect();
        let others: Vec<String> = nodes[1..]
            .iter()
            .map(|(node, bus)| format!("{} {bus}", node.process.address.replace(':', " ")))
            .collect();
        others
            .iter()
            .for_each(|other| assert_eq!(nodes[0].0.ask(&format!("CLUSTER MEET {other}")), "+OK"));
        let mut cluster = Self {
            nodes: nodes.into_iter().map(|(node, _)| node).collect(),
        };
        let started = Instant::now();
        while !cluster.agrees() {
            assert!(
                started.elapsed() < AGREE_WITHIN,
                "the nodes of the Cluster do not agree"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        cluster
    }

    fn agrees(&mut self) -> bool {
        let known = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
        let knows_all = |node: &mut Redis| {
            let info = node.ask("CLUSTER INFO");
            info.contains("cluster_state:ok")
                && info.contains(&known)
                && info.contains("cluster_slots_ok:16384")
        };
        self.nodes.iter_mut().all(knows_all)
    }

    pub fn masters(&self) -> usize {
        self.nodes.len()
    }

    pub fn url(&self) -> String {
        format!("redis-cluster://{}", self.nodes[0].process.address)
    }

    pub fn flush(&mut self) {
        self.nodes.iter_mut().for_each(Redis::flush);
    }

    /// Script calls of all nodes since they started.
    pub fn script_calls(&mut self) -> u64 {
        self.nodes.iter_mut().map(Redis::script_calls).sum()
    }

    /// CPU time of all nodes so far, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.nodes.iter().map(|node| node.process.cpu_us()).sum()
    }
}
