//! Calendar windows: their edges against another implementation, and what is counted between them in both stores.

mod edges;
mod parity;
mod replicas;
