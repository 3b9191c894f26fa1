//! Leases of streams: their ends, lost answers, and clocks that step back.

use std::time::Duration;

use super::*;
use crate::algorithm::holds::{HoldCall, HoldEvent, HoldState, IfUnknown, Notes, call};
use crate::algorithm::{Block, State};
use crate::plan::{Algorithm, Anchor, HoldTerms, Limit, Rule};

const NOW: u64 = 1_000_000_000_000;
const TTL: u64 = 30_000_000;

/// A key of a plan with one limit, and the time.
struct Key {
    plan: Arc<Plan>,
    states: Vec<State>,
    blocks: Vec<Block>,
    notes: Notes,
    now_us: u64,
}

impl Key {
    fn new(release_on_expiry: bool) -> Self {
        let algorithm = Algorithm::FixedWindow {
            anchor: Anchor::Clock,
        };
        let limit = Limit::new("day", 100, Duration::from_secs(86_400), algorithm).unwrap();
        let holds = HoldTerms {
            release_on_expiry,
            ..HoldTerms::default()
        };
        let plan = Plan {
            holds: holds.into(),
            ..Plan::new("p", Rule::limits([limit]))
        };
        Self {
            states: plan.limits().iter().map(State::fresh).collect(),
            blocks: vec![Block::default()],
            plan: Arc::new(plan),
            notes: Notes::default(),
            now_us: NOW,
        }
    }

    fn parts(&mut self) -> (Arc<Plan>, HoldKey<'_>, u64) {
        let key = HoldKey {
            states: &mut self.states,
            blocks: &mut self.blocks,
            notes: &mut self.notes,
        };
        (self.plan.clone(), key, self.now_us)
    }

    fn ask(&mut self, asked: HoldCall) -> HoldEvent {
        let (plan, key, now_us) = self.parts();
        call(&plan, key, now_us, ("a", asked)).event
    }

    fn lease(&mut self, asked: LeaseCall) -> LeaseEvent {
        let (plan, key, now_us) = self.parts();
        lease(&plan, key, now_us, ("a", asked)).event
    }

    fn reserve(&mut self) {
        let reserved = self.ask(HoldCall::Reserve {
            cost: 7,
            ttl_us: TTL,
        });
        assert!(matches!(
            reserved,
            HoldEvent::Decided {
                expires_in_us: Some(TTL)
            }
        ));
    }

    fn renew(&mut self, expires_us: u64) -> LeaseEvent {
        self.lease(renew(self, expires_us))
    }

    /// When the lease ends that a stream takes.
    fn take(&mut self, is_new: bool) -> u64 {
        match self.lease(LeaseCall::Take {
            ttl_us: TTL,
            is_new,
        }) {
            LeaseEvent::Open { expires_us, .. } => expires_us,
            other => panic!("{other:?}"),
        }
    }
}

/// A renewal to a whole lease.
fn renew(key: &Key, expires_us: u64) -> LeaseCall {
    LeaseCall::Renew {
        expires_us,
        until_us: key.now_us + TTL,
    }
}

fn end(expires_us: u64) -> LeaseCall {
    LeaseCall::End {
        expires_us,
        until_us: 0,
    }
}

#[test]
fn a_lease_is_its_stream_s_until_another_one_sets_its_end() {
    let mut key = Key::new(false);
    assert_eq!(key.renew(1), LeaseEvent::Lost(LostReason::Forgotten));
    key.reserve();
    let first = key.take(true);
    assert_eq!(first, NOW + TTL);
    key.now_us += TTL / 3;
    let renewed = NOW + TTL / 3 + TTL;
    let open = LeaseEvent::Open {
        expires_us: renewed,
        expires_in_us: TTL,
    };
    assert_eq!(key.renew(first), open);
    // Another stream takes it over, also where the clock stands.
    let second = key.take(false);
    assert_eq!(second, renewed + 1);
    for call in [renew(&key, renewed), end(renewed)] {
        assert_eq!(key.lease(call), LeaseEvent::Lost(LostReason::Moved));
    }
    // An extend that prolongs it takes it, too. One that does not leaves it.
    key.ask(HoldCall::Extend { ttl_us: TTL / 2 });
    assert!(matches!(key.renew(second), LeaseEvent::Open { .. }));
    key.ask(HoldCall::Extend { ttl_us: 2 * TTL });
    assert_eq!(key.renew(second), LeaseEvent::Lost(LostReason::Moved));
    let settle = HoldCall::Settle {
        actual: None,
        if_unknown: IfUnknown::Charge,
    };
    key.ask(settle);
    assert_eq!(key.renew(second), LeaseEvent::Lost(LostReason::Settled));
}

#[test]
fn the_end_of_a_stream_is_the_end_of_a_lease() {
    for releases in [false, true] {
        let mut key = Key::new(releases);
        key.reserve();
        let expires_us = key.take(true);
        let (plan, parts, now_us) = key.parts();
        let ended = lease(&plan, parts, now_us, ("a", end(expires_us)));
        assert_eq!(ended.event, LeaseEvent::Ended);
        let units = if releases { 7 } else { 0 };
        assert_eq!((ended.ended.expired, ended.ended.units), (1, units));
        let extended = key.ask(HoldCall::Extend { ttl_us: TTL });
        assert!(matches!(
            extended,
            HoldEvent::Extended {
                state: HoldState::Expired,
                ..
            }
        ));
        assert_eq!(key.renew(expires_us), LeaseEvent::Lost(LostReason::Expired));
    }
}

/// A lease that ends later than the longest from now is shortened, by whichever call comes first, and stays its stream's.
#[test]
fn a_clock_that_steps_back_takes_no_hold_from_its_stream() {
    for is_first in [true, false] {
        let mut key = Key::new(false);
        key.reserve();
        let expires_us = key.take(true);
        key.now_us -= 3_600_000_000;
        // Whichever call shortens it, and though time goes on.
        let shortened_us = key.now_us + 600_000_000;
        if !is_first {
            key.ask(HoldCall::Peek { cost: 1 });
            key.ask(HoldCall::Extend { ttl_us: 1_000_000 });
            key.now_us += 5;
        }
        let open = LeaseEvent::Open {
            expires_us: shortened_us,
            expires_in_us: shortened_us - key.now_us,
        };
        assert_eq!(key.renew(expires_us), open);
    }
}

/// The stream does not know which of two ends it has set.
#[test]
fn a_renewal_whose_answer_was_lost_is_sent_again() {
    for was_done in [true, false] {
        let mut key = Key::new(false);
        key.reserve();
        let first = key.take(true);
        key.now_us += TTL / 3;
        let renewal = renew(&key, first);
        let open = LeaseEvent::Open {
            expires_us: key.now_us + TTL,
            expires_in_us: TTL - 5,
        };
        if was_done {
            key.lease(renewal);
        }
        key.now_us += 5;
        assert_eq!(key.lease(renewal), open);
        let until_us = NOW + TTL / 3 + TTL;
        let end = LeaseCall::End {
            expires_us: first,
            until_us,
        };
        assert_eq!(key.lease(end), LeaseEvent::Ended);
    }
    // Another one that took it meanwhile keeps it, or reserved it anew for a shorter time.
    let mut key = Key::new(false);
    key.reserve();
    let first = key.take(true);
    let renewal = renew(&key, first);
    key.now_us += 5;
    key.take(false);
    assert_eq!(key.lease(renewal), LeaseEvent::Lost(LostReason::Moved));
    let mut key = Key::new(false);
    key.ask(HoldCall::Reserve {
        cost: 7,
        ttl_us: TTL / 2,
    });
    assert_eq!(
        key.lease(renew(&key, NOW + TTL)),
        LeaseEvent::Lost(LostReason::Moved)
    );
    assert_eq!(
        key.lease(end(NOW + TTL)),
        LeaseEvent::Lost(LostReason::Moved)
    );
}

#[test]
fn the_end_of_a_lease_comes_to_the_microsecond() {
    let mut key = Key::new(false);
    key.reserve();
    let expires_us = key.take(true);
    key.now_us = expires_us - 1;
    assert!(matches!(key.renew(expires_us), LeaseEvent::Open { .. }));
    let mut key = Key::new(false);
    key.reserve();
    key.now_us = expires_us;
    assert_eq!(key.renew(expires_us), LeaseEvent::Lost(LostReason::Expired));
}
