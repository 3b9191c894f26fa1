//! Compiles the contract with protox, so that no protoc is needed, and keeps its descriptors for reflection. Tells the program its
//! version, with the commit.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message;
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;
use prost_types::source_code_info::Location;

/// The contract for callers and its part about holds, the one for operators, and the service for Envoy's callers.
const PUBLIC: &str = "tollgate/v1/tollgate.proto";
const HOLDS: &str = "tollgate/v1/holds.proto";
const ADMIN: &str = "tollgate/v1/admin.proto";
const ENVOY: &str = "envoy/service/ratelimit/v3/rls.proto";

fn main() -> Result<(), Box<dyn Error>> {
    let proto = repository().join("proto");
    println!("cargo:rerun-if-changed={}", proto.display());
    let includes = [proto];
    tell_version();
    keep(
        "tollgate.binpb",
        &protox::compile([PUBLIC, HOLDS], &includes)?,
    )?;
    let descriptors = protox::compile([PUBLIC, HOLDS, ADMIN], &includes)?;
    // The admin file uses messages of the public one. The public services are not served on the admin listener, so reflection
    // there must not list them.
    let mut of_admin = protox::compile([PUBLIC, ADMIN], &includes)?;
    of_admin
        .file
        .iter_mut()
        .filter(|file| file.name() != ADMIN)
        .for_each(|file| file.service.clear());
    keep("admin.binpb", &of_admin)?;
    let ours = tonic_prost_build::configure()
        .codec_path("crate::grpc::codec::Codec")
        .generate_default_stubs(true);
    ours.compile_fds(with_lists_for_maps(descriptors))?;
    let envoy = protox::compile([ENVOY], &includes)?;
    keep("envoy.binpb", &envoy)?;
    tonic_prost_build::configure()
        .codec_path("crate::grpc::envoy::codec::EnvoyCodec")
        .compile_fds(with_raw_entries(envoy))?;
    Ok(())
}

/// The folder of the repository: cargo runs this in that of the crate which holds what is generated.
fn repository() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..")
}

/// The variable that names the commit where there is no repository, as in an image.
const COMMIT: &str = "BUILD_COMMIT";

/// Sets `VERSION_WITH_COMMIT`, which is the version of the package, and the commit if it is known. cargo also sets it for what it runs, so it
/// must not be named like a setting.
fn tell_version() {
    println!("cargo:rerun-if-env-changed={COMMIT}");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let named = std::env::var(COMMIT)
        .ok()
        .filter(|commit| !commit.is_empty());
    match named.or_else(commit_of_repository) {
        Some(commit) => println!("cargo:rustc-env=VERSION_WITH_COMMIT={version} ({commit})"),
        None => println!("cargo:rustc-env=VERSION_WITH_COMMIT={version}"),
    }
}

/// The commit that is checked out, of a release build: a debug build would have to be made anew after each commit.
fn commit_of_repository() -> Option<String> {
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    // Not a repository around this one.
    if !is_release || !repository().join(".git").exists() {
        return None;
    }
    // What changes when another commit is checked out. A file that is not there would cause a build each time.
    for name in ["HEAD", "logs/HEAD"] {
        let path = repository().join(git(&["rev-parse", "--git-path", name])?);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// What git prints; `None` without git, or on an error of it.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(repository())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Turns maps into lists of their entries, which look the same on the wire. An empty list costs nothing to make, to encode and
/// to drop, unlike a map, and most answers have an empty one.
fn with_lists_for_maps(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut descriptors.file {
        let mut paths = Vec::new();
        for (message, outer) in file.message_type.iter_mut().zip(0..) {
            for (entry, inner) in message.nested_type.iter_mut().zip(0..) {
                if !entry
                    .options
                    .take()
                    .is_some_and(|options| options.map_entry())
                {
                    continue;
                }
                let path = [4, outer, 3, inner];
                paths.extend([
                    path.to_vec(),
                    [&path[..], &[2, 0]].concat(),
                    [&path[..], &[2, 1]].concat(),
                ]);
            }
        }
        // The compiler expects a place in the file for each message and field.
        let places = paths.into_iter().map(|path| Location {
            path,
            ..Location::default()
        });
        file.source_code_info
            .get_or_insert_default()
            .location
            .extend(places);
    }
    descriptors
}

/// Reads the texts of entries as bytes, which look the same on the wire. They are header fields of strangers: one byte that is
/// no UTF-8 would make the whole message an error, and most proxies let requests pass on an error.
fn with_raw_entries(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
    let messages = descriptors
        .file
        .iter_mut()
        .flat_map(|file| &mut file.message_type);
    let entries = messages
        .flat_map(|message| &mut message.nested_type)
        .filter(|message| message.name() == "Entry");
    entries
        .flat_map(|entry| &mut entry.field)
        .for_each(|field| field.set_type(Type::Bytes));
    descriptors
}

/// Writes a set of descriptors to the build's output folder.
fn keep(name: &str, descriptors: &FileDescriptorSet) -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    Ok(std::fs::write(out.join(name), descriptors.encode_to_vec())?)
}
