//! Times of log lines, read in the forms that logs have.
//!
//! Own code: a log of ten million lines needs a stamp read in some nanoseconds, and only a few fixed forms.

use tollgate_core::utc::SECOND_US;

/// Latest time that is read, 2200-01-01. Above it a number is most likely no time.
const LATEST_US: u64 = 7_258_118_400 * SECOND_US;
const DAY_S: i64 = 86_400;
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
        [_, _, b'/', ..] => common_log(text),
        [_, _, _, _, b'-', ..] => iso_8601(text),
        _ => since_1970(text),
    }?;
    (stamp.at_us <= LATEST_US).then_some(stamp)
}

/// `10/Oct/2000:13:55:36 -0700`, of Apache and nginx's `$time_local`.
fn common_log(text: &[u8]) -> Option<Stamp> {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let [
        d0,
        d1,
        b'/',
        m0,
        m1,
        m2,
        b'/',
        year @ ..,
        b':',
        _,
        _,
        b':',
        _,
        _,
        b':',
        _,
        _,
    ] = text.get(..20)?
    else {
        return None;
    };
    let month = MONTHS
        .chunks_exact(3)
        .position(|month| month == [*m0, *m1, *m2])?;
    let date = days(
        number(year)?,
        i64::try_from(month).ok()? + 1,
        number(&[*d0, *d1])?,
    )?;
    let rest = text[20..].strip_prefix(b" ").unwrap_or(&text[20..]);
    stamp(date, clock(&text[12..20])?, 0, offset(rest)?)
}

/// `2000-10-10T13:55:36.123-07:00`; a space may stand for the T, and a time without an offset is UTC.
fn iso_8601(text: &[u8]) -> Option<Stamp> {
    let [year @ .., b'-', m0, m1, b'-', d0, d1, b'T' | b't' | b' '] = text.get(..11)? else {
        return None;
    };
    let date = days(number(year)?, number(&[*m0, *m1])?, number(&[*d0, *d1])?)?;
    let rest = &text[19.min(text.len())..];
    let (fraction_us, rest) = fraction(rest)?;
    stamp(date, clock(text.get(11..19)?)?, fraction_us, offset(rest)?)
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

/// Seconds east of UTC: ``, `Z`, `+hh:mm` or `+hhmm`.
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match text {
        [] | [b'Z' | b'z'] => return Some(0),
        [sign, h0, h1, b':', m0, m1] | [sign, h0, h1, m0, m1] => (*sign, [*h0, *h1], [*m0, *m1]),
        [sign, h0, h1] => (*sign, [*h0, *h1], *b"00"),
        _ => return None,
    };
    let (hours, minutes) = (number(&hours)?, number(&minutes)?);
    let seconds = (hours <= 23 && minutes <= 59).then_some(hours * 3_600 + minutes * 60)?;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

/// Seconds of the day, of `13:55:36`. A leap second counts as the second after it.
fn clock(text: &[u8]) -> Option<i64> {
    let [h0, h1, b':', m0, m1, b':', s0, s1] = text else {
        return None;
    };
    let (hours, minutes, seconds) = (
        number(&[*h0, *h1])?,
        number(&[*m0, *m1])?,
        number(&[*s0, *s1])?,
    );
    (hours <= 23 && minutes <= 59 && seconds <= 60)
        .then_some(hours * 3_600 + minutes * 60 + seconds)
}

fn stamp(date: i64, seconds: i64, fraction_us: u64, offset: i64) -> Option<Stamp> {
    let since_1970 = u64::try_from(date * DAY_S + seconds - offset).ok()?;
    Some(Stamp {
        at_us: since_1970.checked_mul(SECOND_US)? + fraction_us,
        is_whole: fraction_us == 0,
    })
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

/// Days since 1970-01-01 of a date of the Gregorian calendar (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1970..=9999).contains(&year) || !(1..=length).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
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
            ("2016-12-31T23:59:60Z", 1_483_228_800_000_000, true),
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
