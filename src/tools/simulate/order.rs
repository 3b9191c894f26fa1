//! The order of requests in time. Lines of a log come nearly in order; those of the last seconds are held and sorted.
//!
//! It also spreads the requests of a second evenly over it, which needs all of that second at hand.

use std::collections::BTreeMap;

use tollgate_core::utc::SECOND_US;

/// Seconds that are held before the newest one. Servers write a line when the request ends, and stamp it with its end or its
/// begin; most requests take less.
pub const ORDER_SECONDS: u64 = 10;
/// Maximum number of requests held. A log with more in so many seconds is sorted over fewer, even over a part of one.
pub const HELD_MAX: usize = 1 << 18;
/// Maximum bytes of their keys.
pub const HELD_BYTES_MAX: usize = 16 << 20;

/// A request with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Hash of the key, and of the plan unless it counts together with others.
    pub hash: u64,
    /// The time in the log, in microseconds since 1970.
    pub at_us: u64,
    /// The time when the requests of each second are spread evenly over it.
    pub even_us: u64,
    /// Units, at least 1.
    pub cost: u64,
    /// Index of the plan.
    pub plan: usize,
}

/// Holds the requests of the newest seconds, and gives them out in order of time.
#[derive(Debug, Default)]
pub struct ReorderBuffer {
    seconds: BTreeMap<u64, Second>,
    held: usize,
    held_bytes: usize,
    /// The newest second of any line.
    newest: u64,
    /// The latest time that was given out.
    given_us: u64,
    last: LastSecond,
    late: u64,
    /// Empty ones, whose memory is used again.
    spare: Vec<Second>,
}

/// The second that the last request given out was of, and how much of it was given out. Further lines of it may come.
#[derive(Debug, Default)]
struct LastSecond {
    second: u64,
    requests: u64,
    /// The part of it that these are spread over, in microseconds.
    spread_us: u64,
    /// Requests of the second before it.
    requests_before: u64,
}

impl LastSecond {
    /// Adds `requests` of `second`, which are spread over a part of it. Returns where in the second this part begins, and its length.
    /// While the second is `unfinished`, room is left for as many more as the second before had, or for half of the rest.
    fn spread(&mut self, second: u64, requests: u64, unfinished: bool) -> (u64, u64) {
        if self.second != second {
            *self = Self {
                second,
                requests: 0,
                spread_us: 0,
                requests_before: self.requests,
            };
        }
        self.requests += requests;
        let begin = self.spread_us;
        let end = match unfinished {
            false => SECOND_US,
            true if self.requests < self.requests_before => {
                self.requests * SECOND_US / self.requests_before
            }
            true => begin.midpoint(SECOND_US),
        };
        self.spread_us = end.max(begin);
        (begin, self.spread_us - begin)
    }
}

#[derive(Debug, Default)]
struct Second {
    /// Each with the end of its key in `keys`.
    events: Vec<(Event, usize)>,
    /// The keys of all events, one after another.
    keys: Vec<u8>,
    is_sorted: bool,
}

impl Second {
    /// Sorts the requests by time. `even_us` is where each key begins until it is computed, since sorting loses that.
    fn sort(&mut self) {
        // A key begins where the one before it ends.
        let mut start = 0;
        for (event, end) in &mut self.events {
            event.even_us = start as u64;
            start = *end;
        }
        if !self.is_sorted {
            self.events.sort_by_key(|(event, _)| event.at_us);
        }
    }
}

impl ReorderBuffer {
    /// Takes a request; `even_us` is set when it is given out.
    pub fn push(&mut self, mut event: Event, key: &[u8]) {
        if event.at_us < self.given_us {
            event.at_us = self.given_us;
            self.late += 1;
        }
        let second = event.at_us / SECOND_US;
        self.newest = self.newest.max(second);
        self.held += 1;
        self.held_bytes += key.len();
        let spare = &mut self.spare;
        let held = self
            .seconds
            .entry(second)
            .or_insert_with(|| spare.pop().unwrap_or_default());
        held.is_sorted = held
            .events
            .last()
            .is_none_or(|(last, _)| held.is_sorted && last.at_us <= event.at_us);
        held.keys.extend_from_slice(key);
        held.events.push((event, held.keys.len()));
    }

    /// Gives out the requests of seconds that no line is expected for any more, in order of time. Requests of the same time stay
    /// in the order of their lines. With more than may be held, it gives out those of the first second that have come.
    pub fn release(&mut self, give: &mut impl FnMut(Event, &[u8])) {
        while let Some((second, _)) = self.seconds.first_key_value() {
            let is_past = second + ORDER_SECONDS < self.newest;
            if !is_past && self.held <= HELD_MAX && self.held_bytes <= HELD_BYTES_MAX {
                return;
            }
            self.release_first(give, false);
        }
    }

    /// Gives out all requests.
    pub fn finish(&mut self, give: &mut impl FnMut(Event, &[u8])) {
        while !self.seconds.is_empty() {
            self.release_first(give, true);
        }
    }

    /// Requests that came after a later one had been given out. They were moved to the time of that one.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Gives out what is held of the first second. `is_end`: no line follows.
    fn release_first(&mut self, give: &mut impl FnMut(Event, &[u8]), is_end: bool) {
        let Some((second, mut held)) = self.seconds.pop_first() else {
            return;
        };
        self.held -= held.events.len();
        self.held_bytes -= held.keys.len();
        held.sort();
        self.given_us = held
            .events
            .last()
            .map_or(self.given_us, |(last, _)| last.at_us);
        let count = held.events.len() as u64;
        let (begin_us, length_us) =
            self.last
                .spread(second, count, second == self.newest && !is_end);
        for ((event, end), index) in held.events.iter().zip(0..) {
            let start = usize::try_from(event.even_us).unwrap_or(*end);
            let within_us = (begin_us + index * length_us / count).min(SECOND_US - 1);
            let even_us = second * SECOND_US + within_us;
            give(Event { even_us, ..*event }, &held.keys[start..*end]);
        }
        held.events.clear();
        held.keys.clear();
        self.spare.push(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(at_us: u64) -> Event {
        Event {
            hash: 0,
            at_us,
            even_us: 0,
            cost: 1,
            plan: 0,
        }
    }

    fn ordered(times: &[u64]) -> (Vec<(u64, u64, String)>, u64) {
        let mut order = ReorderBuffer::default();
        let mut given = Vec::new();
        let mut give = |event: Event, key: &[u8]| {
            given.push((
                event.at_us,
                event.even_us,
                String::from_utf8_lossy(key).into_owned(),
            ))
        };
        for (index, at_us) in times.iter().enumerate() {
            order.push(event(*at_us), format!("k{index}").as_bytes());
            order.release(&mut give);
        }
        order.finish(&mut give);
        let late = order.late();
        (given, late)
    }

    #[test]
    fn requests_of_a_second_are_spread_over_it_in_the_order_of_their_lines() {
        let (given, late) = ordered(&[5_000_000, 5_000_000, 4_000_000, 5_000_000, 5_000_000]);
        let of = |at_us, even_us, key: &str| (at_us, even_us, key.to_owned());
        let expected = [
            of(4_000_000, 4_000_000, "k2"),
            of(5_000_000, 5_000_000, "k0"),
            of(5_000_000, 5_250_000, "k1"),
            of(5_000_000, 5_500_000, "k3"),
            of(5_000_000, 5_750_000, "k4"),
        ];
        assert_eq!((given.as_slice(), late), (expected.as_slice(), 0));
    }

    #[test]
    fn a_line_that_comes_too_late_is_moved_and_counted() {
        let (given, late) = ordered(&[20_500_000, 32_000_000, 20_500_000, 20_400_000, 31_000_000]);
        let times: Vec<u64> = given.iter().map(|given| given.0).collect();
        let expected = [20_500_000, 20_500_000, 20_500_000, 31_000_000, 32_000_000];
        assert_eq!(
            (times.as_slice(), late),
            (expected.as_slice(), 1),
            "the second comes late, but after nothing that is later"
        );
    }

    /// Both in one second at first, and then in three of them with whole seconds.
    #[test]
    fn lines_in_order_are_never_late_however_many_a_second_has() {
        let of_a_second = 2 * HELD_MAX as u64 + 100;
        for at_us in [
            |index, _| index,
            |index, of_a_second| index / of_a_second * SECOND_US,
        ] {
            let mut order = ReorderBuffer::default();
            let mut given = 0;
            let mut last = (0, 0);
            let mut give = |event: Event, _: &[u8]| {
                assert!(
                    (event.at_us, event.even_us) >= last
                        && event.even_us / SECOND_US == event.at_us / SECOND_US
                );
                (given, last) = (given + 1, (event.at_us, event.even_us));
            };
            for index in 0..3 * of_a_second {
                order.push(event(at_us(index, of_a_second)), b"key");
                order.release(&mut give);
                assert!(order.held <= HELD_MAX);
            }
            order.finish(&mut give);
            assert_eq!((order.late(), given), (0, 3 * of_a_second));
        }
    }

    #[test]
    fn a_second_that_comes_in_parts_is_spread_by_the_requests_of_the_one_before() {
        let mut last = LastSecond::default();
        assert_eq!(
            last.spread(1, 100, true),
            (0, 500_000),
            "half, as nothing is known of the second"
        );
        assert_eq!(last.spread(1, 100, true), (500_000, 250_000));
        assert_eq!(last.spread(1, 200, false), (750_000, 250_000), "the rest");
        assert_eq!(last.spread(2, 100, true), (0, 250_000), "a quarter of 400");
        assert_eq!(
            last.spread(2, 300, true),
            (250_000, 375_000),
            "more than expected"
        );
        assert_eq!(last.spread(2, 1, false), (625_000, 375_000));
        assert_eq!(
            last.spread(2, 1, false),
            (1_000_000, 0),
            "what comes after the end is at the end"
        );
    }

    proptest! {
        #[test]
        fn times_never_step_back_and_no_request_is_lost(times in proptest::collection::vec(0..60_000_000_u64, 0..200)) {
            let (given, late) = ordered(&times);
            prop_assert_eq!(given.len(), times.len());
            prop_assert!(given.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
            prop_assert!(given.iter().all(|given| given.0 / SECOND_US == given.1 / SECOND_US));
            let moved = given.iter().filter(|given| times[given.2[1..].parse::<usize>().unwrap()] != given.0).count();
            prop_assert_eq!(moved as u64, late);
        }
    }
}
