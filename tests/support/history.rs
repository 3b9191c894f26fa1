//! Random times for histories. Many lie a microsecond around the ends of events and windows, and some step back.

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, good enough to choose cases by.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// 0 to `bound - 1`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// Chooses the time of the next request.
pub struct Times {
    window_us: u64,
    now_us: u64,
    /// Times near which later ones are chosen: those of charges, and the ends that denials gave.
    marks: Vec<u64>,
}

impl Times {
    pub fn new(start_us: u64, window_us: u64) -> Self {
        Self {
            window_us,
            now_us: start_us,
            marks: vec![start_us],
        }
    }

    pub fn mark(&mut self, at_us: u64) {
        self.marks.push(at_us);
        if self.marks.len() > 24 {
            self.marks.remove(0);
        }
    }

    pub fn next(&mut self, random: &mut Random) -> u64 {
        let window_us = self.window_us;
        let edge = random.below(3);
        self.now_us = match random.below(20) {
            0..=5 => self.now_us + random.below(window_us / 8 + 1),
            6..=7 => self.now_us,
            8 => self.now_us + random.below(3 * window_us),
            9..=12 => (*random.pick(&self.marks) + window_us + edge - 1).max(self.now_us),
            13..=14 => (*random.pick(&self.marks) + edge - 1).max(self.now_us),
            15..=16 => (self.now_us / window_us + 1) * window_us + edge - 1,
            17 => self.now_us - random.below(window_us / 4 + 1),
            18 => self.now_us - random.below(2 * window_us + 1),
            _ if random.below(4) == 0 => self.now_us - 50 * window_us,
            _ => self.now_us + 1,
        };
        self.now_us
    }
}
