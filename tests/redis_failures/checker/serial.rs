//! Checks the store's decisions one after another, in the store's own order. Each is compared with what was charged before it.
//!
//! The order follows from the answers of one limit, the witness: a clock-aligned `fixed_window`. Its answer has the count and the
//! time to the end of its window. These give the units that were charged before this decision and, to the microsecond, when it
//! was made. A plan's limits are decided together, so one witness is enough. Its quota may be one that is never reached. Units in
//! its count that no answer granted must have been charged by calls whose answers were lost.

use tollgate::decision::{DecidedBy, Outcome};
use tollgate::plan::{Algorithm, Anchor, Plan};

use super::history::{Answer, Call, History, Rule, Violation};
use super::model::{Model, Range};

/// Longest that a replica remembers a denial. So long it may still deny after the store has lost its data.
const HOLD_US: u64 = 1_000_000;

/// Index of the plan's witness, if it has one.
pub fn witness(plan: &Plan) -> Option<usize> {
    let clock = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };
    plan.limits()
        .iter()
        .position(|limit| limit.algorithm() == clock)
}

/// The place of a decision in the store's order, which is that of these fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// How often Redis had lost its data.
    epoch: usize,
    /// Number of the witness's window since 1970.
    window: u64,
    /// Units charged in it before this decision.
    before: u64,
    granted: bool,
    at_us: u64,
}

struct Event<'a> {
    place: Place,
    call: &'a Call,
    answer: &'a Answer,
}

/// Checks one key of one plan, which has a witness; `calls` are all of that key.
pub fn check(history: &History, plan: &Plan, witness: usize, calls: &[&Call]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut events = Vec::new();
    let mut unknown = Vec::new();
    for call in calls {
        let Some(answer) = call.stored() else {
            if call.may_be_charged() {
                unknown.push(*call);
            }
            continue;
        };
        match place(history, plan, witness, call, answer) {
            Places::None => violations.push(Violation::new(
                Rule::Time,
                call,
                "not decided between question and answer",
            )),
            Places::One(place) => events.push(Event {
                place,
                call,
                answer,
            }),
            Places::Several if answer.allowed => unknown.push(*call),
            Places::Several => {}
        }
    }
    check_batches(&events, &mut violations);
    events.sort_by_key(|event| event.place);
    let cached: Vec<&Call> = calls
        .iter()
        .copied()
        .filter(|call| call.denied_by(DecidedBy::DenyCache))
        .collect();
    let mut replay = Replay::new(history, plan, unknown, cached);
    for event in &events {
        if !replay.step(event, &mut violations) {
            return violations;
        }
    }
    replay.end(&mut violations);
    violations
}

/// When the store made this decision, if that is known: of one call of a plan that has a witness.
pub fn decided_at_us(history: &History, call: &Call) -> Option<u64> {
    let plan = &history.plans[call.decided_by_plan()?];
    match place(history, plan, witness(plan)?, call, call.stored()?) {
        Places::One(place) => Some(place.at_us),
        Places::None | Places::Several => None,
    }
}

enum Places {
    None,
    One(Place),
    /// The call took longer than the witness's window, or the answer tells no time, so several places are possible.
    Several,
}

fn place(history: &History, plan: &Plan, witness: usize, call: &Call, answer: &Answer) -> Places {
    let limit = &plan.limits()[witness];
    let window_us = limit.window_us();
    let Some(status) = answer.limits.get(witness) else {
        return Places::None;
    };
    if status.reset_us == 0 && !answer.allowed && status.remaining == limit.quota() {
        // Nothing is counted, and so no time is told. Only another request of a joint decision can have denied it.
        return Places::Several;
    } else if !(1..=window_us).contains(&status.reset_us) {
        return Places::None;
    }
    let into_us = window_us - status.reset_us;
    // The first time with this distance to the end of a window that is not before the call was sent.
    let at_us = call.sent_us + (window_us + into_us - call.sent_us % window_us) % window_us;
    if at_us > call.answered_us {
        return Places::None;
    } else if at_us + window_us <= call.answered_us {
        return Places::Several;
    }
    let epoch = history
        .losses
        .iter()
        .filter(|loss| loss.to_us <= at_us)
        .count();
    let granted = answer.allowed;
    let count = limit.quota().saturating_sub(status.remaining);
    let before = if granted {
        count.saturating_sub(call.cost)
    } else {
        count
    };
    Places::One(Place {
        epoch,
        window: at_us / window_us,
        before,
        granted,
        at_us,
    })
}

/// Checks that the requests of each batch were decided in their order.
fn check_batches(events: &[Event<'_>], violations: &mut Vec<Violation>) {
    let mut in_order: Vec<&Event<'_>> = events.iter().collect();
    in_order.sort_by_key(|event| (event.call.batch, event.call.index));
    for pair in in_order.windows(2) {
        if pair[0].call.batch == pair[1].call.batch && pair[0].place > pair[1].place {
            violations.push(Violation::new(
                Rule::Order,
                pair[1].call,
                "decided before one that stands before it in its batch",
            ));
        }
    }
}

/// The state that the key must have, updated by each decision.
struct Replay<'a> {
    history: &'a History,
    plan: &'a Plan,
    models: Vec<Model>,
    last: Place,
    /// Units charged in the witness's window so far.
    charged: u64,
    /// Total of units that calls whose answers were lost must have charged.
    unexplained: u64,
    unknown: Vec<&'a Call>,
    /// Remembered denials of replicas for which no cause was found yet.
    cached: Vec<&'a Call>,
}

impl<'a> Replay<'a> {
    fn new(
        history: &'a History,
        plan: &'a Plan,
        unknown: Vec<&'a Call>,
        cached: Vec<&'a Call>,
    ) -> Self {
        let last = Place {
            epoch: 0,
            window: 0,
            before: 0,
            granted: false,
            at_us: 0,
        };
        let models = plan.limits().iter().map(Model::new).collect();
        Self {
            history,
            plan,
            models,
            last,
            charged: 0,
            unexplained: 0,
            unknown,
            cached,
        }
    }

    /// Checks the next decision. Returns false if the order is violated, so that later decisions cannot be checked.
    fn step(&mut self, event: &Event<'_>, violations: &mut Vec<Violation>) -> bool {
        let place = event.place;
        while self.last.epoch < place.epoch {
            self.forget();
        }
        if place.window != self.last.window {
            self.charged = 0;
        }
        if place.before < self.charged {
            let why = format!(
                "{} units were charged before it, of which it knows {}",
                self.charged, place.before
            );
            violations.push(Violation::new(Rule::Order, event.call, why));
            return false;
        }
        if place.at_us < self.last.at_us {
            violations.push(Violation::new(
                Rule::Order,
                event.call,
                "decided earlier than one that it follows",
            ));
            return false;
        }
        let gap = place.before - self.charged;
        self.excuse(place.at_us, gap > 0);
        if gap > 0 && !self.charge_gap(event, gap) {
            violations.push(Violation::new(
                Rule::Order,
                event.call,
                format!("{gap} units were charged for no known call"),
            ));
            return false;
        }
        self.judge(event, violations);
        self.charged = place.before + if place.granted { event.call.cost } else { 0 };
        self.last = place;
        true
    }

    /// Charges the units that calls whose answers were lost must have charged since the last decision. Returns whether such calls
    /// add up to them.
    fn charge_gap(&mut self, event: &Event<'_>, gap: u64) -> bool {
        let at_us = event.place.at_us;
        let costs = self
            .unknown
            .iter()
            .filter(|call| call.sent_us <= at_us)
            .map(|call| call.cost);
        self.unexplained += gap;
        let all: u64 = self.unknown.iter().map(|call| call.cost).sum();
        if self.unexplained > all || !adds_up(costs, gap) {
            return false;
        }
        // They were charged in the witness's window, since its count contains them.
        let window_us = self.plan.limits()[witness(self.plan).unwrap()].window_us();
        let began_us = event.place.window * window_us;
        let range = Range {
            low: self.last.at_us.max(began_us),
            high: at_us,
        };
        self.models
            .iter_mut()
            .for_each(|model| model.charge(range, gap));
        true
    }

    fn judge(&mut self, event: &Event<'_>, violations: &mut Vec<Violation>) {
        self.judge_outcome(event, violations);
        if event.answer.limits.len() == self.models.len() {
            self.judge_readings(event, violations);
        } else {
            let why = "not a reading for each limit";
            violations.push(Violation::new(Rule::Reading, event.call, why));
        }
    }

    /// Checks that the decision was granted or denied as usage says, and charges it.
    fn judge_outcome(&mut self, event: &Event<'_>, violations: &mut Vec<Violation>) {
        let now_us = event.place.at_us;
        let cost = event.call.cost;
        let tested = event.call.tested;
        if event.place.granted {
            for model in &mut self.models {
                if !model.may_pass(now_us, cost) {
                    let why = format!(
                        "{:?} of {} were used already",
                        model.used(now_us),
                        model.capacity()
                    );
                    violations.push(Violation::new(Rule::OverLimit, event.call, why));
                }
                model.charge(Range::exactly(now_us), cost);
            }
        } else if event.answer.outcome == Outcome::OtherDenied {
            if !self
                .models
                .iter()
                .all(|model| model.may_pass(now_us, tested))
            {
                let why = "it could not pass, whatever the others";
                violations.push(Violation::new(Rule::Joint, event.call, why));
            }
        } else if !self
            .models
            .iter()
            .any(|model| model.may_deny(now_us, tested))
        {
            let used: Vec<_> = self
                .models
                .iter()
                .map(|model| (model.used(now_us), model.capacity()))
                .collect();
            let why = format!("it fits, used are {used:?}");
            violations.push(Violation::new(Rule::NoCause, event.call, why));
        }
    }

    /// Compares what was told of each limit with its model, which then learns from it.
    fn judge_readings(&mut self, event: &Event<'_>, violations: &mut Vec<Violation>) {
        let now_us = event.place.at_us;
        let cost = event.call.tested;
        let mut add = |why: String| {
            violations.push(Violation::new(Rule::Reading, event.call, why));
        };
        for (model, reading) in self.models.iter_mut().zip(&event.answer.limits) {
            let used = model.used(now_us);
            // Usage above the capacity cannot be read from a reading: 0 remain.
            let told = model.capacity().saturating_sub(reading.remaining);
            if told < used.low.min(model.capacity()) || told > used.high {
                add(format!(
                    "{} remain of {}, used are {used:?}",
                    reading.remaining,
                    model.capacity()
                ));
            }
            if !event.place.granted && !model.waits(now_us, cost, reading.retry_us) {
                add(format!(
                    "the wait is not {:?}, used are {used:?}",
                    reading.retry_us
                ));
            }
            if model
                .fresh_in_us(now_us)
                .is_some_and(|fresh_in_us| fresh_in_us != reading.reset_us)
            {
                add(format!(
                    "fresh in {:?}, not {}",
                    model.fresh_in_us(now_us),
                    reading.reset_us
                ));
            }
            model.learn(now_us, reading);
        }
    }

    /// Removes the remembered denials that have a cause in the state between the last decision and this time. Usage only falls in
    /// that time, so its begin is compared. An unseen charge is a cause, too.
    fn excuse(&mut self, until_us: u64, unseen: bool) {
        let models = &self.models;
        let from_us = self.last.at_us;
        self.cached.retain(|call| {
            let within = call.sent_us <= until_us && call.answered_us >= from_us;
            let at_us = call.sent_us.max(from_us);
            let cost = call.tested;
            !(within && (unseen || models.iter().any(|model| model.may_deny(at_us, cost))))
        });
    }

    /// Starts a new epoch after Redis lost its data. Replicas still remember denials for up to [`HOLD_US`].
    fn forget(&mut self) {
        self.excuse(self.history.losses[self.last.epoch].to_us + HOLD_US, false);
        let window = self.last.window;
        self.last = Place {
            epoch: self.last.epoch + 1,
            window,
            before: 0,
            granted: false,
            at_us: 0,
        };
        self.models = self.plan.limits().iter().map(Model::new).collect();
        self.charged = 0;
    }

    fn end(mut self, violations: &mut Vec<Violation>) {
        while self.last.epoch < self.history.losses.len() {
            self.forget();
        }
        self.excuse(u64::MAX, false);
        let all: u64 = self.unknown.iter().map(|call| call.cost).sum();
        for call in &self.cached {
            // Charged after the last decision of the store that a caller received.
            let unseen = all > self.unexplained
                && self
                    .unknown
                    .iter()
                    .any(|other| other.sent_us <= call.answered_us);
            if !unseen {
                violations.push(Violation::new(
                    Rule::NoCause,
                    call,
                    "remembered, and would fit at any time of the call",
                ));
            }
        }
    }
}

/// Whether some of the costs add up to the sum.
fn adds_up(costs: impl Iterator<Item = u64>, sum: u64) -> bool {
    let mut reached = vec![0];
    for cost in costs {
        let more: Vec<u64> = reached
            .iter()
            .map(|so_far| so_far + cost)
            .filter(|so_far| *so_far <= sum)
            .collect();
        reached.extend(more);
        reached.sort_unstable();
        reached.dedup();
    }
    reached.contains(&sum)
}
