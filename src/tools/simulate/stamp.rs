//! Times of log lines, read in the forms that logs have.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use tollgate_core::utc::SECOND_US;

/// Latest time that is read, 2200-01-01. Above it a number is most likely no time.
const LATEST_US: u64 = 7_258_118_400 * SECOND_US;
/// What a message says of the forms.
pub const FORMS: &str = "write 10/Oct/2000:13:55:36 -0700, 2000-10-10T13:55:36Z (with a fraction and any offset), or seconds or milliseconds since 1970";

/// A time from a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Microseconds since 1970-01-01T00:00:00Z.
    pub at_us: u64,
    /// Whether it has no part below a second.
    pub is_whole: bool,
}

/// Reads a time. `None`: it has no known form, does not exist, or is not between 1970 and 2200.
pub fn parse(text: &[u8]) -> Option<Stamp> {
    let text = text
        .strip_prefix(b"[")
        .and_then(|text| text.strip_suffix(b"]"))
        .unwrap_or(text)
        .trim_ascii();
    let stamp = match text {
        [_, _, b'/', ..] => from_timestamp(common_log(text)?),
        [_, _, _, _, b'-', ..] => from_timestamp(iso_8601(text)?),
        _ => since_1970(text),
    }?;
    (stamp.at_us <= LATEST_US).then_some(stamp)
}

/// `10/Oct/2000:13:55:36 -0700`, of Apache and nginx's `$time_local`; a time without an offset is UTC.
fn common_log(text: &[u8]) -> Option<Timestamp> {
    if let Ok(time) = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S", text) {
        return utc(time.to_datetime().ok()?);
    }
    let time = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?;
    time.to_timestamp().ok()
}

/// `2000-10-10T13:55:36.123-07:00`; a space may stand for the T, and a time without an offset is UTC. A leap second counts as the
/// second before it.
fn iso_8601(text: &[u8]) -> Option<Timestamp> {
    // A text without seconds may be something else that reads as a date.
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.as_bytes().get(16) == Some(&b':'))?;
    text.parse()
        .ok()
        .or_else(|| utc(text.parse::<DateTime>().ok()?))
}

fn utc(time: DateTime) -> Option<Timestamp> {
    TimeZone::UTC.to_timestamp(time).ok()
}

/// `None` before 1970.
fn from_timestamp(timestamp: Timestamp) -> Option<Stamp> {
    Some(Stamp {
        at_us: u64::try_from(timestamp.as_microsecond()).ok()?,
        is_whole: timestamp.subsec_nanosecond() == 0,
    })
}

/// A number of seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by its size.
fn since_1970(text: &[u8]) -> Option<Stamp> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = u64::try_from(number(&text[..digits])?).ok()?;
    let (fraction_us, rest) = fraction(&text[digits..])?;
    if !rest.is_empty() {
        return None;
    }
    // Up to the year 5138 in seconds, which is the year 1973 in milliseconds, and so on.
    let at_us = match digits {
        ..=11 => whole.checked_mul(SECOND_US)? + fraction_us,
        12..=14 => whole.checked_mul(1_000)? + fraction_us / 1_000,
        15..=17 => whole,
        _ => whole / 1_000,
    };
    Some(Stamp {
        at_us,
        is_whole: at_us % SECOND_US == 0,
    })
}

/// Microseconds of a fraction such as `.123`, which may be missing, and what follows it.
fn fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let ([b'.', rest @ ..] | [b',', rest @ ..]) = text else {
        return Some((0, text));
    };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let micros = rest[..digits]
        .iter()
        .map(|byte| u64::from(byte - b'0'))
        .chain(std::iter::repeat(0));
    let fraction_us = micros
        .take(6)
        .fold(0, |fraction_us, digit| fraction_us * 10 + digit);
    (digits > 0).then_some((fraction_us, &rest[digits..]))
}

/// Digits only, at most 18 of them.
fn number(text: &[u8]) -> Option<i64> {
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    text.iter().try_fold(0_i64, |number, byte| {
        if byte.is_ascii_digit() {
            number.checked_mul(10)?.checked_add(i64::from(byte - b'0'))
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tollgate_core::utc::Utc;

    fn at(text: &str) -> Option<(u64, bool)> {
        parse(text.as_bytes()).map(|stamp| (stamp.at_us, stamp.is_whole))
    }

    #[test]
    fn stamps_of_logs_are_read() {
        for (text, at_us, is_whole) in [
            ("[10/Oct/2000:13:55:36 -0700]", 971_211_336_000_000, true),
            ("10/Oct/2000:20:55:36 +0000", 971_211_336_000_000, true),
            ("2000-10-10T20:55:36Z", 971_211_336_000_000, true),
            ("2000-10-10 20:55:36", 971_211_336_000_000, true),
            ("2000-10-10T13:55:36-07:00", 971_211_336_000_000, true),
            ("2000-10-11T02:25:36.5+0530", 971_211_336_500_000, false),
            ("2000-10-10T20:55:36,123456789Z", 971_211_336_123_456, false),
            ("2024-02-29T00:00:00Z", 1_709_164_800_000_000, true),
            ("1970-01-01T00:00:00Z", 0, true),
            ("2016-12-31T23:59:60Z", 1_483_228_799_000_000, true),
            ("971211336", 971_211_336_000_000, true),
            ("971211336.25", 971_211_336_250_000, false),
            ("971211336250", 971_211_336_250_000, false),
            ("971211336000", 971_211_336_000_000, true),
            ("971211336250999", 971_211_336_250_999, false),
            ("971211336250999123", 971_211_336_250_999, false),
        ] {
            assert_eq!(at(text), Some((at_us, is_whole)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "[]",
            "-",
            "10/Okt/2000:13:55:36 -0700",
            "32/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:24:55:36 -0700",
            "10/Oct/2000:13:55:36 -0760",
            "10/Oct/2000:13:55:36 x",
            "10/Oct/2000",
            "2000-13-10T20:55:36Z",
            "2001-02-29T00:00:00Z",
            "2000-10-10T20:55Z",
            "2000-10-10",
            "2000-10-10T20:55:36.Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "2200-01-01T00:00:01Z",
            "-1",
            "1e9",
            "12:30",
            "9999999999999999999999",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_shown_time_reads_back(seconds in 0..=LATEST_US / SECOND_US) {
            let stamp = parse(Utc(seconds * SECOND_US).to_string().as_bytes());
            prop_assert_eq!(stamp, Some(Stamp { at_us: seconds * SECOND_US, is_whole: true }));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40), text in "[0-9/:TZ +.-]{0,30}") {
            let _ = (parse(&bytes), parse(text.as_bytes()));
        }
    }
}
