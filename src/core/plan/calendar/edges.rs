//! The edges of calendar windows around one instant.

use jiff::civil::{Date, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

use super::CalendarUnit;

/// The window of this instant has no end, since dates end with the year 9999. In microseconds since 1970, in the year 9950.
const LATEST_US: i64 = 251_830_000_000_000_000;

/// One window and the two before it, by their edges in microseconds since 1970. An edge before 1970 is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edges {
    /// Start of the window before the previous one.
    pub earlier_us: u64,
    /// Start of the previous window.
    pub previous_us: u64,
    /// Start of the window.
    pub start_us: u64,
    /// Its end, which belongs to the next window.
    pub end_us: u64,
}

impl Edges {
    /// Of an empty window, which contains no instant.
    pub const NONE: Self = Self {
        earlier_us: 0,
        previous_us: 0,
        start_us: 0,
        end_us: 0,
    };

    /// Those around `now_us`.
    ///
    /// An edge is the first instant at which the zone's clock shows the first day's date, or a later one where it skips that.
    pub(super) fn around(now_us: u64, unit: CalendarUnit, zone: &TimeZone) -> Self {
        let finder = EdgeFinder { unit, zone };
        let now = i64::try_from(now_us).map_or(LATEST_US, |now| now.min(LATEST_US));
        let now = Timestamp::from_microsecond(now).expect("the year 9950 has dates");
        let mut first = finder.first_day(zone.to_datetime(now).date());
        let mut start_us = finder.edge_us(first);
        let mut next = finder.next_first_day(first);
        // A clock that is set back over midnight shows a day again whose window has ended.
        while finder.edge_us(next) <= now_us.min(LATEST_US.unsigned_abs()) {
            (start_us, first, next) = (finder.edge_us(next), next, finder.next_first_day(next));
        }
        let is_last = i64::try_from(now_us).map_or(true, |now| now >= LATEST_US);
        let end_us = if is_last {
            u64::MAX
        } else {
            finder.edge_us(next)
        };
        let (previous_us, first) = finder.edge_before(start_us, first);
        let (earlier_us, _) = finder.edge_before(previous_us, first);
        Self {
            earlier_us,
            previous_us,
            start_us,
            end_us,
        }
    }

    /// Whether an instant lies in the window.
    #[inline]
    pub fn contain(&self, now_us: u64) -> bool {
        (self.start_us..self.end_us).contains(&now_us)
    }

    /// Length of the window, in microseconds.
    #[inline]
    pub fn window_us(&self) -> u64 {
        self.end_us - self.start_us
    }

    /// Length of the window that contains `at_us`, which is not behind the end of this one. For an instant before all three, it
    /// is that of the first: no window of then can last until now.
    #[inline]
    pub fn window_at(&self, at_us: u64) -> u64 {
        if at_us >= self.start_us {
            self.end_us - self.start_us
        } else if at_us >= self.previous_us {
            self.start_us - self.previous_us
        } else {
            self.previous_us - self.earlier_us
        }
    }
}

/// Finds edges by dates.
struct EdgeFinder<'a> {
    unit: CalendarUnit,
    zone: &'a TimeZone,
}

impl EdgeFinder<'_> {
    /// The first day of the window of this day.
    fn first_day(&self, day: Date) -> Date {
        match self.unit {
            CalendarUnit::Day => day,
            CalendarUnit::Week { starts } => {
                let first = i8::try_from(starts)
                    .ok()
                    .and_then(|starts| Weekday::from_monday_one_offset(starts).ok())
                    .unwrap_or(Weekday::Monday);
                day.saturating_sub(i64::from(day.weekday().since(first)).days())
            }
            CalendarUnit::Month { starts } => {
                let before = i64::from(starts) - 1;
                day.saturating_sub(before.days())
                    .first_of_month()
                    .saturating_add(before.days())
            }
        }
    }

    /// The first day of the next window.
    fn next_first_day(&self, first: Date) -> Date {
        match self.unit {
            CalendarUnit::Day => first.saturating_add(1.day()),
            CalendarUnit::Week { .. } => first.saturating_add(7.days()),
            // No window starts on a day that a month may lack.
            CalendarUnit::Month { .. } => first.saturating_add(1.month()),
        }
    }

    /// The last edge before `edge_us`, where the window of this first day starts, and its first day. A window of dates that the
    /// clock skips is none. Before 1970 there are no edges but 0.
    fn edge_before(&self, edge_us: u64, first: Date) -> (u64, Date) {
        let mut first = first;
        loop {
            first = match self.unit {
                CalendarUnit::Day => first.saturating_sub(1.day()),
                CalendarUnit::Week { .. } => first.saturating_sub(7.days()),
                CalendarUnit::Month { .. } => first.saturating_sub(1.month()),
            };
            let before_us = self.edge_us(first);
            if before_us < edge_us || edge_us == 0 {
                return (before_us, first);
            }
        }
    }

    /// The first instant at which the zone's clock shows this date or a later one, in microseconds since 1970.
    fn edge_us(&self, date: Date) -> u64 {
        let midnight = date.at(0, 0, 0, 0);
        let edge = match self.zone.to_ambiguous_timestamp(midnight).offset() {
            // Where it is midnight twice, the first counts.
            AmbiguousOffset::Unambiguous { offset: shown }
            | AmbiguousOffset::Fold { before: shown, .. } => shown.to_timestamp(midnight).ok(),
            // Midnight is skipped. By the clock from before the gap, it is when the gap begins or later, and before the next gap.
            AmbiguousOffset::Gap { before, .. } => before
                .to_timestamp(midnight)
                .ok()
                .and_then(|at| {
                    self.zone
                        .preceding(at.saturating_add(1.second()).ok()?)
                        .next()
                })
                .map(|gap| gap.timestamp()),
        };
        let edge = edge.expect("dates of the years 1969 to 9951 have instants");
        u64::try_from(edge.as_microsecond()).unwrap_or(0)
    }
}
