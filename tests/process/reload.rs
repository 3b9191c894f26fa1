//! Reload: a config file that changes under a running server, in every way that files change, and one that is wrong.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio_stream::StreamExt;
use tollgate::grpc::pb::{self, DecidedBy, Outcome};
use tonic::Code;

use crate::support::Guarded;
use crate::support::http::{Scrape, get};
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, decide, field, request, tollgate};

/// Of every algorithm that counts in whole windows, so long that none ends while a test runs, and of the bucket.
const ALGORITHMS: [(&str, &str); 5] = [
    ("log", "algorithm: sliding_log"),
    ("window", "algorithm: sliding_window"),
    ("fixed", "algorithm: fixed_window, anchor: first_request"),
    ("counter", "algorithm: sliding_counter"),
    ("bucket", "algorithm: token_bucket"),
];

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
        let (client, http) = (server.client().await, server.http());
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
    fn said(&self, words: &str) -> Vec<String> {
        let said = || {
            self.server
                .log()
                .lines()
                .filter(|line| line.contains(words))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        until(
            || !said().is_empty(),
            || format!("never {words:?}: {}", self.server.log()),
        );
        said()
    }

    async fn peek(&mut self, key: &str, plan: &str) -> pb::ShouldAllowResponse {
        let peek = pb::PeekRequest {
            key: key.to_owned(),
            plan: plan.to_owned(),
            cost: None,
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

fn every_algorithm(quota: u64) -> String {
    let plan = |(name, algorithm)| {
        format!("  {name}: {{ limits: [ {{ quota: {quota}, window: 300d, {algorithm} }} ] }}\n")
    };
    ALGORITHMS.map(plan).concat()
}

fn until(is: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < PATIENCE, "{}", otherwise());
        std::thread::sleep(Duration::from_millis(10));
    }
}

async fn an_edited_quota_counts_at_once_and_usage_stays(flags: &[&str]) {
    let mut live = Live::start(&every_algorithm(6), flags).await;
    for (plan, _) in ALGORITHMS {
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
        for (plan, _) in ALGORITHMS {
            let answer = live.peek("k", plan).await;
            let told = (answer.limit(), answer.remaining(), answer.allowed);
            assert_eq!(told, (quota, remaining, remaining > 0), "{plan} at {quota}");
        }
    }
    for (plan, _) in ALGORITHMS {
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
    an_edited_quota_counts_at_once_and_usage_stays(&[]).await;
}

#[tokio::test]
async fn an_edited_quota_counts_at_once_and_usage_stays_on_redis() {
    let redis = Redis::start();
    an_edited_quota_counts_at_once_and_usage_stays(&[
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
    let line = &live.said("config reloaded")[0];
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

/// What the kubelet does to a ConfigMap's volume: the file is a link through `..data`, and that one is replaced.
fn publish(folder: &std::path::Path, version: u64, plans: &str) {
    let (name, at) = (format!("..version {version}"), |name: &str| {
        folder.join(name)
    });
    std::fs::create_dir(at(&name)).unwrap();
    std::fs::write(at(&name).join("config.yaml"), config(plans)).unwrap();
    std::os::unix::fs::symlink(name, at("..data_tmp")).unwrap();
    std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
    if let Some(last) = version.checked_sub(1) {
        // The first has none before it.
        let _ = std::fs::remove_dir_all(at(&format!("..version {last}")));
    }
}

/// A hundred swaps under load, at a pace that meets the server's polls at every point: each poll sees one version, whole, and
/// the last is taken up soon.
#[tokio::test]
async fn fault_21_the_swap_of_a_config_map_is_taken_up_and_none_is_half_read() {
    const SWAPS: u64 = 100;
    const QUOTA: u64 = 50_000;
    let folder = tempfile::tempdir().unwrap();
    // So large that it is not read by one call, each version with quotas of its own.
    let plans = |version: u64| {
        (0..500)
            .map(|name| plan(&format!("p{name}"), QUOTA + version))
            .collect::<String>()
    };
    publish(folder.path(), 1, &plans(1));
    std::os::unix::fs::symlink("..data/config.yaml", folder.path().join("config.yaml")).unwrap();
    let mut live = Live::start_in(folder, &[]).await;
    let (mut used, mut slowest) = (0, Duration::ZERO);
    for version in 2..=SWAPS {
        publish(live.folder.path(), version, &plans(version));
        let swapped = Instant::now();
        loop {
            assert!(decide(&mut live.client, "k", "p0").await.allowed);
            used += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
            let listed = live.list().await;
            let quotas: Vec<u64> = listed
                .plans
                .iter()
                .map(|plan| plan.limits[0].quota)
                .collect();
            assert!(
                quotas.len() == 500 && quotas.iter().all(|quota| *quota == quotas[0]),
                "{quotas:?}"
            );
            // Most are swapped again before anybody has looked, or while somebody does.
            if version % 10 != 0 || quotas[0] == QUOTA + version {
                break;
            }
            assert!(
                swapped.elapsed() < PATIENCE,
                "never version {version}: {}",
                live.server.log()
            );
        }
        slowest = slowest.max(swapped.elapsed());
    }
    println!(
        "{} of {SWAPS} versions taken up, the slowest {slowest:?} after its swap",
        live.reloads("success") + 1.0
    );
    assert_eq!(
        decide(&mut live.client, "k", "p0").await.remaining(),
        QUOTA + SWAPS - used - 1
    );
    assert_eq!(live.reloads("failure"), 0.0);
}

/// Contents of files that are no config, each with a part of what is said of it.
fn bad_files() -> [(String, &'static str); 5] {
    [
        ("plans: [".to_owned(), "is not valid YAML: "),
        (String::new(), "is empty; a config names at least one plan"),
        (
            config("  p: { limits: [ { quota: 0, window: 1m } ] }\n  q: {}\n"),
            "plans.p.limits[0].quota is 0; a quota is at least 1",
        ),
        (
            format!("#{}\n", "x".repeat(17 << 20)),
            "has more than 16777216 bytes",
        ),
        (
            config(&plan("p", 6)) + "workers: many\n",
            "workers is \\\"many\\\"; it must be a whole number",
        ),
    ]
}

#[tokio::test]
async fn fault_20_a_bad_file_keeps_the_old_plans_and_is_reported_once() {
    let mut live = Live::start(&plan("p", 5), &[]).await;
    decide(&mut live.client, "k", "p").await;
    let listed = live.list().await;
    let bad = bad_files();
    for (index, (content, sentence)) in bad.iter().enumerate() {
        let new = live.folder.path().join("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, live.file()).unwrap();
        live.wait_for("failure", index as f64 + 1.0);
        assert_eq!(
            (live.reloads("failure"), live.reloads("success")),
            (index as f64 + 1.0, 0.0)
        );
        let line = live.said(sentence).concat();
        assert!(
            line.contains("config not reloaded") && line.contains("\"level\":\"ERROR\""),
            "{line}"
        );
        assert_eq!(
            decide(&mut live.client, &format!("k {index}"), "p")
                .await
                .remaining(),
            4
        );
    }
    assert_eq!(live.list().await, listed);
    assert_eq!(
        (
            get(&live.http, "/healthz").status,
            get(&live.http, "/readyz").status
        ),
        (200, 200)
    );
    assert_eq!(
        Scrape::of(&live.http).value("tollgate_config_last_reload_successful"),
        0.0
    );
    // Some polls later. A slow machine only makes this say less.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(
        live.said("config not reloaded").len(),
        bad.len(),
        "{}",
        live.server.log()
    );
    // All errors of a file at once, those that `check` tells.
    let both = live.said("plans.p.limits[0].quota").concat();
    assert!(
        both.contains("plans.q has no rule; write one of limits"),
        "{both}"
    );

    live.replace(&plan("p", 6));
    live.wait_for("success", 1.0);
    assert_eq!(decide(&mut live.client, "k", "p").await.remaining(), 4);
    assert_eq!(
        Scrape::of(&live.http).value("tollgate_config_last_reload_successful"),
        1.0
    );
}

#[tokio::test]
async fn a_file_that_is_gone_for_a_while_changes_nothing() {
    let mut live = Live::start(&plan("p", 5), &[]).await;
    decide(&mut live.client, "k", "p").await;
    std::fs::remove_file(live.file()).unwrap();
    live.wait_for("failure", 1.0);
    assert!(live.said("config not reloaded")[0].contains("cannot be read: No such file"));
    assert_eq!(decide(&mut live.client, "k", "p").await.remaining(), 3);
    live.replace(&plan("p", 5));
    live.wait_for("success", 1.0);
    assert!(live.said("config reloaded")[0].contains("\"added\":0,\"removed\":0,\"edited\":0"));
    assert_eq!(decide(&mut live.client, "k", "p").await.remaining(), 2);
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
    let said = live.said("a restart takes them up");
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
    assert_eq!(live.said("a restart takes them up").len(), 1);
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
async fn a_stream_takes_up_the_new_plans_with_its_next_message() {
    let mut live = Live::start(&plan("p", 5), &[]).await;
    let (asking, asked) = tokio::sync::mpsc::channel(1);
    let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
    let mut answers = live
        .client
        .should_allow_stream(asked)
        .await
        .unwrap()
        .into_inner();
    for (id, quota, remaining) in [(0, 5, 4), (1, 3, 1), (2, 9, 6)] {
        if id > 0 {
            live.replace_at_once(quota).await;
        }
        asking
            .send(pb::ShouldAllowStreamRequest {
                id,
                request: Some(request("k", "p", None)),
            })
            .await
            .unwrap();
        let answer = answers.next().await.unwrap().unwrap();
        let Some(pb::should_allow_result::Result::Response(response)) =
            answer.result.unwrap().result
        else {
            panic!("no answer")
        };
        assert_eq!(
            (answer.id, response.limit(), response.remaining()),
            (id, quota, remaining)
        );
    }
}

/// Batches on every worker while the file changes: no call fails, and none is decided by two editions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_worker_takes_it_up_and_no_batch_is_of_two_minds() {
    const RELOADS: u64 = 10;
    let mut live = Live::start(&plan("p", 1_000), &["--set", "workers=3"]).await;
    let mut callers = Vec::new();
    for _ in 0..3 {
        let mut client = live.server.client().await;
        callers.push(tokio::spawn(async move {
            let (mut last, mut seen) = (1_000, 1);
            while last < 1_000 + RELOADS {
                let requests = (0..200)
                    .map(|key| request(&key.to_string(), "p", None))
                    .collect();
                let batch = client
                    .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
                    .await
                    .unwrap()
                    .into_inner();
                let limits: Vec<u64> = batch.results.into_iter().map(limit_of).collect();
                assert!(limits.iter().all(|limit| *limit == limits[0]), "{limits:?}");
                assert!(limits[0] >= last, "{} after {last}", limits[0]);
                seen += u64::from(limits[0] > last);
                last = limits[0];
            }
            seen
        }));
    }
    for reload in 1..=RELOADS {
        live.replace_at_once(1_000 + reload).await;
    }
    for caller in callers {
        println!("saw {} of {} editions", caller.await.unwrap(), RELOADS + 1);
    }
}

fn limit_of(result: pb::ShouldAllowResult) -> u64 {
    match result.result.unwrap() {
        pb::should_allow_result::Result::Response(response) => response.limit(),
        pb::should_allow_result::Result::Error(error) => panic!("{error:?}"),
    }
}
