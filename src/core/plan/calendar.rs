//! Calendar windows: days, weeks and months by the clock of a time zone.
//!
//! Pure: the time zone database is part of the program, and no clock is read. The edges around one instant are kept, so that
//! they are computed once for each window and not once for each decision.

mod edges;
mod zone;

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::tz::TimeZone;

pub use edges::Edges;
pub use zone::{ZONE_DATABASE, Zone};

/// Last day of a month that windows may start on: each month has it.
pub const MONTH_STARTS_MAX: u8 = 28;

const HOUR_US: u64 = 3_600 * 1_000_000;
const DAY_US: u64 = 24 * HOUR_US;
/// By so much a window may be longer than its days. No zone has set its clock back by more since 2000, which a test checks.
const STEP_BACK_US: u64 = 3 * HOUR_US;

/// Marks the code of a calendar window in a fingerprint. A window of a fixed length, in seconds, stays below bit 25.
const CALENDAR_FLAG: u32 = 1 << 30;
/// Bits of the code that are a hash of the zone's name. Above them is the shape, which has fewer than 64 values.
const ZONE_BITS: u32 = 24;

/// What a calendar window lasts, and on which day it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// Seven days.
    Week {
        /// The first day, 1 (Monday) to 7 (Sunday).
        starts: u8,
    },
    /// From a day of one month to the same day of the next.
    Month {
        /// The first day, 1 to [`MONTH_STARTS_MAX`].
        starts: u8,
    },
}

impl CalendarUnit {
    /// Its name in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week { .. } => "week",
            Self::Month { .. } => "month",
        }
    }

    /// The first day as a number: 1 (Monday) to 7 of a week, 1 to 28 of a month, 0 for a day.
    pub fn starts(self) -> u8 {
        match self {
            Self::Day => 0,
            Self::Week { starts } | Self::Month { starts } => starts,
        }
    }

    /// Its usual length in microseconds: one day, seven, or thirty.
    pub fn usual_us(self) -> u64 {
        match self {
            Self::Day => DAY_US,
            Self::Week { .. } => 7 * DAY_US,
            Self::Month { .. } => 30 * DAY_US,
        }
    }

    /// No window is longer than this, in microseconds.
    pub fn longest_us(self) -> u64 {
        let days = match self {
            Self::Day => 1,
            Self::Week { .. } => 7,
            Self::Month { .. } => 31,
        };
        days * DAY_US + STEP_BACK_US
    }

    /// A number for the unit and its first day, 0 to 35. It is part of the stored format and must never change.
    fn shape(self) -> u32 {
        match self {
            Self::Day => 0,
            Self::Week { starts } => u32::from(starts),
            Self::Month { starts } => 7 + u32::from(starts),
        }
    }

    /// The longest window of the unit that [`Self::shape`] numbers so.
    fn longest_of_shape(shape: u32) -> u64 {
        match shape {
            0 => Self::Day,
            1..=7 => Self::Week { starts: 1 },
            _ => Self::Month { starts: 1 },
        }
        .longest_us()
    }
}

/// The windows of a calendar limit. Clones share the edges that were computed last.
#[derive(Clone)]
pub struct Calendar(Arc<Windows>);

struct Windows {
    unit: CalendarUnit,
    zone: Zone,
    time_zone: TimeZone,
    /// See [`Calendar::code`].
    code: u32,
    latest: ArcSwap<Edges>,
}

impl Calendar {
    /// Windows of this unit by the clock of this zone. `starts` of a week must be 1 to 7, and of a month 1 to
    /// [`MONTH_STARTS_MAX`]: others are taken for the nearest of these.
    pub fn new(unit: CalendarUnit, zone: Zone) -> Self {
        let unit = match unit {
            CalendarUnit::Day => unit,
            CalendarUnit::Week { starts } => CalendarUnit::Week {
                starts: starts.clamp(1, 7),
            },
            CalendarUnit::Month { starts } => CalendarUnit::Month {
                starts: starts.clamp(1, MONTH_STARTS_MAX),
            },
        };
        let time_zone = zone.time_zone();
        let latest = ArcSwap::from_pointee(Edges::NONE);
        Self(Arc::new(Windows {
            unit,
            zone,
            time_zone,
            code: CALENDAR_FLAG | unit.shape() << ZONE_BITS | zone.code(),
            latest,
        }))
    }

    /// What a window lasts.
    pub fn unit(&self) -> CalendarUnit {
        self.0.unit
    }

    /// The zone whose clock tells when a day begins.
    pub fn zone(&self) -> Zone {
        self.0.zone
    }

    /// The window that contains `now_us`, and those before it.
    #[inline]
    pub fn edges_at(&self, now_us: u64) -> Edges {
        let latest = **self.0.latest.load();
        if latest.contain(now_us) {
            latest
        } else {
            self.move_to(now_us)
        }
    }

    /// The edges that [`Self::edges_at`] returned last, to whichever caller; at first [`Edges::NONE`]. So whoever knows no clock
    /// starts from where another one is.
    #[inline]
    pub fn latest_edges(&self) -> Edges {
        **self.0.latest.load()
    }

    #[cold]
    fn move_to(&self, now_us: u64) -> Edges {
        let edges = Edges::around(now_us, self.0.unit, &self.0.time_zone);
        self.0.latest.store(Arc::new(edges));
        edges
    }

    /// The lower 31 bits of the window in a fingerprint: the flag, the shape of the unit, and the code of the zone.
    #[inline]
    pub(super) fn code(&self) -> u32 {
        self.0.code
    }

    /// No window of this code is longer, in microseconds. `None` if the code is not that of a calendar window.
    #[inline]
    pub(super) fn longest_of_code(code: u32) -> Option<u64> {
        let shape = (code & (CALENDAR_FLAG - 1)) >> ZONE_BITS;
        (code & CALENDAR_FLAG != 0).then(|| CalendarUnit::longest_of_shape(shape))
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.0.unit == other.0.unit && self.0.zone == other.0.zone
    }
}

impl Eq for Calendar {}

/// Only what identifies it, and not what was computed last: equal plans must read alike.
impl fmt::Debug for Calendar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Calendar({:?}, {})", self.0.unit, self.0.zone.name())
    }
}

/// For people, such as `month from day 15 in Europe/Berlin`.
impl fmt::Display for Calendar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0.unit.name())?;
        match self.0.unit {
            CalendarUnit::Week { starts } if starts != 1 => {
                write!(out, " from {}", WEEKDAYS[usize::from(starts) - 1])?;
            }
            CalendarUnit::Month { starts } if starts != 1 => write!(out, " from day {starts}")?,
            _ => {}
        }
        write!(out, " in {}", self.0.zone.name())
    }
}

/// Names of the days of a week in the config, in the order of their numbers.
pub const WEEKDAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

#[cfg(test)]
mod tests;
