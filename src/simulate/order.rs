//! The order of requests in time. Lines of a log come nearly in order; those of the last seconds are held and sorted.
//!
//! It also spreads the requests of a second evenly over it, which needs all of that second at hand.

use std::collections::BTreeMap;

use super::stamp::SECOND_US;

/// Seconds that are held before the newest one. Servers write a line when the request ends, and stamp it with its end or its
/// begin; most requests take less.
pub const ORDER_SECONDS: u64 = 10;
/// Most requests held, and bytes of their keys. A log with more in so many seconds is sorted over fewer seconds.
const HELD_MAX: usize = 1 << 18;
const HELD_BYTES_MAX: usize = 16 << 20;

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
    newest: u64,
    /// The first second that was not given out yet.
    first_held: u64,
    late: u64,
    /// Empty ones, whose memory is used again.
    spare: Vec<Second>,
}

#[derive(Debug, Default)]
struct Second {
    /// Each with the end of its key in `keys`.
    events: Vec<(Event, usize)>,
    /// The keys of all events, one after another.
    keys: Vec<u8>,
    is_sorted: bool,
}

impl ReorderBuffer {
    /// Takes a request; `even_us` is set when it is given out.
    pub fn push(&mut self, mut event: Event, key: &[u8]) {
        let mut second = event.at_us / SECOND_US;
        if second < self.first_held {
            (second, event.at_us) = (self.first_held, self.first_held * SECOND_US);
            self.late += 1;
        }
        self.newest = self.newest.max(second);
        self.held += 1;
        self.held_bytes += key.len();
        let spare = &mut self.spare;
        let held = self.seconds.entry(second).or_insert_with(|| spare.pop().unwrap_or_default());
        held.is_sorted = held.events.last().is_none_or(|(last, _)| held.is_sorted && last.at_us <= event.at_us);
        held.keys.extend_from_slice(key);
        held.events.push((event, held.keys.len()));
    }

    /// Gives out the requests of seconds that no line is expected for any more, in order of time. Requests of the same time stay
    /// in the order of their lines.
    pub fn release(&mut self, give: &mut impl FnMut(Event, &[u8])) {
        while let Some((second, _)) = self.seconds.first_key_value() {
            let is_past = second + ORDER_SECONDS < self.newest;
            if !is_past && self.held <= HELD_MAX && self.held_bytes <= HELD_BYTES_MAX {
                return;
            }
            self.release_first(give);
        }
    }

    /// Gives out all requests.
    pub fn finish(&mut self, give: &mut impl FnMut(Event, &[u8])) {
        while !self.seconds.is_empty() {
            self.release_first(give);
        }
    }

    /// Requests that came after their second had been given out. They were moved to the first second that had not.
    pub fn late(&self) -> u64 {
        self.late
    }

    fn release_first(&mut self, give: &mut impl FnMut(Event, &[u8])) {
        let Some((second, mut held)) = self.seconds.pop_first() else { return };
        self.first_held = second + 1;
        self.held -= held.events.len();
        self.held_bytes -= held.keys.len();
        // A key begins where the one before it ends. `even_us` holds that until it is computed, since sorting loses it.
        let mut start = 0;
        for (event, end) in &mut held.events {
            event.even_us = start as u64;
            start = *end;
        }
        if !held.is_sorted {
            held.events.sort_by_key(|(event, _)| event.at_us);
        }
        let count = held.events.len() as u64;
        for ((event, end), index) in held.events.iter().zip(0..) {
            let start = usize::try_from(event.even_us).unwrap_or(*end);
            let even_us = second * SECOND_US + index * SECOND_US / count;
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
        Event { hash: 0, at_us, even_us: 0, cost: 1, plan: 0 }
    }

    fn ordered(times: &[u64]) -> (Vec<(u64, u64, String)>, u64) {
        let (mut order, mut given) = (ReorderBuffer::default(), Vec::new());
        let mut give =
            |event: Event, key: &[u8]| given.push((event.at_us, event.even_us, String::from_utf8_lossy(key).into_owned()));
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
        let (given, late) = ordered(&[20_500_000, 32_000_000, 20_500_000, 31_000_000]);
        let times: Vec<u64> = given.iter().map(|given| given.0).collect();
        assert_eq!((times.as_slice(), late), ([20_500_000, 21_000_000, 31_000_000, 32_000_000].as_slice(), 1));
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut order = ReorderBuffer::default();
        for index in 0..HELD_MAX as u64 + 100 {
            order.push(event(index), b"key");
            order.release(&mut |_, _| ());
        }
        assert!(order.held <= HELD_MAX && order.late() > 0);
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
