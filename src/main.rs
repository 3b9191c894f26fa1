//! The `tollgate` binary: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser;

/// With glibc's allocator a decision costs the server an eighth more. With that of musl, which has one lock for all threads, it
/// costs two and a half times as much.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Where the system gives huge pages unasked, the allocator's heaps would take 2 MiB for a few bytes. An old kernel refuses this,
    // which costs memory only.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    tollgate::cli::run(tollgate::cli::Arguments::parse())
}
