//! The clients of `examples/`, each by the commands of its README and from a clean state, against a real server that hangs,
//! is killed and comes back.

mod holds;
mod table;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::process::docs::console_commands;
use crate::support::http::{Reply, ask, get};
use crate::support::server::{PATIENCE, Server};

const QUOTA: u64 = 3;
const PLANS: &str = "
plans:
  free: { limits: [ { name: few, quota: 3, window: 1h, algorithm: sliding_log } ] }
  organisation: { limits: [ { name: all, quota: 4, window: 1h, algorithm: sliding_log } ] }
";
/// The languages whose client decides a user and its organisation together.
const JOINT: [&str; 1] = ["node"];
/// Code lines of a client, without imports, comments and blanks.
const CODE_LINES_MAX: usize = 80;
/// For commands that download and compile, on a machine that is busy.
const INSTALL_PATIENCE: Duration = Duration::from_secs(600);
/// Nothing listens there.
const NOBODY: &str = "127.0.0.1:1";
/// One client runs at a time: its deadline of 50 ms should be met now and then. They are installed beside one another, which
/// mostly waits for registries.
static TURN: Mutex<()> = Mutex::new(());

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The commands of a README, as they are written: the first installs, each of the others runs a client.
fn commands(folder: &str) -> Vec<String> {
    console_commands(&format!("examples/{folder}/README.md"))
}

/// A shell that runs this command, in an environment without what cargo and this project's tests have set.
fn shell(command: &str, folder: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("exec 2>&1; {command}")])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        // Where packages are kept, and how they are built, is not the tests' but the machine's.
        let of_machine = ["CARGO_HOME", "CARGO_INCREMENTAL"].contains(&&*name)
            || name.starts_with("CARGO_PROFILE_");
        let of_cargo = name.starts_with("CARGO") && !of_machine;
        if of_cargo || name == "LD_LIBRARY_PATH" || name.starts_with("TOLLGATE_") {
            shell.env_remove(&*name);
        }
    }
    shell.env("CARGO_TARGET_DIR", copies().join("built"));
    // A group of its own: a runner such as `go run` leaves the program behind when it is killed alone.
    shell.process_group(0);
    shell
}

/// Where the copies are, and what cargo builds of them: it stays, so that a second run compiles the client alone.
fn copies() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_tollgate"))
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples")
}

/// A copy of the folder and of the contract below `target/examples`, with nothing in it that is not part of the repository.
fn clean_copy(folder: &str) -> PathBuf {
    let copy = copies().join(folder);
    let _ = std::fs::remove_dir_all(&copy);
    let mut git = Command::new("git");
    let listed = git.args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "proto",
        &format!("examples/{folder}"),
    ]);
    let listed = listed.current_dir(root()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.lines().count() > 3, "{listed}");
    for file in listed.lines() {
        std::fs::create_dir_all(copy.join(file).parent().unwrap()).unwrap();
        std::fs::copy(root().join(file), copy.join(file)).unwrap();
    }
    copy.join("examples").join(folder)
}

/// A client that runs.
struct Client {
    child: Child,
    address: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Client {
    fn start(command: &str, folder: &Path, tollgate: &str) -> Self {
        let mut child = shell(command, folder)
            .env("TOLLGATE_ADDRESS", tollgate)
            .env("PORT", "0")
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let output = child.stdout.take().unwrap();
        let lines = log.clone();
        std::thread::spawn(move || {
            BufReader::new(output)
                .lines()
                .map_while(Result::ok)
                .for_each(|line| lines.lock().unwrap().push(line));
        });
        let mut client = Self {
            child,
            address: String::new(),
            log,
        };
        let line = client.wait_for_line("on http://127.0.0.1:", INSTALL_PATIENCE);
        let port: String = line
            .split("on http://127.0.0.1:")
            .nth(1)
            .unwrap()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        client.address = format!("127.0.0.1:{port}");
        client
    }

    fn wait_for_line(&mut self, words: &str, patience: Duration) -> String {
        let started = Instant::now();
        loop {
            let log = self.log.lock().unwrap().clone();
            if let Some(line) = log.iter().find(|line| line.contains(words)) {
                return line.clone();
            }
            let alive = self.child.try_wait().unwrap().is_none();
            assert!(
                alive && started.elapsed() < patience,
                "{words:?} is not in the log of the client: {}",
                log.join("\n")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn hello(&self, header: &str) -> Reply {
        let reply = ask(&self.address, "GET", "/api/hello", &[header]);
        assert_eq!(
            reply.status == 200,
            reply.body.contains("hello"),
            "{reply:?}"
        );
        reply
    }

    /// How many requests it let through although nothing was decided.
    fn fail_open_count(&self) -> f64 {
        let reply = get(&self.address, "/metrics");
        let sample = reply
            .body
            .lines()
            .find_map(|line| line.strip_prefix("rate_limit_fail_open_total "));
        sample
            .unwrap_or_else(|| panic!("{reply:?}"))
            .parse()
            .unwrap()
    }

    /// Requests with a key of their own are let in up to the quota and no further. A deadline that a busy machine misses lets a
    /// request through, which the client counts: then another key is tried.
    fn assert_limits_exactly(&self, name: &str) {
        let started = Instant::now();
        for attempt in 0.. {
            let before = self.fail_open_count();
            let replies: Vec<Reply> = (0..=QUOTA)
                .map(|_| self.hello(&format!("X-Api-Key: {name}-{attempt}")))
                .collect();
            if self.fail_open_count() == before {
                return replies
                    .iter()
                    .enumerate()
                    .for_each(|(index, reply)| check_reply(index as u64, reply));
            }
            let undecided = replies
                .iter()
                .filter(|reply| reply.header("ratelimit").is_none());
            assert!(
                undecided.clone().count() > 0 && undecided.clone().all(|reply| reply.status == 200),
                "{replies:?}"
            );
            assert!(
                started.elapsed() < PATIENCE,
                "no answer in time for {PATIENCE:?}: {replies:?}"
            );
        }
    }

    /// Of a user with 3 requests and an organisation with 4: a denial of the one costs the other nothing.
    fn assert_organisation_is_charged_with_its_users(&self) {
        let started = Instant::now();
        for attempt in 0.. {
            let before = self.fail_open_count();
            let organisation = format!("X-Organisation: acme-{attempt}");
            let ask = |user: &str| {
                let user = format!("X-Api-Key: {user}-of-{attempt}");
                let reply = ask(&self.address, "GET", "/api/hello", &[&user, &organisation]);
                let policy = reply
                    .header("ratelimit-policy")
                    .unwrap_or_default()
                    .to_owned();
                (reply.status, policy)
            };
            let replies: Vec<_> = ["one", "one", "one", "one", "two", "two"].map(ask).into();
            let alone = self.hello(&format!("X-Api-Key: two-of-{attempt}"));
            if self.fail_open_count() == before {
                let statuses: Vec<u16> = replies.iter().map(|(status, _)| *status).collect();
                assert_eq!(statuses, [200, 200, 200, 429, 200, 429], "{replies:?}");
                // The user's limit binds, then that of the organisation, of which the user's denial has charged nothing.
                assert_eq!(replies[3].1, "\"few\";q=3;w=3600");
                assert_eq!(replies[5].1, "\"all\";q=4;w=3600");
                // It is another count of this user: it has no shard.
                return check_reply(0, &alone);
            }
            assert!(
                started.elapsed() < PATIENCE,
                "no answer in time: {replies:?}"
            );
        }
    }

    /// An error other than those two is shown, and logged with the plan.
    fn assert_misspelt_plan_is_shown(&mut self) {
        let started = Instant::now();
        loop {
            let before = self.fail_open_count();
            let reply = self.hello("X-Plan: fre");
            if (500..600).contains(&reply.status) {
                break;
            }
            assert!(
                reply.status == 200
                    && self.fail_open_count() > before
                    && started.elapsed() < PATIENCE,
                "{reply:?}"
            );
        }
        self.wait_for_line("did you mean", PATIENCE);
    }

    /// Each request passes, without the fields of a decision, and is counted.
    fn assert_lets_through(&mut self, requests: u32) {
        let before = self.fail_open_count();
        for _ in 0..requests {
            let reply = self.hello("X-Api-Key: undecided");
            assert!(
                reply.status == 200 && reply.header("ratelimit").is_none(),
                "{reply:?}"
            );
        }
        assert_eq!(self.fail_open_count(), before + f64::from(requests));
        self.wait_for_line("tollgate did not decide, request let through", PATIENCE);
    }

    /// A request that waits for an answer when the server is killed.
    fn assert_held_requests_pass(&self, server: &mut Server) {
        std::thread::scope(|scope| {
            let held: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| self.hello("X-Api-Key: held").status))
                .collect();
            // Most of them are on their way by then; one that is not, or that has missed its deadline, passes as well.
            std::thread::sleep(Duration::from_millis(20));
            server.child.kill().unwrap();
            server.wait();
            held.into_iter()
                .for_each(|held| assert_eq!(held.join().unwrap(), 200));
        });
    }

    fn wait_until_decided(&self) {
        let started = Instant::now();
        while self.hello("X-Api-Key: back").header("ratelimit").is_none() {
            assert!(
                started.elapsed() < PATIENCE,
                "the client does not find the server that is back"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The answer to the request that comes after so many others.
fn check_reply(index: u64, reply: &Reply) {
    assert_eq!(
        reply.status,
        if index < QUOTA { 200 } else { 429 },
        "request {index}: {reply:?}"
    );
    let field = |name: &str| {
        reply
            .header(name)
            .unwrap_or_else(|| panic!("request {index} has no {name}: {reply:?}"))
    };
    assert_eq!(field("ratelimit-policy"), "\"few\";q=3;w=3600");
    let remaining = format!("\"few\";r={}", QUOTA.saturating_sub(index + 1));
    assert!(
        field("ratelimit").starts_with(&remaining),
        "request {index}: {reply:?}"
    );
    match index < QUOTA {
        true => assert_eq!(reply.header("retry-after"), None),
        false => assert!(
            (1..=3600).contains(&field("retry-after").parse::<u32>().unwrap()),
            "{reply:?}"
        ),
    }
}

/// The whole life of a client.
fn assert_example_works(language: &str, command: &str, folder: &Path) {
    let mut server = Server::start(PLANS, &[]);
    let mut client = Client::start(command, folder, &server.address);
    client.assert_limits_exactly("first");
    client.assert_misspelt_plan_is_shown();
    if JOINT.contains(&language) {
        client.assert_organisation_is_charged_with_its_users();
    }
    server.signal("STOP");
    client.assert_lets_through(2);
    client.assert_held_requests_pass(&mut server);
    client.assert_lets_through(2);
    let _server = server.again(&[]);
    client.wait_until_decided();
    client.assert_limits_exactly("second");
    drop(client);
    let mut alone = Client::start(command, folder, NOBODY);
    alone.wait_for_line("does not answer, starting without", PATIENCE);
    alone.assert_lets_through(1);
}

/// Installs, then runs each client of the folder.
fn follow(language: &str, folder: &Path, tools: &[(&str, &str)]) {
    assert_tools(tools);
    let commands = installed(language, folder);
    let turn = TURN.lock();
    let _turn = turn.unwrap_or_else(std::sync::PoisonError::into_inner);
    commands
        .iter()
        .for_each(|command| assert_example_works(language, command, folder));
}

/// Each tool comes with a sentence that says how to get it.
fn assert_tools(tools: &[(&str, &str)]) {
    for (test, sentence) in tools {
        let found = shell(&format!("{test} >/dev/null"), root())
            .output()
            .unwrap()
            .status
            .success();
        assert!(found, "`{test}` fails. {sentence} tests/run installs it.");
    }
}

/// Installs by the first command of the README. Returns the others.
fn installed(language: &str, folder: &Path) -> Vec<String> {
    let mut commands = commands(language);
    let install = commands.remove(0);
    let output = shell(&install, folder).output().unwrap();
    assert!(
        output.status.success(),
        "{install}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(!commands.is_empty());
    commands
}

const GO: [(&str, &str); 2] = [
    (
        "go version",
        "Go 1.24 or later is needed; that of Debian 12 is older.",
    ),
    (
        "protoc --version",
        "protoc is needed: apt-get install protobuf-compiler libprotobuf-dev.",
    ),
];
const PYTHON: [(&str, &str); 1] = [(
    "python3 -c 'import venv, ensurepip'",
    "Python with venv is needed: apt-get install python3-venv.",
)];

#[test]
fn the_go_client_limits_and_fails_open() {
    follow("go", &clean_copy("go"), &GO);
}

#[test]
fn the_python_clients_limit_and_fail_open() {
    follow("python", &clean_copy("python"), &PYTHON);
}

#[test]
fn the_node_client_limits_and_fails_open() {
    follow(
        "node",
        &clean_copy("node"),
        &[(
            "npm --version",
            "Node with npm is needed: apt-get install npm.",
        )],
    );
}

#[test]
fn the_java_client_limits_and_fails_open() {
    let jdk = "A JDK of version 17 or later is needed: apt-get install default-jdk-headless.";
    let tools = [
        ("javac -version", jdk),
        ("mvn -version", "Maven is needed: apt-get install maven."),
    ];
    follow("java", &clean_copy("java"), &tools);
}

#[test]
fn the_rust_client_limits_and_fails_open() {
    follow(
        "rust",
        &clean_copy("rust"),
        &[("cargo --version", "Rust is needed.")],
    );
}
