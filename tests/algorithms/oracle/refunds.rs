//! Refunds: what an undo leaves is as if the charge had not been, and the promise holds with what came back.

use super::*;

/// The remaining units of a key at several later times, if the key is not used.
fn future(limit: &Limit, state: &State, now_us: u64) -> Vec<u64> {
    let window_us = limit.window_us();
    let at = [
        0,
        1,
        window_us / 3,
        window_us / 2,
        window_us - 1,
        window_us,
        window_us + 1,
        2 * window_us - 1,
        2 * window_us,
    ];
    let left = |after_us| {
        let mut states = [state.clone()];
        let verdict = decide(
            std::slice::from_ref(limit),
            &mut states,
            now_us + after_us,
            Cost::ONE,
            Mode::Peek,
        );
        verdict.statuses(std::slice::from_ref(limit), Cost::ONE)[0].remaining
    };
    at.map(left).to_vec()
}

fn take(limit: &Limit, state: &mut State, request: (u64, u64)) -> bool {
    let (now_us, cost) = request;
    decide(
        std::slice::from_ref(limit),
        std::slice::from_mut(state),
        now_us,
        Cost::new(cost).unwrap(),
        Mode::Charge,
    )
    .fits
}

fn give_back(limit: &Limit, state: &mut State, (now_us, units): (u64, u64)) -> GivenBack {
    let limits = std::slice::from_ref(limit);
    let units = Cost::new(units).unwrap();
    refund(limits, std::slice::from_mut(state), now_us, units)
}

/// A charge that is refunded at the same instant leaves no trace in later answers. There is one exception: runs that the charge
/// merged stay merged. So units may leave late, by up to a cell, and never early.
fn check_undo(algorithm: Algorithm, seed: u64) {
    let mut random = Random(seed);
    let limit = edited(&mut random, std::time::Duration::from_millis(2), algorithm);
    let mut state = State::fresh(&limit);
    let mut now_us = START_US;
    for _ in 0..60 {
        now_us += random.below(limit.window_us() / 2);
        let cost = 1 + random.below(limit.capacity());
        let before = future(&limit, &state, now_us);
        if take(&limit, &mut state, (now_us, cost)) {
            give_back(&limit, &mut state, (now_us, cost));
            let after = future(&limit, &state, now_us);
            let merges =
                matches!(algorithm, Algorithm::SlidingWindow { precision } if precision < 64);
            assert!(
                after == before
                    || merges
                        && after[0] == before[0]
                        && after.iter().zip(&before).all(|(a, b)| a <= b)
            );
        }
        take(
            &limit,
            &mut state,
            (now_us, 1 + random.below(limit.capacity())),
        );
    }
}

/// In any interval of one window, at most the limit's promise passes, plus the units refunded within the interval.
fn check_bound(algorithm: Algorithm, seed: u64) {
    let mut random = Random(seed);
    let limit = edited(&mut random, std::time::Duration::from_millis(2), algorithm);
    let mut state = State::fresh(&limit);
    let mut now_us = START_US;
    // Time, units that passed, units that were refunded.
    let mut events = Vec::new();
    for _ in 0..150 {
        now_us += random.below(limit.window_us() / 6);
        let cost = 1 + random.below(limit.capacity());
        if random.below(3) == 0 {
            let given_back = give_back(&limit, &mut state, (now_us, cost));
            let refunded = given_back.units()[0];
            let left = given_back
                .after
                .statuses(std::slice::from_ref(&limit), Cost::ONE)[0]
                .remaining;
            assert!(
                refunded <= cost && left <= limit.capacity(),
                "{refunded} of {cost}, {left} left"
            );
            events.push((now_us, 0, refunded));
        } else if take(&limit, &mut state, (now_us, cost)) {
            events.push((now_us, cost, 0));
        }
    }
    for (first, (begin_us, _, _)) in events.iter().enumerate() {
        let within = events[first..]
            .iter()
            .take_while(|event| event.0 < begin_us + limit.window_us());
        let (passed, refunded) =
            within.fold((0, 0), |sum, event| (sum.0 + event.1, sum.1 + event.2));
        let promise = match counting(&limit) {
            Counting::Instants => limit.quota(),
            // Beside its burst, a bucket refills by the quota within a window.
            Counting::Debt => limit.capacity() + limit.quota(),
            Counting::ClockWindow | Counting::OwnWindow | Counting::TwoWindows => 2 * limit.quota(),
        };
        assert!(
            passed <= promise + refunded,
            "{passed} passed and {refunded} came back, of {promise}"
        );
    }
}

macro_rules! refunds {
    ($($name:ident: $algorithm:expr,)*) => {$(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(500))]
            #[test]
            fn $name(seed in any::<u64>()) {
                check_undo($algorithm, seed);
                check_bound($algorithm, seed);
            }
        }
    )*};
}

mod keeps_its_bounds_with_refunds {
    use super::*;
    with_every_algorithm!(refunds);
}
