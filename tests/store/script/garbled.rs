//! Calls that no tollgate sends: Redis refuses them, and is not held by them.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::too_many_lines,
    reason = "laid out by rustfmt's defaults and not yet split"
)]
async fn a_call_with_a_wrong_count_is_refused() {
    let redis = Redis::start();
    let (mut call, mut raw) = captured(
        &redis,
        &[ask(
            &plan(vec![limit(1_000, Duration::from_secs(60), FIXED)]),
            "key",
            1,
        )],
    )
    .await;
    let request = call.pop().unwrap();
    let plans_end = usize::try_from(u32::from_le_bytes(request[..4].try_into().unwrap())).unwrap();
    assert_eq!(
        raw.call("EVALSHA", &[call.clone(), vec![request.clone()]].concat())
            .0,
        b'$',
        "the call as it was made"
    );
    // The bytes that hold counts: end of the plans, plans, limits of the plan; groups, packed states; requests, logs, repeats.
    let counts = (0..6).chain([
        plans_end,
        plans_end + 1,
        plans_end + 2,
        plans_end + 3,
        plans_end + 5,
        plans_end + 7,
    ]);
    for index in counts {
        for value in (0..=255).filter(|value| *value != request[index]) {
            let mut wrong = request.clone();
            wrong[index] = value;
            let (kind, text) = raw.call("EVALSHA", &[call.clone(), vec![wrong]].concat());
            assert_eq!(
                kind,
                b'-',
                "byte {index} is {value}: {:?}",
                String::from_utf8_lossy(&text)
            );
        }
    }
    for length in 0..request.len() {
        assert_eq!(
            raw.call(
                "EVALSHA",
                &[call.clone(), vec![request[..length].to_vec()]].concat()
            )
            .0,
            b'-',
            "cut to {length} bytes"
        );
    }
    assert_eq!(
        raw.call(
            "EVALSHA",
            &[call.clone(), vec![[request.as_slice(), &[0]].concat()]].concat()
        )
        .0,
        b'-',
        "a byte too many"
    );
    let mut keys = call.clone();
    keys[1] = b"2".to_vec();
    keys.push(b"another".to_vec());
    assert_eq!(
        raw.call("EVALSHA", &[keys, vec![request]].concat()).0,
        b'-',
        "a key too many"
    );
}

/// Sets each byte of a call to other values. Returns how many calls were refused, and how many there were.
fn garble(raw: &mut Wire, mut call: Vec<Vec<u8>>) -> (usize, u64) {
    let request = call.pop().unwrap();
    let mut refused = 0;
    let mut calls = 0;
    for index in 0..request.len() {
        let byte = request[index];
        for value in [
            0,
            1,
            2,
            6,
            31,
            127,
            255,
            byte.wrapping_add(1),
            byte.wrapping_sub(1),
        ] {
            let mut garbled = request.clone();
            garbled[index] = value;
            let (kind, _) = raw.call("EVALSHA", &[call.clone(), vec![garbled]].concat());
            refused += usize::from(kind == b'-');
            calls += 1;
        }
    }
    (refused, calls)
}

/// Sets each byte of a call to other values. Redis answers every such call, and soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_garbled_does_not_hold_redis() {
    let redis = Redis::start();
    let limits = [
        FIXED,
        BUCKET,
        COUNTER,
        WINDOW,
        Algorithm::SlidingWindow { precision: 5 },
    ];
    let limits: Vec<_> = limits
        .iter()
        .map(|algorithm| limit(1_000, Duration::from_secs(60), *algorithm))
        .collect();
    let plans: Vec<_> = limits
        .iter()
        .map(|one| plan(vec![one.clone()]))
        .chain([plan(limits.clone())])
        .collect();
    let log = plan(vec![limit(1_000, Duration::from_millis(61_500), LOG)]);
    let mut asks: Vec<Check> = plans
        .iter()
        .zip(1..)
        .map(|(plan, key)| ask(plan, &format!("key {key}"), key))
        .collect();
    asks.extend([
        ask(&plans[5], "key 1", 1),
        peek(&plans[1], "key 2", 1),
        ask(&plans[1], "key 7", 3),
    ]);
    let (call, mut raw) = captured(&redis, &asks).await;
    let joint = [&asks[..5], &[ask(&log, "key 8", 2)]].concat();
    let joint = captured_joint(&redis, &joint).await;
    let before_us = cpu_us(&redis);
    let mut calls = 0;
    let mut refused = 0;
    for call in [call, joint] {
        let (refusals, tried) = garble(&mut raw, call);
        (refused, calls) = (refused + refusals, calls + tried);
    }
    let each_us = (cpu_us(&redis) - before_us) / calls;
    println!("{calls} garbled calls, {refused} refused, {each_us} us of Redis's time each");
    assert!(refused > 100, "{refused} of {calls}");
    // A sound call takes a tenth of that. A loop over a wrong count would take fifty times as much.
    assert!(each_us < 2_000, "{each_us} us each");
    // At its end, the test's Redis checks that every key has an expiry. Garbled calls may have written others.
    redis.cli(&["FLUSHALL"]);
}
