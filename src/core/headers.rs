//! Response header fields that tell a decision to an HTTP client. Every caller that answers over HTTP gets the same ones: the
//! check endpoint sends them, and gRPC callers get them ready to copy.
//!
//! Pure: knows decisions and plans, and no wire format. All times are whole seconds, rounded up, so that no client returns too
//! early.

use std::fmt::Write as _;

use smallvec::SmallVec;

use crate::decision::{Decision, LimitStatus};
use crate::plan::{Algorithm, Limit, Plan};

/// `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11.
const RATE_LIMIT_POLICY: &str = "ratelimit-policy";
const RATE_LIMIT: &str = "ratelimit";
/// The older fields, without a standard.
const X_LIMIT: &str = "x-ratelimit-limit";
const X_REMAINING: &str = "x-ratelimit-remaining";
const X_RESET: &str = "x-ratelimit-reset";
/// Source: RFC 9110, section 10.2.3.
const RETRY_AFTER: &str = "retry-after";
const SECOND_US: u64 = 1_000_000;
/// Room for an item of a list, so that writing it seldom allocates again.
const ITEM_BYTES: usize = 64;

/// Which rate limit fields answers carry. `Retry-After` is in every form, since it belongs to a denial, not to rate limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeaderForm {
    /// `RateLimit` and `RateLimit-Policy`, with an item for each limit.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the limit that binds.
    XRateLimit,
    /// Those of both.
    Both,
    /// None of them.
    None,
}

impl HeaderForm {
    /// Every form, with its name in the config.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("ietf", Self::Ietf),
        ("x-ratelimit", Self::XRateLimit),
        ("both", Self::Both),
        ("none", Self::None),
    ];

    fn has_ietf(self) -> bool {
        matches!(self, Self::Ietf | Self::Both)
    }

    fn has_x_rate_limit(self) -> bool {
        matches!(self, Self::XRateLimit | Self::Both)
    }
}

/// Names, in lower case as HTTP/2 needs them, with their values. Each name is there once.
pub type Headers = SmallVec<[(&'static str, String); 3]>;

/// The fields of an answer that `plan` decided.
pub fn headers(decision: &Decision, plan: &Plan, form: HeaderForm) -> Headers {
    let mut headers = Headers::new();
    let mut add = |name, value: String| {
        // The config refuses names that no header can hold. If one came nevertheless, only the header would be missing.
        if !value.is_empty() && value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            headers.push((name, value));
        }
    };
    if form.has_ietf() {
        let with_window = |text: &mut String, index, limit: &Limit| {
            policy(text, limit, window_us(decision, index, limit));
        };
        let policies = list(plan.limits(), with_window);
        add(RATE_LIMIT_POLICY, with_slots(policies, plan));
        let state = |text: &mut String, _, status: &LimitStatus| limit_state(text, status);
        add(RATE_LIMIT, list(decision.limits(), state));
    }
    if form.has_x_rate_limit()
        && let Some(binding) = decision.binding()
    {
        add(X_LIMIT, binding.limit.to_string());
        // Without a state that was read, the other two are unknown.
        if let Some(reset_after_us) = decision.key_status().reset_after_us {
            add(X_REMAINING, binding.remaining.to_string());
            add(X_RESET, reset_after_us.div_ceil(SECOND_US).to_string());
        }
    }
    if let Some(seconds) = retry_after_s(decision) {
        add(RETRY_AFTER, seconds.to_string());
    }
    headers
}

/// Seconds to wait after a denial, at least 1. `None` when the request may pass, and when no wait is known to help.
#[inline]
pub fn retry_after_s(decision: &Decision) -> Option<u64> {
    decision
        .key_status()
        .retry_after_us
        .map(|us| us.div_ceil(SECOND_US).max(1))
}

/// A list of structured fields. Source: RFC 9651, section 4.1.1.
fn list<T>(items: &[T], write: impl Fn(&mut String, usize, &T)) -> String {
    let mut text = String::with_capacity(ITEM_BYTES * items.len());
    for (index, item) in items.iter().enumerate() {
        if !text.is_empty() {
            text.push_str(", ");
        }
        write(&mut text, index, item);
    }
    text
}

/// The policies of the rate limits, and in its place among them that of the concurrency limit, `"name";q=5;qu="concurrent-requests"`.
/// Names hold no comma.
fn with_slots(policies: String, plan: &Plan) -> String {
    let Some(slots) = plan.concurrency() else {
        return policies;
    };
    let mut of_slots = String::with_capacity(ITEM_BYTES);
    quoted(&mut of_slots, slots.name());
    let _ = write!(of_slots, ";q={};qu=\"concurrent-requests\"", slots.quota());
    let mut items: Vec<&str> = policies
        .split(", ")
        .filter(|item| !item.is_empty())
        .collect();
    items.insert(slots.place().min(items.len()), &of_slots);
    items.join(", ")
}

/// `"name";q=100;w=60`. `w` is left out if the window is not a whole number of seconds, since the field has no fractions.
fn policy(text: &mut String, limit: &Limit, window_us: u64) {
    quoted(text, limit.name());
    // Writing to a String cannot fail.
    let _ = write!(text, ";q={}", limit.quota());
    if window_us.is_multiple_of(SECOND_US) {
        let _ = write!(text, ";w={}", window_us / SECOND_US);
    }
    if let Algorithm::TokenBucket { burst } = limit.algorithm() {
        let _ = write!(text, ";tollgate-burst={burst}");
    }
}

/// The window of the plan's limit of this index: of a calendar, the present one.
fn window_us(decision: &Decision, index: usize, limit: &Limit) -> u64 {
    match decision.limits().get(index) {
        Some(status) if limit.calendar().is_some() => status.window_us,
        _ => limit.shown_window_us(),
    }
}

/// `"name";r=0;t=30`. `t` is the time until there is more, and is left out while that is unknown. It is known for a denial,
/// and for a fixed window, where it is the end of the window.
fn limit_state(text: &mut String, status: &LimitStatus) {
    quoted(text, &status.name);
    let _ = write!(text, ";r={}", status.remaining);
    // Nobody knows when a hold is settled.
    if let Some(us) = status.more_after_us().filter(|_| !status.is_of_slots()) {
        let _ = write!(text, ";t={}", us.div_ceil(SECOND_US));
    }
}

/// A string of structured fields. Source: RFC 9651, section 4.1.6.
fn quoted(text: &mut String, name: &str) {
    text.push('"');
    for letter in name.chars() {
        if matches!(letter, '"' | '\\') {
            text.push('\\');
        }
        text.push(letter);
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{DecidedBy, Outcome};
    use crate::plan::{Anchor, Rule};
    use smallvec::smallvec;
    use std::time::Duration;

    const FIXED: Algorithm = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };

    fn plan(limits: &[(&str, u64, Duration, Algorithm)]) -> Plan {
        let limits = limits.iter().map(|(name, quota, window, algorithm)| {
            Limit::new(*name, *quota, *window, *algorithm).unwrap()
        });
        Plan::new("p", Rule::limits(limits))
    }

    fn status(
        name: &str,
        remaining: u64,
        retry_after_us: Option<u64>,
        reset_after_us: u64,
    ) -> LimitStatus {
        let window_us = 60_000_000;
        let frees_at_once = name != "b";
        LimitStatus {
            name: name.into(),
            limit: 10,
            window_us,
            frees_at_once,
            capacity: 10,
            remaining,
            retry_after_us,
            reset_after_us,
            blocked_for_us: 0,
            begins_block: false,
            first_end_us: 0,
        }
    }

    fn texts(decision: &Decision, plan: &Plan, form: HeaderForm) -> Vec<String> {
        headers(decision, plan, form)
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect()
    }

    fn denied() -> (Decision, Plan) {
        let plan = plan(&[
            ("minute", 10, Duration::from_secs(60), FIXED),
            ("hour", 100, Duration::from_secs(3600), FIXED),
        ]);
        let limits = smallvec![
            status("minute", 0, Some(1_000_001), 1_000_001),
            status("hour", 7, None, 1)
        ];
        (
            Decision::counted(Outcome::Denied, DecidedBy::Store, limits),
            plan,
        )
    }

    #[test]
    fn seconds_are_rounded_up_and_retry_after_is_the_longest_wait() {
        let (decision, plan) = denied();
        let expected = [
            "ratelimit-policy: \"minute\";q=10;w=60, \"hour\";q=100;w=3600",
            "ratelimit: \"minute\";r=0;t=2, \"hour\";r=7;t=1",
            "retry-after: 2",
        ];
        assert_eq!(texts(&decision, &plan, HeaderForm::Ietf), expected);
    }

    #[test]
    fn the_older_form_tells_of_the_limit_that_binds() {
        let (decision, plan) = denied();
        let older = [
            "x-ratelimit-limit: 10",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 2",
        ];
        let found = texts(&decision, &plan, HeaderForm::XRateLimit);
        assert_eq!(
            (&found[..3], &found[3]),
            (&older.map(str::to_owned)[..], &"retry-after: 2".to_owned())
        );
        let both = texts(&decision, &plan, HeaderForm::Both);
        assert_eq!((both.len(), &both[2..5]), (6, &found[..3]));
        assert_eq!(
            texts(&decision, &plan, HeaderForm::None),
            ["retry-after: 2"]
        );
        let uncounted = Decision::uncounted(
            Outcome::NeverFits,
            DecidedBy::Plan,
            Some(status("minute", 0, None, 0)),
        );
        assert_eq!(
            texts(&uncounted, &plan, HeaderForm::XRateLimit),
            ["x-ratelimit-limit: 10"]
        );
    }

    #[test]
    fn unknown_values_are_left_out() {
        let bucket = Algorithm::TokenBucket { burst: 5 };
        let plan = plan(&[
            ("a", 10, Duration::from_millis(1500), FIXED),
            ("b", 10, Duration::from_secs(1), bucket),
        ]);
        let limits = smallvec![
            status("a", 9, None, 1_500_000),
            status("b", 4, None, 100_000)
        ];
        let counted = Decision::counted(Outcome::Allowed, DecidedBy::Store, limits);
        let policies = "ratelimit-policy: \"a\";q=10, \"b\";q=10;w=1;tollgate-burst=5";
        assert_eq!(
            texts(&counted, &plan, HeaderForm::Ietf),
            [policies, "ratelimit: \"a\";r=9;t=2, \"b\";r=4"]
        );
        let open = Decision::uncounted(Outcome::Allowed, DecidedBy::FailOpen, None);
        assert_eq!(texts(&open, &plan, HeaderForm::Both), [policies]);
    }

    #[test]
    fn a_name_that_no_header_can_hold_leaves_its_field_out() {
        let mut text = String::new();
        quoted(&mut text, "a\"b\\c");
        assert_eq!(text, "\"a\\\"b\\\\c\"");
        for name in ["line\nbreak", "é"] {
            let plan = plan(&[(name, 10, Duration::from_secs(1), FIXED)]);
            let decision = Decision::uncounted(Outcome::Denied, DecidedBy::FailClosed, None);
            assert!(headers(&decision, &plan, HeaderForm::Ietf).is_empty());
        }
    }
}
