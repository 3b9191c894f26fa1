//! Joint decisions on the wire: the examples of the docs, their errors, and many callers of three replicas at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::grpc::pb::{self, DecidedBy, Outcome};
use tonic::{Code, Status};

use super::micros;
use crate::support::redis::Redis;
use crate::support::server::{Client, Server, decide, request};

const PLANS: &str = "
plans:
  user: { limits: [ { name: day, quota: 10, window: 1d } ] }
  org: { limits: [ { name: day, quota: 100, window: 1d } ] }
  tight: { limits: [ { name: day, quota: 1, window: 1d } ], shadow: true }
  internal: { unlimited: true }
  banned: { blocked: true }
";

/// A request for `cost` units of a key in a shard.
fn part(key: &str, plan: &str, shard: &str, cost: u64) -> pb::ShouldAllowRequest {
    pb::ShouldAllowRequest {
        shard: shard.to_owned(),
        ..request(key, plan, Some(cost))
    }
}

async fn ask(
    client: &mut Client,
    requests: &[pb::ShouldAllowRequest],
) -> Result<pb::ShouldAllowJointResponse, Status> {
    let asked = pb::ShouldAllowJointRequest {
        requests: requests.to_vec(),
        ..Default::default()
    };
    Ok(client.should_allow_joint(asked).await?.into_inner())
}

async fn peek(
    client: &mut Client,
    requests: &[pb::ShouldAllowRequest],
) -> pb::ShouldAllowJointResponse {
    let asked = pb::ShouldAllowJointRequest {
        requests: requests.to_vec(),
        peek: true,
        ..Default::default()
    };
    client.should_allow_joint(asked).await.unwrap().into_inner()
}

fn outcomes(answer: &pb::ShouldAllowJointResponse) -> Vec<Outcome> {
    answer
        .responses
        .iter()
        .map(pb::ShouldAllowResponse::outcome)
        .collect()
}

fn remaining(answer: &pb::ShouldAllowJointResponse) -> Vec<Option<u64>> {
    answer.responses.iter().map(|each| each.remaining).collect()
}

async fn on_both_stores(check: impl AsyncFn(&Server)) {
    let redis = Redis::start();
    let embedded = Server::start(PLANS, &[]);
    let shared = Server::start(
        PLANS,
        &[
            "--store",
            &redis.url(),
            "--set",
            "store.deadline=10s",
            "--set",
            "deny_cache.entries=0",
        ],
    );
    shared.wait_until_decided_by(DecidedBy::Store, "org").await;
    check(&embedded).await;
    check(&shared).await;
}

#[tokio::test]
async fn a_user_and_its_organisation_pass_together_or_not_at_all() {
    on_both_stores(async |server| {
        let mut client = server.client().await;
        let pair = [
            part("u1", "user", "acme", 1),
            part("acme", "org", "acme", 1),
        ];
        ask(
            &mut client,
            &[
                part("u1", "user", "acme", 9),
                part("acme", "org", "acme", 97),
            ],
        )
        .await
        .unwrap();
        let before = peek(&mut client, &pair).await;
        assert!(
            before.allowed && remaining(&before) == [Some(1), Some(3)],
            "{before:?}"
        );
        let allowed = ask(&mut client, &pair).await.unwrap();
        assert_eq!((allowed.allowed, allowed.binding), (true, 0));
        assert_eq!(remaining(&allowed), [Some(0), Some(2)]);
        assert_eq!(outcomes(&allowed), [Outcome::Allowed; 2]);
        let denied = ask(&mut client, &pair).await.unwrap();
        assert_eq!(
            (denied.allowed, denied.outcome(), denied.binding),
            (false, Outcome::Denied, 0)
        );
        assert_eq!(outcomes(&denied), [Outcome::Denied, Outcome::OtherDenied]);
        assert_eq!(remaining(&denied), [Some(0), Some(2)]);
        assert!(denied.responses.iter().all(|each| !each.allowed));
        assert_eq!(denied.retry_after, denied.responses[0].retry_after);
        assert!(micros(denied.retry_after) > 0 && denied.responses[1].retry_after.is_none());
        // The same key without its shard is another count.
        assert_eq!(decide(&mut client, "acme", "org").await.remaining, Some(99));
    })
    .await;
}

#[tokio::test]
async fn the_same_count_twice_adds_up() {
    on_both_stores(async |server| {
        let mut client = server.client().await;
        let twice = |one, other| [part("k", "user", "", one), part("k", "user", "", other)];
        ask(&mut client, &twice(4, 4)).await.unwrap();
        for (costs, expected, binding) in [
            ((1, 2), [Outcome::OtherDenied, Outcome::Denied], 1),
            ((3, 1), [Outcome::Denied, Outcome::Denied], 0),
            ((6, 5), [Outcome::OtherDenied, Outcome::NeverFits], 1),
        ] {
            let answer = ask(&mut client, &twice(costs.0, costs.1)).await.unwrap();
            assert_eq!(outcomes(&answer), expected, "{costs:?}");
            assert_eq!(
                (answer.allowed, answer.binding),
                (false, binding),
                "{costs:?}"
            );
        }
        let answer = ask(&mut client, &twice(1, 1)).await.unwrap();
        assert_eq!(remaining(&answer), [Some(1), Some(0)]);
    })
    .await;
}

#[tokio::test]
async fn plans_that_need_no_store_and_plans_in_shadow_mode_take_part() {
    on_both_stores(async |server| {
        let mut client = server.client().await;
        let user = part("k", "user", "", 1);
        let blocked = ask(&mut client, &[user.clone(), part("k", "banned", "", 1)])
            .await
            .unwrap();
        assert_eq!(outcomes(&blocked), [Outcome::OtherDenied, Outcome::Denied]);
        assert_eq!((blocked.binding, blocked.retry_after), (1, None));
        let by_plan = |each: &pb::ShouldAllowResponse| each.decided_by() == DecidedBy::Plan;
        assert!(blocked.responses.iter().all(by_plan), "{blocked:?}");
        let all = [
            part("k", "internal", "", 1),
            user,
            part("k", "tight", "", 1),
        ];
        for (expected, left) in [(Outcome::Allowed, 9), (Outcome::ShadowDenied, 8)] {
            let answer = ask(&mut client, &all).await.unwrap();
            assert_eq!(
                outcomes(&answer),
                [Outcome::Allowed, Outcome::Allowed, expected]
            );
            assert_eq!(
                (answer.allowed, answer.responses[1].remaining),
                (true, Some(left))
            );
        }
        // One request is that ShouldAllow, field by field.
        let alone = ask(&mut client, &[part("k", "tight", "", 1)])
            .await
            .unwrap();
        let single = decide(&mut client, "k", "tight").await;
        let timeless = |each: &pb::ShouldAllowResponse| pb::ShouldAllowResponse {
            reset_after: None,
            more_after: None,
            ..each.clone()
        };
        assert_eq!((alone.allowed, alone.outcome()), (true, Outcome::Allowed));
        assert_eq!(timeless(&alone.responses[0]), timeless(&single));
    })
    .await;
}

#[tokio::test]
async fn header_fields_are_those_of_the_request_that_binds() {
    let server = Server::start(PLANS, &[]);
    let mut client = server.client().await;
    let asked = pb::ShouldAllowJointRequest {
        requests: vec![part("a", "org", "", 1), part("b", "user", "", 10)],
        http_headers: true,
        ..Default::default()
    };
    for waits in [false, true] {
        let answer = client
            .should_allow_joint(asked.clone())
            .await
            .unwrap()
            .into_inner();
        let fields: HashMap<String, String> = answer
            .http_headers
            .iter()
            .map(|field| (field.key.clone(), field.value.clone()))
            .collect();
        assert_eq!(answer.binding, 1);
        assert!(fields["ratelimit"].contains("r=0"), "{fields:?}");
        assert!(fields["ratelimit-policy"].contains("q=10;"), "{fields:?}");
        assert_eq!(fields.contains_key("retry-after"), waits, "{fields:?}");
    }
}

#[tokio::test]
async fn an_invalid_joint_decision_decides_nothing_and_says_where() {
    let server = Server::start(PLANS, &[]);
    let mut client = server.client().await;
    let good = part("k", "user", "", 1);
    let seven = vec![good.clone(); 7];
    let with = |bad: pb::ShouldAllowRequest| [seven.clone(), vec![bad]].concat();
    for (requests, code, text) in [
        (
            vec![],
            Code::InvalidArgument,
            "the joint decision has 0 requests: send 1 to 8",
        ),
        (
            vec![good.clone(); 9],
            Code::InvalidArgument,
            "has 9 requests: send 1 to 8",
        ),
        (
            with(part("", "user", "", 1)),
            Code::InvalidArgument,
            "requests[7].key is empty",
        ),
        (
            with(part("k", "user", "", 0)),
            Code::InvalidArgument,
            "requests[7].cost is 0",
        ),
        (
            with(part("k", "", "", 1)),
            Code::InvalidArgument,
            "requests[7].plan is empty",
        ),
        (
            with(part("k", "user", &"s".repeat(65), 1)),
            Code::InvalidArgument,
            "requests[7].shard has 65 bytes: at most 64 are accepted",
        ),
        (
            vec![good.clone(), part("k", "usr", "", 1)],
            Code::NotFound,
            "requests[1].plan is \"usr\", which is not a plan; did you mean \"user\"?",
        ),
        (
            vec![part(&"k".repeat(9_000), "user", "", 1)],
            Code::OutOfRange,
            "8192",
        ),
    ] {
        let refused = ask(&mut client, &requests).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().contains(text), "{refused:?}");
    }
    let costs = [u64::MAX, u64::MAX].map(|cost| part("k", "org", "", cost));
    let never = ask(&mut client, &costs).await.unwrap();
    assert_eq!(outcomes(&never), [Outcome::NeverFits; 2]);
    // Braces and what looks like another name are only text.
    for shard in ["{user:k}", "}{", "é"] {
        let pair = [part("k", "user", shard, 1), part("k", "org", shard, 1)];
        let answer = ask(&mut client, &pair).await.unwrap();
        assert_eq!(remaining(&answer), [Some(9), Some(99)]);
    }
    assert_eq!(decide(&mut client, "k", "user").await.remaining, Some(9));
}

/// A user of forty, one of four organisations, and everybody.
fn three_parts(user: usize) -> [pb::ShouldAllowRequest; 3] {
    [
        part(&format!("u{user}"), "user", "", 1),
        part(&format!("o{}", user % 4), "org", "", 1),
        part("everybody", "all", "", 1),
    ]
}

/// Asks for ever other users until `stop`. Returns what passed, by user.
async fn hammer(mut client: Client, caller: usize, stop: Arc<AtomicBool>) -> HashMap<usize, u64> {
    let mut passed = HashMap::<usize, u64>::new();
    let mut round = 0;
    while !stop.load(Ordering::SeqCst) {
        let user = (caller + 7 * round) % 40;
        let answer = ask(&mut client, &three_parts(user)).await.unwrap();
        *passed.entry(user).or_default() += u64::from(answer.allowed);
        round += 1;
    }
    passed
}

/// Of three quotas, each as small as the sum of some of those before it: what passes is counted everywhere, and nothing else is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_of_three_replicas_pass_no_quota_and_lose_no_unit() {
    const CONFIG: &str = "
plans:
  user: { limits: [ { name: day, quota: 10, window: 1d, algorithm: sliding_log } ] }
  org: { limits: [ { name: day, quota: 70, window: 1d, algorithm: token_bucket, burst: 70 } ] }
  all: { limits: [ { name: day, quota: 190, window: 1d, algorithm: fixed_window } ] }
";
    let redis = Redis::start();
    let flags = ["--store", &redis.url(), "--set", "store.deadline=10s"];
    let replicas: Vec<Server> = (0..3).map(|_| Server::start(CONFIG, &flags)).collect();
    for replica in &replicas {
        replica
            .wait_until_decided_by(DecidedBy::Store, "user")
            .await;
    }
    let (crowd, seconds) = std::env::var("TOLLGATE_JOINT_SECONDS")
        .map_or((60, 2), |seconds| (200, seconds.parse().unwrap()));
    let stop = Arc::<AtomicBool>::default();
    let mut callers = Vec::new();
    for caller in 0..crowd {
        let client = replicas[caller % 3].client().await;
        callers.push(tokio::spawn(hammer(client, caller, stop.clone())));
    }
    let began = Instant::now();
    let mut client = replicas[0].client().await;
    while began.elapsed() < Duration::from_secs(seconds) {
        // A unit of a denied decision would show here: each has a count that is a multiple of nothing less.
        let seen = peek(&mut client, &three_parts(0)).await;
        assert!(
            seen.responses.iter().all(|each| each.remaining.is_some()),
            "{seen:?}"
        );
    }
    stop.store(true, Ordering::SeqCst);
    let mut passed = HashMap::<usize, u64>::new();
    for caller in callers {
        for (user, units) in caller.await.unwrap() {
            *passed.entry(user).or_default() += units;
        }
    }
    let all: u64 = passed.values().sum();
    assert_eq!(all, 190, "everything that could pass did");
    let mut orgs = [0; 4];
    let mut denied = 0;
    for user in 0..40 {
        let used = passed.get(&user).copied().unwrap_or_default();
        let seen = peek(&mut client, &three_parts(user)).await;
        assert_eq!(remaining(&seen)[0], Some(10 - used), "user {user}");
        assert_eq!(remaining(&seen)[2], Some(0));
        orgs[user % 4] += used;
        denied += u64::from(!seen.allowed);
    }
    assert_eq!(denied, 40);
    for (org, used) in orgs.into_iter().enumerate() {
        // Of a day's bucket, no unit has come back yet.
        assert_eq!(
            remaining(&peek(&mut client, &three_parts(org)).await)[1],
            Some(70 - used)
        );
    }
}
