//! The token bucket by examples, and two limits of one count against a bound on what they grant.

use super::*;
use crate::algorithm::cases::{Case, check, limit};
use crate::algorithm::{Mode, State, Verdict, decide, refund};
use crate::key::Cost;
use crate::plan::Algorithm;
use proptest::prelude::*;

#[test]
fn a_burst_then_one_unit_per_emission_interval() {
    check(
        &limit(10, Algorithm::TokenBucket { burst: 2 }),
        &[
            Case::allowed(5_000_000, 2, 0).fresh_in(200_000),
            Case::denied(5_000_000, 1, 0).retry_in(100_000),
            Case::denied(5_099_999, 1, 0).retry_in(1),
            Case::allowed(5_100_000, 1, 0),
            Case::allowed(9_000_000, 1, 1),
        ],
    );
}

#[test]
fn after_idling_no_more_than_the_burst_passes() {
    check(
        &limit(10, Algorithm::TokenBucket { burst: 10 }),
        &[
            Case::allowed(5_000_000, 10, 0),
            Case::allowed(500_000_000, 10, 0),
            Case::denied(500_000_000, 1, 0).retry_in(100_000),
        ],
    );
}

#[test]
fn an_interval_that_is_no_whole_microsecond_is_rounded_up() {
    let limit = limit(3, Algorithm::TokenBucket { burst: 1 });
    assert_eq!(limit.emission_us(), 333_334);
    check(
        &limit,
        &[
            Case::allowed(0, 1, 0),
            Case::denied(333_333, 1, 0).retry_in(1),
            Case::allowed(333_334, 1, 0),
        ],
    );
}

#[test]
fn a_refund_shortens_the_debt_to_nothing_at_most() {
    check(
        &limit(10, Algorithm::TokenBucket { burst: 4 }),
        &[
            Case::allowed(5_000_000, 4, 0).fresh_in(400_000),
            Case::refunded(5_050_000, 2, 2).fresh_in(150_000),
            Case::denied(5_050_000, 3, 2).retry_in(50_000),
            Case::refunded(5_050_000, u64::MAX, 4).fresh_in(0),
            Case::allowed(5_050_000, 4, 0).fresh_in(400_000),
        ],
    );
}

#[test]
fn a_smaller_burst_on_the_same_count_forgives_no_debt() {
    let of = |burst| limit(10, Algorithm::TokenBucket { burst });
    let paid = of(100);
    let trial = of(1);
    let mut bucket = Bucket::default();
    bucket.charge(&paid, 5_000_000, 100);
    bucket.clamp(&trial, 5_000_000);
    assert_eq!(
        bucket.read(&trial, 5_000_000),
        Reading::Bucket {
            backlog_us: 10_000_000,
            emission_us: 100_000
        }
    );
    assert_eq!(
        (
            wait_us(&trial, 10_000_000, 100_000, 1),
            remaining(&trial, 10_000_000, 100_000)
        ),
        (10_000_000, 0)
    );
}

#[test]
fn a_clock_that_steps_back_blocks_for_one_window_at_most() {
    check(
        &limit(10, Algorithm::TokenBucket { burst: 10 }),
        &[
            Case::allowed(3_600_000_000, 10, 0),
            Case::denied(1_000_000, 1, 0).retry_in(100_000),
            Case::allowed(2_000_000, 10, 0),
        ],
    );
}

/// A limit of this quota per minute with a burst of ten.
fn of_ten(quota: u64) -> Limit {
    Limit::new(
        "limit",
        quota,
        std::time::Duration::from_secs(60),
        Algorithm::TokenBucket { burst: 10 },
    )
    .unwrap()
}

fn decide_one(
    limit: &Limit,
    bucket: &mut Bucket,
    now_us: u64,
    (cost, mode): (u64, Mode),
) -> Verdict {
    let mut states = [State::Bucket(*bucket)];
    let verdict = decide(
        std::slice::from_ref(limit),
        &mut states,
        now_us,
        Cost::new(cost).unwrap(),
        mode,
    );
    if let [State::Bucket(after)] = states {
        *bucket = after;
    }
    verdict
}

/// Gives units back. Returns how the bucket stands after it.
fn refund_one(limit: &Limit, bucket: &mut Bucket, now_us: u64, units: u64) -> Verdict {
    let mut states = [State::Bucket(*bucket)];
    let units = Cost::new(units).unwrap();
    let given_back = refund(std::slice::from_ref(limit), &mut states, now_us, units);
    if let [State::Bucket(after)] = states {
        *bucket = after;
    }
    given_back.after
}

#[test]
fn a_lower_quota_frees_nothing_and_takes_hold_with_the_next_charge() {
    let before = of_ten(100);
    let after = of_ten(10);
    let mut bucket = Bucket::default();
    assert!(decide_one(&before, &mut bucket, 5_000_000, (10, Mode::Charge)).fits);
    let denied = decide_one(&after, &mut bucket, 5_000_000, (1, Mode::Charge));
    assert_eq!(
        (denied.fits, denied.readings[0].remaining(&after)),
        (false, 0)
    );
    // At the rate of the charge.
    assert_eq!(denied.readings[0].wait_us(&after, 1), 600_000);
    assert!(!decide_one(&after, &mut bucket, 5_599_999, (1, Mode::Charge)).fits);
    assert!(decide_one(&after, &mut bucket, 5_600_000, (1, Mode::Charge)).fits);
    assert_eq!(
        decide_one(&after, &mut bucket, 5_600_000, (1, Mode::Charge)).readings[0]
            .wait_us(&after, 1),
        6_000_000
    );
}

#[test]
fn a_higher_quota_shortens_the_wait_at_once() {
    let before = of_ten(100);
    let after = of_ten(1_000);
    let mut bucket = Bucket::default();
    assert!(decide_one(&before, &mut bucket, 5_000_000, (10, Mode::Charge)).fits);
    let peeked = decide_one(&after, &mut bucket, 5_000_000, (1, Mode::Peek));
    let before_denial = bucket;
    let denied = decide_one(&after, &mut bucket, 5_000_000, (1, Mode::Charge));
    assert_eq!(
        (denied.fits, denied.readings[0].wait_us(&after, 1)),
        (false, 60_000)
    );
    // The peek wrote nothing, so the wait that it told is that of the debt as it stood.
    let wait_us = peeked.readings[0].wait_us(&after, 1);
    let unwritten = before_denial;
    assert_eq!(
        (peeked.fits, peeked.readings[0].remaining(&after), wait_us),
        (false, 0, 600_000)
    );
    let fits_at = |at_us| decide_one(&after, &mut { unwritten }, at_us, (1, Mode::Charge)).fits;
    assert!(!fits_at(5_000_000 + wait_us - 1) && fits_at(5_000_000 + wait_us));
    assert!(!decide_one(&after, &mut bucket, 5_059_999, (1, Mode::Charge)).fits);
    assert!(decide_one(&after, &mut bucket, 5_060_000, (1, Mode::Charge)).fits);
}

#[test]
fn two_limits_of_one_count_grant_one_burst_at_one_instant() {
    for quotas in [[100, 10], [10, 100], [7, 11], [1, 60_000_000]] {
        let limits = quotas.map(of_ten);
        let mut bucket = Bucket::default();
        let granted = (0..100)
            .filter(|index| {
                decide_one(
                    &limits[index % 2],
                    &mut bucket,
                    5_000_000,
                    (1, Mode::Charge),
                )
                .fits
            })
            .count();
        assert_eq!(granted, 10, "{quotas:?}");
    }
}

/// Denials under two rates alternate, a microsecond apart. Each would round the debt up if it wrote the debt.
#[test]
fn alternating_denials_do_not_raise_the_debt() {
    let slow = of_ten(1);
    let fast = of_ten(60_000_000);
    let mut bucket = Bucket::default();
    decide_one(&slow, &mut bucket, 5_000_000, (10, Mode::Charge));
    for now_us in 5_000_000..5_000_009 {
        assert!(!decide_one(&fast, &mut bucket, now_us, (10, Mode::Charge)).fits);
        assert!(!decide_one(&slow, &mut bucket, now_us, (10, Mode::Charge)).fits);
    }
    assert!(decide_one(&slow, &mut bucket, 5_000_010, (10, Mode::Charge)).fits);
}

#[derive(Debug, Clone)]
struct Step {
    after_us: u64,
    quota: u64,
    burst: u64,
    cost: u64,
    action: Action,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Decide(Mode),
    Refund,
}

fn any_step() -> impl Strategy<Value = Step> {
    let quota = prop_oneof![1..20_u64, 1..1_000_u64, Just(60_000), Just(60_000_000)];
    let after_us = prop_oneof![3 => Just(0_u64), 2 => 0..1_000_000_u64, 1 => 0..70_000_000_u64];
    let action = prop_oneof![
        8 => Just(Action::Decide(Mode::Charge)),
        1 => Just(Action::Decide(Mode::Peek)),
        1 => Just(Action::Refund),
    ];
    (after_us, quota, 1..20_u64, 1..20_u64, action).prop_map(
        |(after_us, quota, burst, cost, action)| Step {
            after_us,
            quota,
            burst,
            cost: cost.min(burst),
            action,
        },
    )
}

/// Units that a bucket owes, in 2^-32 of a unit, rounded down.
fn units(backlog_us: u64, emission_us: u64) -> u128 {
    (u128::from(backlog_us) << 32) / u128::from(emission_us)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Rates and bursts may change in any way: only time and refunds give a unit back. No request waits longer than the
    /// units before it take at the slowest rate in use.
    #[test]
    fn used_units_stay_used_however_the_limit_changes(steps in proptest::collection::vec(any_step(), 1..60)) {
        let mut bucket = Bucket::default();
        let mut now_us = 4_000_000_000_u64;
        let mut slowest_us = 0;
        // The least that can be owed, in 2^-32 of a unit: what the fastest rate in use would leave.
        let mut least = 0_u128;
        let mut fastest_us = u64::MAX;
        for step in steps {
            let window = std::time::Duration::from_secs(60);
            let limit = Limit::new("l", step.quota, window, Algorithm::TokenBucket { burst: step.burst }).unwrap();
            slowest_us = slowest_us.max(limit.emission_us());
            fastest_us = fastest_us.min(limit.emission_us());
            now_us += step.after_us;
            // The units that come back are rounded up.
            least = least.saturating_sub(units(step.after_us, fastest_us) + 1);
            let verdict = match step.action {
                Action::Decide(mode) => decide_one(&limit, &mut bucket, now_us, (step.cost, mode)),
                Action::Refund => refund_one(&limit, &mut bucket, now_us, step.cost),
            };
            let cost = u128::from(step.cost) << 32;
            let Reading::Bucket { backlog_us, emission_us } = verdict.readings[0] else { panic!("no bucket") };
            match step.action {
                Action::Decide(Mode::Charge) if verdict.fits => {
                    prop_assert!(least + cost <= u128::from(step.burst) << 32, "{step:?} was granted too early");
                    least += cost;
                }
                Action::Refund => least = least.saturating_sub(cost + (1 << 32)),
                Action::Decide(_) => {}
            }
            prop_assert!(units(backlog_us, emission_us) + 1 >= least, "units were forgotten by {step:?}");
            if matches!(step.action, Action::Decide(Mode::Charge)) && !verdict.fits {
                let wait_us = verdict.readings[0].wait_us(&limit, step.cost);
                let before = |us: u64| decide_one(&limit, &mut bucket.clone(), now_us + us, (step.cost, Mode::Peek)).fits;
                prop_assert!(before(wait_us) && !before(wait_us - 1), "{step:?} gave {wait_us}");
                let in_the_way = backlog_us.div_ceil(emission_us) + step.cost - step.burst;
                prop_assert!(wait_us <= in_the_way * slowest_us, "{step:?} waits {wait_us} for {in_the_way} units");
            }
        }
    }
}
