//! Compiles the contract with protox, so that no protoc is needed, and keeps its descriptors for reflection.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;

/// The contract for callers, the one for operators, and the service for Envoy's callers.
const PUBLIC: &str = "tollgate/v1/tollgate.proto";
const ADMIN: &str = "tollgate/v1/admin.proto";
const ENVOY: &str = "envoy/service/ratelimit/v3/rls.proto";

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
    let envoy = protox::compile([ENVOY], ["proto"])?;
    keep("envoy.binpb", &envoy)?;
    tonic_prost_build::configure().codec_path("crate::grpc::envoy::codec::Codec").compile_fds(with_raw_entries(envoy))?;
    Ok(())
}

/// Reads the texts of entries as bytes, which look the same on the wire. They are header fields of strangers: one byte that is
/// no UTF-8 would make the whole message an error, and most proxies let requests pass on an error.
fn with_raw_entries(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
    let messages = descriptors.file.iter_mut().flat_map(|file| &mut file.message_type);
    let entries = messages.flat_map(|message| &mut message.nested_type).filter(|message| message.name() == "Entry");
    entries.flat_map(|entry| &mut entry.field).for_each(|field| field.set_type(Type::Bytes));
    descriptors
}

/// Writes a set of descriptors to the build's output folder.
fn keep(name: &str, descriptors: &FileDescriptorSet) -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    Ok(std::fs::write(out.join(name), descriptors.encode_to_vec())?)
}
