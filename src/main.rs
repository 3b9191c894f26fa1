//! The `tollgate` binary: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser;

/// The allocator of musl has one lock for all threads. With it a decision costs two and a half times as much.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate::cli::run(tollgate::cli::Arguments::parse())
}
