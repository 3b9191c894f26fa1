//! Requests of joint decisions, and replies to them.

use super::*;

/// A plan whose limits the script has in another order than the plan.
fn plan_of_two() -> Arc<Plan> {
    let limit = |quota, seconds, algorithm| {
        Limit::new("limit", quota, Duration::from_secs(seconds), algorithm).unwrap()
    };
    let bucket = limit(9, 60, Algorithm::TokenBucket { burst: 9 });
    let counter = limit(7, 60, Algorithm::SlidingCounter);
    let fixed = limit(
        5,
        60,
        Algorithm::FixedWindow {
            anchor: Anchor::Clock,
        },
    );
    Arc::new(Plan::new("plan", Rule::limits([bucket, counter, fixed])))
}

fn joint_call(purpose: Purpose, mode: Mode) -> Call {
    let request = ScriptRequest::named("{a:b}".to_owned(), plan_of_two(), 3, mode, monotonic());
    Call::for_request(request.jointly(purpose))
}

#[test]
fn an_undo_names_its_instants_in_the_order_of_the_script() {
    let instants = [70_001, 70_002, 70_003];
    let call = joint_call(Purpose::Undo(instants.into()), Mode::Charge);
    let packed = pack_call(&call).unwrap();
    let told: Vec<u64> = packed[packed.len() - 3 * NUMBER..]
        .chunks(NUMBER)
        .map(|bytes| {
            bytes
                .iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        })
        .collect();
    let expected: Vec<u64> = call.plans[0]
        .order
        .iter()
        .map(|index| instants[*index])
        .collect();
    assert_eq!(told, expected);
    assert_ne!(
        told, instants,
        "the orders are equal, so this tells nothing"
    );
    assert!(!call.tells_instant());
    // Six numbers of three limits, after the undo.
    let numbers = (1..=6_u64).flat_map(|number| number.to_le_bytes()[..NUMBER].to_vec());
    let reply: Vec<u8> = [b'1'].into_iter().chain(numbers).collect();
    let verdicts = parse_reply(&reply, &call).unwrap();
    assert_eq!(verdicts[0].as_ref().unwrap().readings.len(), 3);
}

#[test]
fn the_reply_to_the_charge_of_a_part_ends_with_its_instant() {
    let call = joint_call(Purpose::Part, Mode::Charge);
    assert!(call.tells_instant());
    for (purpose, mode) in [(Purpose::Part, Mode::Peek), (Purpose::Whole, Mode::Charge)] {
        assert!(!joint_call(purpose, mode).tells_instant());
    }
    let instant_us = 1_700_000_000_123_456_u64;
    let reply = [b"1abc", &instant_us.to_le_bytes()[..NUMBER]].concat();
    assert_eq!(split_instant(&reply), (&b"1abc"[..], Some(instant_us)));
    assert_eq!(split_instant(b"short"), (&b"short"[..], None));
}
