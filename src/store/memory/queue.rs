//! When to look at which entry again: a hierarchical timing wheel (Varghese and Lauck 1987) of lists that run through the
//! entries themselves.
//!
//! Eight bytes an entry, no allocation, and a constant number of steps to queue it and to reach it: a heap would keep 16
//! bytes an entry in a list that doubles. A level has 64 lists; a list of the lowest holds the entries of one tick, one of
//! the next those of 64 ticks, and so on. When the time of a list comes, its entries are looked at one by one and queued
//! anew, further down, or dropped. Knows of entries only where their links are.

use super::arena::{Arena, Handle};

/// An entry's link to the one before it, or to its list, is here in its slot, and that to the next one right after it.
const LINK_BYTES: usize = 4;
/// Bytes at the start of a slot that are the queue's.
pub(super) const LINKS_BYTES: usize = 2 * LINK_BYTES;

/// A tick is 2^10 microseconds, about the shortest window; an entry is looked at most one late.
const TICK_BITS: u32 = 10;
/// A level has 2^6 lists, so that a word says which of them hold something.
const LEVEL_BITS: u32 = 6;
/// Levels that every time within 64 bits of microseconds has a place in.
const LEVELS: usize = (u64::BITS - TICK_BITS).div_ceil(LEVEL_BITS) as usize;
const LISTS: usize = LEVELS << LEVEL_BITS;
/// The list of those whose time has come.
const DUE: usize = LISTS;

/// Ends a list. No handle, as those have 31 bits.
const NONE: u32 = u32::MAX;
/// In the place of the entry before: this one is the first of the list that the other bits name.
const FIRST_OF: u32 = 1 << 31;

/// For each entry, once, when to look at it.
pub(super) struct Queue {
    first: Box<[u32]>,
    /// By level, a bit for each list that is not empty.
    occupied: [u64; LEVELS],
    /// Every list of an earlier tick is empty. In ticks of `now_us + behind_us`, which never goes back.
    tick: u64,
    now_us: u64,
    /// How far the clock has stepped back in all.
    behind_us: u64,
}

impl Queue {
    /// Bytes that a queue holds beside its own size.
    pub(super) const HEAP_BYTES: usize = (LISTS + 1) * size_of::<u32>();

    pub(super) fn new() -> Self {
        Self { first: vec![NONE; LISTS + 1].into_boxed_slice(), occupied: [0; LEVELS], tick: 0, now_us: 0, behind_us: 0 }
    }

    /// Queues an entry that is in no list, to be looked at once `at_us` has come, but not at `now_us` any more.
    pub(super) fn push(&mut self, arena: &mut Arena, handle: Handle, at_us: u64, now_us: u64) {
        let now = self.tick_of(now_us);
        if self.is_empty() {
            self.tick = self.tick.max(now);
        }
        let at = (at_us.max(now_us).saturating_add(self.behind_us) >> TICK_BITS).max(now).max(self.tick) + 1;
        // The level at whose lists this time and the present part ways; those below are all within one list there.
        let level = (u64::BITS - 1 - (self.tick ^ at).leading_zeros()) / LEVEL_BITS;
        let slot = at >> (level * LEVEL_BITS) & ((1 << LEVEL_BITS) - 1);
        self.occupied[level as usize] |= 1 << slot;
        self.prepend(arena, (level as usize) << LEVEL_BITS | slot as usize, handle);
    }

    /// Takes an entry out of the queue whose time came so long ago, or longer.
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

    /// Takes an entry out of the list that it is in.
    pub(super) fn remove(&mut self, arena: &mut Arena, handle: Handle) {
        let (previous, next) = (previous(arena, handle), next(arena, handle));
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

    /// Lets the list that an entry is in follow it to the slot that its contents have been copied to.
    pub(super) fn moved(&mut self, arena: &mut Arena, to: Handle) {
        let (previous, next) = (previous(arena, to), next(arena, to));
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

    /// Makes the earliest list the due one, if its time has come.
    fn advance(&mut self, arena: &mut Arena, now: u64) -> bool {
        // A lower level's lists all come before the next list of a higher one.
        let Some(level) = self.occupied.iter().position(|lists| *lists != 0) else { return false };
        let slot = self.occupied[level].trailing_zeros();
        let bits = number(level) * LEVEL_BITS;
        // Above this level a list's time is the present.
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

    /// The queue's own time goes on where the clock steps back: what was to wait for a minute still waits for a minute.
    fn tick_of(&mut self, now_us: u64) -> u64 {
        self.behind_us = self.behind_us.saturating_add(self.now_us.saturating_sub(now_us));
        self.now_us = now_us;
        now_us.saturating_add(self.behind_us) >> TICK_BITS
    }
}

/// The number of a level or of a list.
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

    /// A queue of entries that hold nothing but a number.
    struct Lab {
        queue: Queue,
        arena: Arena,
    }

    impl Lab {
        fn push(&mut self, number: u32, at_us: u64, now_us: u64) -> Handle {
            let mut contents = [0; 24];
            contents[LINKS_BYTES..LINKS_BYTES + 4].copy_from_slice(&number.to_le_bytes());
            let handle = self.arena.add(&contents);
            self.queue.push(&mut self.arena, handle, at_us, now_us);
            handle
        }

        /// Numbers that are due.
        fn due(&mut self, now_us: u64) -> Vec<u32> {
            let mut numbers = Vec::new();
            while let Some(handle) = self.queue.pop(&mut self.arena, now_us, 0) {
                let number = link(&self.arena, handle, LINKS_BYTES);
                if self.arena.remove(handle).is_some() {
                    self.queue.moved(&mut self.arena, handle);
                }
                numbers.push(number);
            }
            numbers
        }
    }

    fn lab() -> Lab {
        Lab { queue: Queue::new(), arena: Arena::default() }
    }

    /// What is popped before its time comes from a higher level; its owner queues it again, as a shard does.
    fn due_for_good(lab: &mut Lab, at: &[u64], now_us: u64) -> Vec<u32> {
        let mut good = Vec::new();
        loop {
            let (due, early): (Vec<u32>, Vec<u32>) =
                lab.due(now_us).into_iter().partition(|number| at[*number as usize] <= now_us);
            good.extend(due);
            for number in &early {
                lab.push(*number, at[*number as usize], now_us);
            }
            if early.is_empty() {
                return good;
            }
        }
    }

    #[test]
    fn each_is_due_within_a_tick_of_its_time_and_never_lost() {
        let mut lab = lab();
        let mut seed = 5_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 20) % below
        };
        // From a microsecond to a year, each magnitude alike.
        let at: Vec<u64> = (0..3_000)
            .map(|_| {
                let magnitude = random(45);
                START_US + random(1 << magnitude)
            })
            .collect();
        for (number, at_us) in at.iter().enumerate() {
            lab.push(number as u32, *at_us, START_US);
        }
        let mut seen = vec![false; at.len()];
        let mut now_us = START_US;
        while now_us < START_US + (1 << 46) {
            for number in due_for_good(&mut lab, &at, now_us) {
                assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} came twice");
            }
            let late = at.iter().zip(&seen).filter(|(at_us, seen)| !**seen && **at_us + 2 * TICK_US <= now_us).count();
            assert_eq!(late, 0, "at {now_us}");
            now_us += 1 + (now_us - START_US) / 16;
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    /// Of many that lie alone in their lists, first, last or among others, every third is taken out; the others come as ever.
    #[test]
    fn what_was_taken_out_never_comes_and_the_others_do() {
        let mut lab = lab();
        let at: Vec<u64> = (0..2_000).map(|number| START_US + number * number * 400).collect();
        let handles: Vec<Handle> = (0..).zip(&at).map(|(number, at_us)| lab.push(number, *at_us, START_US)).collect();
        handles.iter().step_by(3).for_each(|handle| lab.queue.remove(&mut lab.arena, *handle));
        let next = || lab.queue.pop(&mut lab.arena, START_US + (1 << 40), 0);
        let popped: Vec<Handle> = std::iter::from_fn(next).collect();
        let mut come: Vec<u32> = popped.into_iter().map(|handle| link(&lab.arena, handle, LINKS_BYTES)).collect();
        come.sort_unstable();
        assert_eq!(come, (0..2_000).filter(|number| number % 3 != 0).collect::<Vec<u32>>());
        assert!(lab.queue.is_empty());
    }

    #[test]
    fn a_clock_that_steps_back_makes_nothing_wait_longer_than_it_was_to() {
        let mut lab = lab();
        lab.push(0, START_US + 60_000_000, START_US);
        assert!(lab.due(START_US - 3_600_000_000).is_empty());
        lab.push(1, START_US - 3_600_000_000 + 1_000_000, START_US - 3_600_000_000);
        assert_eq!(lab.due(START_US - 3_600_000_000 + 2_000_000), [1]);
        assert_eq!(lab.due(START_US - 3_600_000_000 + 61_000_000), [0]);
    }

    #[test]
    fn what_is_queued_for_the_past_is_due_a_tick_later_and_not_at_once() {
        let mut lab = lab();
        lab.push(0, 0, START_US);
        assert!(lab.due(START_US).is_empty());
        assert_eq!(lab.due(START_US + TICK_US), [0]);
    }
}
