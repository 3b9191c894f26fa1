//! Hits and limits that a request names itself, in place of one unit and the limits of the plan.

use tollgate::grpc::envoy::pb::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::grpc::envoy::pb::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::RateLimitRequest;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_response::Code as Limited;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate::grpc::envoy::pb::r#type::v3::RateLimitUnit;
use tonic::Code;

use super::{address, ask, codes, error, limit_of, path, request, start};

fn limited(
    descriptor: RateLimitDescriptor,
    quota: u32,
    unit: RateLimitUnit,
) -> RateLimitDescriptor {
    RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: quota,
            unit: unit.into(),
        }),
        ..descriptor
    }
}

#[tokio::test]
async fn hits_are_those_of_the_descriptor_or_of_the_request_and_may_be_none_or_given_back() {
    let (_server, mut client) = start(&[]).await;
    let hits = |hits_addend, descriptors| RateLimitRequest {
        hits_addend,
        ..request("edge", descriptors)
    };
    let mut rest = async |request: RateLimitRequest| {
        let answer = client
            .should_rate_limit(request)
            .await
            .unwrap()
            .into_inner();
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    };
    let own = |hits: u64| RateLimitDescriptor {
        hits_addend: Some(hits),
        ..address("a")
    };
    let back = |hits: Option<u64>, of| RateLimitDescriptor {
        hits_addend: hits,
        is_negative_hits: true,
        ..address(of)
    };
    assert_eq!(rest(hits(3, vec![address("a")])).await, (Limited::Ok, 7));
    assert_eq!(rest(hits(3, vec![own(2)])).await, (Limited::Ok, 5));
    assert_eq!(
        rest(hits(3, vec![own(0)])).await,
        (Limited::Ok, 5),
        "an explicit 0 takes nothing"
    );
    assert_eq!(
        rest(hits(u32::MAX, vec![address("a")])).await,
        (Limited::OverLimit, 0),
        "it can never pass"
    );
    assert_eq!(
        rest(hits(0, vec![own(u64::MAX)])).await,
        (Limited::OverLimit, 0)
    );
    assert_eq!(rest(hits(0, vec![own(5)])).await, (Limited::Ok, 0));
    assert_eq!(rest(hits(0, vec![own(0)])).await, (Limited::OverLimit, 0));
    assert_eq!(rest(hits(2, vec![back(None, "a")])).await, (Limited::Ok, 2));
    assert_eq!(
        rest(hits(0, vec![back(Some(u64::MAX), "a")])).await,
        (Limited::Ok, 10)
    );
    assert_eq!(
        rest(hits(0, vec![back(Some(7), "never seen")])).await,
        (Limited::Ok, 10),
        "an unknown key is full"
    );
}

#[tokio::test]
async fn a_limit_of_the_callers_own_decides_in_place_of_the_plan_by_every_unit() {
    let (_server, mut client) = start(&[]).await;
    let units = [
        (RateLimitUnit::Second, Unit::Second),
        (RateLimitUnit::Minute, Unit::Minute),
        (RateLimitUnit::Hour, Unit::Hour),
        (RateLimitUnit::Day, Unit::Day),
        (RateLimitUnit::Week, Unit::Week),
        (RateLimitUnit::Month, Unit::Month),
        (RateLimitUnit::Year, Unit::Year),
    ];
    for (unit, told) in units {
        let answer = ask(&mut client, vec![limited(address("a"), 1_000_000, unit)]).await;
        assert_eq!(limit_of(&answer.statuses[0]), ("override", 1_000_000, told));
        assert_eq!(
            answer.statuses[0].limit_remaining, 999_999,
            "{unit:?} is counted apart"
        );
    }
    let none = ask(
        &mut client,
        vec![limited(address("a"), 0, RateLimitUnit::Day)],
    )
    .await;
    assert_eq!(
        (none.overall_code(), limit_of(&none.statuses[0])),
        (Limited::OverLimit, ("override", 0, Unit::Day))
    );
    let unmatched = ask(
        &mut client,
        vec![limited(path("/none"), 1, RateLimitUnit::Week); 2],
    )
    .await;
    assert_eq!(codes(&unmatched), [Limited::Ok, Limited::OverLimit]);
    let mut wrong = limited(address("a"), 1, RateLimitUnit::Unknown);
    assert_eq!(
        error(&mut client, request("edge", vec![wrong.clone()]))
            .await
            .code(),
        Code::InvalidArgument
    );
    wrong.limit.as_mut().unwrap().unit = 99;
    let refused = error(&mut client, request("edge", vec![address("a"), wrong])).await;
    assert_eq!(
        refused.message(),
        "descriptors[1].limit.unit is 99: send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
    );
}
