//! The `tollgate` binary: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser;

/// What musl brings takes one lock for every thread: decisions cost two and a half times as much with it.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate::cli::run(tollgate::cli::Arguments::parse())
}
