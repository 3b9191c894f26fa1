//! Every edge of many zones over ten years, against Python's zoneinfo and the package tzdata of the same release.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::OnceLock;

use tollgate::plan::{Calendar, CalendarUnit, MONTH_STARTS_MAX, ZONE_DATABASE, Zone};

/// Zones with every sort of rule: none, of both hemispheres, at midnight, of half an hour and of two hours, by the moon, and beside
/// the date line.
pub const ZONES: [&str; 33] = [
    "UTC",
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Asuncion",
    "America/Havana",
    "America/Los_Angeles",
    "America/Miquelon",
    "America/New_York",
    "America/Nuuk",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/Scoresbysund",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Jerusalem",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Tokyo",
    "Atlantic/Azores",
    "Australia/Adelaide",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Europe/Berlin",
    "Europe/Chisinau",
    "Europe/Dublin",
    "Europe/London",
    "Pacific/Apia",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Pacific/Easter",
    "Pacific/Kiritimati",
];
pub const YEARS: [u64; 2] = [2026, 2035];
const MISSING: &str = "is needed by this test and not there; tests/run fetches it";

/// A day of a zone: its month and date, its weekday, and when it begins, in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct Day {
    month: u8,
    day: u8,
    weekday: u8,
    pub begins_us: u64,
}

/// The days of each of [`ZONES`] over [`YEARS`] and some days around them, as the other implementation tells them.
pub fn days() -> &'static BTreeMap<String, Vec<Day>> {
    static DAYS: OnceLock<BTreeMap<String, Vec<Day>>> = OnceLock::new();
    DAYS.get_or_init(|| read(&ZONES, YEARS))
}

fn read(zones: &[&str], years: [u64; 2]) -> BTreeMap<String, Vec<Day>> {
    let root = env!("CARGO_MANIFEST_DIR");
    let folder = format!("{root}/target/servers/tzdata");
    assert!(std::path::Path::new(&folder).is_dir(), "{folder} {MISSING}");
    let mut command = Command::new("python3");
    command
        .arg(format!("{root}/tests/algorithms/calendar/day_edges.py"))
        .arg(&folder)
        .args(years.map(|year| year.to_string()))
        .args(zones)
        .env("TZ", "UTC")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().expect("python3 is needed by this test");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    // Two releases may differ, and both be right.
    assert_eq!(
        lines.next().unwrap(),
        format!("release {ZONE_DATABASE}"),
        "tests/run must fetch the release that is built in"
    );
    let mut days: BTreeMap<String, Vec<Day>> = BTreeMap::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |place: usize| words[place].parse::<u64>().unwrap();
        let byte = |place| u8::try_from(number(place)).unwrap();
        days.entry(words[0].to_owned()).or_default().push(Day {
            month: byte(2),
            day: byte(3),
            weekday: byte(4),
            begins_us: number(5) * 1_000_000,
        });
    }
    days
}

/// The edges of a unit among these days, in order, each once: windows of skipped dates are none.
pub fn edges_of(days: &[Day], unit: CalendarUnit) -> Vec<u64> {
    let is_first = |day: &&Day| match unit {
        CalendarUnit::Day => true,
        CalendarUnit::Week { starts } => day.weekday == starts,
        CalendarUnit::Month { starts } => day.day == starts,
    };
    let mut edges: Vec<u64> = days
        .iter()
        .filter(is_first)
        .map(|day| day.begins_us)
        .collect();
    edges.dedup();
    edges
}

pub fn units() -> impl Iterator<Item = CalendarUnit> {
    let weeks = (1..=7).map(|starts| CalendarUnit::Week { starts });
    let months = (1..=MONTH_STARTS_MAX).map(|starts| CalendarUnit::Month { starts });
    [CalendarUnit::Day].into_iter().chain(weeks).chain(months)
}

#[test]
fn every_edge_of_ten_years_is_where_another_implementation_has_it() {
    let mut compared = 0;
    let mut longest = 0;
    let mut shortest = u64::MAX;
    for (name, days) in days() {
        assert!(days.len() > 3_650, "{name}: {} days", days.len());
        let zone = Zone::find(name).unwrap();
        for unit in units() {
            let edges = edges_of(days, unit);
            let calendar = Calendar::new(unit, zone);
            for around in edges.windows(4) {
                let [earlier, previous, start, end] = [0, 1, 2, 3].map(|place| around[place]);
                // A microsecond before, at and after each edge.
                for now_us in [start, start + 1, end - 1] {
                    let found = calendar.edges_at(now_us);
                    assert_eq!(
                        [
                            found.earlier_us,
                            found.previous_us,
                            found.start_us,
                            found.end_us
                        ],
                        [earlier, previous, start, end],
                        "{calendar} at {now_us}"
                    );
                    compared += 1;
                }
                if unit == CalendarUnit::Day {
                    longest = longest.max(end - start);
                    shortest = shortest.min(end - start);
                }
            }
        }
    }
    println!("{compared} instants compared, of days of {shortest} to {longest} us");
    assert!(compared > 1_000_000, "{compared}");
    let hour_us = 3_600_000_000;
    // Two hours more or less at the station Troll.
    assert_eq!([shortest, longest], [22 * hour_us, 26 * hour_us]);
}

#[test]
fn a_month_has_the_days_that_it_should_have() {
    let days = &days()["Asia/Tokyo"];
    let of_february = days.iter().filter(|day| day.month == 2).count();
    // 2028 and 2032 are leap years.
    assert_eq!(of_february, 10 * 28 + 2);
}
