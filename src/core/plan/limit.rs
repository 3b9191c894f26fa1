//! One limit of a plan: its numbers, its bounds and its fingerprint.

mod bounds;

use std::sync::Arc;
use std::time::Duration;

use super::calendar::{Calendar, Edges};
use super::fingerprint::{LimitFingerprint, RecordKind};
use crate::duration;
pub use bounds::LimitError;
use bounds::{check_block, check_parameters, check_quota, check_together, check_window};

/// Largest quota, in units per window. It fits the five bytes that a count has in Redis (2^40 is 1.1 times as much), and allows
/// a terabyte counted in bytes.
pub const QUOTA_MAX: u64 = 1_000_000_000_000;
/// Largest quota of a `sliding_log`, whose state grows with its quota. A charge takes about 10 bytes in Redis, so a key takes
/// up to 1 MB when each unit is charged alone. It must be below 2^17, because Redis keeps running totals of units modulo 2^17.
pub const SLIDING_LOG_QUOTA_MAX: u64 = 100_000;
/// Largest burst of a `token_bucket`, in units.
pub const BURST_MAX: u64 = QUOTA_MAX;
/// Shortest window. Redis expires keys by the millisecond, and a network round trip takes about as long.
pub const WINDOW_MIN: Duration = Duration::from_millis(1);
/// Longest window: a leap year.
pub const WINDOW_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// Least precision of a `sliding_window`, in runs per window. A run is a number of units that count as taken at one instant.
pub const PRECISION_MIN: u8 = 2;
/// Greatest and default precision of a `sliding_window`: it takes 0.8 KB per key and frees a unit at most 1/64 of the window
/// late.
pub const PRECISION_MAX: u8 = 64;
/// Default precision of a `sliding_window`, in runs per window.
pub const PRECISION_DEFAULT: u8 = PRECISION_MAX;

/// Shortest block. A shorter one would hardly be noticed beside the windows that limits have.
pub const BLOCK_MIN: Duration = Duration::from_secs(1);
/// Longest block. The state of a blocked key is kept for so long.
pub const BLOCK_MAX: Duration = Duration::from_secs(31 * 24 * 60 * 60);

/// Integers up to here are exact in a Lua number (an IEEE 754 double).
const LUA_INTEGER_MAX: u64 = 1 << 53;
/// Longest time that an empty bucket may need to fill, ten years. With it, every time stays exact in a double until far beyond
/// the year 2200.
const FILL_MAX_US: u64 = 10 * 366 * 24 * 3600 * 1_000_000;

/// How a limit counts. docs/algorithms.md describes what each algorithm guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// At most `quota` per window. Windows are aligned to the clock, or start at the key's first request.
    FixedWindow {
        /// Where windows start.
        anchor: Anchor,
    },
    /// At most `quota` in any interval of one window. Every unit counts from its own time.
    SlidingLog,
    /// At most `quota` in any interval of one window. With more than `precision` runs, a unit leaves up to `window / precision`
    /// late.
    SlidingWindow {
        /// Runs kept per window, [`PRECISION_MIN`] to [`PRECISION_MAX`].
        precision: u8,
    },
    /// An estimate from the counts of two clock-aligned windows.
    SlidingCounter,
    /// At most `burst + rate * t` in any interval `t`, by the generic cell rate algorithm (GCRA).
    TokenBucket {
        /// Maximum number of units accepted at one instant from a fresh key, 1 to [`BURST_MAX`].
        burst: u64,
    },
}

impl Algorithm {
    /// Every algorithm, in each form whose states are stored apart. What must hold for all of them is tested with this list.
    pub const EVERY: [Self; 7] = [
        Self::SlidingWindow {
            precision: PRECISION_DEFAULT,
        },
        Self::SlidingWindow {
            precision: PRECISION_MIN,
        },
        Self::SlidingLog,
        Self::FixedWindow {
            anchor: Anchor::Clock,
        },
        Self::FixedWindow {
            anchor: Anchor::FirstRequest,
        },
        Self::SlidingCounter,
        Self::TokenBucket { burst: 5 },
    ];

    /// Its name in the config and in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow { .. } => "fixed_window",
            Self::SlidingLog => "sliding_log",
            Self::SlidingWindow { .. } => "sliding_window",
            Self::SlidingCounter => "sliding_counter",
            Self::TokenBucket { .. } => "token_bucket",
        }
    }

    /// Whether all units come back together, when the window ends. Else they come back one after another.
    #[inline]
    pub fn frees_at_once(self) -> bool {
        match self {
            Self::FixedWindow { .. } => true,
            Self::SlidingLog
            | Self::SlidingWindow { .. }
            | Self::SlidingCounter
            | Self::TokenBucket { .. } => false,
        }
    }

    /// Whether its state is the instants of charges, and so grows with them. A reading of such a state tells the wait of one cost only:
    /// the cost that it was read for.
    #[inline]
    pub fn keeps_instants(self) -> bool {
        match self {
            Self::SlidingLog | Self::SlidingWindow { .. } => true,
            Self::FixedWindow { .. } | Self::SlidingCounter | Self::TokenBucket { .. } => false,
        }
    }
}

/// Where the windows of a `fixed_window` start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Anchor {
    /// At whole multiples of the window since 1970-01-01T00:00:00Z.
    #[default]
    Clock,
    /// At the first request that a fresh key makes.
    FirstRequest,
}

/// One limit of a plan: `quota` units per `window`, counted by `algorithm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    name: Arc<str>,
    quota: u64,
    window_us: u64,
    algorithm: Algorithm,
    /// Whether the burst is the quota because none is stated.
    burst_is_quota: bool,
    /// Where its windows are those of a calendar. It is then a `fixed_window` by the clock.
    calendar: Option<Calendar>,
    /// How long a denial blocks the key, in milliseconds; 0 when it does not. Of a number as short as this, a replica may keep 10,000.
    block_ms: u32,
}

impl Limit {
    /// Checks the numbers of a limit. The name is not checked.
    ///
    /// Errors: one [`LimitError`] per wrong field.
    pub fn new(
        name: impl Into<Arc<str>>,
        quota: u64,
        window: Duration,
        algorithm: Algorithm,
    ) -> Result<Self, Vec<LimitError>> {
        let mut errors = Self::check(Some(quota), Some(window), Some(algorithm));
        let window_us = check_window(window).unwrap_or(0);
        if errors.is_empty() {
            errors.extend(check_together(quota, window_us, algorithm));
        }
        if errors.is_empty() {
            Ok(Self {
                name: name.into(),
                quota,
                window_us,
                algorithm,
                burst_is_quota: false,
                calendar: None,
                block_ms: 0,
            })
        } else {
            Err(errors)
        }
    }

    /// The same limit, whose burst is its quota because no burst is stated. An override of the quota then changes both.
    pub fn with_burst_of_quota(self) -> Self {
        Self {
            burst_is_quota: true,
            ..self
        }
    }

    /// The same limit with another quota or burst. A burst that is not stated stays, unless it is that of the quota. A burst is
    /// ignored by other algorithms than `token_bucket`.
    ///
    /// Errors: as for [`Self::new`].
    pub fn with_numbers(
        &self,
        quota: Option<u64>,
        burst: Option<u64>,
    ) -> Result<Self, Vec<LimitError>> {
        let of_quota = quota.filter(|_| self.burst_is_quota);
        let algorithm = match self.algorithm {
            Algorithm::TokenBucket { burst: own } => Algorithm::TokenBucket {
                burst: burst.or(of_quota).unwrap_or(own),
            },
            other => other,
        };
        let window = Duration::from_micros(self.window_us);
        let name = self.name.clone();
        let quota = quota.unwrap_or(self.quota);
        let limit = match &self.calendar {
            Some(calendar) => Self::by_calendar(name, quota, calendar.clone()),
            None => Self::new(name, quota, window, algorithm),
        }?;
        Ok(Self {
            block_ms: self.block_ms,
            ..limit
        })
    }

    /// A `fixed_window` of calendar windows. Errors: as [`Self::new`], for the quota.
    pub fn by_calendar(
        name: impl Into<Arc<str>>,
        quota: u64,
        calendar: Calendar,
    ) -> Result<Self, Vec<LimitError>> {
        let algorithm = Algorithm::FixedWindow {
            anchor: Anchor::Clock,
        };
        check_quota(quota, Some(algorithm)).map_or(Ok(()), |error| Err(vec![error]))?;
        Ok(Self {
            name: name.into(),
            quota,
            window_us: calendar.unit().longest_us(),
            algorithm,
            calendar: Some(calendar),
            burst_is_quota: false,
            block_ms: 0,
        })
    }

    /// The same limit, of which a denial blocks the key for so long: [`BLOCK_MIN`] to [`BLOCK_MAX`], in whole milliseconds.
    ///
    /// Errors: the duration is out of range or too fine.
    pub fn with_block(self, block: Duration) -> Result<Self, LimitError> {
        let block_ms = check_block(block)?;
        Ok(Self { block_ms, ..self })
    }

    /// How long a denial by this limit blocks the key, in microseconds; 0 when it does not.
    #[inline]
    pub fn block_us(&self) -> u64 {
        u64::from(self.block_ms) * 1_000
    }

    /// Checks those numbers of a limit that are known, each on its own. Returns one error per wrong field.
    pub fn check(
        quota: Option<u64>,
        window: Option<Duration>,
        algorithm: Option<Algorithm>,
    ) -> Vec<LimitError> {
        let window = window.and_then(|window| check_window(window).err());
        let quota = quota.and_then(|quota| check_quota(quota, algorithm));
        window
            .into_iter()
            .chain(quota)
            .chain(algorithm.and_then(check_parameters))
            .collect()
    }

    /// Name of the limit in answers, unique within its plan.
    #[inline]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Units per window at the sustained rate, 1 to [`QUOTA_MAX`].
    #[inline]
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// The window in microseconds, a whole number of milliseconds. Of calendar windows, none is longer.
    #[inline]
    pub fn window_us(&self) -> u64 {
        self.window_us
    }

    /// The calendar that its windows are of; `None` where they have a fixed length.
    #[inline]
    pub fn calendar(&self) -> Option<&Calendar> {
        self.calendar.as_ref()
    }

    /// The calendar's edges around an instant. `None` where windows have a fixed length.
    #[inline]
    pub(crate) fn edges_at(&self, now_us: u64) -> Option<Edges> {
        self.calendar
            .as_ref()
            .map(|calendar| calendar.edges_at(now_us))
    }

    /// Length of the window in microseconds, where no store told the present one: of calendar windows the one that was looked
    /// at last.
    pub fn shown_window_us(&self) -> u64 {
        let Some(calendar) = &self.calendar else {
            return self.window_us;
        };
        match calendar.latest_edges().window_us() {
            0 => calendar.unit().usual_us(),
            latest_us => latest_us,
        }
    }

    /// The same limit with another quota. Errors: as [`Self::new`], for the quota.
    pub fn with_quota(&self, quota: u64) -> Result<Self, Vec<LimitError>> {
        let limit = match &self.calendar {
            Some(calendar) => Self::by_calendar(self.name.clone(), quota, calendar.clone()),
            None => {
                let window = Duration::from_micros(self.window_us);
                Self::new(self.name.clone(), quota, window, self.algorithm)
            }
        }?;
        Ok(Self {
            block_ms: self.block_ms,
            ..limit
        })
    }

    /// Its windows for people: `1m`, or `month from day 15 in Europe/Berlin`.
    pub fn window_text(&self) -> String {
        self.calendar.as_ref().map_or_else(
            || duration::Shown(Duration::from_micros(self.window_us)).to_string(),
            ToString::to_string,
        )
    }

    /// How the limit counts.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Maximum number of units that one request can ever get: the burst of a `token_bucket`, else the quota.
    #[inline]
    pub fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket { burst } => burst,
            _ => self.quota,
        }
    }

    /// GCRA's emission interval: microseconds until one unit is back. It is rounded up, so the rate is never above the quota.
    #[inline]
    pub fn emission_us(&self) -> u64 {
        self.window_us.div_ceil(self.quota)
    }

    /// GCRA's tolerance: the largest debt of a key in microseconds, `burst * emission_us`.
    #[inline]
    pub fn tolerance_us(&self) -> u64 {
        self.capacity() * self.emission_us()
    }

    /// Width of the cells in which a `sliding_window` of this precision may merge units, in microseconds, rounded up.
    #[inline]
    pub fn cell_us(&self, precision: u8) -> u64 {
        self.window_us.div_ceil(u64::from(precision))
    }

    /// The kind of the limit's records, by which calls to Redis name its algorithm.
    #[inline]
    pub fn record_kind(&self) -> RecordKind {
        RecordKind::for_algorithm(self.algorithm)
    }

    /// Identifies the states that belong to this limit; see [`LimitFingerprint`].
    #[inline]
    pub fn fingerprint(&self) -> LimitFingerprint {
        match &self.calendar {
            None => LimitFingerprint::new(self.algorithm, self.window_us),
            Some(calendar) => LimitFingerprint::for_calendar(calendar),
        }
    }

    /// The same limit at one replica's share: quota and burst divided by `replicas`, rounded up.
    pub fn share(&self, replicas: u64) -> Self {
        let replicas = replicas.max(1);
        let algorithm = match self.algorithm {
            Algorithm::TokenBucket { burst } => Algorithm::TokenBucket {
                burst: burst.div_ceil(replicas),
            },
            other => other,
        };
        Self {
            quota: self.quota.div_ceil(replicas),
            algorithm,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests;
