//! The `tollgate` binary: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    tollgate::cli::run(tollgate::cli::Arguments::parse())
}
