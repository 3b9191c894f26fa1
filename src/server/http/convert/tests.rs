//! A denial as JSON and as header fields.

use super::*;
use smallvec::smallvec;
use std::time::Duration;
use tollgate_core::plan::{Anchor, Limit, Rule};

#[test]
fn a_denial_names_what_it_violates_and_carries_the_ready_headers() {
    let algorithm = tollgate_core::plan::Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };
    let limit = |name: &str| Limit::new(name, 10, Duration::from_secs(60), algorithm).unwrap();
    let plan = Plan::new("p", Rule::limits([limit("a"), limit("b")]));
    let status = |name: &str, retry_after_us| LimitStatus {
        name: name.into(),
        limit: 10,
        window_us: 60_000_000,
        frees_at_once: true,
        capacity: 10,
        remaining: 0,
        retry_after_us,
        reset_after_us: 1_000_001,
        blocked_for_us: 0,
        begins_block: false,
        first_end_us: 0,
    };
    let statuses = smallvec![status("a", Some(1_000_001)), status("b", None)];
    let decision = Decision::counted(Outcome::Denied, DecidedBy::Store, statuses);
    assert_eq!(violated(&decision), ["a"]);
    for form in [HeaderForm::Ietf, HeaderForm::Both] {
        let answer = HttpAnswer::new(&decision, &plan, form);
        let response = answer.denied(StatusCode::FORBIDDEN);
        let ready = tollgate_core::headers::headers(&decision, &plan, form);
        let all = [
            ("cache-control", "no-store".to_owned()),
            ("content-type", "application/problem+json".to_owned()),
        ];
        let mut expected: Vec<_> = ready.into_iter().chain(all).collect();
        let mut found: Vec<_> = response
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap().to_owned()))
            .collect();
        expected.sort();
        found.sort();
        assert_eq!(
            (response.status(), found),
            (StatusCode::FORBIDDEN, expected)
        );
    }
}
