//! Both stores while nothing fails: the contract, the script, what a key costs, and each way to reach Redis.

mod acl;
mod blocks;
mod candidate;
mod cluster;
mod cluster_calls;
mod contract;
mod deny_cache;
mod embedded;
mod flood;
mod garbage;
mod heavy_batches;
mod heavy_mixes;
mod holds;
mod holds_cost;
mod holds_redis;
mod joint;
mod joint_holds;
mod joint_slots;
mod key_prefix;
mod logs;
mod memory;
mod refused_writes;
mod script;
mod sentinel;
mod store_tls;
mod stored_states;
