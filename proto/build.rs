//! Compiles the contract with protox, so that no protoc is needed, and keeps its descriptors for reflection.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["tollgate/v1/tollgate.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("tollgate.binpb"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .codec_path("crate::grpc::codec::Codec")
        .extern_path(".google.rpc", "::tonic_types::pb")
        .compile_fds(descriptors)?;
    Ok(())
}
