//! Decides when each entry is examined again: a hierarchical timing wheel (Varghese and Lauck 1987). Its lists are linked
//! through the entries themselves.
//!
//! It takes eight bytes per entry, no allocation, and a constant number of steps to queue an entry and to reach it. A heap
//! would take 16 bytes per entry in a vector that doubles. Each level has 64 lists. A list of the lowest level holds the
//! entries of one tick, a list of the next level those of 64 ticks, and so on. When the time of a list comes, the owner pops
//! its entries one by one and drops them or queues them again at a lower level. The wheel reads nothing of an entry but its
//! links.

use super::arena::{Arena, Handle};

/// Bytes of one link. An entry's slot of the arena begins with two: to the previous entry, or to the list, and to the next entry.
const LINK_BYTES: usize = 4;
/// Bytes at the start of an entry's slot that belong to the timing wheel.
pub(super) const LINKS_BYTES: usize = 2 * LINK_BYTES;

/// A tick is 2^10 microseconds, about the shortest window. An entry is examined at most one tick late.
const TICK_BITS: u32 = 10;
/// A level has 2^6 lists, so that one 64-bit word tells which of them are not empty.
const LEVEL_BITS: u32 = 6;
/// Number of levels, enough for every time in 64 bits of microseconds.
const LEVELS: usize = (u64::BITS - TICK_BITS).div_ceil(LEVEL_BITS) as usize;
const LISTS: usize = LEVELS << LEVEL_BITS;
/// Index of the list of entries whose time has come.
const DUE: usize = LISTS;

/// The link that ends a list. It is not a handle, as those have 31 bits.
const NONE: u32 = u32::MAX;
/// Flag in a link to the previous entry. It is set in the first entry of a list, whose other bits are the index of the list.
const FIRST_OF: u32 = 1 << 31;

/// Holds each entry once, by the time at which to examine it.
pub(super) struct TimingWheel {
    /// The first entry of each list, or [`NONE`].
    first: Box<[u32]>,
    /// For each level, one bit per list, set when the list is not empty.
    occupied: [u64; LEVELS],
    /// All lists of earlier ticks are empty. Counted in ticks of `now_us + behind_us`, which never goes back.
    tick: u64,
    /// The clock at the last call.
    now_us: u64,
    /// Sum of all steps that the clock has made back, in microseconds.
    behind_us: u64,
}

impl TimingWheel {
    /// Bytes that a wheel allocates beside its own size.
    pub(super) const HEAP_BYTES: usize = (LISTS + 1) * size_of::<u32>();

    pub(super) fn new() -> Self {
        Self {
            first: vec![NONE; LISTS + 1].into_boxed_slice(),
            occupied: [0; LEVELS],
            tick: 0,
            now_us: 0,
            behind_us: 0,
        }
    }

    /// Queues an entry that is in no list. It is due when `at_us` has come, and at the earliest one tick after `now_us`.
    pub(super) fn push(&mut self, arena: &mut Arena, handle: Handle, at_us: u64, now_us: u64) {
        let now = self.tick_of(now_us);
        if self.is_empty() {
            self.tick = self.tick.max(now);
        }
        let at = (at_us.max(now_us).saturating_add(self.behind_us) >> TICK_BITS)
            .max(now)
            .max(self.tick)
            + 1;
        // The highest level at which this time and the present fall into different lists.
        let level = (u64::BITS - 1 - (self.tick ^ at).leading_zeros()) / LEVEL_BITS;
        let slot = at >> (level * LEVEL_BITS) & ((1 << LEVEL_BITS) - 1);
        self.occupied[level as usize] |= 1 << slot;
        self.prepend(
            arena,
            (level as usize) << LEVEL_BITS | slot as usize,
            handle,
        );
    }

    /// Takes out an entry that has been due for at least `ago_us`. Returns `None` when there is none.
    pub(super) fn pop(&mut self, arena: &mut Arena, now_us: u64, ago_us: u64) -> Option<Handle> {
        let now = self.tick_of(now_us).saturating_sub(ago_us >> TICK_BITS);
        while self.first[DUE] == NONE {
            if !self.advance(arena, now) {
                self.tick = self.tick.max(now);
                return None;
            }
        }
        let handle = Handle(self.first[DUE]);
        self.remove(arena, handle);
        Some(handle)
    }

    /// Takes an entry out of its list.
    pub(super) fn remove(&mut self, arena: &mut Arena, handle: Handle) {
        let previous = previous(arena, handle);
        let next = next(arena, handle);
        if next != NONE {
            set_previous(arena, Handle(next), previous);
        }
        if previous & FIRST_OF == 0 {
            return set_next(arena, Handle(previous), next);
        }
        let list = (previous ^ FIRST_OF) as usize;
        self.first[list] = next;
        if next == NONE && list != DUE {
            self.occupied[list >> LEVEL_BITS] ^= 1 << (list & ((1 << LEVEL_BITS) - 1));
        }
    }

    /// Links the list to the slot `to`, into which an entry of the list has been copied with its links.
    pub(super) fn moved(&mut self, arena: &mut Arena, to: Handle) {
        let previous = previous(arena, to);
        let next = next(arena, to);
        if previous & FIRST_OF == 0 {
            set_next(arena, Handle(previous), to.0);
        } else {
            self.first[(previous ^ FIRST_OF) as usize] = to.0;
        }
        if next != NONE {
            set_previous(arena, Handle(next), to.0);
        }
    }

    fn is_empty(&self) -> bool {
        self.first[DUE] == NONE && self.occupied.iter().all(|lists| *lists == 0)
    }

    /// Makes the earliest list the list of due entries, if its time has come. Returns whether it did.
    ///
    /// `now` is in ticks.
    fn advance(&mut self, arena: &mut Arena, now: u64) -> bool {
        // All lists of a lower level come before the next list of a higher level.
        let Some(level) = self.occupied.iter().position(|lists| *lists != 0) else {
            return false;
        };
        let slot = self.occupied[level].trailing_zeros();
        let bits = number(level) * LEVEL_BITS;
        // The bits above this level are those of the present.
        let above = self.tick & u64::MAX.checked_shl(bits + LEVEL_BITS).unwrap_or(0);
        let start = above | u64::from(slot) << bits;
        if start > now {
            return false;
        }
        self.tick = start;
        self.occupied[level] ^= 1 << slot;
        let list = level << LEVEL_BITS | slot as usize;
        self.first[DUE] = std::mem::replace(&mut self.first[list], NONE);
        set_previous(arena, Handle(self.first[DUE]), FIRST_OF | number(DUE));
        true
    }

    fn prepend(&mut self, arena: &mut Arena, list: usize, handle: Handle) {
        let next = std::mem::replace(&mut self.first[list], handle.0);
        set_previous(arena, handle, FIRST_OF | number(list));
        set_next(arena, handle, next);
        if next != NONE {
            set_previous(arena, Handle(next), handle.0);
        }
    }

    /// Converts a time of the clock to a tick. Where the clock steps back, the wheel's own time goes on, so that an entry queued
    /// for a minute still waits for a minute.
    fn tick_of(&mut self, now_us: u64) -> u64 {
        self.behind_us = self
            .behind_us
            .saturating_add(self.now_us.saturating_sub(now_us));
        self.now_us = now_us;
        now_us.saturating_add(self.behind_us) >> TICK_BITS
    }
}

/// Converts the index of a level or of a list.
fn number(index: usize) -> u32 {
    u32::try_from(index).expect("there are a few hundred lists")
}

fn previous(arena: &Arena, handle: Handle) -> u32 {
    link(arena, handle, 0)
}

fn next(arena: &Arena, handle: Handle) -> u32 {
    link(arena, handle, LINK_BYTES)
}

fn set_previous(arena: &mut Arena, handle: Handle, to: u32) {
    arena.get_mut(handle)[..LINK_BYTES].copy_from_slice(&to.to_le_bytes());
}

fn set_next(arena: &mut Arena, handle: Handle, to: u32) {
    arena.get_mut(handle)[LINK_BYTES..LINKS_BYTES].copy_from_slice(&to.to_le_bytes());
}

fn link(arena: &Arena, handle: Handle, at: usize) -> u32 {
    let mut bytes = [0; LINK_BYTES];
    bytes.copy_from_slice(&arena.get(handle)[at..at + LINK_BYTES]);
    u32::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_US: u64 = 1_790_000_000_000_000;
    const TICK_US: u64 = 1 << TICK_BITS;

    /// A wheel and an arena whose entries hold only a number.
    struct Fixture {
        wheel: TimingWheel,
        arena: Arena,
    }

    impl Fixture {
        fn push(&mut self, number: u32, at_us: u64, now_us: u64) -> Handle {
            let mut contents = [0; 24];
            contents[LINKS_BYTES..LINKS_BYTES + 4].copy_from_slice(&number.to_le_bytes());
            let handle = self.arena.add(&contents);
            self.wheel.push(&mut self.arena, handle, at_us, now_us);
            handle
        }

        /// Takes out all due entries and returns their numbers.
        fn due(&mut self, now_us: u64) -> Vec<u32> {
            let mut numbers = Vec::new();
            while let Some(handle) = self.wheel.pop(&mut self.arena, now_us, 0) {
                let number = link(&self.arena, handle, LINKS_BYTES);
                if self.arena.remove(handle).is_some() {
                    self.wheel.moved(&mut self.arena, handle);
                }
                numbers.push(number);
            }
            numbers
        }
    }

    fn fixture() -> Fixture {
        Fixture {
            wheel: TimingWheel::new(),
            arena: Arena::default(),
        }
    }

    /// The numbers whose time has come. An entry popped early, from a higher level, is queued again, as a shard does.
    fn due_in_time(fixture: &mut Fixture, at: &[u64], now_us: u64) -> Vec<u32> {
        let mut in_time = Vec::new();
        loop {
            let (due, early): (Vec<u32>, Vec<u32>) = fixture
                .due(now_us)
                .into_iter()
                .partition(|number| at[*number as usize] <= now_us);
            in_time.extend(due);
            for number in &early {
                fixture.push(*number, at[*number as usize], now_us);
            }
            if early.is_empty() {
                return in_time;
            }
        }
    }

    #[test]
    fn each_entry_is_due_within_a_tick_of_its_time_and_never_lost() {
        let mut fixture = fixture();
        let mut seed = 5_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 20) % below
        };
        // From a microsecond to a year, each magnitude equally often.
        let at: Vec<u64> = (0..3_000)
            .map(|_| {
                let magnitude = random(45);
                START_US + random(1 << magnitude)
            })
            .collect();
        for (number, at_us) in at.iter().enumerate() {
            fixture.push(number as u32, *at_us, START_US);
        }
        let mut seen = vec![false; at.len()];
        let mut now_us = START_US;
        while now_us < START_US + (1 << 46) {
            for number in due_in_time(&mut fixture, &at, now_us) {
                assert!(
                    !std::mem::replace(&mut seen[number as usize], true),
                    "{number} came twice"
                );
            }
            let late = at
                .iter()
                .zip(&seen)
                .filter(|(at_us, seen)| !**seen && **at_us + 2 * TICK_US <= now_us)
                .count();
            assert_eq!(late, 0, "at {now_us}");
            now_us += 1 + (now_us - START_US) / 16;
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    /// Removes every third of many entries, which are single, first, last or in the middle of their lists. The others still come.
    #[test]
    fn an_entry_that_was_removed_never_comes_and_the_others_do() {
        let mut fixture = fixture();
        let at: Vec<u64> = (0..2_000)
            .map(|number| START_US + number * number * 400)
            .collect();
        let handles: Vec<Handle> = (0..)
            .zip(&at)
            .map(|(number, at_us)| fixture.push(number, *at_us, START_US))
            .collect();
        handles
            .iter()
            .step_by(3)
            .for_each(|handle| fixture.wheel.remove(&mut fixture.arena, *handle));
        let next = || {
            fixture
                .wheel
                .pop(&mut fixture.arena, START_US + (1 << 40), 0)
        };
        let popped: Vec<Handle> = std::iter::from_fn(next).collect();
        let mut come: Vec<u32> = popped
            .into_iter()
            .map(|handle| link(&fixture.arena, handle, LINKS_BYTES))
            .collect();
        come.sort_unstable();
        assert_eq!(
            come,
            (0..2_000)
                .filter(|number| number % 3 != 0)
                .collect::<Vec<u32>>()
        );
        assert!(fixture.wheel.is_empty());
    }

    #[test]
    fn no_entry_waits_longer_because_the_clock_steps_back() {
        let mut fixture = fixture();
        fixture.push(0, START_US + 60_000_000, START_US);
        assert!(fixture.due(START_US - 3_600_000_000).is_empty());
        fixture.push(
            1,
            START_US - 3_600_000_000 + 1_000_000,
            START_US - 3_600_000_000,
        );
        assert_eq!(fixture.due(START_US - 3_600_000_000 + 2_000_000), [1]);
        assert_eq!(fixture.due(START_US - 3_600_000_000 + 61_000_000), [0]);
    }

    #[test]
    fn an_entry_queued_for_the_past_is_due_one_tick_later() {
        let mut fixture = fixture();
        fixture.push(0, 0, START_US);
        assert!(fixture.due(START_US).is_empty());
        assert_eq!(fixture.due(START_US + TICK_US), [0]);
    }
}
