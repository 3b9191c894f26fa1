//! The tables of commands and flags, compared with the command line.

use clap::CommandFactory;
use tollgate::cli::Arguments;

use crate::process::docs::markdown::page;

/// A flag as its row begins: `` `-c`, `--config FILE` ``.
fn cell_of(argument: &clap::Arg) -> String {
    let value = argument.get_action().takes_values().then(|| {
        let names = argument.get_value_names().map(|names| names[0].to_string());
        names.unwrap_or_else(|| argument.get_id().as_str().to_ascii_uppercase())
    });
    let Some(long) = argument.get_long() else {
        return format!("`{}`", value.unwrap());
    };
    let short = argument
        .get_short()
        .map_or_else(String::new, |short| format!("`-{short}`, "));
    let value = value.map_or_else(String::new, |value| format!(" {value}"));
    format!("{short}`--{long}{value}`")
}

/// The commands that do something, each with its path.
fn commands(command: &clap::Command) -> Vec<(String, &clap::Command)> {
    let own = command
        .get_subcommands()
        .filter(|command| command.get_name() != "help");
    let with_path = own.flat_map(|command| {
        let name = command.get_name();
        if command.has_subcommands() {
            let inner = commands(command).into_iter();
            inner
                .map(|(path, inner)| (format!("{name} {path}"), inner))
                .collect()
        } else {
            vec![(name.to_owned(), command)]
        }
    });
    with_path.collect()
}

#[test]
fn every_command_and_flag_has_its_row() {
    let cli = page("docs/cli.md");
    let mut command = Arguments::command();
    command.build();
    let mut documented = cli.rows("flag").into_iter();
    let listed: Vec<String> = cli
        .rows("command")
        .iter()
        .map(|cells| cells[0].trim_matches('`').to_owned())
        .collect();
    let mut names = vec!["tollgate".to_owned()];
    for (path, command) in commands(&command) {
        let own =
            |argument: &&clap::Arg| !["help", "version"].contains(&argument.get_id().as_str());
        let positional = command
            .get_positionals()
            .map(|argument| format!(" {}", cell_of(argument).trim_matches('`')));
        names.push(format!("tollgate {path}{}", positional.collect::<String>()));
        for argument in command.get_arguments().filter(own) {
            let cells = documented
                .next()
                .unwrap_or_else(|| panic!("docs/cli.md has no row for {}", cell_of(argument)));
            let [flag, variable, default, what] = cells.as_slice() else {
                panic!("{cells:?}")
            };
            assert_eq!(*flag, cell_of(argument), "tollgate {path}");
            let expected = argument
                .get_env()
                .map_or_else(String::new, |name| format!("`{}`", name.to_str().unwrap()));
            assert_eq!(*variable, expected, "{flag}");
            let defaults = argument
                .get_default_values()
                .first()
                .filter(|_| argument.get_action().takes_values());
            match defaults.map(|value| value.to_str().unwrap()) {
                Some(value) => assert_eq!(*default, format!("`{value}`"), "{flag}"),
                None => assert!(!default.contains('`'), "{flag} has no default"),
            }
            assert_eq!(default == "required", argument.is_required_set(), "{flag}");
            assert!(!what.is_empty(), "{flag}");
        }
    }
    assert_eq!(
        documented.next(),
        None,
        "docs/cli.md has a row for a flag that is not there"
    );
    assert_eq!(listed, names);
}
