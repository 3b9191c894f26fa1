//! Edges of unusual days, and what identifies a calendar. `tests/algorithms/calendar` compares every edge of ten years.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::*;
use crate::plan::{COMMON_WINDOWS_MS, Limit, LimitFingerprint};
use crate::utc::Utc;

fn zone(name: &str) -> Zone {
    Zone::find(name).unwrap()
}

fn us(time: &str) -> u64 {
    let time: Timestamp = time.parse().unwrap();
    u64::try_from(time.as_microsecond()).unwrap()
}

/// The edges around an instant, for people, in the order of time.
fn edges(unit: CalendarUnit, name: &str, now: &str) -> [String; 4] {
    let found = Calendar::new(unit, zone(name)).edges_at(us(now));
    assert!(found.contain(us(now)), "{found:?}");
    [
        found.earlier_us,
        found.previous_us,
        found.start_us,
        found.end_us,
    ]
    .map(|edge| Utc(edge).to_string())
}

#[test]
fn a_day_of_25_hours_begins_at_the_first_midnight_and_one_of_23_where_the_gap_ends() {
    let day = |now| edges(CalendarUnit::Day, "America/Havana", now);
    assert_eq!(
        day("2027-11-07T05:30:00Z"),
        [
            "2027-11-05T04:00:00Z",
            "2027-11-06T04:00:00Z",
            "2027-11-07T04:00:00Z",
            "2027-11-08T05:00:00Z"
        ]
    );
    assert_eq!(
        day("2028-03-12T05:00:00Z"),
        [
            "2028-03-10T05:00:00Z",
            "2028-03-11T05:00:00Z",
            "2028-03-12T05:00:00Z",
            "2028-03-13T04:00:00Z"
        ]
    );
}

const DAY: CalendarUnit = CalendarUnit::Day;

/// Each has an instant, and the window that contains it.
const WINDOWS: [(CalendarUnit, &str, &str, [&str; 2]); 10] = [
    // Midnight was skipped.
    (
        DAY,
        "America/Sao_Paulo",
        "2015-10-18T03:00:00Z",
        ["2015-10-18T03:00:00Z", "2015-10-19T02:00:00Z"],
    ),
    // The clock went from 00:01 back to 22:01 of the day before, and the day had begun.
    (
        DAY,
        "America/St_Johns",
        "1988-10-30T02:30:00Z",
        ["1988-10-30T01:30:00Z", "1988-10-31T03:30:00Z"],
    ),
    // The 30th of December was skipped.
    (
        DAY,
        "Pacific/Apia",
        "2011-12-30T09:59:59Z",
        ["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"],
    ),
    (
        DAY,
        "Pacific/Apia",
        "2011-12-30T10:00:00Z",
        ["2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"],
    ),
    (
        CalendarUnit::Month { starts: 28 },
        "Europe/Berlin",
        "2027-03-27T22:59:59Z",
        ["2027-02-27T23:00:00Z", "2027-03-27T23:00:00Z"],
    ),
    (
        CalendarUnit::Month { starts: 15 },
        "Europe/Berlin",
        "2027-01-01T00:00:00Z",
        ["2026-12-14T23:00:00Z", "2027-01-14T23:00:00Z"],
    ),
    (
        CalendarUnit::Week { starts: 7 },
        "UTC",
        "2026-11-25T12:00:00Z",
        ["2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"],
    ),
    (
        CalendarUnit::Week { starts: 1 },
        "Pacific/Kiritimati",
        "2026-11-29T09:59:59Z",
        ["2026-11-22T10:00:00Z", "2026-11-29T10:00:00Z"],
    ),
    // No window begins before 1970.
    (
        DAY,
        "Asia/Tokyo",
        "1970-01-01T00:00:00Z",
        ["1970-01-01T00:00:00Z", "1970-01-01T15:00:00Z"],
    ),
    (
        CalendarUnit::Month { starts: 1 },
        "America/New_York",
        "1970-01-01T04:59:59Z",
        ["1970-01-01T00:00:00Z", "1970-01-01T05:00:00Z"],
    ),
];

#[test]
fn windows_of_unusual_days_are_those_that_the_clock_shows() {
    for (unit, name, now, window) in WINDOWS {
        assert_eq!(edges(unit, name, now)[2..], window, "{name} at {now}");
    }
    let skipped = edges(DAY, "Pacific/Apia", "2011-12-31T12:00:00Z");
    assert_eq!(
        skipped[..2],
        ["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"]
    );
}

#[test]
fn every_instant_has_a_window_even_where_dates_end() {
    let month = Calendar::new(CalendarUnit::Month { starts: 1 }, zone("Asia/Kolkata"));
    for now_us in [
        0,
        1,
        (1 << 53) - 1,
        251_829_999_999_999_999,
        251_830_000_000_000_000,
        1 << 60,
        u64::MAX - 1,
    ] {
        let edges = month.edges_at(now_us);
        assert!(edges.contain(now_us), "{now_us}: {edges:?}");
        assert!(edges.earlier_us <= edges.previous_us && edges.previous_us <= edges.start_us);
    }
}

/// What a clock that stepped back leaves begins in the middle of a window, and lasts as long as that one.
#[test]
fn a_window_lasts_as_long_as_the_one_of_the_calendar_in_which_it_began() {
    let month = Calendar::new(CalendarUnit::Month { starts: 1 }, Zone::UTC);
    let days = |began: &str| {
        month
            .edges_at(us("2027-03-05T00:00:00Z"))
            .window_at(us(began))
            / DAY_US
    };
    for (began, lasts) in [
        ("2027-03-05T00:00:00Z", 31),
        ("2027-03-01T00:00:00Z", 31),
        ("2027-02-28T23:59:59Z", 28),
        ("2027-02-01T00:00:00Z", 28),
        ("2027-01-31T23:59:59Z", 31),
        ("2027-01-01T00:00:00Z", 31),
    ] {
        assert_eq!(days(began), lasts, "{began}");
    }
}

/// Expiries, and what the embedded store drops, rely on it.
#[test]
fn no_window_of_any_zone_is_longer_than_the_longest_of_its_unit() {
    let from = us("2000-01-01T00:00:00Z");
    let to = us("2200-01-01T00:00:00Z");
    let mut steps = 0;
    for zone in Zone::all() {
        let day = Calendar::new(CalendarUnit::Day, zone);
        let start = Timestamp::from_microsecond(from as i64).unwrap();
        let rules = zone.time_zone();
        let transitions = rules
            .following(start)
            .map(|step| step.timestamp().as_microsecond() as u64);
        for at_us in transitions.take_while(|at_us| *at_us < to) {
            let edges = day.edges_at(at_us);
            let before = day.edges_at(at_us - 1);
            let longest = edges.window_us().max(before.window_us());
            assert!(
                longest <= CalendarUnit::Day.longest_us(),
                "{zone:?}, {}",
                Utc(at_us)
            );
            steps += 1;
        }
    }
    assert!(steps > 20_000, "{steps} steps looked at");
}

#[test]
fn no_two_zones_share_a_code_and_codes_never_change() {
    let mut codes = BTreeMap::new();
    for zone in Zone::all() {
        assert!(zone.code() < 1 << ZONE_BITS);
        if let Some(other) = codes.insert(zone.code(), zone) {
            panic!("{zone:?} and {other:?} have the code {}", zone.code());
        }
        // Its rules can be read, too.
        Calendar::new(CalendarUnit::Day, zone);
    }
    assert!(codes.len() > 550, "{} zones", codes.len());
    assert_eq!(
        ["UTC", "Europe/Berlin", "America/Havana"].map(|name| zone(name).code()),
        PINNED_CODES
    );
}

/// Of UTC, Berlin and Havana. States that are stored have them.
const PINNED_CODES: [u32; 3] = [16_050_487, 11_375_025, 5_837_235];

fn units() -> impl Iterator<Item = CalendarUnit> {
    let weeks = (1..=7).map(|starts| CalendarUnit::Week { starts });
    let months = (1..=MONTH_STARTS_MAX).map(|starts| CalendarUnit::Month { starts });
    [CalendarUnit::Day].into_iter().chain(weeks).chain(months)
}

#[test]
fn a_fingerprint_tells_unit_first_day_and_zone_apart_and_every_fixed_length() {
    let mut seen = BTreeMap::new();
    let mut add = |fingerprint: LimitFingerprint, what: String| {
        let read = LimitFingerprint::from_fixed_bytes(fingerprint.to_fixed_bytes());
        assert_eq!(read, fingerprint);
        let before = seen.insert(fingerprint.bytes().to_vec(), what.clone());
        assert_eq!(before, None, "{what}");
    };
    for name in ["UTC", "Etc/UTC", "Europe/Berlin"] {
        for unit in units() {
            let limit = Limit::by_calendar("l", 1, Calendar::new(unit, zone(name))).unwrap();
            assert_eq!(limit.fingerprint().bytes().len(), 5);
            assert_eq!(limit.fingerprint().window_us(), unit.longest_us());
            assert_eq!(limit.window_us(), unit.longest_us());
            add(limit.fingerprint(), format!("{unit:?} {name}"));
        }
    }
    let fixed = COMMON_WINDOWS_MS.into_iter().chain([366 * DAY_US / 1_000]);
    for ms in fixed {
        let window = std::time::Duration::from_millis(ms);
        let algorithm = crate::plan::Algorithm::FixedWindow {
            anchor: crate::plan::Anchor::Clock,
        };
        let limit = Limit::new("l", 1, window, algorithm).unwrap();
        assert_eq!(limit.fingerprint().window_us(), ms * 1_000);
        add(limit.fingerprint(), format!("{ms} ms"));
    }
    assert_eq!(seen.len(), 3 * 36 + 32);
}

#[test]
fn a_zone_is_found_in_any_letter_case_and_an_alias_is_another_zone() {
    let berlin = zone("europe/BERLIN");
    assert_eq!(berlin.name(), "Europe/Berlin");
    assert_eq!(berlin, zone("Europe/Berlin"));
    assert_ne!(zone("Etc/UTC"), Zone::UTC);
    assert_eq!(zone("utc"), Zone::UTC);
    for name in ["+02:00", "UTC+2", "Berlin", "", "Europe/Berlin ", "../UTC"] {
        assert_eq!(Zone::find(name), None, "{name}");
    }
    for (name, near) in [
        ("Europe/Berln", Some("Europe/Berlin")),
        ("europe/berln", Some("Europe/Berlin")),
        ("America/NewYork", Some("America/New_York")),
        ("+02:00", None),
        ("", None),
        (&"x".repeat(100_000), None),
    ] {
        assert_eq!(Zone::nearest(name), near, "{}", &name[..name.len().min(20)]);
    }
}

#[test]
fn a_calendar_reads_alike_whatever_was_looked_at() {
    let calendar = Calendar::new(CalendarUnit::Month { starts: 15 }, zone("Europe/Berlin"));
    let limit = Limit::by_calendar("month", 9, calendar.clone()).unwrap();
    let text = format!("{limit:?}");
    calendar.edges_at(us("2026-11-25T12:00:00Z"));
    assert_eq!(format!("{limit:?}"), text);
    assert_eq!(limit.window_text(), "month from day 15 in Europe/Berlin");
    assert_eq!(limit.shown_window_us(), 30 * DAY_US);
    let units = [
        CalendarUnit::Day,
        CalendarUnit::Week { starts: 1 },
        CalendarUnit::Week { starts: 7 },
    ];
    assert_eq!(
        units.map(|unit| Calendar::new(unit, Zone::UTC).to_string()),
        ["day in UTC", "week in UTC", "week from sunday in UTC"]
    );
    let of = |unit, name| Calendar::new(unit, zone(name));
    assert_eq!(of(CalendarUnit::Day, "utc"), of(CalendarUnit::Day, "UTC"));
    assert_ne!(
        of(CalendarUnit::Day, "UTC"),
        of(CalendarUnit::Day, "Etc/UTC")
    );
    assert_ne!(
        of(CalendarUnit::Month { starts: 1 }, "UTC"),
        of(CalendarUnit::Month { starts: 2 }, "UTC")
    );
}

#[test]
fn the_database_has_a_version() {
    let [year, letter] = [&ZONE_DATABASE[..4], &ZONE_DATABASE[4..]];
    assert!(
        year.parse::<u16>().unwrap() >= 2025 && letter.len() == 1,
        "{ZONE_DATABASE}"
    );
}
