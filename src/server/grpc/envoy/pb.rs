//! The generated messages and the service of Envoy's callers, in modules as their packages are named.
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the proto files are the manual"
)]

/// Descriptors of the service, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/envoy.binpb"));

pub mod service {
    pub mod ratelimit {
        pub mod v3 {
            tonic::include_proto!("envoy.service.ratelimit.v3");
        }
    }
}

pub mod extensions {
    pub mod common {
        pub mod ratelimit {
            pub mod v3 {
                tonic::include_proto!("envoy.extensions.common.ratelimit.v3");
            }
        }
    }
}

pub mod config {
    pub mod core {
        pub mod v3 {
            tonic::include_proto!("envoy.config.core.v3");
        }
    }
}

pub mod r#type {
    pub mod v3 {
        tonic::include_proto!("envoy.r#type.v3");
    }
}
