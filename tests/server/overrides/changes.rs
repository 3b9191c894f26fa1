//! How replicas read what has changed, and when they read all again.

use super::*;

/// Changes are learned without reading all that is set, from whichever replica they come, and however many there are.
#[tokio::test]
async fn changes_of_ten_thousand_are_read_and_not_all_of_them() {
    let redis = Redis::start();
    redis.cli(&["eval", FILL, "1", NAME]);
    let [mut one, mut other, mut reader] = replicas(&redis.url()).await;
    for replica in [&mut one, &mut other, &mut reader] {
        until_quota(replica, "customer-10000", 3_000).await;
    }
    let before = pages(&redis);
    for round in 0..40_u64 {
        for (replica, key) in [(&mut one, "customer-7"), (&mut other, "customer-8")] {
            set(replica, entry(key, 200 + round)).await.unwrap();
        }
        if round % 10 == 0 {
            assert!(
                delete(&mut one, &format!("customer-{}", 100 + round))
                    .await
                    .existed
            );
        }
    }
    for (key, quota) in [
        ("customer-7", 239),
        ("customer-8", 239),
        ("customer-130", 100),
    ] {
        for replica in [&mut one, &mut other, &mut reader] {
            until_quota(replica, key, quota).await;
        }
    }
    assert_eq!(pages(&redis), before);
}

/// Two replicas that know the same set, of one override.
async fn writer_and_reader(redis: &Redis) -> [AdminFixture; 2] {
    let [mut writer, mut reader, _] = replicas(&redis.url()).await;
    set(&mut writer, entry("first", 200)).await.unwrap();
    until_quota(&mut reader, "first", 200).await;
    [writer, reader]
}

/// What is remembered of changes is bounded. Who knows an older version reads all.
#[tokio::test]
async fn a_replica_that_missed_more_than_is_remembered_reads_all() {
    let redis = Redis::start();
    let [mut one, mut reader] = writer_and_reader(&redis).await;
    let before = pages(&redis);
    reader.server.signal("STOP");
    let long = "k".repeat(500);
    for change in 0..60_u64 {
        set(&mut one, entry(&format!("{long}{change}"), 200 + change))
            .await
            .unwrap();
    }
    let kept = redis
        .cli(&["hstrlen", NAME, "changes"])
        .parse::<usize>()
        .unwrap();
    assert!((8_000..=16_384).contains(&kept), "{kept} bytes");
    reader.server.signal("CONT");
    until_quota(&mut reader, &format!("{long}59"), 259).await;
    assert_eq!(quota_of(&mut reader, &format!("{long}0")).await, 200);
    redis.cli(&["hset", NAME, "changes", "garbage"]);
    set(&mut one, entry("last", 300)).await.unwrap();
    until_quota(&mut reader, "last", 300).await;
    assert!(
        pages(&redis) > before,
        "it read what it was told of changes"
    );
}

/// A change that removes what has expired may be of more names than are remembered.
#[tokio::test]
async fn a_change_of_more_than_is_remembered_is_read_by_all() {
    let redis = Redis::start();
    let [mut one, mut reader, _] = replicas(&redis.url()).await;
    let long = "k".repeat(500);
    for number in 0..40 {
        let request = pb::SetOverrideRequest {
            entry: Some(entry(&format!("{long}{number}"), 200)),
            expires_after: Some(prost_types::Duration {
                seconds: 1,
                nanos: 0,
            }),
            ..pb::SetOverrideRequest::default()
        };
        one.admin.set_override(request).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    set(&mut one, entry("first", 200)).await.unwrap();
    assert_eq!(redis.cli(&["hget", NAME, "changes"]), "");
    until_quota(&mut reader, "first", 200).await;
    set(&mut reader, entry("second", 300)).await.unwrap();
    until_quota(&mut one, "second", 300).await;
}

/// A replica of an earlier release remembers no changes.
#[tokio::test]
async fn a_change_that_is_not_remembered_is_read_all_the_same() {
    let redis = Redis::start();
    let [mut one, mut reader] = writer_and_reader(&redis).await;
    for (round, key) in (0_u64..).zip(["second", "third"]) {
        reader.server.signal("STOP");
        let number = set(&mut one, entry(key, 210 + round)).await.unwrap();
        let record = redis.cli(&["hget", NAME, &format!("kfree:{key}")]);
        let version = redis.cli(&["hget", NAME, ""]);
        let mark = version.split_once(' ').unwrap().1;
        let next = format!("{} {mark}", number + 1);
        redis.cli(&[
            "hset",
            NAME,
            "",
            &next,
            &format!("kfree:other{round}"),
            &record,
        ]);
        reader.server.signal("CONT");
        until_quota(&mut reader, &format!("other{round}"), 210 + round).await;
        until_quota(&mut one, &format!("other{round}"), 210 + round).await;
    }
}
