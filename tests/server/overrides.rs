//! Overrides that are set at runtime: in force on every replica, kept through what happens to Redis, and sound whatever lies there.

mod bad_input;
mod changes;
mod metrics;
mod pauses;
mod subjects;

use std::time::{Duration, Instant};

use tollgate::grpc::pb;
use tollgate::grpc::pb::plan_override::{Effect, Subject};
use tonic::Code;

use crate::support::admin::AdminFixture;
use crate::support::cluster::Cluster;
use crate::support::history::Random;
use crate::support::proxy::Proxy;
use crate::support::redis::Redis;
use crate::support::sentinel::Watched;
use crate::support::server::{PATIENCE, decide};

const CONFIG: &str = "
plans:
  free: { limits: [ { name: minute, quota: 100, window: 1m } ], counts_as: customer }
  starter: { limits: [ { name: minute, quota: 3000, window: 1m } ], counts_as: customer }
overrides:
  - { plan: free, key: of-file, quotas: [ { quota: 7 } ] }
";
/// Fills the hash.
const FILL: &str = "for index = 1, 10000 do
    redis.call('hset', KEYS[1], 'kfree:customer-' .. index, '9 1 0 {\"use_plan\":\"starter\",\"reason\":\"order ' .. index .. '\"}')
end
redis.call('hset', KEYS[1], '', '9 1')";
/// The hash in Redis.
const NAME: &str = "{:overrides}";
/// Random changes, unless `TOLLGATE_OVERRIDE_CHANGES` says otherwise.
const CHANGES: usize = 30;

fn entry(key: &str, quota: u64) -> pb::PlanOverride {
    let limit = pb::LimitQuota {
        quota: Some(quota),
        ..pb::LimitQuota::default()
    };
    pb::PlanOverride {
        plan: "free".to_owned(),
        subject: Some(Subject::Key(key.to_owned())),
        effect: Some(Effect::Quotas(pb::LimitQuotas {
            limits: vec![limit],
        })),
        ..pb::PlanOverride::default()
    }
}

async fn set(replica: &mut AdminFixture, entry: pb::PlanOverride) -> Result<u64, tonic::Status> {
    let request = pb::SetOverrideRequest {
        entry: Some(entry),
        ..pb::SetOverrideRequest::default()
    };
    let set = replica.admin.set_override(request).await?.into_inner();
    Ok(set.entry.unwrap().version)
}

async fn delete(replica: &mut AdminFixture, key: &str) -> pb::DeleteOverrideResponse {
    let request = pb::DeleteOverrideRequest {
        plan: "free".to_owned(),
        subject: Some(pb::delete_override_request::Subject::Key(key.to_owned())),
        if_version: None,
    };
    replica
        .admin
        .delete_override(request)
        .await
        .unwrap()
        .into_inner()
}

async fn list(replica: &mut AdminFixture) -> pb::ListOverridesResponse {
    let request = pb::ListOverridesRequest {
        page_size: 1_000,
        ..pb::ListOverridesRequest::default()
    };
    replica
        .admin
        .list_overrides(request)
        .await
        .unwrap()
        .into_inner()
}

/// The quota that decides for this key, once the store decides: a policy gives a share of it.
async fn quota_of(replica: &mut AdminFixture, key: &str) -> u64 {
    let request = pb::PeekRequest {
        key: key.to_owned(),
        plan: "free".to_owned(),
        ..pb::PeekRequest::default()
    };
    let began = Instant::now();
    loop {
        let peek = replica.client.peek(request.clone()).await.unwrap();
        let answer = peek.into_inner().answer.unwrap();
        if answer.decided_by() == pb::DecidedBy::Store {
            assert_eq!(answer.overridden, answer.limit != Some(100), "{answer:?}");
            return answer.limit.unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "{answer:?}");
    }
}

/// Waits until this is the quota of the key. Returns how long it took.
async fn until_quota(replica: &mut AdminFixture, key: &str, quota: u64) -> Duration {
    let began = Instant::now();
    while quota_of(replica, key).await != quota {
        assert!(began.elapsed() < PATIENCE, "{key} never had {quota}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

async fn replica_on(config: &str, url: &str) -> AdminFixture {
    AdminFixture::start(config, &["--store", url]).await
}

async fn replicas(url: &str) -> [AdminFixture; 3] {
    [
        replica_on(CONFIG, url).await,
        replica_on(CONFIG, url).await,
        replica_on(CONFIG, url).await,
    ]
}

#[tokio::test]
async fn a_change_by_any_replica_is_in_force_on_all_of_them() {
    let redis = Redis::start();
    let mut replicas = replicas(&redis.url()).await;
    let changes = std::env::var("TOLLGATE_OVERRIDE_CHANGES");
    let changes = changes.map_or(CHANGES, |text| text.parse().unwrap());
    let mut random = Random(12);
    let mut slowest = Duration::ZERO;
    for change in 0..changes {
        let by = usize::try_from(random.below(3)).unwrap();
        let key = format!("k{}", random.below(8));
        let quota = match random.below(4) {
            0 => {
                delete(&mut replicas[by], &key).await;
                100
            }
            _ => {
                let quota = 200 + u64::try_from(change).unwrap();
                set(&mut replicas[by], entry(&key, quota)).await.unwrap();
                quota
            }
        };
        // Where it was made, at once.
        assert_eq!(quota_of(&mut replicas[by], &key).await, quota);
        for replica in &mut replicas {
            slowest = slowest.max(until_quota(replica, &key, quota).await);
        }
    }
    println!("{changes} changes, the slowest in force everywhere after {slowest:?}");
    let lists = [
        list(&mut replicas[0]).await,
        list(&mut replicas[1]).await,
        list(&mut replicas[2]).await,
    ];
    assert!(
        lists
            .iter()
            .all(|list| (list.version, &list.entries) == (lists[0].version, &lists[0].entries))
    );
    // A replica that starts knows them before it answers.
    let set_now = entry("early", 55);
    set(&mut replicas[0], set_now).await.unwrap();
    let mut late = AdminFixture::start(CONFIG, &["--store", &redis.url()]).await;
    let first = decide(&mut late.client, "early", "free").await;
    assert_eq!((first.limit, first.overridden), (Some(55), true));
    assert_eq!(redis.cli(&["ttl", NAME]), "-1");
}

/// The connection of operators has no decision that would find out. It was not pinged either, since it was read on all the time.
#[tokio::test]
async fn a_connection_that_only_reads_overrides_is_replaced_when_a_device_forgets_it() {
    let redis = Redis::start();
    let proxy = Proxy::before(redis.port);
    let mut far = replica_on(CONFIG, &proxy.url()).await;
    let mut near = replica_on(CONFIG, &redis.url()).await;
    set(&mut near, entry("k", 50)).await.unwrap();
    until_quota(&mut far, "k", 50).await;
    proxy.swallow();
    proxy.let_through();
    set(&mut near, entry("k", 60)).await.unwrap();
    let late = until_quota(&mut far, "k", 60).await;
    println!("in force {late:?} after every connection was forgotten");
    set(&mut far, entry("k", 70)).await.unwrap();
    until_quota(&mut near, "k", 70).await;
}

#[tokio::test]
async fn callers_at_once_lose_no_change_and_share_no_version() {
    let redis = Redis::start();
    let replicas = replicas(&redis.url()).await;
    let calls = (0..12).map(|call: usize| {
        let mut admin = replicas[call % 3].admin.clone();
        tokio::spawn(async move {
            let request = pb::SetOverrideRequest {
                entry: Some(entry(&format!("k{call}"), 200)),
                if_version: Some(0),
                ..pb::SetOverrideRequest::default()
            };
            let set = admin.set_override(request).await.unwrap().into_inner();
            set.entry.unwrap().version
        })
    });
    let mut versions = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        versions.push(call.await.unwrap());
    }
    versions.sort_unstable();
    assert_eq!(versions, (1..=12).collect::<Vec<_>>());
    // With the version, and the last changes.
    assert_eq!(redis.cli(&["hlen", NAME]), "14");
    // Of those that want the same key, when there is none yet, one gets it.
    let calls = (0..12).map(|call: usize| {
        let mut admin = replicas[call % 3].admin.clone();
        tokio::spawn(async move {
            let request = pb::SetOverrideRequest {
                entry: Some(entry("one", 200)),
                if_version: Some(0),
                ..pb::SetOverrideRequest::default()
            };
            let set = admin.set_override(request).await;
            set.map(drop).map_err(|refused| refused.code())
        })
    });
    let mut told = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        told.push(call.await.unwrap());
    }
    let refused = told.iter().filter(|told| **told == Err(Code::Aborted));
    assert_eq!(refused.count(), 11, "{told:?}");
}

#[tokio::test]
async fn fault_87_the_last_set_outlives_redis_and_all_replicas_agree_again() {
    let mut redis = Redis::start();
    let mut replicas = replicas(&redis.url()).await;
    set(&mut replicas[0], entry("k", 300)).await.unwrap();
    let version = set(&mut replicas[1], entry("other", 400)).await.unwrap();
    for replica in &mut replicas {
        until_quota(replica, "other", 400).await;
    }
    redis.kill();
    for replica in &mut replicas {
        // A third of it, by the policy.
        let local = decide(&mut replica.client, "k", "free").await;
        assert_eq!((local.limit, local.overridden), (Some(100), true));
    }
    let refused = set(&mut replicas[2], entry("k", 500)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let seconds = std::env::var("TOLLGATE_OUTAGE_SECONDS");
    let away = seconds.map_or(0, |text| text.parse().unwrap());
    tokio::time::sleep(Duration::from_secs(away)).await;
    for replica in &mut replicas {
        let local = decide(&mut replica.client, "k", "free").await;
        assert_eq!((local.limit, local.overridden), (Some(100), true));
    }
    // It comes back empty, and gets what the replicas hold.
    redis.restart();
    for replica in &mut replicas {
        replica
            .server
            .wait_until_decided_by(pb::DecidedBy::Store, "free")
            .await;
    }
    let began = Instant::now();
    while redis.cli(&["hlen", NAME]) != "3" {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for replica in &mut replicas {
        assert_eq!(quota_of(replica, "k").await, 300);
        assert!(list(replica).await.version >= version);
    }
    let next = set(&mut replicas[2], entry("k", 500)).await.unwrap();
    assert_eq!(next, version + 1);
    for replica in &mut replicas {
        until_quota(replica, "k", 500).await;
    }
    // Deleting the hash deletes none of them.
    redis.cli(&["del", NAME]);
    let next = set(&mut replicas[0], entry("third", 600)).await.unwrap();
    assert_eq!(next, version + 2);
    for replica in &mut replicas {
        until_quota(replica, "third", 600).await;
        assert_eq!(quota_of(replica, "other").await, 400);
    }
    assert_eq!(redis.cli(&["hlen", NAME]), "5");
}

#[tokio::test]
async fn after_a_failover_the_last_set_holds_and_all_replicas_agree() {
    let mut watched = Watched::start();
    let mut replicas = replicas(&watched.url()).await;
    let version = set(&mut replicas[0], entry("k", 300)).await.unwrap();
    for replica in &mut replicas {
        until_quota(replica, "k", 300).await;
    }
    watched.servers[0].kill();
    for replica in &mut replicas {
        let local = decide(&mut replica.client, "k", "free").await;
        assert!(local.overridden, "{local:?}");
    }
    for replica in &mut replicas {
        replica
            .server
            .wait_until_decided_by(pb::DecidedBy::Store, "free")
            .await;
        assert_eq!(quota_of(replica, "k").await, 300);
    }
    assert_ne!(watched.sentinels[0].master(), watched.servers[0].port);
    let mut next = None;
    let began = Instant::now();
    while next.is_none() {
        assert!(began.elapsed() < PATIENCE);
        next = set(&mut replicas[2], entry("k", 500)).await.ok();
    }
    assert_eq!(next, Some(version + 1));
    for replica in &mut replicas {
        until_quota(replica, "k", 500).await;
    }
}

#[tokio::test]
async fn what_lies_in_the_hash_and_is_none_of_ours_changes_nothing() {
    let redis = Redis::start();
    let mut replicas = replicas(&redis.url()).await;
    // A version that is none is replaced by the first change.
    redis.cli(&["hset", NAME, "", "garbage"]);
    set(&mut replicas[0], entry("k", 300)).await.unwrap();
    let version = redis.cli(&["hget", NAME, ""]);
    // Of a later release, and garbage; the version tells that there is news.
    let (number, mark) = version.split_once(' ').unwrap();
    let next = format!("{} {mark}", number.parse::<u64>().unwrap() + 1);
    redis.cli(&[
        "hset",
        NAME,
        "kfree:later",
        "2 1 0 {\"use_plan\":\"starter\",\"when\":\"always\"}",
        "garbage",
        "garbage",
        "kfree:gone",
        "2 1 0 {\"use_plan\":\"gone\"}",
        "kfree:good",
        "2 1 0 {\"use_plan\":\"starter\"}",
        "",
        &next,
    ]);
    for replica in &mut replicas {
        until_quota(replica, "good", 3_000).await;
        assert_eq!(quota_of(replica, "k").await, 300);
        for key in ["later", "gone"] {
            assert_eq!(quota_of(replica, key).await, 100);
        }
    }
    let listed = list(&mut replicas[1]).await.entries;
    let problems = listed.iter().filter(|entry| !entry.problem.is_empty());
    let problems: Vec<&str> = problems.map(|entry| entry.problem.as_str()).collect();
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("unknown field `when`"))
    );
    // It stays as it is when others change.
    set(&mut replicas[2], entry("k", 301)).await.unwrap();
    assert_eq!(redis.cli(&["hget", NAME, "garbage"]), "garbage");
    // It can be replaced, and deleted.
    set(&mut replicas[2], entry("later", 302)).await.unwrap();
    assert!(delete(&mut replicas[2], "gone").await.existed);
    for replica in &mut replicas {
        until_quota(replica, "later", 302).await;
    }
    // Of another type: the last set holds, nothing is overwritten, and a change says so.
    redis.cli(&["del", NAME]);
    redis.cli(&["set", NAME, "mine"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = set(&mut replicas[0], entry("k", 303)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("WRONGTYPE"), "{refused}");
    for replica in &mut replicas {
        assert_eq!(quota_of(replica, "k").await, 301);
    }
    assert_eq!(redis.cli(&["get", NAME]), "mine");
    replicas[1].server.wait_for_line("or rename it").await;
    redis.cli(&["del", NAME]);
    set(&mut replicas[0], entry("k", 303)).await.unwrap();
    for replica in &mut replicas {
        until_quota(replica, "k", 303).await;
    }
}

#[tokio::test]
async fn ten_thousand_are_read_and_no_more_are_set() {
    let redis = Redis::start();
    redis.cli(&["eval", FILL, "1", NAME]);
    let mut replica = AdminFixture::start(CONFIG, &["--store", &redis.url()]).await;
    until_quota(&mut replica, "customer-10000", 3_000).await;
    assert_eq!(quota_of(&mut replica, "customer-10001").await, 100);
    let full = set(&mut replica, entry("customer-10001", 200))
        .await
        .unwrap_err();
    assert_eq!(full.code(), Code::FailedPrecondition, "{full}");
    assert_eq!(
        set(&mut replica, entry("customer-1", 200)).await.unwrap(),
        10
    );
    assert!(delete(&mut replica, "customer-2").await.existed);
    set(&mut replica, entry("customer-10001", 200))
        .await
        .unwrap();
    assert_eq!(redis.cli(&["hlen", NAME]), "10002");
    redis.cli(&["del", NAME]);
    let began = Instant::now();
    while redis.cli(&["hlen", NAME]) != "10001" {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(redis.cli(&["keys", "*copy*"]), "");
}

/// Parts of all that is set that were read.
fn pages(redis: &Redis) -> u64 {
    let stats = redis.cli(&["info", "commandstats"]);
    let calls = stats.split_once("cmdstat_hscan:calls=").unwrap().1;
    calls.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_cluster_keeps_them_too() {
    let cluster = Cluster::start();
    let mut replicas = replicas(&cluster.url()).await;
    set(&mut replicas[0], entry("k", 300)).await.unwrap();
    for replica in &mut replicas {
        until_quota(replica, "k", 300).await;
    }
    assert!(delete(&mut replicas[1], "k").await.existed);
    for replica in &mut replicas {
        until_quota(replica, "k", 100).await;
    }
}
