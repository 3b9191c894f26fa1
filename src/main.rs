//! The `tollgate` binary: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser;

/// With glibc's allocator a decision costs the server an eighth more. With that of musl, which has one lock for all threads, it
/// costs two and a half times as much.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate::platform::refuse_huge_pages();
    tollgate::cli::run(tollgate::cli::Arguments::parse())
}
