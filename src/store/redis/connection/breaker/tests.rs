//! The breaker by cases and by property.

use proptest::prelude::*;

use super::*;
use crate::clock::monotonic;

const MS: Duration = Duration::from_millis(1);

/// A breaker whose first probe passed at the returned instant; its connection is number 1.
fn closed() -> (Breaker, Instant) {
    let now = monotonic();
    let mut breaker = Breaker::new(now, false);
    assert_eq!(breaker.begin_probe(now), Some(1));
    assert_eq!(breaker.probe_passed(now), Some(Duration::ZERO));
    (breaker, now)
}

fn fail(breaker: &mut Breaker, times: u32, now: Instant) -> u32 {
    (0..times)
        .map(|_| u32::from(breaker.unanswered(breaker.connection, now, now, 0)))
        .sum()
}

#[test]
fn it_begins_open_with_a_probe_due_at_once() {
    let now = monotonic();
    let breaker = Breaker::new(now, false);
    assert_eq!(
        (breaker.state(), breaker.probe_at()),
        (BreakerState::Open, Some(now))
    );
}

#[test]
fn it_opens_at_the_fifth_failure_in_a_row_and_once() {
    let (mut breaker, now) = closed();
    assert_eq!(fail(&mut breaker, 4, now), 0);
    assert_eq!(breaker.state(), BreakerState::Closed);
    assert_eq!(fail(&mut breaker, 10, now), 1);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn an_answer_ends_a_row_of_failures() {
    let (mut breaker, mut now) = closed();
    for _ in 0..10 {
        assert_eq!(fail(&mut breaker, FAILURES_MAX - 1, now), 0);
        breaker.answered(1);
        now += WINDOW + MS;
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
}

/// The number of failures that open the breaker if they come `apart`, with `answers` answers after each.
fn failures_to_open(crowded: bool, apart: Duration, answers: u32) -> Option<u32> {
    let mut now = monotonic();
    let mut breaker = Breaker::new(now, crowded);
    breaker.begin_probe(now);
    breaker.probe_passed(now);
    (1..=100).find(|_| {
        now += apart;
        let opened = breaker.unanswered(1, now - MS, now, 0);
        (0..answers).for_each(|_| breaker.answered(1));
        opened
    })
}

#[test]
fn half_of_the_calls_of_a_second_open_it_in_whatever_order() {
    for crowded in [false, true] {
        assert_eq!(
            failures_to_open(crowded, 25 * MS, 1),
            Some(FAILURES_MAX),
            "one by one"
        );
        assert_eq!(
            failures_to_open(crowded, 250 * MS, 1),
            Some(FAILURES_MAX),
            "five in a second"
        );
        assert_eq!(
            failures_to_open(crowded, 251 * MS, 1),
            None,
            "fewer than five in a second"
        );
        assert_eq!(failures_to_open(crowded, 25 * MS, 3), None, "a quarter");
    }
}

#[test]
fn answers_of_a_second_that_is_over_do_not_hide_failures() {
    let (mut breaker, now) = closed();
    assert_eq!(fail(&mut breaker, 1, now), 0);
    (0..1_000).for_each(|_| breaker.answered(1));
    let later = now + WINDOW + MS;
    for _ in 1..FAILURES_MAX {
        assert_eq!(fail(&mut breaker, 1, later), 0);
        breaker.answered(1);
    }
    assert_eq!(fail(&mut breaker, 1, later), 1);
}

#[test]
fn a_lost_connection_opens_it_at_once() {
    let (mut breaker, now) = closed();
    assert!(breaker.lost(1, now, 0));
    assert!(!breaker.lost(1, now, 0));
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn results_of_calls_on_an_earlier_connection_do_not_count_for_this_one() {
    let (mut breaker, now) = closed();
    assert!(breaker.lost(1, now, 0));
    assert_eq!(breaker.begin_probe(now), Some(2));
    assert!(breaker.probe_passed(now).is_some());
    for _ in 0..100 {
        assert!(!breaker.unanswered(1, now, now, 0));
    }
    assert!(!breaker.lost(1, now, 0));
    assert_eq!(fail(&mut breaker, FAILURES_MAX - 1, now), 0);
    (0..100).for_each(|_| breaker.answered(1));
    assert_eq!(
        fail(&mut breaker, 1, now),
        1,
        "an old answer must not hide new failures"
    );
}

#[test]
fn one_probe_at_a_time_and_none_before_it_is_due() {
    let (mut breaker, now) = closed();
    assert_eq!(breaker.begin_probe(now), None);
    assert!(breaker.lost(1, now, u64::MAX));
    let due = breaker.probe_at().unwrap();
    assert_eq!(breaker.begin_probe(due - MS), None);
    assert!(breaker.begin_probe(due).is_some());
    assert_eq!((breaker.begin_probe(due), breaker.probe_at()), (None, None));
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
}

#[test]
fn it_tells_how_long_it_was_open_whatever_the_probes_between() {
    let (mut breaker, now) = closed();
    breaker.lost(1, now, 0);
    breaker.begin_probe(now).unwrap();
    breaker.probe_failed(ConnectFailure::Cheap, now + 100 * MS, 0);
    breaker.begin_probe(now + 100 * MS).unwrap();
    assert_eq!(breaker.probe_passed(now + 300 * MS), Some(300 * MS));
    assert_eq!(breaker.probe_passed(now + 300 * MS), None);
}

#[test]
fn starting_over_leaves_it_open_with_a_probe_due() {
    let (mut breaker, now) = closed();
    for half_open in [false, true] {
        breaker.start_over(now, 0);
        assert_eq!(
            (breaker.state(), breaker.probe_at()),
            (BreakerState::Open, Some(now))
        );
        if half_open {
            breaker.begin_probe(now).unwrap();
        }
    }
}

/// The longest pauses before the probes of one outage, in milliseconds; nothing passes in between.
fn longest_pauses(breaker: &mut Breaker, mut now: Instant, probes: u32) -> Vec<u128> {
    let mut pauses = Vec::new();
    for _ in 0..probes {
        let due = breaker.probe_at().unwrap();
        pauses.push((due - now).as_millis() + 1);
        now = due;
        breaker.begin_probe(now).unwrap();
        breaker.probe_failed(ConnectFailure::Cheap, now, u64::MAX);
    }
    pauses
}

#[test]
fn pauses_double_up_to_their_bound_and_start_over_after_a_second_of_health() {
    let (mut breaker, now) = closed();
    breaker.lost(1, now, u64::MAX);
    assert_eq!(
        longest_pauses(&mut breaker, now, 7),
        [20, 40, 80, 160, 300, 300, 300]
    );
    let back = breaker.probe_at().unwrap();
    breaker.begin_probe(back).unwrap();
    breaker.probe_passed(back).unwrap();
    breaker.lost(2, back + RELAPSE, u64::MAX);
    assert_eq!(longest_pauses(&mut breaker, back + RELAPSE, 2), [20, 40]);
}

#[test]
fn a_relapse_goes_on_with_long_pauses() {
    let (mut breaker, now) = closed();
    breaker.lost(1, now, u64::MAX);
    longest_pauses(&mut breaker, now, 5);
    let back = breaker.probe_at().unwrap();
    breaker.begin_probe(back).unwrap();
    breaker.probe_passed(back).unwrap();
    breaker.lost(2, back + RELAPSE - MS, u64::MAX);
    assert_eq!(longest_pauses(&mut breaker, back + RELAPSE - MS, 1), [300]);
}

#[derive(Debug, Clone)]
enum Step {
    Answered(bool),
    Unanswered(bool),
    Lost(bool),
    Begin,
    Passed,
    Failed(ConnectFailure),
}

fn steps() -> impl Strategy<Value = Vec<(Step, u64, u64)>> {
    let step = prop_oneof![
        1 => any::<bool>().prop_map(Step::Answered),
        4 => any::<bool>().prop_map(Step::Unanswered),
        1 => any::<bool>().prop_map(Step::Lost),
        2 => Just(Step::Begin),
        1 => Just(Step::Passed),
        1 => Just(Step::Failed(ConnectFailure::Cheap)),
        1 => Just(Step::Failed(ConnectFailure::HandshakeTimedOut)),
    ];
    prop::collection::vec((step, 0_u64..400, any::<u64>()), 0..200)
}

proptest! {
    /// For random events: an open breaker always has a probe due within [`PAUSE_MAX`], or a little later after handshakes that
    /// timed out. It opens only by failures in a row or as many within a second, on this connection, or by its loss. It closes
    /// only by a passed probe. No connection number is used twice.
    #[test]
    fn it_never_sticks_and_never_opens_or_closes_unfounded(steps in steps()) {
        let mut now = monotonic();
        let mut breaker = Breaker::new(now, false);
        let mut in_a_row = 0;
        let mut numbers = Vec::new();
        let mut failures: Vec<Instant> = Vec::new();
        for (step, pass_ms, jitter) in steps {
            now += Duration::from_millis(pass_ms);
            let before = breaker.state();
            let connection = |current: bool| if current { breaker.connection } else { breaker.connection.wrapping_sub(1) };
            match step {
                Step::Answered(current) => {
                    breaker.answered(connection(current));
                    in_a_row = if current { 0 } else { in_a_row };
                }
                Step::Unanswered(current) => {
                    let opened = breaker.unanswered(connection(current), now, now, jitter);
                    in_a_row += u32::from(current && before == BreakerState::Closed);
                    let counts = before == BreakerState::Closed && current;
                    failures.extend(counts.then_some(now));
                    failures.retain(|at| now - *at <= WINDOW);
                    prop_assert!(!opened || counts && (in_a_row >= FAILURES_MAX || failures.len() >= FAILURES_MAX as usize));
                    prop_assert!(opened || !counts || in_a_row < FAILURES_MAX);
                }
                Step::Lost(current) => {
                    let opened = breaker.lost(connection(current), now, jitter);
                    prop_assert_eq!(opened, before == BreakerState::Closed && current);
                }
                Step::Begin => if breaker.begin_probe(now).is_some() {
                    prop_assert_eq!(before, BreakerState::Open);
                },
                Step::Passed => if breaker.probe_passed(now).is_some() {
                    prop_assert_eq!(before, BreakerState::HalfOpen);
                    prop_assert!(!numbers.contains(&breaker.connection));
                    numbers.push(breaker.connection);
                    in_a_row = 0;
                    failures.clear();
                },
                Step::Failed(failure) => breaker.probe_failed(failure, now, jitter),
            }
            let closed = breaker.state() == BreakerState::Closed && before != BreakerState::Closed;
            prop_assert!(!closed || matches!(step, Step::Passed));
            if breaker.state() == BreakerState::Open && before != BreakerState::Open {
                prop_assert!(breaker.probe_at().unwrap() <= now + breaker.pace.pause_max(PAUSE_MAX));
                prop_assert!(breaker.probe_at().unwrap() <= now + 4 * PAUSE_MAX);
            }
            prop_assert_eq!(breaker.state() == BreakerState::Open, breaker.probe_at().is_some());
        }
    }
}

#[test]
fn where_many_calls_are_under_way_those_that_fail_together_count_as_one() {
    let now = monotonic();
    let mut breaker = Breaker::new(now, true);
    breaker.begin_probe(now);
    breaker.probe_passed(now);
    let deadline = Duration::from_millis(25);
    for generation in 1..=FAILURES_MAX {
        let sent = now + deadline * (generation - 1);
        let failed = now + deadline * generation;
        let opened: Vec<bool> = (0..64)
            .map(|_| breaker.unanswered(1, sent, failed, 0))
            .collect();
        let opens = generation == FAILURES_MAX;
        assert_eq!(
            (opened[0], opened[1..].contains(&true)),
            (opens, false),
            "generation {generation}"
        );
    }
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn a_probe_that_has_somewhere_else_to_go_is_due_soon() {
    let now = monotonic();
    let mut breaker = Breaker::new(now, false);
    for _ in 0..10 {
        let due = breaker.probe_at().unwrap();
        breaker.begin_probe(due);
        breaker.probe_failed(ConnectFailure::Cheap, due, u64::MAX);
    }
    assert!(breaker.probe_at().unwrap() > now + PAUSE_MAX);
    breaker.probe_soon(now, u64::MAX);
    assert!(breaker.probe_at().unwrap() <= now + PAUSE_FIRST);
}

#[test]
fn handshakes_that_time_out_are_waited_for_longer_until_a_second_of_health() {
    let (mut breaker, now) = closed();
    breaker.lost(1, now, 0);
    let mut time_limit = Vec::new();
    for _ in 0..4 {
        time_limit.push(breaker.time_limit().as_millis());
        breaker.begin_probe(breaker.probe_at().unwrap()).unwrap();
        breaker.probe_failed(ConnectFailure::HandshakeTimedOut, now, 0);
    }
    assert_eq!(time_limit, [500, 1_000, 2_000, 4_000]);
    breaker.begin_probe(now).unwrap();
    breaker.probe_passed(now).unwrap();
    breaker.lost(2, now + RELAPSE - MS, 0);
    assert_eq!(
        breaker.time_limit(),
        2_000 * MS,
        "one step back, as it is lost again"
    );
    breaker.begin_probe(now + RELAPSE).unwrap();
    breaker.probe_passed(now + RELAPSE).unwrap();
    breaker.lost(3, now + RELAPSE * 2, 0);
    assert_eq!(breaker.time_limit(), 500 * MS);
}
