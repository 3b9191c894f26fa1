//! No content of a config file, a flag or a variable makes a process panic, and a pipe in place of a file keeps none waiting.
//! `support/hostile.rs` makes the configs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tollgate::grpc::pb;
use tollgate::grpc::pb::admin_service_client::AdminServiceClient;
use tonic::Code;
use tonic::transport::Channel;

use crate::support::Guarded;
use crate::support::admin::admin_at;
use crate::support::hostile::{Hostile, SECRET, hostile};
use crate::support::http::Scrape;
use crate::support::server::{Client, PATIENCE, Server, decide, tollgate};

/// Seeds of each test, twelve of each kind.
const SEEDS: u64 = 276;
/// Address space of `tollgate check`, in KiB. No text may make it take more. Threads take a part of this.
const MEMORY_KIB: u64 = 1 << 20;
const PLANS: &str = "plans: { p: { limits: [ { quota: 1000000, window: 1d } ] } }\n";

/// A command that runs the program with at most [`MEMORY_KIB`] of address space.
fn bounded(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let plain = tollgate();
    let program = plain.get_program().to_owned();
    // As `tollgate()` does, this removes settings of tollgate in the environment of the test.
    for (name, _) in plain.get_envs() {
        command.env_remove(name);
    }
    command
        .arg("-c")
        .arg(format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\""))
        .arg(program)
        .args(arguments);
    command
}

/// Has the program check a config: by `tollgate check`, or, with flags or variables, by a start at an address that is taken.
fn judged(hostile: &Hostile, file: &Path, taken: &str) -> Output {
    std::fs::write(file, &hostile.bytes).unwrap();
    let file = file.to_str().unwrap();
    if hostile.set.is_empty() && hostile.environment.is_empty() {
        return bounded(&["check", file]).output().unwrap();
    }
    let mut command = bounded(&["--config", file, "--listen", taken]);
    for set in &hostile.set {
        command.args(["--set", set]);
    }
    command
        .envs(
            hostile
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        )
        .output()
        .unwrap()
}

#[test]
fn hostile_configs_end_no_check_and_each_error_says_where_it_is() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut valid = 0;
    let mut slowest = (Duration::ZERO, "");
    for seed in 0..SEEDS {
        let hostile = hostile(seed);
        let started = Instant::now();
        let output = judged(&hostile, &folder.path().join("config.yaml"), &taken);
        slowest = slowest.max((started.elapsed(), hostile.kind));
        let kind = hostile.kind;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let begin: String = said.chars().take(2_000).collect();
        // A process that a signal ended has no code. One that panicked has 101.
        assert!(
            [Some(0), Some(1), Some(2)].contains(&output.status.code()),
            "{kind}, seed {seed}: {} {begin}",
            output.status
        );
        assert!(
            !said.contains("panicked") && said.len() < 1 << 20,
            "{kind}, seed {seed}: {begin}"
        );
        if output.status.success() || said.contains("cannot listen at") {
            valid += 1;
            continue;
        }
        let errors: Vec<&str> = said.lines().skip(1).collect();
        assert!(
            said.lines().next().unwrap().contains(" error") && !errors.is_empty(),
            "{kind}, seed {seed}: {begin}"
        );
        for error in errors {
            assert!(
                error.starts_with("  ") && !error.contains(char::is_control),
                "{kind}, seed {seed}: {error:?}"
            );
            assert!(
                kind == "random signs" || !error.contains(SECRET),
                "{kind}, seed {seed}: {error}"
            );
        }
    }
    println!("{valid} of {SEEDS} were valid; the slowest took {slowest:?}");
    assert!(valid > 0 && valid < SEEDS / 2);
}

/// A server whose config is a file of the test's, with admin and HTTP.
struct Live {
    folder: tempfile::TempDir,
    server: Server,
}

impl Live {
    fn start(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let live = format!(
            "listen: {{ http: '127.0.0.1:0', admin: 'unix:{}/admin'{more} }}\n{PLANS}",
            folder.path().display()
        );
        std::fs::write(folder.path().join("config.yaml"), live).unwrap();
        let server = Server::start_on(
            &folder.path().join("config.yaml"),
            &["--set", "listen.lame_duck=0s"],
        );
        Self { folder, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn admin(&self) -> AdminServiceClient<Channel> {
        admin_at(&self.path("admin")).await
    }

    /// Puts something in the place of the config, in one step.
    fn replace(&self, make: impl Fn(&Path)) {
        make(&self.path("new"));
        std::fs::rename(self.path("new"), self.path("config.yaml")).unwrap();
    }

    fn reloads(&self, result: &str) -> f64 {
        Scrape::of(&self.server.http()).value(&format!(
            "tollgate_config_reloads_total{{result=\"{result}\"}}"
        ))
    }

    fn wait_for(&self, result: &str, count: f64) {
        let started = Instant::now();
        while self.reloads(result) < count {
            assert!(
                started.elapsed() < PATIENCE,
                "no {result} {count}: {}",
                self.server.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The hash of the config in force.
async fn config_hash(client: &mut Client) -> String {
    client
        .list_plans(pb::ListPlansRequest {})
        .await
        .unwrap()
        .into_inner()
        .config_hash
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_configs_end_no_server_and_the_old_plans_stay() {
    let mut live = Live::start("");
    let mut client = live.server.client().await;
    let mut admin = live.admin().await;
    let mut refused = 0;
    let mut slowest = (Duration::ZERO, "");
    for seed in 0..SEEDS {
        let Hostile { kind, bytes, .. } = hostile(seed);
        let before = config_hash(&mut client).await;
        live.replace(|new| std::fs::write(new, &bytes).unwrap());
        let asked = Instant::now();
        let answer = admin.reload_config(pb::ReloadConfigRequest {}).await;
        slowest = slowest.max((asked.elapsed(), kind));
        let after = config_hash(&mut client).await;
        match answer {
            Ok(answer) => assert_eq!(
                answer.into_inner().config_hash,
                after,
                "{kind}, seed {seed}"
            ),
            Err(status) => {
                refused += 1;
                assert_eq!(
                    (status.code(), &after),
                    (Code::FailedPrecondition, &before),
                    "{kind}, seed {seed}: {status:?}"
                );
                let told = status.message();
                assert!(
                    told.starts_with("the plans stay as they are: "),
                    "{kind}, seed {seed}: {told}"
                );
                assert!(
                    kind == "random signs" || !told.contains(SECRET),
                    "{kind}, seed {seed}: {told}"
                );
            }
        }
    }
    println!("{refused} of {SEEDS} were refused; the slowest took {slowest:?}");
    assert!(refused > SEEDS / 2);
    live.replace(|new| std::fs::write(new, PLANS).unwrap());
    admin
        .reload_config(pb::ReloadConfigRequest {})
        .await
        .unwrap();
    assert!(decide(&mut client, "k", "p").await.allowed);
    drop((client, admin));
    live.server.signal("TERM");
    assert!(live.server.wait().0.success(), "{}", live.server.log());
    let log = live.server.log();
    assert!(
        !log.contains("panicked") && !log.contains("no longer watched"),
        "{log}"
    );
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_pipe_in_the_place_of_any_file_ends_the_start_with_2_and_keeps_nothing_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    pipe(&fifo);
    let fifo = fifo.to_str().unwrap();
    let tls = [
        "--set",
        &format!("listen.tls.cert_file={fifo}"),
        "--set",
        &format!("listen.tls.key_file={fifo}"),
    ];
    let redis = [
        "--store",
        "redis://127.0.0.1:1",
        "--set",
        &format!("store.password_file={fifo}"),
    ];
    let trusts = [
        "--store",
        "rediss://127.0.0.1:1",
        "--set",
        &format!("store.tls.ca_file={fifo}"),
    ];
    let token = [
        "--set",
        "listen.admin=127.0.0.1:0",
        "--set",
        &format!("listen.admin_token_file={fifo}"),
    ];
    for arguments in [&["--config", fifo][..], &tls, &redis, &trusts, &token] {
        let mut command = tollgate();
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(
            said.contains("is a pipe; name a regular file"),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn a_config_that_becomes_a_pipe_keeps_the_plans_and_is_taken_up_when_it_is_a_file_again() {
    let mut live = Live::start("");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for round in 1..=2 {
        live.replace(pipe);
        live.wait_for("failure", f64::from(round));
        runtime.block_on(live.server.wait_for_line("is a pipe; name a regular file"));
        let plans = PLANS.replace("1d", &format!("{round}h"));
        live.replace(|new| std::fs::write(new, &plans).unwrap());
        live.wait_for("success", f64::from(round));
    }
    live.replace(pipe);
    live.server.signal("TERM");
    assert!(live.server.wait().0.success());
}

/// What `check` says of a config by standard input.
fn check_input(input: &[u8]) -> Output {
    let mut child = tollgate();
    child
        .args(["check", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input).unwrap();
    child.wait_with_output().unwrap()
}

/// The first line that a server prints, and all of its standard error.
fn serve(arguments: &[&str], variable: Option<&str>, input: &str) -> String {
    let mut command = tollgate();
    command
        .args(["--listen", "127.0.0.1:0"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(text) = variable {
        command.env("TOLLGATE_CONFIG_YAML", text);
    }
    let mut child = Guarded(command.spawn().unwrap());
    let _ = std::io::Write::write_all(&mut child.0.stdin.take().unwrap(), input.as_bytes());
    let mut lines =
        std::io::BufRead::lines(std::io::BufReader::new(child.0.stdout.take().unwrap()))
            .map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    child.0.kill().unwrap();
    let said = std::io::read_to_string(child.0.stderr.take().unwrap()).unwrap();
    first + &said
}

#[test]
fn a_config_comes_from_a_variable_or_by_standard_input() {
    let valid = check_input(PLANS.as_bytes());
    assert_eq!(
        (
            valid.status.code(),
            String::from_utf8_lossy(&valid.stdout).as_ref()
        ),
        (Some(0), "standard input: valid, 1 plan\n")
    );
    let wrong = check_input(b"plans: { p: { limits: [ { quota: 0, window: 1s } ] } }");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&wrong.stderr)
            .starts_with("standard input: 1 error\n  plans.p.limits[0].quota is 0; ")
    );

    let by_variable = serve(&[], Some(PLANS), "");
    assert!(
        by_variable.contains("config=the variable TOLLGATE_CONFIG_YAML")
            && by_variable.contains("plans=1"),
        "{by_variable}"
    );
    let by_input = serve(&["--config", "-"], None, PLANS);
    assert!(
        by_input.contains("config=standard input") && by_input.contains("plans=1"),
        "{by_input}"
    );
    let both = serve(&["--config", "-"], Some(PLANS), PLANS);
    assert!(both.contains("two configs are named"), "{both}");
    let broken = serve(&[], Some("plans: { p: { quota: 1 } }"), "");
    assert!(
        broken.contains("the variable TOLLGATE_CONFIG_YAML: 2 errors"),
        "{broken}"
    );
}
