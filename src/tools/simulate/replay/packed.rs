//! Units by the time at which they were taken, in few bytes. A run of one unit takes about two bytes at a whole second, else four.
//!
//! It is decided on no packed log: [`super::counters`] unpacks it before. [`LogCount`] is the count of a key to which nothing is
//! denied.

use prost::encoding::{decode_varint, encode_varint};

use tollgate_core::algorithm::Runs;
use tollgate_core::utc::SECOND_US;

/// Maximum number of bytes of a run: a zero, its units, and its time.
const RUN_BYTES_MAX: usize = 21;

/// Appends a run: the microseconds since the run before, and its units. One unit is not written.
fn push(packed: &mut Vec<u8>, gap_us: u64, units: u64) {
    if units != 1 {
        // No time is written as 0: gaps are not empty, and the last bit of a whole second is set.
        encode_varint(0, packed);
        encode_varint(units, packed);
    }
    let time = if gap_us.is_multiple_of(SECOND_US) {
        (gap_us / SECOND_US) << 1 | 1
    } else {
        gap_us << 1
    };
    encode_varint(time, packed);
}

/// Takes the first run off.
fn pop(packed: &mut &[u8]) -> Option<(u64, u64)> {
    let mut time = decode_varint(packed).ok()?;
    let mut units = 1;
    if time == 0 {
        (units, time) = (decode_varint(packed).ok()?, decode_varint(packed).ok()?);
    }
    let gap_us = if time & 1 == 1 {
        (time >> 1) * SECOND_US
    } else {
        time >> 1
    };
    Some((gap_us, units))
}

/// Appends the runs of a log. No runs take no bytes.
pub(super) fn pack(runs: &Runs, packed: &mut Vec<u8>) {
    let mut last_us = 0;
    for (at_us, units) in runs.iter() {
        push(packed, at_us - last_us, units);
        last_us = at_us;
    }
}

/// Times and units of the runs.
pub(super) fn unpack(mut packed: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let mut at_us = 0;
    std::iter::from_fn(move || {
        let (gap_us, units) = pop(&mut packed)?;
        at_us += gap_us;
        Some((at_us, units))
    })
}

/// Units in the last window, of a key to which a `sliding_log` denies nothing.
#[derive(Debug, Default)]
pub(super) struct LogCount {
    /// The runs after `oldest` and before `newest`, from `first` on.
    between: Vec<u8>,
    first: usize,
    oldest: PackedRun,
    newest: PackedRun,
    /// Time of the last run in `between`, or of `oldest`.
    packed_us: u64,
    used: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct PackedRun {
    at_us: u64,
    units: u64,
}

impl LogCount {
    /// The count of a log.
    pub(super) fn from_runs(runs: &Runs) -> Self {
        let mut count = Self::default();
        runs.iter()
            .for_each(|(at_us, units)| count.push(at_us, units));
        count
    }

    /// Adds units at `now_us`, at or after the time of those before. Returns the units in the window up to then.
    pub(super) fn add(&mut self, window_us: u64, now_us: u64, units: u64) -> u64 {
        while self.used > 0 && self.oldest.at_us + window_us <= now_us {
            self.pop();
        }
        self.push(now_us, units);
        self.used
    }

    fn push(&mut self, at_us: u64, units: u64) {
        let run = PackedRun { at_us, units };
        if self.used == 0 {
            *self = Self {
                oldest: run,
                newest: PackedRun { at_us, units: 0 },
                packed_us: at_us,
                ..Self::default()
            };
        } else if self.newest.at_us == at_us {
            // The oldest run, while it is the only one, is followed by an empty one.
            let newest = if self.packed_us == at_us {
                &mut self.oldest
            } else {
                &mut self.newest
            };
            newest.units += units;
        } else {
            if self.newest.units > 0 {
                self.pack_newest();
            }
            self.newest = run;
        }
        self.used += units;
    }

    /// Appends the newest run to `between`.
    fn pack_newest(&mut self) {
        let PackedRun { at_us, units } = self.newest;
        // It grows by an eighth, not to twice its size.
        if self.between.capacity() - self.between.len() < RUN_BYTES_MAX {
            self.between
                .reserve_exact(self.between.len() / 8 + RUN_BYTES_MAX);
        }
        push(&mut self.between, at_us - self.packed_us, units);
        self.packed_us = at_us;
    }

    /// Drops the oldest run.
    fn pop(&mut self) {
        self.used -= self.oldest.units;
        let mut rest = &self.between[self.first..];
        if let Some((gap_us, units)) = pop(&mut rest) {
            self.first = self.between.len() - rest.len();
            self.oldest = PackedRun {
                at_us: self.oldest.at_us + gap_us,
                units,
            };
        } else {
            (self.oldest, self.newest.units, self.packed_us) = (self.newest, 0, self.newest.at_us);
        }
        if self.first > self.between.len() / 2 {
            self.between.drain(..self.first);
            self.first = 0;
        }
    }

    /// When nothing counts any more, in microseconds since 1970.
    pub(super) fn fresh_at_us(&self, window_us: u64) -> u64 {
        self.newest.at_us + window_us
    }

    /// Bytes on the heap, with this struct.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.between.capacity()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Times that rise strictly, and units.
    fn any_runs() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let gap = prop_oneof![
            (1..90_000_u64).prop_map(|seconds| seconds * SECOND_US),
            1..10_000_000_000_u64
        ];
        let units = prop_oneof![Just(1_u64), 2..1_000_000_u64];
        proptest::collection::vec((gap, units), 0..80).prop_map(|mut runs| {
            runs.iter_mut().fold(0, |before, run| {
                run.0 += before;
                run.0
            });
            runs
        })
    }

    proptest! {
        #[test]
        fn a_log_is_unpacked_as_it_was_packed(runs in any_runs()) {
            let log: Runs = runs.iter().copied().collect();
            prop_assert_eq!(log.iter().collect::<Vec<_>>(), runs.clone());
            let mut packed = Vec::new();
            pack(&log, &mut packed);
            prop_assert_eq!(unpack(&packed).collect::<Vec<_>>(), runs);
        }

        #[test]
        fn a_count_is_the_units_of_the_window(
            steps in proptest::collection::vec((prop_oneof![Just(0), 1..40_u64, Just(1_000_000)], 1..4_u64), 1..300),
            window_us in prop_oneof![1..60_u64, 1..3_000_000_u64],
        ) {
            let mut count = LogCount::default();
            let mut now_us = 1_760_000_000_000_000;
            let mut all = Vec::new();
            for (step_us, units) in steps {
                now_us += step_us;
                all.push((now_us, units));
                let used: u64 = all.iter().filter(|(at_us, _)| at_us + window_us > now_us).map(|(_, units)| units).sum();
                prop_assert_eq!(count.add(window_us, now_us, units), used);
                prop_assert_eq!(count.fresh_at_us(window_us), now_us + window_us);
            }
        }
    }
}
