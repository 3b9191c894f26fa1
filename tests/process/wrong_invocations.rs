//! Wrong command lines, flags and variables, and what a stranger is told: each answer names the true place, and what is right.

mod settings;

use std::path::Path;

use self::settings::{NAMES, VALUES};
use crate::support::server::{Server, tollgate};

/// A valid config for what is wrong beside it. Its only plan is `free`.
const CONFIG: &str = "# The flags are wrong, and not this file.\nplans: { free: { limits: [ { quota: 9, window: 1d } ] } }\n";

/// The command line, the environment, the exit code, and words that must be in the answer; those after a ! must not.
///
/// Arguments and variables stand between spaces; a ~ is a space in one. `{file}` is the path of the config, `{folder}` that of its
/// folder, `{taken}` an address that is in use, and `{grpc}`, `{http}` and `{admin}` are those of a running server.
type Row = (&'static str, &'static str, i32, &'static [&'static str]);

/// Which config is read.
const FILES: &[Row] = &[
    (
        "--config /nowhere.yaml",
        "",
        2,
        &["/nowhere.yaml: 1 error\n  cannot be read: No such file"],
    ),
    (
        "check /nowhere.yaml",
        "",
        1,
        &["/nowhere.yaml: 1 error\n  cannot be read: No such file"],
    ),
    (
        "check {folder}",
        "",
        1,
        &["is a directory; name the file in it"],
    ),
    (
        "check",
        "TOLLGATE_CONFIG=/nowhere.yaml",
        1,
        &["/nowhere.yaml: 1 error\n  cannot be read: No such file"],
    ),
    (
        "check {file} --config {file}",
        "",
        2,
        &["two configs are named, FILE and --config; remove one"],
    ),
    (
        "check {file}",
        "TOLLGATE_CONFIG_YAML=plans:{}",
        2,
        &[
            "two configs are named",
            "TOLLGATE_CONFIG_YAML",
            "remove one",
        ],
    ),
    (
        "check",
        "TOLLGATE_CONFIG_YAML=plans:~{}",
        1,
        &["the variable TOLLGATE_CONFIG_YAML: 1 error\n  plans has no plan"],
    ),
];

/// Commands and their arguments.
const COMMANDS: &[Row] = &[
    (
        "frobnicate",
        "",
        2,
        &["unrecognized subcommand 'frobnicate'"],
    ),
    (
        "chekc {file}",
        "",
        2,
        &["unrecognized subcommand 'chekc'", "'check'"],
    ),
    (
        "--store redis://localhost serve",
        "",
        2,
        &["the subcommand 'serve' cannot be used with '--store <URL>'"],
    ),
    (
        "check {file} --domain edge",
        "",
        2,
        &["--explain-descriptor"],
    ),
    ("check {file} --output json", "", 2, &["--print"]),
    (
        "check {file} --explain-descriptor a",
        "",
        1,
        &["\"a\" is not an entry; write name=value"],
    ),
    (
        "check --explain-descriptor a=b {file}",
        "",
        1,
        &["the config has no envoy.domains"],
    ),
    (
        "man frobnicate",
        "",
        2,
        &["there is no command frobnicate; tollgate --help lists them"],
    ),
    (
        "completions cmd",
        "",
        2,
        &["'cmd'", "possible values: bash"],
    ),
    (
        "convert nginx {file}",
        "",
        2,
        &["'nginx'", "possible values: ratelimit"],
    ),
    ("top --limit 501", "", 2, &["501 is not in 1..=500"]),
    ("try --key k", "", 2, &["--plan <PLAN>"]),
    (
        "try --key k --plan free --timeout 5",
        "",
        2,
        &["--timeout", "a number without a unit"],
    ),
];

/// What a running server is asked.
const ASKED: &[Row] = &[
    (
        "try --key k --plan free --address 50051",
        "",
        2,
        &["\"50051\" is not an address; write host:port"],
    ),
    (
        "try --key k --plan free --address 127.0.0.1:1",
        "",
        2,
        &[
            "nothing answers at 127.0.0.1:1",
            "is `tollgate serve` running there?",
        ],
    ),
    (
        "try --key k --plan nope --address {grpc}",
        "",
        2,
        &[
            "plan \"nope\" is not in the config; `tollgate plans` lists all",
            "!free",
        ],
    ),
    (
        "try --key k --plan fre --address {grpc}",
        "",
        2,
        &["did you mean \"free\"?"],
    ),
    (
        "try --key k --plan free --cost 0 --address {grpc}",
        "",
        2,
        &["cost is 0"],
    ),
    (
        "try --key k --plan free --address {admin}",
        "",
        2,
        &["serves gRPC, but not this call; name an address of listen.grpc by --address"],
    ),
    (
        "plans --address {admin}",
        "",
        2,
        &["name an address of listen.grpc by --address"],
    ),
    (
        "plans --address {http}",
        "",
        2,
        &["ended without an answer", "does tollgate serve gRPC there"],
    ),
    (
        "explain --key k --plan free --admin {grpc}",
        "",
        2,
        &[
            "but not this call; name the address of listen.admin by --admin",
            "!Unimplemented",
        ],
    ),
    (
        "reload --admin {grpc}",
        "",
        2,
        &["name the address of listen.admin by --admin"],
    ),
    (
        "replicas --admin unix:/nowhere.sock",
        "",
        2,
        &["nothing answers at unix:/nowhere.sock"],
    ),
    (
        "top --plan fre --admin {admin}",
        "",
        2,
        &["did you mean \"free\"?"],
    ),
    (
        "health --service nothing --address {grpc}",
        "",
        2,
        &["NotFound"],
    ),
];

/// The server that is asked, and the names that stand in the rows.
struct Fixture {
    folder: tempfile::TempDir,
    names: Vec<(&'static str, String)>,
    _server: Server,
    _taken: std::net::TcpListener,
}

impl Fixture {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("tollgate.yaml"), CONFIG).unwrap();
        let admin = format!("unix:{}", path("admin.sock"));
        let server = Server::start(
            CONFIG,
            &[
                "--set",
                "listen.http=127.0.0.1:0",
                "--set",
                &format!("listen.admin={admin}"),
            ],
        );
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let names = vec![
            ("{file}", path("tollgate.yaml")),
            ("{folder}", folder.path().display().to_string()),
            ("{taken}", taken.local_addr().unwrap().to_string()),
            ("{grpc}", server.address.clone()),
            ("{http}", server.http()),
            ("{admin}", admin),
        ];
        Self {
            folder,
            names,
            _server: server,
            _taken: taken,
        }
    }

    fn fill(&self, text: &str) -> String {
        self.names
            .iter()
            .fold(text.replace('~', " "), |text, (name, value)| {
                text.replace(name, value)
            })
    }
}

/// Tries a row, and adds what is wrong with its answer.
fn try_row(fixture: &Fixture, row: &Row, wrong: &mut Vec<String>) {
    let (arguments, variables, code, words) = row;
    let mut command = tollgate();
    command
        .args(arguments.split(' ').map(|argument| fixture.fill(argument)))
        .current_dir(Path::new(fixture.folder.path()));
    command.envs(
        variables
            .split(' ')
            .filter_map(|variable| variable.split_once('='))
            .map(|(name, value)| (name, fixture.fill(value))),
    );
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    println!("$ {variables} tollgate {arguments}\n{said}");
    let fits = |word: &&str| match word.strip_prefix('!') {
        Some(misleading) => !said.contains(misleading),
        None => said.contains(&fixture.fill(word)),
    };
    let missed: Vec<_> = words.iter().filter(|word| !fits(word)).collect();
    if output.status.code() != Some(*code) || !missed.is_empty() || said.contains("panicked") {
        wrong.push(format!(
            "{variables} {arguments}: {} without {missed:?}: {said}",
            output.status
        ));
    }
}

#[test]
fn each_wrong_invocation_is_told_its_true_place_and_what_is_right() {
    let fixture = Fixture::start();
    let rows: Vec<&Row> = [FILES, NAMES, VALUES, COMMANDS, ASKED]
        .into_iter()
        .flatten()
        .collect();
    assert!(rows.len() >= 60, "{} rows", rows.len());
    let mut wrong = Vec::new();
    rows.iter()
        .for_each(|row| try_row(&fixture, row, &mut wrong));
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}
