//! The known name that was probably meant by an unknown one. Every "did you mean" has this one bound.

/// A name with more edits than this is not suggested.
const EDITS_MAX: usize = 3;
/// Among more names than this none is suggested. Checking the length of one name takes about 10 ns, so all take 3 us at most.
const NAMES_MAX: usize = 256;
/// Maximum number of letter pairs that a suggestion compares. A pair takes about 1.5 ns, so a suggestion takes 50 us at most.
/// That is enough for 8 names of 64 letters, or for 256 of 11.
const PAIRS_MAX: usize = 32_768;

/// The nearest of the known names, if it is near enough to be a typing error, and finding it takes less than 100 us.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    nearest_by(name, known, strsim::osa_distance)
}

/// Maximum number of letter pairs that a search for a time zone compares, about 0.3 ms: all zones of the database, of usual
/// lengths. A config reports few errors, and nothing waits for it.
const ZONE_PAIRS_MAX: usize = 200_000;

/// The nearest of the known time zones, whatever the letter case, if it is near enough to be a typing error.
pub fn nearest_zone<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let name = name.to_lowercase();
    let distance = |name: &str, other: &str| strsim::osa_distance(name, &other.to_lowercase());
    nearest_within(&name, known, ZONE_PAIRS_MAX, distance)
}

/// Whether so many edits are few enough for a typing error: no more than half of the letters of the name are wrong.
fn is_near(name: &str, edits: usize) -> bool {
    edits <= EDITS_MAX && 2 * edits <= name.chars().count()
}

fn nearest_by<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
    distance: impl FnMut(&str, &str) -> usize,
) -> Option<&'a str> {
    if known.clone().nth(NAMES_MAX).is_some() {
        return None;
    }
    nearest_within(name, known, PAIRS_MAX, distance)
}

fn nearest_within<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
    pairs_max: usize,
    mut distance: impl FnMut(&str, &str) -> usize,
) -> Option<&'a str> {
    // A name whose length differs by more needs more edits than are allowed.
    let candidates = known.filter(|other| other.len().abs_diff(name.len()) <= EDITS_MAX);
    let pairs: usize = candidates
        .clone()
        .map(|other| other.len() * name.len())
        .sum();
    if pairs > pairs_max {
        return None;
    }
    let (edits, nearest) = candidates
        .map(|other| (distance(name, other), other))
        .min()?;
    is_near(name, edits).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_suggested_when_at_most_half_of_its_letters_are_wrong() {
        let known = ["free", "starter", "business", "p"];
        for (name, found) in [
            ("startr", Some("starter")),
            ("sartter", Some("starter")),
            ("fre", Some("free")),
            ("fere", Some("free")),
            ("fxyz", None),
            ("nope", None),
            ("pp", Some("p")),
            ("x", None),
            ("", None),
            ("enterprise", None),
        ] {
            assert_eq!(nearest(name, known.into_iter()), found, "{name}");
        }
    }

    /// Letter pairs that a suggestion compares, and whether it found a name.
    fn work(known: &[String], name: &str) -> (usize, bool) {
        let mut pairs = 0;
        let nearest = nearest_by(name, known.iter().map(String::as_str), |a, b| {
            pairs += a.len() * b.len();
            strsim::osa_distance(a, b)
        });
        (pairs, nearest.is_some())
    }

    #[test]
    fn a_suggestion_compares_a_bounded_number_of_letters_whatever_the_names() {
        for (count, letters) in [
            (1, 64),
            (8, 64),
            (9, 64),
            (100, 20),
            (256, 11),
            (256, 64),
            (257, 4),
            (10_000, 8),
            (10_000, 64),
        ] {
            let names: Vec<String> = (0..count)
                .map(|index| format!("{index:0>letters$}"))
                .collect();
            for name in [
                "x".repeat(letters),
                format!("{:x>letters$}", 0),
                "é".repeat(letters / 2),
                String::new(),
            ] {
                let (pairs, _) = work(&names, &name);
                assert!(
                    pairs <= PAIRS_MAX,
                    "{count} names of {letters} letters, {name:?}: {pairs}"
                );
            }
            // A name with one wrong letter.
            let (pairs, found) = work(&names, &format!("x{}", &names[0][1..]));
            let cheap = count <= NAMES_MAX && count * letters * letters <= PAIRS_MAX;
            assert_eq!(
                (found, pairs > 0),
                (cheap, cheap),
                "{count} names of {letters} letters"
            );
        }
    }
}
