pub mod key; pub mod plan; pub mod decision; pub mod algorithm; pub mod clock; pub mod store; pub mod limiter; pub mod grpc; pub mod config;
