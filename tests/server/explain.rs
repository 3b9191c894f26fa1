//! `AdminService.Explain`, black box: what it tells of keys in both stores, and that it leaves no trace.

use std::time::Duration;

use tollgate::grpc::pb::{self, DecidedBy, Outcome};
use tonic::Code;

use crate::support::admin::AdminFixture;
use crate::support::redis::Redis;
use crate::support::server::{PATIENCE, decide, field, request};

const PLANS: &str = "
plans:
  all: { limits: [ { name: fixed, quota: 8, window: 1d, algorithm: fixed_window, anchor: first_request },
                   { name: log, quota: 10, window: 1d, algorithm: sliding_log },
                   { name: window, quota: 12, window: 1d },
                   { name: counter, quota: 1000, window: 1d, algorithm: sliding_counter },
                   { name: bucket, quota: 100, window: 100d, algorithm: token_bucket, burst: 20 } ] }
  tried: { limits: [ { name: day, quota: 5, window: 1d } ], candidate: strict }
  strict: { limits: [ { name: log, quota: 3, window: 1d, algorithm: sliding_log },
                      { name: bucket, quota: 9, window: 1d, algorithm: token_bucket } ] }
  one: { limits: [ { name: day, quota: 2, window: 1d } ] }
  open: { limits: [ { name: day, quota: 2, window: 1d } ], on_store_failure: allow }
";

impl AdminFixture {
    async fn explain(&mut self, plan: &str) -> pb::ExplainResponse {
        let request = pb::ExplainRequest {
            key: "k".to_owned(),
            plan: plan.to_owned(),
            ..Default::default()
        };
        self.admin.explain(request).await.unwrap().into_inner()
    }

    async fn take(&mut self, plan: &str, cost: u64) -> Outcome {
        self.client
            .should_allow(request("k", plan, Some(cost)))
            .await
            .unwrap()
            .into_inner()
            .outcome()
    }
}

fn seconds(release: &pb::Release) -> f64 {
    let after = release.after.unwrap();
    after.seconds as f64 + f64::from(after.nanos) / 1e9
}

/// Asserts that the last release of each limit of `all` leaves the whole quota, and how many releases are told at most.
fn assert_releases_end_at_the_quota(limits: &[pb::LimitExplanation]) {
    for (limit, (most, points)) in
        limits
            .iter()
            .zip([(8, 1), (10, 1), (12, 1), (1_000, 5), (20, 5)])
    {
        let name = &limit.limit.as_ref().unwrap().name;
        let units: Vec<u64> = limit.releases.iter().map(|release| release.units).collect();
        assert!(
            units.last() == Some(&most) && units.len() <= points,
            "{name}: {units:?}"
        );
        let first = seconds(&limit.releases[0]);
        let last = seconds(limit.releases.last().unwrap());
        assert!(0.0 < first && first <= last, "{name}: {first} {last}");
    }
}

async fn assert_every_limit_is_told(flags: &[&str]) -> Vec<String> {
    let mut fixture = AdminFixture::start(PLANS, flags).await;
    let fresh = fixture.explain("all").await;
    assert!(
        fresh
            .limits
            .iter()
            .all(|limit| limit.used == 0 && limit.releases.is_empty()),
        "{fresh:?}"
    );
    assert_eq!(fresh.next.as_ref().unwrap().outcome(), Outcome::Allowed);
    assert_eq!(fixture.take("all", 6).await, Outcome::Allowed);
    let told = fixture.explain("all").await;
    assert_eq!(told, fixture.explain("all").await.with_times_of(&told));
    let rows: Vec<_> = told
        .limits
        .iter()
        .map(|limit| (limit.status.as_ref().unwrap().remaining, limit.used))
        .collect();
    assert_eq!(rows, [(2, 6), (4, 6), (6, 6), (994, 6), (14, 6)]);
    assert_releases_end_at_the_quota(&told.limits);
    // Five tokens come back in as many days.
    assert!(
        (seconds(&told.limits[4].releases[0]) - 86_400.0).abs() < 600.0,
        "{:?}",
        told.limits[4]
    );
    assert_eq!(fixture.take("all", 2).await, Outcome::Allowed);
    let denied = fixture.explain("all").await;
    let next = denied.next.unwrap();
    assert_eq!(
        (next.outcome(), next.decided_by(), next.limit_name.as_str()),
        (Outcome::Denied, DecidedBy::Store, "fixed")
    );
    assert!(
        denied.sentence.starts_with(
            "The next request of cost 1 is denied by limit fixed: 8 of 8 units are used"
        )
    );
    for (key, plan, code) in [
        ("", "all", Code::InvalidArgument),
        ("k", "al", Code::NotFound),
    ] {
        let status = fixture
            .admin
            .explain(pb::ExplainRequest {
                key: key.to_owned(),
                plan: plan.to_owned(),
                ..Default::default()
            })
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
    }
    denied.redis_names
}

trait WithTimesOf {
    fn with_times_of(self, other: &Self) -> Self;
}

/// Time goes on between two calls: all but the times are compared.
impl WithTimesOf for pb::ExplainResponse {
    fn with_times_of(mut self, other: &Self) -> Self {
        self.next = other.next.clone();
        for (own, other) in self.limits.iter_mut().zip(&other.limits) {
            let remaining = own.status.as_ref().unwrap().remaining;
            own.status = other.status.clone();
            own.status.as_mut().unwrap().remaining = remaining;
            let units = |limit: &pb::LimitExplanation| {
                limit
                    .releases
                    .iter()
                    .map(|release| release.units)
                    .collect::<Vec<_>>()
            };
            assert_eq!(units(own).last(), units(other).last());
            own.releases = other.releases.clone();
        }
        self.sentence = other.sentence.clone();
        self
    }
}

#[tokio::test]
async fn every_limit_is_told_and_nothing_is_charged_in_memory() {
    assert!(assert_every_limit_is_told(&[]).await.is_empty());
}

#[tokio::test]
async fn every_limit_is_told_and_nothing_is_charged_in_redis() {
    let redis = Redis::start();
    let flags = [
        "--store",
        &redis.url(),
        "--set",
        "store.deadline=10s",
        "--set",
        "store.key_prefix=shop:",
    ];
    let names = assert_every_limit_is_told(&flags).await;
    assert_eq!(names, ["shop:{all:k}", "shop:{all:k}log:86400000000"]);
    for name in names {
        assert_eq!(redis.cli(&["EXISTS", &name]).trim(), "1", "{name}");
    }
    // Of a key that was only explained, Redis has nothing.
    let mut fixture = AdminFixture::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.deadline=10s"],
    )
    .await;
    fixture.explain("one").await;
    assert!(
        !redis.cli(&["KEYS", "*"]).contains("one:k"),
        "{}",
        redis.cli(&["KEYS", "*"])
    );
}

/// Returns the names that hold the candidate's state.
async fn assert_candidate_is_told(flags: &[&str]) -> Vec<String> {
    let mut fixture = AdminFixture::start(PLANS, flags).await;
    let listed = fixture
        .client
        .list_plans(pb::ListPlansRequest {})
        .await
        .unwrap()
        .into_inner()
        .plans;
    let candidates: Vec<_> = listed
        .iter()
        .map(|plan| (plan.name.as_str(), plan.candidate.as_str()))
        .collect();
    assert_eq!(
        candidates,
        [
            ("all", ""),
            ("one", ""),
            ("open", ""),
            ("strict", ""),
            ("tried", "strict")
        ]
    );
    assert_eq!(fixture.explain("strict").await.candidate, None);
    // Callers of the plan itself are counted apart.
    assert_eq!(fixture.take("strict", 1).await, Outcome::Allowed);
    for (used, of_live, allowed) in [
        (0, Outcome::Allowed, true),
        (3, Outcome::Allowed, false),
        (3, Outcome::Denied, false),
    ] {
        let told = fixture.explain("tried").await;
        let candidate = told.candidate.clone().unwrap();
        assert_eq!(told.next.unwrap().outcome(), of_live);
        assert_eq!(
            (candidate.plan.as_str(), candidate.allowed),
            ("strict", allowed)
        );
        let rows: Vec<_> = candidate
            .limits
            .iter()
            .map(|limit| (limit.status.as_ref().unwrap().remaining, limit.used))
            .collect();
        assert_eq!(rows, [(3 - used, used), (9 - used, used)]);
        assert_eq!(
            candidate.limits[0].releases.len(),
            usize::from(used > 0),
            "{candidate:?}"
        );
        let cost = if used == 0 { 3 } else { 2 };
        fixture.take("tried", cost).await;
    }
    fixture
        .explain("tried")
        .await
        .candidate
        .unwrap()
        .redis_names
}

#[tokio::test]
async fn a_candidate_is_told_beside_its_live_plan_in_memory() {
    assert!(assert_candidate_is_told(&[]).await.is_empty());
}

#[tokio::test]
async fn a_candidate_is_told_beside_its_live_plan_in_redis() {
    let redis = Redis::start();
    let names =
        assert_candidate_is_told(&["--store", &redis.url(), "--set", "store.deadline=10s"]).await;
    assert_eq!(
        names,
        [
            "{tried:k}candidate:strict:",
            "{tried:k}candidate:strict:log:86400000000"
        ]
    );
    for name in names {
        assert_eq!(redis.cli(&["EXISTS", &name]).trim(), "1", "{name}");
    }
}

/// Asks until a worker remembers a denial, and asserts that this is told.
async fn wait_for_a_remembered_denial(fixture: &mut AdminFixture) {
    let started = std::time::Instant::now();
    loop {
        // A remembered denial holds for a second, which a busy machine may miss.
        fixture.take("one", 1).await;
        let told = fixture.explain("one").await;
        if told.workers_denying == 1 {
            assert!(
                told.sentence
                    .contains("; 1 worker of this replica remembers a denial"),
                "{}",
                told.sentence
            );
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{told:?}");
    }
}

#[tokio::test]
async fn remembered_denials_and_a_store_that_is_away_are_told() {
    let mut redis = Redis::start();
    let mut fixture = AdminFixture::start(
        PLANS,
        &[
            "--store",
            &redis.url(),
            "--set",
            "store.deadline=1s",
            "--set",
            "workers=1",
        ],
    )
    .await;
    assert_eq!(fixture.take("one", 2).await, Outcome::Allowed);
    wait_for_a_remembered_denial(&mut fixture).await;
    let told = fixture.explain("one").await;
    assert!(
        told.redis_connections >= 1 && told.redis_connections_open <= told.redis_connections,
        "{told:?}"
    );
    redis.kill();
    let started = std::time::Instant::now();
    loop {
        decide(&mut fixture.client, "other", "one").await;
        let told = fixture.explain("open").await;
        if told.redis_connections_open == told.redis_connections {
            let next = told.next.unwrap();
            assert_eq!(
                (next.outcome(), next.decided_by()),
                (Outcome::Allowed, DecidedBy::FailOpen)
            );
            assert!(told.sentence.ends_with(
                "so the next request is allowed, because the plan says on_store_failure: allow."
            ));
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{told:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let local = fixture.explain("one").await;
    assert_eq!(local.next.unwrap().decided_by(), DecidedBy::LocalFallback);
    assert!(
        local
            .sentence
            .contains("this replica counts in its own memory"),
        "{}",
        local.sentence
    );
    drop(fixture.server);
}

/// What the store says against a key is logged with the plan and with the hash that `Explain` shows, so that the key can be found.
#[tokio::test]
async fn a_key_that_cannot_be_read_is_logged_by_its_hash() {
    let redis = Redis::start();
    let mut fixture = AdminFixture::start(PLANS, &["--store", &redis.url()]).await;
    let names = fixture.explain("one").await.redis_names;
    redis.cli(&["set", &names[0], "garbage", "ex", "600"]);
    fixture.take("one", 1).await;
    let line = fixture
        .server
        .wait_for_line("the store could not decide")
        .await;
    let told = fixture.explain("one").await;
    assert_eq!(
        (field(&line, "plan"), field(&line, "key_hash")),
        ("one".to_owned(), told.key_hash)
    );
}
