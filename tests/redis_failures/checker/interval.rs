//! Checks without the store's order, by the times at which calls were sent and answered. A decision was made at some time between
//! the two. So a violation that is found is real, whatever the order was. The check needs no information from the server.

use tollgate::plan::{Algorithm, Limit};

use super::history::{Call, History};
use crate::support::plans::{Counting, counting, window_start_us};

/// Units that were, or may have been, charged.
pub struct Charge<'a> {
    pub call: &'a Call,
    /// Whether the answer says so; else it may have been charged at any time since it was sent.
    pub sure: bool,
}

/// Whether provably more than the limit was granted within some interval; if so, why. `charges` are sorted by the time they were
/// sent.
pub fn over(history: &History, limit: &Limit, charges: &[Charge<'_>]) -> Option<String> {
    for (index, first) in charges.iter().enumerate().filter(|(_, charge)| charge.sure) {
        let from_us = first.call.sent_us;
        let mut later: Vec<&Call> = charges[index..]
            .iter()
            .filter(|charge| charge.sure)
            .map(|charge| charge.call)
            .collect();
        later.retain(|call| !history.lost_within(from_us, call.answered_us));
        later.sort_by_key(|call| call.answered_us);
        let mut units = 0;
        for call in later {
            let took_us = call.answered_us - from_us;
            let Some(most) = most(limit, from_us, took_us) else {
                break;
            };
            units += call.cost;
            if units > most {
                return Some(format!(
                    "{units} units granted within {took_us} us, {most} are allowed"
                ));
            }
        }
    }
    None
}

/// Most units that may pass in an interval of this begin and length; `None` if it is too long to have a bound.
fn most(limit: &Limit, from_us: u64, took_us: u64) -> Option<u64> {
    let quota = limit.quota();
    let window_us = limit.window_us();
    let start_us = |at_us| window_start_us(limit, at_us);
    match counting(limit) {
        Counting::Debt => Some(limit.capacity() + took_us / limit.emission_us()),
        _ if took_us >= window_us => None,
        Counting::Instants => Some(quota),
        Counting::ClockWindow if start_us(from_us) == start_us(from_us + took_us) => Some(quota),
        // An edge may lie within.
        Counting::ClockWindow | Counting::OwnWindow | Counting::TwoWindows => Some(2 * quota),
    }
}

/// Whether the limit may have denied this call. Each possible charge is taken to have happened as late as it can have.
pub fn may_deny(limit: &Limit, charges: &[Charge<'_>], denied: &Call) -> bool {
    let before = || {
        charges
            .iter()
            .filter(|charge| charge.call.sent_us <= denied.answered_us)
    };
    let latest_us = |charge: &Charge<'_>| {
        if charge.sure {
            charge.call.answered_us.min(denied.answered_us)
        } else {
            denied.answered_us
        }
    };
    if counting(limit) == Counting::Debt {
        let mut charged: Vec<(u64, u64)> = before()
            .map(|charge| (latest_us(charge), charge.call.cost))
            .collect();
        charged.sort_unstable();
        let full_at_us = charged.iter().fold(0, |full_us: u64, (at_us, cost)| {
            full_us.max(*at_us) + cost * limit.emission_us()
        });
        let debt_us = full_at_us.saturating_sub(denied.sent_us);
        return debt_us + denied.tested * limit.emission_us() > limit.tolerance_us();
    }
    let reach_us = match limit.algorithm() {
        Algorithm::SlidingCounter => 2 * limit.window_us(),
        Algorithm::SlidingWindow { precision } => limit.window_us() + limit.cell_us(precision),
        _ => limit.window_us(),
    };
    let used: u64 = before()
        .filter(|charge| latest_us(charge) + reach_us > denied.sent_us)
        .map(|charge| charge.call.cost)
        .sum();
    used + denied.tested > limit.quota()
}

/// Describes a reading that shows fewer used units than were surely charged before it and still counted.
pub fn forgotten(
    history: &History,
    limit: &Limit,
    charges: &[Charge<'_>],
    call: &Call,
) -> Option<String> {
    let status = call.stored()?.limits.first()?;
    let since_us = match counting(limit) {
        Counting::Instants => (call.answered_us + 1).saturating_sub(limit.window_us()),
        // Nothing is counted: a window that begins with a request may have ended just now.
        Counting::ClockWindow | Counting::OwnWindow if status.reset_us == 0 => return None,
        // The answer gives the end of the window, and so its start.
        Counting::ClockWindow | Counting::OwnWindow => {
            (call.answered_us + status.reset_us).saturating_sub(limit.window_us())
        }
        Counting::TwoWindows | Counting::Debt => return None,
    };
    let counts = |other: &Call| {
        other.sent_us >= since_us
            && other.answered_us < call.sent_us
            && !history.lost_within(other.sent_us, call.answered_us)
    };
    let own = if call.stored()?.allowed { call.cost } else { 0 };
    let least: u64 = charges
        .iter()
        .filter(|charge| charge.sure && counts(charge.call))
        .map(|charge| charge.call.cost)
        .sum();
    let used = limit.quota() - status.remaining.min(limit.quota());
    (used < least + own).then(|| format!("{used} units are used, {} were charged", least + own))
}
