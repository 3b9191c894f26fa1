//! `tollgate completions` and `tollgate man`: what packages install beside the program, made from the command line itself.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::Arguments;
use super::terminal::{fail, print};

/// What the exit codes of each command mean. A test compares the pages with docs/cli.md.
const EXIT_STATUS: [(&str, &str); 19] = [
    (
        "serve",
        "0 stopped; 1 could not start, or failed while serving; 2 wrong command line or config",
    ),
    ("check", "0 valid; 1 errors; 2 wrong command line"),
    (
        "simulate",
        "0 replayed; 1 the log or the report failed; 2 wrong arguments, config or format",
    ),
    ("convert", "0 converted; 1 errors; 2 wrong command line"),
    (
        "try",
        "0 all allowed, or done; 1 something denied; 2 no answer",
    ),
    ("health", "0 serving; 1 not serving; 2 no answer"),
    (
        "explain",
        "0 the next request would be allowed; 1 denied; 2 failed",
    ),
    ("top", "0 shown; 2 failed"),
    ("plans", "0 shown; 2 failed"),
    ("reload", "0 reloaded; 2 the file has errors, or failed"),
    ("replicas", "0 shown; 2 failed"),
    ("reset", "0 done; 1 there was nothing; 2 failed"),
    ("refund", "0 done; 1 there was nothing; 2 failed"),
    (
        "override",
        "0 done; 1 refused, or there was nothing; 2 failed",
    ),
    ("override set", "0 set; 1 refused; 2 failed"),
    (
        "override delete",
        "0 deleted; 1 refused, or there was nothing; 2 failed",
    ),
    ("override list", "0 shown; 2 failed"),
    ("completions", "0 printed; 2 wrong command line"),
    ("man", "0 printed; 2 there is no such command"),
];

/// Prints the script by which this shell completes commands and flags.
pub(super) fn completions(shell: Shell) -> ExitCode {
    let mut command = Arguments::command();
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    finish(&script)
}

/// Prints the page of tollgate, or of the command of it that these words name, for `man`.
pub(super) fn page(words: &[String]) -> ExitCode {
    let mut command = Arguments::command();
    command.build();
    let found = words.iter().try_fold(command, |command, word| {
        command.find_subcommand(word).cloned()
    });
    let name = words.join(" ");
    let Some(command) = found else {
        let sentence = format!("there is no command {name}; tollgate --help lists them");
        return fail(2, &sentence);
    };
    let mut page = Vec::new();
    match Man::new(command).render(&mut page) {
        Ok(()) => {
            let name = if name.is_empty() { "serve" } else { &name };
            page.extend(exit_status(name).bytes());
            finish(&page)
        }
        Err(error) => fail(1, &format!("the page cannot be made: {error}")),
    }
}

/// The section about exit codes, which the generator does not know.
fn exit_status(command: &str) -> String {
    let codes = EXIT_STATUS
        .iter()
        .find(|(name, _)| *name == command)
        .map_or("", |(_, codes)| codes);
    let lines = codes
        .split("; ")
        .filter_map(|code| code.split_once(' '))
        .map(|(code, when)| format!(".TP\n\\fB{code}\\fR\n{when}\n"));
    std::iter::once(".SH \"EXIT STATUS\"\n".to_owned())
        .chain(lines)
        .collect()
}

/// Both generators write UTF-8 with an end of line, which printing adds.
fn finish(text: &[u8]) -> ExitCode {
    print(String::from_utf8_lossy(text).trim_end()).map_or_else(|code| code, |()| ExitCode::SUCCESS)
}
