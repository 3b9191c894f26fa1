//! Streams of holds over replicas that share a Redis.

use super::*;
use crate::support::redis::Redis;

const PLANS: &str = "
plans:
  jobs: { limits: [ { quota: 5, algorithm: concurrency } ], holds: { ttl: 30s } }
  brief: { limits: [ { quota: 5, algorithm: concurrency } ], holds: { ttl: 3s } }
  crowd: { limits: [ { quota: 100, algorithm: concurrency } ], holds: { ttl: 3s } }
";

fn replicas(redis: &Redis) -> [Server; 2] {
    let url = format!("store.url={}", redis.url());
    // A busy machine may take long for an answer.
    let flags = ["--set", &url, "--set", "store.deadline=5s"];
    [(), ()].map(|()| Server::start(PLANS, &flags))
}

/// A stream that holds five jobs.
async fn five_jobs(server: &Server, plan: &str) -> Stream {
    let mut stream = Stream::open(&mut holder(server).await).await;
    for job in 1..=5 {
        assert!(stream.reserve(plan, &format!("job {job}")).await.held);
    }
    stream
}

#[tokio::test]
async fn fault_102_holds_of_a_replica_that_is_drained_are_all_taken_over_on_another_one() {
    let redis = Redis::start();
    let [mut drained, other] = replicas(&redis);
    let mut stream = five_jobs(&drained, "jobs").await;
    assert_eq!(remaining(&other, "jobs").await, 0);
    drained.signal("TERM");
    let ended = stream.next().await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    assert!(drained.wait().0.success());
    // None is freed.
    assert_eq!(remaining(&other, "jobs").await, 0);
    let mut second = Stream::open(&mut holder(&other).await).await;
    for job in 1..=5 {
        let adopted = second.reserve("jobs", &format!("job {job}")).await;
        assert!(adopted.held && adopted.is_repeated);
    }
    let settled = second.settle("jobs", "job 3").await;
    assert_eq!(settled.outcome(), SettleOutcome::Settled);
    assert_eq!(remaining(&other, "jobs").await, 1);
    drop(second);
    wait_for(&other, "jobs", 5).await;
}

#[tokio::test]
async fn a_hold_that_another_replica_s_stream_takes_over_is_not_ended_by_the_first_one() {
    let redis = Redis::start();
    let [first, second] = replicas(&redis);
    let mut old = five_jobs(&first, "brief").await;
    let mut new = Stream::open(&mut holder(&second).await).await;
    let adopted = new.reserve("brief", "job 1").await;
    assert!(adopted.held && adopted.is_repeated);
    let (_, id, reason) = old.lost().await;
    assert_eq!((&*id, reason), ("job 1", LostReason::Moved));
    drop(old);
    wait_for(&second, "brief", 4).await;
    // It is renewed by its second stream.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(remaining(&second, "brief").await, 4);
}

/// What Redis carries out too late for an answer is carried out all the same.
#[tokio::test]
async fn answers_that_come_too_late_take_no_hold_from_its_stream_and_keep_none_beyond_it() {
    let redis = Redis::start();
    let url = format!("store.url={}", redis.url());
    let late = Server::start(PLANS, &["--set", &url, "--set", "store.deadline=300ms"]);
    let [other, _] = replicas(&redis);
    let mut brief = five_jobs(&late, "brief").await;
    // Renewals are due each second.
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        redis.signal("STOP");
        tokio::time::sleep(Duration::from_millis(500)).await;
        redis.signal("CONT");
    }
    assert_eq!(remaining(&other, "brief").await, 0);
    let told = tokio::time::timeout(Duration::from_millis(100), brief.answers.next());
    assert!(told.await.is_err(), "nothing was lost");
    let jobs = five_jobs(&late, "jobs").await;
    redis.signal("STOP");
    drop(jobs);
    tokio::time::sleep(Duration::from_millis(500)).await;
    redis.signal("CONT");
    wait_for(&other, "jobs", 5).await;
}

#[tokio::test]
async fn holds_of_a_replica_that_is_killed_with_a_hundred_streams_end_with_their_leases() {
    let redis = Redis::start();
    let [mut killed, other] = replicas(&redis);
    let mut streams = Vec::new();
    for job in 1..=100 {
        let mut stream = Stream::open(&mut holder(&killed).await).await;
        assert!(stream.reserve("crowd", &format!("job {job}")).await.held);
        streams.push(stream);
    }
    killed.signal("KILL");
    killed.wait();
    let died = Instant::now();
    assert_eq!(remaining(&other, "crowd").await, 0);
    wait_for(&other, "crowd", 100).await;
    println!("all free after {:?}, of leases of 3 s", died.elapsed());
    drop(streams);
}

#[tokio::test]
async fn fault_103_every_stream_is_told_that_redis_has_lost_its_holds() {
    let redis = Redis::start();
    let [first, second] = replicas(&redis);
    let mut streams = [
        five_jobs(&first, "brief").await,
        Stream::open(&mut holder(&second).await).await,
    ];
    let adopted = streams[1].reserve("brief", "job 5").await;
    assert!(adopted.held);
    let (_, id, reason) = streams[0].lost().await;
    assert_eq!((&*id, reason), ("job 5", LostReason::Moved));
    redis.cli(&["flushall"]);
    for (stream, expected) in streams.iter_mut().zip([4, 1]) {
        for _ in 0..expected {
            let (.., reason) = stream.lost().await;
            assert_eq!(reason, LostReason::Forgotten);
        }
    }
    assert_eq!(remaining(&first, "brief").await, 5);
}
