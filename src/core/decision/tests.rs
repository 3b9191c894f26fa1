//! Which limit an answer names, and its numbers.

use super::*;
use smallvec::smallvec;

fn status(name: &str, remaining: u64, limit: u64, retry_after_us: Option<u64>) -> LimitStatus {
    let window_us = 1_000_000;
    let frees_at_once = false;
    LimitStatus {
        name: name.into(),
        limit,
        window_us,
        frees_at_once,
        capacity: limit,
        remaining,
        retry_after_us,
        reset_after_us: 0,
        blocked_for_us: 0,
        begins_block: false,
        first_end_us: 0,
    }
}

fn binding(limits: SmallVec<[LimitStatus; 2]>) -> String {
    Decision::counted(Outcome::Denied, DecidedBy::Store, limits)
        .binding()
        .unwrap()
        .name
        .to_string()
}

#[test]
fn the_limit_that_denies_longest_binds() {
    assert_eq!(
        binding(smallvec![
            status("a", 0, 9, Some(1)),
            status("b", 0, 9, Some(2)),
            status("c", 0, 9, None)
        ]),
        "b"
    );
    assert_eq!(
        binding(smallvec![
            status("a", 0, 9, None),
            status("b", 5, 9, Some(1))
        ]),
        "b"
    );
}

#[test]
fn else_the_least_remaining_share_binds_and_the_first_wins_a_tie() {
    assert_eq!(
        binding(smallvec![
            status("a", 20, 33, None),
            status("b", 100, 2000, None)
        ]),
        "b"
    );
    assert_eq!(
        binding(smallvec![status("a", 1, 2, None), status("b", 2, 4, None)]),
        "a"
    );
}

#[test]
fn remaining_is_the_least_of_all_limits_and_not_that_of_the_binding_one() {
    // The second limit has the smaller share, but more units.
    let limits = smallvec![status("a", 5, 10, None), status("b", 395, 1000, None)];
    let decision = Decision::counted(Outcome::Allowed, DecidedBy::Store, limits);
    assert_eq!(
        (
            &*decision.binding().unwrap().name,
            decision.key_status().remaining
        ),
        ("b", Some(5))
    );
    let uncounted = Decision::uncounted(
        Outcome::NeverFits,
        DecidedBy::Plan,
        Some(status("a", 0, 9, None)),
    )
    .key_status();
    assert_eq!(
        (
            uncounted.remaining,
            uncounted.reset_after_us,
            uncounted.more_after_us
        ),
        (None, None, None)
    );
}

#[test]
fn an_allowing_answer_has_no_wait() {
    let of = |outcome| {
        Decision::counted(
            outcome,
            DecidedBy::Store,
            smallvec![status("a", 0, 9, Some(7))],
        )
    };
    assert_eq!(of(Outcome::Denied).key_status().retry_after_us, Some(7));
    let shadow = of(Outcome::ShadowDenied);
    assert_eq!(
        (
            shadow.key_status().retry_after_us,
            shadow.limits()[0].retry_after_us
        ),
        (None, Some(7))
    );
}
