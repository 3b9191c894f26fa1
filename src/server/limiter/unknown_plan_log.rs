//! Logs plans that callers name and the config does not have, so that operators learn the name, and not only that there is one.

use std::time::{Duration, Instant};

use crate::log_throttle::LogThrottle;
use tollgate_core::plan::{NAME_BYTES_MAX, PlanSet, UnknownPlan};
use tollgate_core::visible::shortened;

/// Least time between two lines. A caller with a wrong name sends it with each request.
const EVERY: Duration = Duration::from_secs(60);
/// Counts requests for unknown plans, and logs the name of one of them each minute.
pub(super) struct UnknownPlanLog(LogThrottle);

impl Default for UnknownPlanLog {
    fn default() -> Self {
        Self(LogThrottle::new(EVERY))
    }
}

impl UnknownPlanLog {
    /// Counts a request. Logs the first, and then one in a minute, with the number of requests since the line before.
    pub(super) fn log(&self, plans: &PlanSet, unknown: &UnknownPlan, now: Instant) {
        let Some(requests) = self.0.due(now) else {
            return;
        };
        let nearest = plans.suggest(unknown.clone()).nearest;
        let answered_by = plans.default_plan().map(|(_, plan)| plan.name.clone());
        tracing::warn!(
            plan = shortened(&unknown.name, NAME_BYTES_MAX),
            nearest = nearest.as_deref(),
            default_plan = answered_by.as_deref(),
            requests,
            "a request names a plan that is not in the config; requests: all for unknown plans since the last such line"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;
    use tollgate_core::plan::{Plan, Rule};
    use tollgate_store::clock::monotonic;

    /// What is logged, as text.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_a_minute_names_an_unknown_plan_and_the_nearest_and_counts_the_others() {
        let lines = Lines::default();
        let start = monotonic();
        let log = UnknownPlanLog::default();
        let plans: PlanSet = ["free", "paid"]
            .map(|name| Plan::new(name, Rule::Unlimited))
            .into_iter()
            .collect();
        let with_default = plans.clone().with_default(Some("free")).unwrap();
        let into = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || into.clone())
            .with_ansi(false)
            .without_time()
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let ask = |plans: &PlanSet, name: &str, after| {
                log.log(plans, &plans.find(name).unwrap_err(), start + after)
            };
            ask(&plans, "piad", Duration::ZERO);
            (0..999).for_each(|number| {
                ask(
                    &plans,
                    &format!("p{number}"),
                    EVERY - Duration::from_nanos(1),
                )
            });
            ask(
                &with_default,
                &format!("\u{1b}[2J\n{}", "x".repeat(500)),
                EVERY,
            );
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[0].contains("plan=\"piad\" nearest=\"paid\" requests=1"),
            "{text}"
        );
        let cut = format!(
            "plan=\"\\\\u{{1b}}[2J\\\\u{{a}}{}…\"",
            "x".repeat(NAME_BYTES_MAX - 14)
        );
        assert!(
            lines[1].contains(&cut) && lines[1].contains("default_plan=\"free\" requests=1000"),
            "{cut} in {text}"
        );
        assert!(lines[1].len() < 400, "{text}");
    }
}
