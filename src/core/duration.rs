//! Durations in written form: `250ms`, `10s`, `1m`, `1h30m`, `1d`, `2w`. Config, flags and environment variables use it, and so
//! do messages.
//!
//! Each unit has exactly one spelling. Libraries such as `humantime` read `M` as a month of 30.44 days. In a rate limit that is
//! a typing error which multiplies a window by 43,830.

use std::fmt;
use std::time::Duration;

/// Units and their lengths in milliseconds, the longest first.
const UNITS: [(&str, u64); 6] = [
    ("w", 7 * 24 * 60 * 60 * 1000),
    ("d", 24 * 60 * 60 * 1000),
    ("h", 60 * 60 * 1000),
    ("m", 60 * 1000),
    ("s", 1000),
    ("ms", 1),
];
/// Longest text that is parsed. The longest useful text has six parts of a few digits.
const TEXT_BYTES_MAX: usize = 64;
const RIGHT: &str =
    "write a whole number and its unit (ms, s, m, h, d or w), such as 250ms, 10s, 1m, 1h30m or 7d";

/// Parses a duration: whole numbers with units, the longest unit first, each unit once.
///
/// Errors: a sentence with the right form. It repeats nothing of the text but its unit.
pub fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text;
    let mut total_ms = 0_u64;
    let mut longer = u64::MAX;
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        return Err(RIGHT.to_owned());
    }
    while !rest.is_empty() {
        let (number, unit, after) = split_part(rest)?;
        let unit_ms = unit_ms(unit)?;
        if unit_ms >= longer {
            return Err("it has a unit twice, or a shorter one before a longer; write 1h30m, the longest first".to_owned());
        }
        let part_ms = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(unit_ms));
        let sum = part_ms.and_then(|part_ms| total_ms.checked_add(part_ms));
        total_ms = sum.ok_or("it is longer than any duration can be here")?;
        longer = unit_ms;
        // A space may stand between two parts, as in `1h 30m`, but not at the end.
        rest = after
            .strip_prefix(' ')
            .filter(|rest| !rest.is_empty())
            .unwrap_or(after);
    }
    Ok(Duration::from_millis(total_ms))
}

/// Splits off the first part: its number, its unit, and what follows.
fn split_part(text: &str) -> Result<(&str, &str, &str), String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, after) = text.split_at(digits);
    if number.is_empty() || (number.len() > 1 && number.starts_with('0')) {
        return Err(RIGHT.to_owned());
    }
    if let Some(rest) = after
        .strip_prefix(' ')
        .filter(|rest| rest.starts_with(|letter: char| letter.is_alphabetic()))
    {
        let unit = rest
            .split(|letter: char| !letter.is_alphabetic())
            .next()
            .unwrap_or_default();
        let unit = right_unit(&unit.to_lowercase()).unwrap_or("m");
        return Err(format!(
            "it has a space between a number and its unit; write them together, such as 1{unit}"
        ));
    }
    let letters = after
        .find(|letter: char| letter.is_ascii_digit() || letter == ' ')
        .unwrap_or(after.len());
    let (unit, after) = after.split_at(letters);
    Ok((number, unit, after))
}

fn unit_ms(unit: &str) -> Result<u64, String> {
    if let Some((_, unit_ms)) = UNITS.iter().find(|(known, _)| *known == unit) {
        return Ok(*unit_ms);
    }
    Err(wrong_unit(unit))
}

/// The sentence for a unit that is not known.
fn wrong_unit(unit: &str) -> String {
    match unit {
        "" => format!("it has a number without a unit; {RIGHT}"),
        "M" => "it has the unit M, which could be minutes or months; write m for minutes, or days, such as 30d".to_owned(),
        _ if unit.starts_with('.') || unit.starts_with(',') => {
            "it has a part of a unit; write a shorter unit, such as 90m for one hour and a half".to_owned()
        }
        _ => match unit.to_ascii_lowercase().as_str() {
            "mo" | "mon" | "month" | "months" | "y" | "yr" | "year" | "years" => {
                "it has a unit whose length is not always the same; write days, such as 30d or 365d".to_owned()
            }
            "us" | "ns" | "µs" | "usec" | "nsec" => "it has a unit below a millisecond; the shortest is ms".to_owned(),
            lower => match right_unit(lower) {
                Some(right) => format!("it has a unit that is written {right}, such as 1{right}"),
                None => format!("it has no unit that is known; {RIGHT}"),
            },
        },
    }
}

/// The right spelling for a unit that is written differently.
fn right_unit(lower: &str) -> Option<&'static str> {
    Some(match lower {
        "ms" | "msec" | "msecs" | "millis" | "millisecond" | "milliseconds" => "ms",
        "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "min" | "mins" | "minute" | "minutes" => "m",
        "h" | "hr" | "hrs" | "hour" | "hours" => "h",
        "d" | "day" | "days" => "d",
        "w" | "week" | "weeks" => "w",
        _ => return None,
    })
}

/// Shows a duration the way [`parse`] reads it. A part below a millisecond is left out.
pub struct Shown(pub Duration);

impl fmt::Display for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left_ms = self.0.as_millis();
        if left_ms == 0 {
            return out.write_str("0s");
        }
        // Weeks are parsed but not shown: 14d is clearer than 2w.
        for (unit, unit_ms) in &UNITS[1..] {
            let count = left_ms / u128::from(*unit_ms);
            left_ms %= u128::from(*unit_ms);
            if count > 0 {
                write!(out, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}

/// Shows a duration with all of it. One that has a part below a millisecond is told in seconds: `600.000001s`.
pub struct ShownExactly(pub Duration);

impl fmt::Display for ShownExactly {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.subsec_nanos();
        if nanos.is_multiple_of(1_000_000) {
            return Shown(self.0).fmt(out);
        }
        let fraction = format!("{nanos:09}");
        let fraction = fraction.trim_end_matches('0');
        write!(out, "{}.{fraction}s", self.0.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_duration_is_whole_numbers_with_units() {
        for (text, ms) in [
            ("0s", 0),
            ("1ms", 1),
            ("250ms", 250),
            ("10s", 10_000),
            ("1m", 60_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("2w", 14 * 86_400_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1w2d3h4m5s6ms", 788_645_006),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_gets_the_right_form() {
        for (text, part) in [
            ("1M", "minutes or months; write m for minutes, or days"),
            ("1month", "write days, such as 30d"),
            ("1Mo", "write days"),
            ("2years", "write days"),
            ("1y", "write days"),
            ("1S", "is written s, such as 1s"),
            ("1H", "is written h"),
            ("1D", "is written d"),
            ("1W", "is written w"),
            ("5MS", "is written ms"),
            ("5min", "is written m, such as 1m"),
            (
                "1 hour",
                "a space between a number and its unit; write them together, such as 1h",
            ),
            ("1 minute", "such as 1m"),
            ("1h 30 min", "such as 1m"),
            ("1hour", "is written h"),
            ("10sec", "is written s"),
            ("1us", "below a millisecond"),
            ("1fortnight", "has no unit that is known"),
            ("60", "has a number without a unit"),
            ("0", "has a number without a unit"),
            ("1.5h", "write a shorter unit"),
            ("1,5h", "write a shorter unit"),
            ("-1s", "write a whole number"),
            ("+1s", "write a whole number"),
            ("01s", "write a whole number"),
            ("1e3s", "no unit that is known"),
            ("", "write a whole number"),
            ("s", "write a whole number"),
            (" 1s", "write a whole number"),
            ("1s ", "write a whole number"),
            ("1s\n", "no unit that is known"),
            ("1h  30m", "write a whole number"),
            ("1m1m", "has a unit twice"),
            ("30m1h", "a shorter one before a longer"),
            ("99999999999999999999s", "is longer than any duration"),
            ("18446744073709551615s", "is longer than any duration"),
            ("１s", "write a whole number"),
        ] {
            let sentence = parse(text).expect_err(text);
            assert!(sentence.contains(part), "{text:?}: {sentence}");
        }
        assert!(parse(&"1s".repeat(1_000_000)).is_err());
    }

    #[test]
    fn no_part_of_a_duration_is_left_out_where_it_is_shown_exactly() {
        for (seconds, nanos, text) in [
            (0, 0, "0s"),
            (0, 1, "0.000000001s"),
            (0, 999_999_999, "0.999999999s"),
            (5_400, 250_000_000, "1h30m250ms"),
            (600, 0, "10m"),
            (600, 1, "600.000000001s"),
            (600, 1_000, "600.000001s"),
        ] {
            let shown = ShownExactly(Duration::new(seconds, nanos)).to_string();
            assert_eq!(shown, text);
        }
    }

    proptest! {
        #[test]
        fn a_shown_duration_parses_to_itself(ms in 0_u64..=400 * 86_400_000) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse(&Shown(duration).to_string()), Ok(duration));
        }

        #[test]
        fn any_text_is_a_duration_or_gives_a_sentence(text in ".{0,80}") {
            if let Err(sentence) = parse(&text) {
                prop_assert!(sentence.len() > 20 && !sentence.contains('\n'));
            }
        }
    }
}
