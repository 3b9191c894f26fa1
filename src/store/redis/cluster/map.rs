//! Which node has which slots.

use std::sync::Arc;

use crate::StoreError;
use crate::redis::target::HostAndPort;
use crate::redis::{RedisNode, name};

pub(super) struct Map {
    pub(super) nodes: Vec<(HostAndPort, Arc<RedisNode>)>,
    /// For each slot, the index of its node. A slot without a node has an index past the end.
    pub(super) owners: Vec<u16>,
}

impl Map {
    /// The index of the node that has the slot of this name.
    pub(super) fn owner(&self, name: &str) -> u16 {
        self.owners[usize::from(name::slot(name))]
    }

    pub(super) fn node_at(&self, owner: u16) -> Result<&Arc<RedisNode>, StoreError> {
        let node = self.nodes.get(usize::from(owner)).map(|(_, node)| node);
        node.ok_or_else(|| {
            StoreError::Unreachable("no node of the Cluster has its slot".to_owned())
        })
    }

    pub(super) fn node(&self, name: &str) -> Result<&Arc<RedisNode>, StoreError> {
        self.node_at(self.owner(name))
    }
}
