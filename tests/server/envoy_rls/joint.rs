//! `envoy.joint`, by Envoy's own messages: the descriptors of one request pass together, or none is charged. And the shard of a rule.

use super::*;
use tollgate::grpc::pb;

const JOINT: &str = "
workers: 1
listen: { http: '127.0.0.1:0' }
plans:
  customer: { limits: [ { name: day, quota: 3, window: 1d } ] }
  address: { limits: [ { name: address, quota: 14, window: 1d } ] }
  internal: { unlimited: true }
  banned: { blocked: true }
envoy:
  joint: true
  domains:
    edge:
      rules:
        - { descriptor: [user, org], plan: customer, key: '{user}', shard: '{org}' }
        - { descriptor: [user], plan: customer }
        - { descriptor: [remote_address], plan: address }
        - { descriptor: ['path=/internal'], plan: internal }
        - { descriptor: ['path=/banned'], plan: banned }
    closed: { unmatched: deny, rules: [ { descriptor: [user], plan: customer } ] }
";

async fn start() -> (Server, Client) {
    let server = Server::start(JOINT, &[]);
    let client = Client::new(channel_to(&server.address).await);
    (server, client)
}

fn user(name: &str) -> RateLimitDescriptor {
    descriptor(&[("user", name)])
}

/// Code and rest of each status.
fn told(answer: &RateLimitResponse) -> Vec<(Limited, u32)> {
    let each = answer.statuses.iter();
    each.map(|status| (status.code(), status.limit_remaining))
        .collect()
}

#[tokio::test]
async fn a_denied_descriptor_is_over_its_limit_and_the_others_are_ok_and_uncharged() {
    let (server, mut client) = start().await;
    let pair = |customer: &str| vec![user(customer), address("203.0.113.7")];
    for left in [2, 1, 0] {
        let answer = ask(&mut client, pair("al")).await;
        assert_eq!(
            told(&answer),
            [(Limited::Ok, left), (Limited::Ok, 11 + left)]
        );
        assert_eq!(answer.overall_code(), Limited::Ok);
        let limit = field(&answer, "ratelimit").unwrap();
        assert!(limit.starts_with(&format!("\"day\";r={left}")), "{limit}");
    }
    for _ in 0..5 {
        let answer = ask(&mut client, pair("al")).await;
        assert_eq!(told(&answer), [(Limited::OverLimit, 0), (Limited::Ok, 11)]);
        assert_eq!(answer.overall_code(), Limited::OverLimit);
        assert!(
            field(&answer, "ratelimit")
                .unwrap()
                .starts_with("\"day\";r=0")
        );
        assert!(field(&answer, "retry-after").is_some());
    }
    for customer in 0..11 {
        let answer = ask(&mut client, pair(&format!("u{customer}"))).await;
        assert_eq!(answer.overall_code(), Limited::Ok);
    }
    let answer = ask(&mut client, pair("bo")).await;
    assert_eq!(told(&answer), [(Limited::Ok, 3), (Limited::OverLimit, 0)]);
    assert!(
        field(&answer, "ratelimit")
            .unwrap()
            .starts_with("\"address\";r=0")
    );
    let scrape = Scrape::of(&server.http());
    let joint = |outcome| {
        scrape.value(&format!(
            "tollgate_joint_decisions_total{{outcome=\"{outcome}\"}}"
        ))
    };
    assert_eq!((joint("allowed"), joint("denied")), (14.0, 6.0));
}

#[tokio::test]
async fn codes_of_a_whole_are_those_of_each_descriptor() {
    let (_server, mut client) = start().await;
    let hits = |hits, descriptor| RateLimitDescriptor {
        hits_addend: Some(hits),
        ..descriptor
    };
    // Never fits.
    let answer = ask(&mut client, vec![hits(4, user("al")), path("/internal")]).await;
    assert_eq!(
        told(&answer),
        [(Limited::OverLimit, 0), (Limited::Ok, u32::MAX)]
    );
    // No hits take part as a peek of one.
    let answer = ask(
        &mut client,
        vec![hits(3, user("al")), hits(0, address("a"))],
    )
    .await;
    assert_eq!(told(&answer), [(Limited::Ok, 0), (Limited::Ok, 14)]);
    let answer = ask(&mut client, vec![hits(0, user("al")), address("a")]).await;
    assert_eq!(told(&answer), [(Limited::OverLimit, 0), (Limited::Ok, 14)]);
    // What is given back is so in a denied whole, too.
    let back = RateLimitDescriptor {
        is_negative_hits: true,
        ..hits(2, user("al"))
    };
    let answer = ask(&mut client, vec![path("/banned"), back, address("a")]).await;
    assert_eq!(
        told(&answer),
        [(Limited::OverLimit, 0), (Limited::Ok, 2), (Limited::Ok, 0)]
    );
    let answer = ask(&mut client, vec![user("al"), address("a")]).await;
    assert_eq!(told(&answer), [(Limited::Ok, 1), (Limited::Ok, 13)]);
    // A descriptor without a rule takes no part, or denies the whole.
    let answer = ask(&mut client, vec![path("/"), user("al")]).await;
    assert_eq!(told(&answer), [(Limited::Ok, u32::MAX), (Limited::Ok, 0)]);
    let closed = request("closed", vec![path("/"), user("bo")]);
    let answer = client.should_rate_limit(closed).await.unwrap().into_inner();
    assert_eq!(codes(&answer), [Limited::OverLimit, Limited::Ok]);
    assert!(answer.response_headers_to_add.is_empty());
    let answer = ask(&mut client, vec![user("bo")]).await;
    assert_eq!(told(&answer), [(Limited::Ok, 2)]);
}

#[tokio::test]
async fn more_than_eight_are_refused_and_what_no_plan_decides_is_not_counted() {
    let (_server, mut client) = start().await;
    let users = |count: usize| (0..count).map(|number| user(&format!("u{number}")));
    let many = users(8).chain((0..20).map(|_| path("/"))).collect();
    assert_eq!(ask(&mut client, many).await.overall_code(), Limited::Ok);
    let refused = error(&mut client, request("edge", users(9).collect())).await;
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused
            .message()
            .contains("9 descriptors would be decided together")
            && refused.message().contains("send 8 at most"),
        "{refused:?}"
    );
    // None of the nine was charged.
    assert_eq!(
        told(&ask(&mut client, vec![user("u8")]).await),
        [(Limited::Ok, 2)]
    );
}

/// How many units a customer of a shard has left, asked as applications ask.
async fn remaining(server: &Server, key: &str, shard: &str) -> u64 {
    let peek = pb::PeekRequest {
        key: key.to_owned(),
        plan: "customer".to_owned(),
        shard: shard.to_owned(),
        cost: None,
    };
    let peeked = server.client().await.peek(peek).await.unwrap();
    peeked.into_inner().answer.unwrap().remaining()
}

#[tokio::test]
async fn the_shard_of_a_rule_is_part_of_who_is_counted() {
    let (server, mut client) = start().await;
    let of = |org: &[u8]| {
        let mut descriptor = descriptor(&[("user", "al"), ("org", "")]);
        descriptor.entries[1].value = org.into();
        descriptor
    };
    let long = |letter: char, bytes| letter.to_string().repeat(bytes);
    for org in ["acme", "{a}c}me{", &long('s', 64), "é"] {
        assert_eq!(
            told(&ask(&mut client, vec![of(org.as_bytes())]).await),
            [(Limited::Ok, 2)]
        );
        assert_eq!(remaining(&server, "al", org).await, 2, "{org}");
    }
    // Without one, it is the key alone.
    assert_eq!(
        told(&ask(&mut client, vec![of(b"")]).await),
        [(Limited::Ok, 2)]
    );
    assert_eq!(remaining(&server, "al", "").await, 2);
    // No value causes an error: what is too long or no UTF-8 is a shard of its own.
    let long_ones = [
        long('s', 65),
        long('s', 66),
        long('é', 33),
        long('t', 20_000),
    ];
    for org in long_ones.iter().map(String::as_bytes).chain([&b"\xff"[..]]) {
        for left in [2, 1, 0] {
            assert_eq!(
                told(&ask(&mut client, vec![of(org)]).await),
                [(Limited::Ok, left)]
            );
        }
        assert_eq!(
            codes(&ask(&mut client, vec![of(org)]).await),
            [Limited::OverLimit]
        );
    }
}
