//! Compiles the contract with protox, so that no protoc is needed, and keeps its descriptors for reflection.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;
use prost_types::FileDescriptorSet;

/// What every caller may know of, and what operators may.
const PUBLIC: &str = "tollgate/v1/tollgate.proto";
const ADMIN: &str = "tollgate/v1/admin.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    keep("tollgate.binpb", &protox::compile([PUBLIC], ["proto"])?)?;
    let descriptors = protox::compile([PUBLIC, ADMIN], ["proto"])?;
    // The messages of one are the other's, too; its services are served elsewhere.
    let mut of_admin = descriptors.clone();
    of_admin.file.iter_mut().filter(|file| file.name() != ADMIN).for_each(|file| file.service.clear());
    keep("admin.binpb", &of_admin)?;
    tonic_prost_build::configure().codec_path("crate::grpc::codec::Codec").btree_map(".").compile_fds(descriptors)?;
    Ok(())
}

fn keep(name: &str, descriptors: &FileDescriptorSet) -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    Ok(std::fs::write(out.join(name), descriptors.encode_to_vec())?)
}
