//! Key, plan and cost in, a `Decision` out: finds the plan, recalls a denial that still holds or asks the store, and
//! answers by the plan's policy when the store cannot.
//!
//! Here alone a store's error becomes an answer. Knows no wire and no Redis.

mod admin;
mod books;
mod caller_deadline;
mod deny_cache;
mod edition;
mod failure_log;
mod tally;

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::algorithm::Mode;
use crate::clock::Clock;
use crate::decision::{DecidedBy, Decision, LimitStatus, Outcome};
use crate::key::{Cost, Key};
use crate::plan::{OnStoreFailure, Plan, PlanSet, Rule, UnknownPlan};
use crate::store::{Ask, CAPACITY_DEFAULT, MemoryStore, Store, StoreDeadline, StoreError, Verdict};
pub use admin::{AdminError, Refunded};
use books::{Books, Desk};
pub use caller_deadline::CallerDeadline;
use caller_deadline::{CallerGone, in_time};
use deny_cache::DenyCache;
pub use deny_cache::{DENY_CACHE_DEFAULT, DENY_CACHE_MAX};
pub use edition::{Changes, Edition};
use failure_log::FailureLog;
use tally::Ledger;
pub use tally::{BOUNDS_NS, Reloads, Timings, Totals};

/// Most questions in one batch: its answer stays well below a megabyte, and one caller cannot hold the store for long.
pub const BATCH_MAX: usize = 1_000;

/// What a caller asks: may this key take this cost under this plan?
#[derive(Debug, Clone)]
pub struct Question {
    /// The subject to count.
    pub key: Key,
    /// Name of the plan to decide by.
    pub plan: String,
    /// Units asked for.
    pub cost: Cost,
    /// Whether they are taken. A refund is no question, see [`Limiter::refund`].
    pub mode: Mode,
}

/// Why a question got no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The plan is not in the config, which has no default plan either: the caller's mistake.
    #[error(transparent)]
    UnknownPlan(#[from] UnknownPlan),
    /// More is asked than the store decides in time while it is well: ask again in a moment, or add replicas.
    #[error("this server has more to decide than its store keeps up with; ask again in a moment")]
    Overloaded,
    /// The caller's deadline is shorter than the store's and passed before the store answered. The charge may still take
    /// effect. Nothing is known of the store, so no policy for its failure applies.
    #[error("the caller's deadline passed before a decision; a charge that was sent may still count")]
    CallerDeadline,
}

/// How a limiter treats its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The longest that a decision waits for the store.
    pub deadline: Duration,
    /// Replicas that share the quotas; each answers for one share when the store cannot. At least 1; see
    /// [`Limiter::share_among`].
    pub expected_replicas: u64,
    /// Denials remembered, so that their keys need no store call while they hold; 0 for none. An embedded store needs none.
    pub deny_cache_entries: usize,
}

/// Decides by the plans of a config over one store. [`Self::reload`] gives it other plans; a decision that has begun is made
/// by those that it began with, a batch too.
pub struct Limiter<S> {
    common: Arc<Common>,
    store: S,
    desk: Arc<Desk>,
}

/// What the limiters of one process have in common, whatever store each of them asks.
struct Common {
    settings: Settings,
    /// Counts at this replica's share while the store cannot decide.
    fallback: MemoryStore,
    failures: FailureLog,
    clock: Arc<dyn Clock>,
    /// What the deny cache counts time from.
    started: Instant,
    books: Mutex<Books>,
}

impl Limiter<()> {
    /// What limiters made by [`Self::beside`] have in common; it decides nothing itself. `clock` times the local fallback
    /// and how long denials hold.
    pub fn without_store(plans: PlanSet, settings: Settings, clock: Arc<dyn Clock>) -> Self {
        let mut books = Books::new(plans, settings.expected_replicas);
        let desk = books.desk(None);
        let fallback = MemoryStore::new(CAPACITY_DEFAULT, clock.clone());
        let (failures, started) = (FailureLog::default(), clock.monotonic());
        let common = Common { settings, fallback, failures, clock, started, books: Mutex::new(books) };
        Self { common: Arc::new(common), store: (), desk }
    }
}

impl<S> Limiter<S> {
    /// A limiter of the same plans over a store of its own, with a memory of its own for that store's denials. What is
    /// counted while a store cannot decide is counted together, so that a replica of many workers still enforces one share.
    pub fn beside<T: Store>(&self, store: T) -> Limiter<T> {
        let entries = self.common.settings.deny_cache_entries;
        let denials = (entries > 0 && !store.is_embedded()).then(|| DenyCache::new(entries));
        Limiter { common: self.common.clone(), store, desk: self.common.books().desk(denials) }
    }

    /// Gives other plans to this limiter and to all beside it, for the decisions that have not begun. What keys have used
    /// stays counted, in the store and in the fallback: it goes by [`Plan::counts_as`], key and shape of a limit.
    pub fn reload(&self, plans: PlanSet) -> Changes {
        self.common.books().turn_to(plans)
    }

    /// From here on so many replicas share the quotas while the store cannot decide, at least 1. What was counted stays counted
    /// against the new share. Takes a few milliseconds for thousands of plans, so it is not for a thread that decides.
    pub fn share_among(&self, replicas: u64) {
        self.common.books().share_among(replicas);
    }

    /// Counts a config that was not taken up, because something in it is wrong.
    pub fn keep_plans(&self) {
        self.common.books().refused();
    }

    /// What all limiters of the same plans have counted together, those that are gone included.
    pub fn totals(&self) -> Totals {
        self.common.books().totals()
    }

    /// What is enforced now.
    pub fn edition(&self) -> Arc<Edition> {
        self.desk.ledger().edition.clone()
    }
}

impl Common {
    /// Taken when a limiter is made, at a reload and when the totals are asked for, never by a decision.
    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        // Lists that only grow are whole whatever panics.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> Limiter<S> {
    /// A limiter over `store`, alone; see [`Limiter::without_store`].
    pub fn new(plans: PlanSet, store: S, settings: Settings, clock: Arc<dyn Clock>) -> Self {
        Limiter::without_store(plans, settings, clock).beside(store)
    }

    /// Decides one question. The store is given its own deadline, and after that the plan's policy answers. A caller whose
    /// deadline is shorter is refused at its own: [`Refusal::CallerDeadline`].
    ///
    /// By the plans that are in force when it is called, not when its future is first polled.
    pub fn decide(&self, question: Question, caller: Option<CallerDeadline>) -> impl Future<Output = Result<Decision, Refusal>> {
        let ledger = self.desk.ledger();
        let ask = self.ask_of(&ledger, question).map_err(|unknown| ledger.edition.plans().suggest(unknown));
        self.decide_ask(ledger, ask, caller)
    }

    /// As [`Self::decide`], with the plan that it was decided by.
    pub async fn decide_and_tell(
        &self,
        question: Question,
        caller: Option<CallerDeadline>,
    ) -> Result<(Decision, Arc<Plan>), Refusal> {
        let ledger = self.desk.ledger();
        let ask = self.ask_of(&ledger, question).map_err(|unknown| ledger.edition.plans().suggest(unknown));
        let (place, ask) = ask?;
        let plan = ask.plan.clone();
        Ok((self.decide_ask(ledger, Ok((place, ask)), caller).await?, plan))
    }

    /// A question as the store is asked it, and the place of its plan.
    fn ask_of(&self, ledger: &Ledger, question: Question) -> Result<(usize, Ask), UnknownPlan> {
        let (place, plan) = self.find(ledger, &question.plan)?;
        Ok((place, Ask { key: question.key, plan: plan.clone(), cost: question.cost, mode: question.mode }))
    }

    /// Moves nothing about and has no future within it but the store's: it is allocated for each decision.
    async fn decide_ask(
        &self,
        ledger: Arc<Ledger>,
        ask: Result<(usize, Ask), UnknownPlan>,
        caller: Option<CallerDeadline>,
    ) -> Result<Decision, Refusal> {
        let (place, ask) = ask.as_ref().map_err(Clone::clone)?;
        let asked = self.asked();
        let known = decide_by_plan(&ask.plan, ask.cost).or_else(|| self.recall(ask, asked));
        let (decision, took) = match known {
            Some(decision) => (decision, Duration::ZERO),
            None => {
                // Beside the call, not around it: a future that is handed to another is there twice.
                let waiting = self.waiting(asked, 1);
                let answer = match self.caller_limit(caller) {
                    None => self.store.decide_one(ask, self.store_deadline()).await,
                    Some(limit) => Box::pin(self.decide_one_in_time(ask, limit)).await?,
                };
                let took = self.took(asked);
                drop(waiting);
                (self.answer(&ledger.edition, ask, asked, Some(answer))?, took)
            }
        };
        self.desk.tally.decided(ledger.page(*place), ask.mode, &decision, took);
        Ok(decision)
    }

    /// Decides questions in their order, one answer each, same order. The store is given its own deadline, and after that
    /// each question is answered by its plan's policy.
    ///
    /// Errors: [`Refusal`], per question, with no name suggested for an unknown plan; for all of them together, [`Refusal::CallerDeadline`], where a shorter deadline of the
    /// caller passed before all were answered.
    pub async fn decide_batch(
        &self,
        questions: Vec<Question>,
        caller: Option<CallerDeadline>,
    ) -> Result<Vec<Result<Decision, Refusal>>, Refusal> {
        let (ledger, asked) = (self.desk.ledger(), self.asked());
        // Of each question that has a plan: its place here, the plan's, and its mode.
        let mut known = Vec::with_capacity(questions.len());
        let mut decisions = Vec::with_capacity(questions.len());
        let (mut places, mut asks) = (Vec::with_capacity(questions.len()), Vec::with_capacity(questions.len()));
        for (place, question) in questions.into_iter().enumerate() {
            decisions.push(match self.ask_of(&ledger, question) {
                Err(unknown) => Err(unknown.into()),
                Ok((plan, ask)) => {
                    known.push((place, plan, ask.mode));
                    // A denial that holds stays true whatever the questions before this one are granted.
                    let decision = decide_by_plan(&ask.plan, ask.cost).or_else(|| self.recall(&ask, asked));
                    decision.ok_or_else(|| {
                        places.push(place);
                        asks.push(ask);
                        // Stands here until the store's answer takes its place, a few lines below.
                        Refusal::Overloaded
                    })
                }
            });
        }
        let mut took = Duration::ZERO;
        if !asks.is_empty() {
            let waiting = self.waiting(asked, asks.len());
            let answers = match self.caller_limit(caller) {
                None => self.store.decide_batch(&asks, self.store_deadline()).await,
                Some(limit) => Box::pin(self.decide_batch_in_time(&asks, limit)).await?,
            };
            let mut answers = answers.into_iter();
            took = self.took(asked);
            drop(waiting);
            for (place, ask) in places.into_iter().zip(&asks) {
                decisions[place] = self.answer(&ledger.edition, ask, asked, answers.next());
            }
        }
        for (place, plan, mode) in known {
            if let Ok(decision) = &decisions[place] {
                self.desk.tally.decided(ledger.page(plan), mode, decision, took);
            }
        }
        Ok(decisions)
    }

    /// One answer of the store to a caller that waits for less than the store's deadline.
    async fn decide_one_in_time(&self, ask: &Ask, limit: Duration) -> Result<Result<Verdict, StoreError>, CallerGone> {
        let answer = in_time(limit, self.store.decide_one(ask, self.store_deadline())).await;
        // A store that took all its time took more than the caller had, whichever timer was looked at first.
        let answer = answer.and_then(|answer| if took_its_deadline(&answer) { Err(CallerGone) } else { Ok(answer) });
        answer.inspect_err(|CallerGone| self.desk.tally.caller_gone(1))
    }

    /// The answers of the store, all of them or none, to such a caller.
    async fn decide_batch_in_time(&self, asks: &[Ask], limit: Duration) -> Result<Vec<Result<Verdict, StoreError>>, CallerGone> {
        let answers = in_time(limit, self.store.decide_batch(asks, self.store_deadline())).await;
        let late = |answers: &[Result<Verdict, StoreError>]| answers.iter().any(took_its_deadline);
        let answers = answers.and_then(|answers| if late(&answers) { Err(CallerGone) } else { Ok(answers) });
        answers.inspect_err(|CallerGone| self.desk.tally.caller_gone(asks.len()))
    }

    fn find<'a>(&self, ledger: &'a Ledger, plan: &str) -> Result<(usize, &'a Arc<Plan>), UnknownPlan> {
        let plans = ledger.edition.plans();
        plans.find(plan).or_else(|unknown| {
            let default = plans.default_plan();
            self.desk.tally.unknown_plan(default.is_some());
            default.ok_or(unknown)
        })
    }

    /// Now, or nothing where nobody has to know: the embedded store keeps nobody waiting and its denials are not
    /// remembered, and a look at the clock takes some 50 ns.
    fn asked(&self) -> Option<Instant> {
        (!self.store.is_embedded()).then(|| self.common.clock.monotonic())
    }

    /// Notes that so many questions wait for the store, until what is returned is dropped: also when the caller goes away.
    fn waiting(&self, asked: Option<Instant>, questions: usize) -> Option<impl Drop + '_> {
        asked.map(|_| self.desk.tally.waiting(questions))
    }

    /// How long a call to the store took that was asked for at `asked`, also noted.
    fn took(&self, asked: Option<Instant>) -> Duration {
        let Some(asked) = asked else { return Duration::ZERO };
        let took = self.common.clock.monotonic().saturating_duration_since(asked);
        self.desk.tally.store_took(took);
        took
    }

    /// What every call to the store is given, whoever asks.
    fn store_deadline(&self) -> StoreDeadline {
        StoreDeadline(self.common.settings.deadline)
    }

    /// How long a question waits where its caller's deadline comes before the store's.
    fn caller_limit(&self, caller: Option<CallerDeadline>) -> Option<Duration> {
        caller?.before(self.store_deadline())
    }

    /// A point in time as the deny cache has it.
    fn monotonic_us(&self, at: Instant) -> u64 {
        // More than half a million years of microseconds fit.
        at.saturating_duration_since(self.common.started).as_micros() as u64
    }

    /// What the store would answer, if a denial that holds tells.
    fn recall(&self, ask: &Ask, now: Option<Instant>) -> Option<Decision> {
        let verdict = self.desk.denials.as_ref()?.recall(ask, self.monotonic_us(now?))?;
        Some(counted(ask, &verdict, DecidedBy::DenyCache))
    }

    /// What the store said when it was asked at `asked`, or what the plan says when the store said nothing.
    fn answer(
        &self,
        edition: &Edition,
        ask: &Ask,
        asked: Option<Instant>,
        answer: Option<Result<Verdict, StoreError>>,
    ) -> Result<Decision, Refusal> {
        match answer.unwrap_or_else(|| Err(StoreError::Nonsense("the store left a question out".to_owned()))) {
            Ok(verdict) => {
                if let (Some(denials), Some(asked)) = (&self.desk.denials, asked) {
                    denials.note(ask, &verdict, self.monotonic_us(asked));
                }
                Ok(counted(ask, &verdict, DecidedBy::Store))
            }
            Err(error) => {
                self.common.failures.note(&error, self.common.clock.monotonic());
                self.desk.tally.failed(&error);
                match error {
                    // The store is well, so no policy for its failure applies: a flood must not open the limits.
                    StoreError::Overloaded(_) => Err(Refusal::Overloaded),
                    error => Ok(self.answer_without_store(edition, ask, &error)),
                }
            }
        }
    }

    fn answer_without_store(&self, edition: &Edition, ask: &Ask, error: &StoreError) -> Decision {
        match ask.plan.on_store_failure {
            OnStoreFailure::Allow => fail_open(),
            OnStoreFailure::Deny => fail_closed(&ask.plan),
            // An embedded store that is full has no second memory to count in.
            OnStoreFailure::Local if *error == StoreError::Full => fail_open(),
            OnStoreFailure::Local => self.answer_locally(edition, ask),
        }
    }

    /// Counts at this replica's share. When that memory is full of live keys too, a key it does not know is allowed: a
    /// flood of keys must not shut out everybody else's.
    fn answer_locally(&self, edition: &Edition, ask: &Ask) -> Decision {
        let shares = edition.shares();
        let Ok(share) = shares.get(&ask.plan.name) else { return fail_open() };
        if let Some(limit) = share.never_fits(ask.cost) {
            // It could pass once the store is back, so it is denied, not told that it never fits.
            let status = untouched(share, limit);
            return shadowed(share, Decision::uncounted(Outcome::Denied, DecidedBy::LocalFallback, Some(status)));
        }
        let local = Ask { plan: share.clone(), ..ask.clone() };
        match self.common.fallback.decide(&local) {
            Ok(verdict) => counted(&local, &verdict, DecidedBy::LocalFallback),
            Err(_) => fail_open(),
        }
    }
}

/// What needs no store: plans without limits, and a cost that no wait makes fit.
fn decide_by_plan(plan: &Plan, cost: Cost) -> Option<Decision> {
    let decision = match plan.rule {
        Rule::Unlimited => Decision::uncounted(Outcome::Allowed, DecidedBy::Plan, None),
        Rule::Blocked => Decision::uncounted(Outcome::Denied, DecidedBy::Plan, None),
        Rule::Limits(_) => {
            let status = untouched(plan, plan.never_fits(cost)?);
            Decision::uncounted(Outcome::NeverFits, DecidedBy::Plan, Some(status))
        }
    };
    Some(shadowed(plan, decision))
}

fn took_its_deadline(answer: &Result<Verdict, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Deadline(_)))
}

fn counted(ask: &Ask, verdict: &Verdict, by: DecidedBy) -> Decision {
    let outcome = if verdict.fits { Outcome::Allowed } else { Outcome::Denied };
    shadowed(&ask.plan, Decision::counted(outcome, by, verdict.statuses(ask.plan.limits(), ask.cost)))
}

fn fail_open() -> Decision {
    Decision::uncounted(Outcome::Allowed, DecidedBy::FailOpen, None)
}

fn fail_closed(plan: &Plan) -> Decision {
    shadowed(plan, Decision::uncounted(Outcome::Denied, DecidedBy::FailClosed, None))
}

/// A plan in shadow mode reports its no and says yes.
fn shadowed(plan: &Plan, mut decision: Decision) -> Decision {
    if plan.shadow && !decision.allowed() {
        decision.outcome = Outcome::ShadowDenied;
    }
    decision
}

/// The status of a limit that was not looked at: its numbers, and nothing that could be taken by such a cost.
fn untouched(plan: &Plan, limit: usize) -> LimitStatus {
    let limit = &plan.limits()[limit];
    LimitStatus {
        name: limit.name().clone(),
        limit: limit.quota(),
        window_us: limit.window_us(),
        frees_at_once: false,
        capacity: limit.capacity(),
        remaining: 0,
        retry_after_us: None,
        reset_after_us: 0,
    }
}

#[cfg(test)]
mod tests;
