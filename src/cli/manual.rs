//! `tollgate completions` and `tollgate man`: what packages install beside the program, made from the command line itself.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::Arguments;
use super::terminal::{fail, print};

/// Prints the script by which this shell completes commands and flags.
pub(super) fn completions(shell: Shell) -> ExitCode {
    let (mut command, mut script) = (Arguments::command(), Vec::new());
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    finish(&script)
}

/// Prints the page of tollgate, or of this command of it, for `man`.
pub(super) fn page(name: Option<&str>) -> ExitCode {
    let mut command = Arguments::command();
    command.build();
    let found = match name {
        None => Some(command),
        Some(name) => command.find_subcommand(name).cloned(),
    };
    let Some(command) = found else {
        return fail(2, &format!("there is no command {}; tollgate --help lists them", name.unwrap_or_default()));
    };
    let mut page = Vec::new();
    match Man::new(command).render(&mut page) {
        Ok(()) => finish(&page),
        Err(error) => fail(1, &format!("the page cannot be made: {error}")),
    }
}

/// Both generators write UTF-8 with an end of line, which printing adds.
fn finish(text: &[u8]) -> ExitCode {
    print(String::from_utf8_lossy(text).trim_end()).map_or_else(|code| code, |()| ExitCode::SUCCESS)
}
