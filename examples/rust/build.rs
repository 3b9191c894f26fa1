//! Makes the client of the contract. In a project of your own, copy tollgate.proto into it.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../proto/tollgate/v1/tollgate.proto");
    let contract = protox::compile(["tollgate/v1/tollgate.proto"], ["../../proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(contract)?;
    Ok(())
}
