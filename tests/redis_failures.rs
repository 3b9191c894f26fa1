//! What happens when Redis or the network fails, with one replica and with several.

mod checker;
mod faults;
mod network;
mod outages;
mod redis_degraded;
mod replica_count;
mod several_replicas;
