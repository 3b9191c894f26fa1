//! The smallest quota at which a `token_bucket` would have denied a key nothing, found while the key's requests pass.
//!
//! A bucket of burst `B` gives a unit back every `T` microseconds; `T` is the window divided by the quota, rounded up. Take any two
//! requests, and let `U` be the units from the earlier to the later one, both included. The bucket denies nothing if
//! `(U - B) * T` is at most the time between the two, for every such pair.
//!
//! Think of each request as a point: its time, and the units before it. For a later request, only corners of the upper hull of
//! the points before it can decide. A higher quota moves the deciding corner along the hull, in one direction. So the hull is
//! kept from the present deciding corner on, and nothing else.

use tollgate_core::plan::{Algorithm, Limit, QUOTA_MAX};

use super::variant::NEED_UNKNOWN;

/// The requests of a key that still matter.
#[derive(Debug, Clone, Default)]
pub(super) struct BucketNeed {
    /// Corners of the hull. From one to the next, time does not fall, units rise, and time per unit falls.
    corners: Vec<Corner>,
    units: u64,
}

#[derive(Debug, Clone, Copy)]
struct Corner {
    at_us: u64,
    /// Units before this request.
    units: u64,
}

/// What a bucket would be at another quota.
#[derive(Debug, Clone, Copy)]
pub(super) struct BucketRule {
    window_us: u64,
    /// The burst, where it differs from the quota. It then stays the same at every quota.
    burst: Option<u64>,
}

impl BucketRule {
    /// The rule of a limit, if it is a `token_bucket`.
    pub(super) fn for_limit(limit: &Limit) -> Option<Self> {
        let Algorithm::TokenBucket { burst } = limit.algorithm() else {
            return None;
        };
        Some(Self {
            window_us: limit.window_us(),
            burst: Some(burst).filter(|burst| *burst != limit.quota()),
        })
    }

    /// Microseconds until a unit is back.
    fn emission_us(self, quota: u64) -> u64 {
        self.window_us.div_ceil(quota)
    }
}

impl BucketNeed {
    /// Takes a request, at or after the time of the one before it. `need` is the key's need so far, 0 at first. Returns its need
    /// with this request; [`NEED_UNKNOWN`] when no quota is enough.
    pub(super) fn add(&mut self, rule: BucketRule, now_us: u64, cost: u64, need: u64) -> u64 {
        if need == NEED_UNKNOWN {
            return need;
        }
        self.push(Corner {
            at_us: now_us,
            units: self.units,
        });
        self.units = self.units.saturating_add(cost);
        let need = self.smallest(rule, now_us, need.max(1));
        if need == NEED_UNKNOWN {
            *self = Self::default();
        } else {
            // Higher quotas are about corners from here on.
            let first = self.first_corner(rule.emission_us(need));
            self.corners.drain(..first);
        }
        need
    }

    /// Whether a request from now on can depend on those before.
    pub(super) fn matters_at(&self, rule: BucketRule, now_us: u64, need: u64) -> bool {
        let emission_us = rule.emission_us(need.max(1));
        // A corner matters until the units since then are back. After that the bucket is full, and the next request begins anew.
        let owed_us =
            |corner: &Corner| u128::from(self.units - corner.units) * u128::from(emission_us);
        self.corners
            .iter()
            .any(|corner| u128::from(corner.at_us) + owed_us(corner) > u128::from(now_us))
    }

    /// Bytes on the heap, with this struct.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.corners.capacity() * size_of::<Corner>()
    }

    fn push(&mut self, new: Corner) {
        while let [.., before, last] = self.corners[..] {
            // The last one stays if the way to it is slower than the way from it.
            let to = (before, last);
            let from = (last, new);
            if time_per_unit_is_above(to, from) {
                break;
            }
            self.corners.pop();
        }
        self.corners.push(new);
    }

    /// Index of the corner from which a bucket of this emission interval owes most.
    fn first_corner(&self, emission_us: u64) -> usize {
        let mut low = 0;
        let mut high = self.corners.len().saturating_sub(1);
        while low < high {
            let middle = low.midpoint(high);
            let a = self.corners[middle];
            let b = self.corners[middle + 1];
            let is_slower = u128::from(b.at_us - a.at_us)
                >= u128::from(b.units - a.units) * u128::from(emission_us);
            if is_slower {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }

    /// Whether a bucket of this quota denies the newest request, after all others were charged.
    fn denies(&self, rule: BucketRule, now_us: u64, quota: u64) -> bool {
        let emission_us = rule.emission_us(quota);
        let Some(corner) = self.corners.get(self.first_corner(emission_us)) else {
            return false;
        };
        let above = (self.units - corner.units).saturating_sub(rule.burst.unwrap_or(quota));
        u128::from(above) * u128::from(emission_us) > u128::from(now_us - corner.at_us)
    }

    /// The smallest quota from `least` on that does not deny the newest request.
    fn smallest(&self, rule: BucketRule, now_us: u64, least: u64) -> u64 {
        // A unit is back after a microsecond at the soonest.
        let most = if rule.burst.is_some() {
            rule.window_us
        } else {
            QUOTA_MAX
        };
        let mut denying = least;
        let mut fitting = least;
        while self.denies(rule, now_us, fitting) {
            if fitting >= most {
                return NEED_UNKNOWN;
            }
            denying = fitting;
            fitting = fitting.saturating_mul(2).min(most);
        }
        while fitting - denying > 1 {
            let middle = denying.midpoint(fitting);
            if self.denies(rule, now_us, middle) {
                denying = middle
            } else {
                fitting = middle
            }
        }
        fitting
    }
}

fn time_per_unit_is_above((a, b): (Corner, Corner), (c, d): (Corner, Corner)) -> bool {
    let cross = |(from, to): (Corner, Corner), units: u64| {
        u128::from(to.at_us - from.at_us) * u128::from(units)
    };
    cross((a, b), d.units - c.units) > cross((c, d), b.units - a.units)
}
