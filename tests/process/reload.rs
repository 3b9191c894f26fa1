//! Reload: a config file that changes under a running server, in every way that files change, and one that is wrong.

mod bad_file;
mod under_load;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tollgate::grpc::pb::{self, DecidedBy, Outcome};
use tonic::Code;

use crate::support::Guarded;
use crate::support::http::{Scrape, get};
use crate::support::plans::{algorithm_fields, named_algorithms};
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, decide, field, request, tollgate};

/// A server on a file of one's own.
struct Live {
    folder: tempfile::TempDir,
    server: Server,
    client: Client,
    http: String,
}

impl Live {
    async fn start(plans: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.yaml"), config(plans)).unwrap();
        Self::start_in(folder, flags).await
    }

    async fn start_in(folder: tempfile::TempDir, flags: &[&str]) -> Self {
        let server = Server::start_on(&folder.path().join("config.yaml"), flags);
        let client = server.client().await;
        let http = server.http();
        Self {
            folder,
            server,
            client,
            http,
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("config.yaml")
    }

    /// Renames a new file over the old one, as careful editors do.
    fn replace(&self, plans: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, config(plans)).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    fn reloads(&self, result: &str) -> f64 {
        Scrape::of(&self.http).value(&format!(
            "tollgate_config_reloads_total{{result=\"{result}\"}}"
        ))
    }

    /// Until so many reloads came to that. A signal may be the second to find what changed, so there may be more.
    fn wait_for(&self, result: &str, count: f64) {
        until(
            || self.reloads(result) >= count,
            || format!("no {result} {count}: {}", self.server.log()),
        );
    }

    /// Replaces the file, asks for it to be taken up, and waits until it is: until `p` has this quota.
    async fn replace_at_once(&mut self, quota: u64) {
        self.replace(&plan("p", quota));
        self.server.signal("HUP");
        let started = Instant::now();
        while self.list().await.plans[0].limits[0].quota != quota {
            assert!(
                started.elapsed() < PATIENCE,
                "never {quota}: {}",
                self.server.log()
            );
        }
    }

    /// Lines of the log with this in them, once there is one.
    fn lines_with(&self, words: &str) -> Vec<String> {
        let lines = || {
            self.server
                .log()
                .lines()
                .filter(|line| line.contains(words))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        until(
            || !lines().is_empty(),
            || format!("never {words:?}: {}", self.server.log()),
        );
        lines()
    }

    async fn peek(&mut self, key: &str, plan: &str) -> pb::ShouldAllowResponse {
        let peek = pb::PeekRequest {
            key: key.to_owned(),
            plan: plan.to_owned(),
            cost: None,
            ..Default::default()
        };
        self.client
            .peek(peek)
            .await
            .unwrap()
            .into_inner()
            .answer
            .unwrap()
    }

    async fn list(&mut self) -> pb::ListPlansResponse {
        self.client
            .list_plans(pb::ListPlansRequest {})
            .await
            .unwrap()
            .into_inner()
    }
}

fn config(plans: &str) -> String {
    format!("listen: {{ http: '127.0.0.1:0' }}\nplans:\n{plans}")
}

/// A plan of one limit, a line of its own.
fn plan(name: &str, quota: u64) -> String {
    format!(
        "  {name}: {{ limits: [ {{ name: days, quota: {quota}, window: 300d, algorithm: sliding_log }} ] }}\n"
    )
}

/// A plan of each algorithm. No window ends while a test runs, unless that of the clock does just then.
fn every_algorithm(quota: u64) -> String {
    let plan = |(name, algorithm)| {
        let fields = algorithm_fields(algorithm);
        format!("  {name}: {{ limits: [ {{ quota: {quota}, window: 300d, {fields} }} ] }}\n")
    };
    named_algorithms().map(plan).concat()
}

fn until(is: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < PATIENCE, "{}", otherwise());
        std::thread::sleep(Duration::from_millis(10));
    }
}

async fn assert_edited_quota_counts_and_usage_stays(flags: &[&str]) {
    let mut live = Live::start(&every_algorithm(6), flags).await;
    for (plan, _) in named_algorithms() {
        let used = live
            .client
            .should_allow(request("k", plan, Some(4)))
            .await
            .unwrap()
            .into_inner();
        assert_eq!((used.allowed, used.remaining()), (true, 2), "{plan}");
    }
    // Units used stay used, in a bucket too: its record knows the rate that it was charged at.
    for (reload, quota, remaining) in [(1, 12, 8), (2, 3, 0), (3, 9, 5)] {
        live.replace(&every_algorithm(quota));
        live.wait_for("success", f64::from(reload));
        for (plan, _) in named_algorithms() {
            let answer = live.peek("k", plan).await;
            let told = (answer.limit(), answer.remaining(), answer.allowed);
            assert_eq!(told, (quota, remaining, remaining > 0), "{plan} at {quota}");
        }
    }
    for (plan, _) in named_algorithms() {
        let answer = decide(&mut live.client, "k", plan).await;
        assert_eq!(
            (answer.outcome(), answer.decided_by()),
            (Outcome::Allowed, DecidedBy::Store),
            "{plan}"
        );
        assert_eq!(
            decide(&mut live.client, "new", plan).await.remaining(),
            8,
            "{plan}"
        );
    }
}

#[tokio::test]
async fn an_edited_quota_counts_at_once_and_usage_stays_in_memory() {
    assert_edited_quota_counts_and_usage_stays(&[]).await;
}

#[tokio::test]
async fn an_edited_quota_counts_at_once_and_usage_stays_on_redis() {
    let redis = Redis::start();
    assert_edited_quota_counts_and_usage_stays(&[
        "--store",
        &redis.url(),
        "--set",
        "store.deadline=10s",
    ])
    .await;
}

#[tokio::test]
async fn a_plan_that_is_removed_is_unknown_and_has_its_usage_when_it_returns() {
    let mut live = Live::start(&[plan("a", 5), plan("b", 5)].concat(), &[]).await;
    let first = live.list().await.config_hash;
    for plan in ["a", "b", "b"] {
        decide(&mut live.client, "k", plan).await;
    }
    live.replace(&[plan("a", 5), plan("c", 5)].concat());
    live.wait_for("success", 1.0);
    let gone = live
        .client
        .should_allow(request("k", "b", None))
        .await
        .unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
    assert_eq!(get(&live.http, "/v1/check?key=k&plan=b").status, 404);
    assert!(decide(&mut live.client, "k", "c").await.allowed);
    assert_eq!(decide(&mut live.client, "k", "a").await.remaining(), 3);

    // What is enforced is told alike by everything that tells it.
    let listed = live.list().await;
    assert_eq!(
        listed
            .plans
            .iter()
            .map(|plan| plan.name.as_str())
            .collect::<Vec<_>>(),
        ["a", "c"]
    );
    assert_ne!(listed.config_hash, first);
    let line = &live.lines_with("config reloaded")[0];
    assert_eq!(field(line, "config_hash"), listed.config_hash);
    assert!(
        line.contains("\"plans\":2,\"added\":1,\"removed\":1,\"edited\":0"),
        "{line}"
    );
    let scrape = Scrape::of(&live.http);
    assert_eq!(
        scrape.value(&format!(
            "tollgate_config_info{{hash=\"{}\"}}",
            listed.config_hash
        )),
        1.0
    );
    assert!(
        !scrape.text.contains(&first) && !scrape.text.contains("plan=\"b\""),
        "{}",
        scrape.text
    );
    // Counts go on, whatever place a plan has now.
    assert_eq!(
        (
            scrape.decisions()["a allowed store"],
            scrape.decisions()["c allowed store"]
        ),
        (2.0, 1.0)
    );

    live.replace(&[plan("a", 5), plan("b", 5)].concat());
    live.wait_for("success", 2.0);
    assert_eq!(decide(&mut live.client, "k", "b").await.remaining(), 2);
    assert_eq!(live.list().await.config_hash, first);
}

#[tokio::test]
async fn an_edit_in_place_is_taken_up_although_neither_size_nor_time_changed() {
    let mut live = Live::start(&plan("p", 5), &[]).await;
    let modified = std::fs::metadata(live.file()).unwrap().modified().unwrap();
    std::fs::write(live.file(), config(&plan("p", 7))).unwrap();
    std::fs::File::options()
        .write(true)
        .open(live.file())
        .unwrap()
        .set_modified(modified)
        .unwrap();
    live.wait_for("success", 1.0);
    assert_eq!(live.peek("k", "p").await.limit(), 7);
}

#[tokio::test]
async fn sighup_reloads_at_once_also_what_did_not_change() {
    let mut live = Live::start(&plan("p", 5), &[]).await;
    // Only the signal makes the server do so: the file is unchanged.
    live.server.signal("HUP");
    live.wait_for("success", 1.0);
    assert_eq!(live.reloads("success"), 1.0);
    live.replace_at_once(6).await;
    assert_eq!(live.peek("k", "p").await.limit(), 6);
    std::fs::write(live.file(), "").unwrap();
    live.wait_for("failure", 1.0);
    live.server.signal("HUP");
    live.wait_for("failure", 2.0);
    assert_eq!(live.peek("k", "p").await.limit(), 6);
}

#[test]
fn the_example_plans_are_never_reloaded() {
    let mut command = tollgate();
    command
        .args(["--listen", "127.0.0.1:0"])
        .stdout(std::process::Stdio::piped());
    let mut server = Guarded(command.spawn().unwrap());
    let mut lines =
        std::io::BufRead::lines(std::io::BufReader::new(server.0.stdout.take().unwrap()))
            .map_while(Result::ok);
    assert!(lines.any(|line| line.contains("tollgate is serving")));
    crate::support::signal(&server.0, "HUP");
    assert!(lines.any(|line| line.contains("nothing to reload: no config file was named")));
    assert!(server.0.try_wait().unwrap().is_none(), "SIGHUP ended it");
}

#[tokio::test]
async fn flags_stay_on_top() {
    let mut live = Live::start(
        &plan("p", 5),
        &[
            "--set",
            "plans.p.shadow=true",
            "--set",
            "plans.mine.unlimited=true",
        ],
    )
    .await;
    live.replace(&[plan("p", 6), plan("q", 1)].concat());
    live.wait_for("success", 1.0);
    let plans = live.list().await.plans;
    let told: Vec<(&str, bool, bool)> = plans
        .iter()
        .map(|plan| (plan.name.as_str(), plan.shadow, plan.unlimited))
        .collect();
    assert_eq!(
        told,
        [
            ("mine", false, true),
            ("p", true, false),
            ("q", false, false)
        ]
    );
    assert_eq!(live.peek("k", "p").await.limit(), 6);
}

#[tokio::test]
async fn a_setting_that_needs_a_restart_is_said_and_ignored() {
    let mut live = Live::start(&plan("p", 5), &["--set", "store.deadline=5s"]).await;
    decide(&mut live.client, "k", "p").await;
    let others = "workers: 7\nstore: { url: 'redis://:canary-password@127.0.0.1:1', deadline: 50ms }\ndeny_cache: { entries: 9 }\n";
    live.replace(&(plan("p", 6) + others));
    live.wait_for("success", 1.0);
    let said = live.lines_with("a restart takes them up");
    // The deadline is the flag's, before and after.
    assert_eq!(
        field(&said[0], "settings"),
        "store.url, workers, deny_cache.entries"
    );
    let answer = decide(&mut live.client, "k", "p").await;
    assert_eq!(
        (answer.remaining(), answer.decided_by()),
        (4, DecidedBy::Store)
    );
    live.replace(&plan("p", 7));
    live.wait_for("success", 2.0);
    assert_eq!(live.lines_with("a restart takes them up").len(), 1);
    assert!(!live.server.end_and_log().contains("canary-password"));
}

/// A denial holds for a second in the cache; this reload takes less, unless the machine is so busy that it shows nothing.
#[tokio::test]
async fn a_denial_of_an_edited_plan_is_not_remembered_and_one_of_another_plan_is() {
    let redis = Redis::start();
    let flags = ["--store", &redis.url(), "--set", "store.deadline=10s"];
    let mut live = Live::start(&[plan("edited", 1), plan("kept", 1)].concat(), &flags).await;
    for plan in ["edited", "kept"] {
        assert!(decide(&mut live.client, "k", plan).await.allowed);
        assert_eq!(
            decide(&mut live.client, "k", plan).await.decided_by(),
            DecidedBy::Store
        );
    }
    assert_eq!(
        decide(&mut live.client, "k", "edited").await.outcome(),
        Outcome::Denied
    );
    live.replace(&[plan("edited", 2), plan("kept", 1)].concat());
    live.server.signal("HUP");
    live.wait_for("success", 1.0);
    let freed = decide(&mut live.client, "k", "edited").await;
    assert_eq!(
        (freed.outcome(), freed.decided_by(), freed.limit()),
        (Outcome::Allowed, DecidedBy::Store, 2)
    );
    assert_eq!(
        decide(&mut live.client, "k", "kept").await.outcome(),
        Outcome::Denied
    );
}

#[tokio::test]
async fn a_reload_names_what_changed_beside_plans() {
    let live = Live::start(&plan("p", 5), &[]).await;
    let more = "default_plan: p\noverrides:\n  - { plan: p, key: k, quotas: [ { quota: 3 } ] }\n";
    let with_more = plan("p", 5) + more;
    live.replace(&with_more);
    live.wait_for("success", 1.0);
    live.replace(&format!("{with_more}# The same.\n"));
    live.wait_for("success", 2.0);
    // A reload is counted before its line has been read.
    let lines = || live.lines_with("config reloaded");
    until(|| lines().len() >= 2, || live.server.log());
    let lines = lines();
    let also = "\"edited\":0,\"also_changed\":\"default_plan, overrides\"";
    assert!(lines[0].contains(also), "{lines:?}");
    assert!(!lines[1].contains("also_changed"), "{lines:?}");
}
