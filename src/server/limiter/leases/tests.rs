//! When leases are renewed and ended, and what is done about answers that do not come.

use super::*;
use tollgate_core::plan::Rule;

const TTL_US: u64 = 30_000_000;
/// When leases end of which the store told at first.
const TOLD_US: u64 = 1_000_000_000;
const OPEN: LeaseEvent = LeaseEvent::Open {
    expires_us: 2,
    expires_in_us: TTL_US,
};

fn name(id: &str) -> LeaseName {
    LeaseName {
        counts_as: "p".into(),
        key: Key::new("k".to_owned()).unwrap(),
        id: RequestId::new(id).unwrap(),
    }
}

fn new(id: &str, expires_us: Option<u64>, began: Instant) -> NewLease<()> {
    NewLease {
        name: name(id),
        decided_by: Arc::new(Plan::new("p", Rule::Unlimited)),
        ttl_us: TTL_US,
        is_new: true,
        ends: (expires_us, TTL_US),
        told_at: began,
        tag: (),
    }
}

fn after(began: Instant, seconds: u64) -> Instant {
    began + Duration::from_secs(seconds)
}

/// The reason with which one hold is lost by this answer after so many seconds.
fn lost_by(answer: Result<LeaseEvent, StoreError>, seconds: u64) -> Option<LostReason> {
    let mut leases = Leases::default();
    let began = tollgate_store::clock::monotonic();
    leases.add(new("a", Some(TOLD_US), began), began);
    let (numbers, _) = leases.take_due(after(began, 10));
    let lost = leases.note(numbers[0], answer, after(began, seconds));
    assert_eq!(leases.is_empty(), lost.is_some());
    lost.map(|lost| lost.reason)
}

#[test]
fn a_lease_is_renewed_when_a_third_of_it_has_passed_and_with_it_those_that_are_due_soon() {
    let mut leases = Leases::default();
    let began = tollgate_store::clock::monotonic();
    leases.add(new("a", Some(TOLD_US), began), began);
    leases.add(
        new("b", Some(TOLD_US), began + DUE_TOGETHER),
        began + DUE_TOGETHER,
    );
    leases.add(new("c", Some(TOLD_US), after(began, 1)), after(began, 1));
    assert_eq!(leases.next_due(), Some(after(began, 10)));
    assert!(leases.take_due(after(began, 9)).0.is_empty());
    let (numbers, asked) = leases.take_due(after(began, 10));
    let ids: Vec<&str> = asked.iter().map(|ask| ask.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(asked[0].call, renewed_after(10));
    assert_eq!(leases.next_due(), Some(after(began, 11)));
    for number in numbers {
        assert!(leases.note(number, Ok(OPEN), after(began, 10)).is_none());
    }
    let (_, asked) = leases.take_due(after(began, 12));
    assert_eq!(asked.len(), 1, "c alone is due");
    assert_eq!(leases.next_due(), Some(after(began, 20)));
}

#[test]
fn a_renewal_that_fails_is_tried_again_until_the_lease_ends() {
    let failed = || Err(StoreError::Unreachable("gone".to_owned()));
    assert_eq!(lost_by(failed(), 11), None);
    assert_eq!(lost_by(failed(), 29), None);
    assert_eq!(lost_by(failed(), 30), Some(LostReason::Expired));
    assert_eq!(lost_by(Ok(OPEN), 31), None);
    for reason in [
        LostReason::Settled,
        LostReason::Moved,
        LostReason::Forgotten,
    ] {
        assert_eq!(lost_by(Ok(LeaseEvent::Lost(reason)), 10), Some(reason));
    }
}

#[test]
fn what_a_settle_tells_is_not_told_twice() {
    let mut leases = Leases::default();
    let began = tollgate_store::clock::monotonic();
    leases.add(new("a", Some(TOLD_US), began), began);
    let (numbers, _) = leases.take_due(after(began, 10));
    leases.settle_begins(&name("a").key, &name("a").id);
    let settled = || Ok(LeaseEvent::Lost(LostReason::Settled));
    assert!(leases.note(numbers[0], settled(), began).is_none());
    assert!(leases.is_empty());
    leases.settle_ends(name("a").key, name("a").id);
    leases.add(new("a", Some(TOLD_US), began), began);
    let (numbers, _) = leases.take_due(after(began, 10));
    assert!(leases.note(numbers[0], settled(), began).is_some());
}

/// The renewal that is asked for so many seconds after the store told.
fn renewed_after(seconds: u64) -> LeaseCall {
    LeaseCall::Renew {
        expires_us: TOLD_US,
        until_us: TOLD_US + seconds * 999_000,
    }
}

/// The first one may have been carried out, which the second one and the end have to match.
#[test]
fn a_renewal_without_an_answer_is_sent_again_as_it_was() {
    let mut leases = Leases::default();
    let began = tollgate_store::clock::monotonic();
    leases.add(new("a", Some(TOLD_US), began), began);
    for seconds in [10, 13, 16] {
        let (numbers, asked) = leases.take_due(after(began, seconds));
        assert_eq!(asked[0].call, renewed_after(10));
        let late = Err(StoreError::Deadline(Duration::from_millis(25)));
        assert!(
            leases
                .note(numbers[0], late, after(began, seconds))
                .is_none()
        );
    }
    let end = LeaseCall::End {
        expires_us: TOLD_US,
        until_us: TOLD_US + 9_990_000,
    };
    assert_eq!(leases.ends(None).1[0].call, end);
    // It has 21 s left, of which a third passes until the next one.
    let (numbers, _) = leases.take_due(after(began, 19));
    let open = LeaseEvent::Open {
        expires_us: TOLD_US + 10_000_000,
        expires_in_us: 21_000_000,
    };
    leases.note(numbers[0], Ok(open), after(began, 19));
    assert_eq!(leases.next_due(), Some(after(began, 26)));
}

#[test]
fn an_end_is_asked_for_until_the_store_confirms_it() {
    let mut leases = Leases::default();
    let began = tollgate_store::clock::monotonic();
    leases.add(new("a", Some(7), began), began);
    leases.add(new("b", None, began), began);
    leases.add(new("c", Some(8), began), began);
    let end = |expires_us| LeaseCall::End {
        expires_us,
        until_us: 0,
    };
    // Another stream may have the one of which nothing was told.
    let (numbers, asked) = leases.ends(None);
    assert_eq!([asked[0].call, asked[1].call], [end(7), end(8)]);
    assert_eq!(leases.ends(Some(numbers[0])).0, numbers[1..]);
    leases.note_end(numbers[0], &Err(StoreError::Overloaded(1)));
    leases.note_end(numbers[1], &Ok(LeaseEvent::Lost(LostReason::Moved)));
    let (numbers, asked) = leases.ends(None);
    assert_eq!((asked.len(), asked[0].call), (1, end(7)));
    leases.note_end(numbers[0], &Ok(LeaseEvent::Ended));
    assert!(leases.ends(None).0.is_empty());
}

/// A reserve whose take had no answer: another stream may have taken it over since, for as long.
#[test]
fn a_hold_that_lasts_longer_than_its_reserve_told_is_another_stream_s() {
    for (expires_in_us, lost) in [
        (TTL_US - 1_000_000, None),
        (TTL_US - 900_000, Some(LostReason::Moved)),
    ] {
        let mut leases = Leases::default();
        let began = tollgate_store::clock::monotonic();
        leases.add(new("a", None, began), began);
        let (numbers, _) = leases.take_due(after(began, 1));
        let open = LeaseEvent::Open {
            expires_us: 5,
            expires_in_us,
        };
        let told = leases.note(numbers[0], Ok(open), after(began, 2));
        assert_eq!(told.map(|told| told.reason), lost);
    }
}

/// The take of a repeated reserve may have been carried out without an answer. It is not the end that was told before, then.
#[test]
fn a_take_over_without_an_answer_is_sent_again() {
    let mut leases = Leases::default();
    let began = tollgate_store::clock::monotonic();
    leases.add(new("a", Some(7), began), began);
    let again = |is_new| NewLease {
        is_new,
        ..new("a", None, began)
    };
    leases.add(again(true), began);
    assert_eq!(leases.ends(None).0.len(), 1, "what comes late tells less");
    leases.add(again(false), began);
    assert!(leases.ends(None).0.is_empty());
    let (_, asked) = leases.take_due(began + RETRY_MIN);
    let take = LeaseCall::Take {
        ttl_us: TTL_US,
        is_new: false,
    };
    assert_eq!(asked[0].call, take);
}

#[test]
fn what_the_store_did_not_tell_of_is_asked_for_soon() {
    let mut leases = Leases::default();
    let began = tollgate_store::clock::monotonic();
    leases.add(new("b", None, began), began);
    leases.add(new("a", Some(7), began), began);
    let (_, asked) = leases.take_due(began + RETRY_MIN);
    let take = LeaseCall::Take {
        ttl_us: TTL_US,
        is_new: true,
    };
    assert_eq!((asked.len(), asked[0].call), (1, take));
    // One of the same name takes its place, and not that of one that was told later.
    for (told, known) in [(9, 9), (8, 9)] {
        leases.add(new("a", Some(told), began), began);
        let end = LeaseCall::End {
            expires_us: known,
            until_us: 0,
        };
        assert_eq!((leases.len(), leases.ends(None).1[0].call), (2, end));
    }
    leases.remove(&name("a"));
    assert_eq!(
        (leases.len(), leases.has(&name("a").key, &name("a").id)),
        (1, false)
    );
}
