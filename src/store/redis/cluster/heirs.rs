//! Notices failovers by the maps of slots: a node has come, and one that had slots is gone.

use std::sync::Arc;

use super::{KnownTopology, Map};
use crate::redis::RedisNode;
use crate::redis::target::HostAndPort;

impl Map {
    /// Counts each node that came in place of another one as another Redis process. Who takes a node away on purpose moves its slots
    /// one by one, so that both are in a map meanwhile.
    pub(super) fn count_heirs(&self, before: &KnownTopology) {
        let KnownTopology::Map(before) = before else {
            return;
        };
        if before.nodes_besides(self).next().is_some() {
            self.nodes_besides(before)
                .for_each(|(_, node)| node.manager.count_as_heir());
        }
    }

    /// The nodes that `other` does not have.
    fn nodes_besides<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = &'a (HostAndPort, Arc<RedisNode>)> {
        self.nodes
            .iter()
            .filter(|(address, _)| other.nodes.iter().all(|(known, _)| known != address))
    }
}
