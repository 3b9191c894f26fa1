//! Compiles the contract with protox, so that no protoc is needed, and keeps its descriptors for reflection.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;
use prost_types::FileDescriptorSet;

/// The contract for callers, and the one for operators.
const PUBLIC: &str = "tollgate/v1/tollgate.proto";
const ADMIN: &str = "tollgate/v1/admin.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    keep("tollgate.binpb", &protox::compile([PUBLIC], ["proto"])?)?;
    let descriptors = protox::compile([PUBLIC, ADMIN], ["proto"])?;
    // The admin file uses messages of the public one. The public services are not served on the admin listener, so reflection
    // there must not list them.
    let mut of_admin = descriptors.clone();
    of_admin.file.iter_mut().filter(|file| file.name() != ADMIN).for_each(|file| file.service.clear());
    keep("admin.binpb", &of_admin)?;
    tonic_prost_build::configure().codec_path("crate::grpc::codec::Codec").btree_map(".").compile_fds(descriptors)?;
    Ok(())
}

/// Writes a set of descriptors to the build's output folder.
fn keep(name: &str, descriptors: &FileDescriptorSet) -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    Ok(std::fs::write(out.join(name), descriptors.encode_to_vec())?)
}
