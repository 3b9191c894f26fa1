//! Joint decisions at random over the slots of a Cluster, and what they used.

use super::*;

/// Requests for many subjects, of which one in three decisions has one that is full.
pub(super) struct Load {
    pub(super) plans: Vec<Arc<Plan>>,
    pub(super) full: Arc<Plan>,
    /// Subjects of each plan.
    pub(super) subjects: usize,
    pub(super) decisions: usize,
    pub(super) next: AtomicUsize,
    pub(super) over: AtomicBool,
}

/// What came of a load.
#[derive(Default)]
pub(super) struct Found {
    /// Units of the decisions that were allowed, by subject.
    pub(super) allowed: HashMap<Subject, u64>,
    pub(super) decided: [usize; 2],
    /// Decisions that the store could not make.
    pub(super) failed: usize,
    /// Units of those that got no answer in time: nobody knows whether a part of them was charged.
    pub(super) unanswered: u64,
}

impl Found {
    pub(super) fn allow(&mut self, units: impl IntoIterator<Item = (Subject, u64)>) {
        for (subject, units) in units {
            *self.allowed.entry(subject).or_default() += units;
        }
    }
}

impl Load {
    pub(super) fn new() -> Self {
        let decisions = std::env::var("TOLLGATE_JOINT_DECISIONS");
        let decisions = decisions.map_or(DECISIONS, |text| text.parse().unwrap());
        let bucket = Algorithm::TokenBucket { burst: QUOTA };
        let each = every_but_the_bucket().filter(|it| *it != COARSE);
        let plans = each
            .chain([bucket])
            .map(|algorithm| plan(vec![limit(QUOTA, MONTH, algorithm)]));
        Self {
            plans: plans.collect(),
            full: plan(vec![limit(1, MONTH, ANCHORED)]),
            subjects: decisions / 250,
            decisions,
            next: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// One half of the subjects are of five customers, each of which has a slot.
    pub(super) fn check(&self, (plan, number): Subject, cost: u64) -> Check {
        let key = Key::new(format!("{plan} {number}")).unwrap();
        let shard = format!("customer {}", number % 5);
        let shard = if number.is_multiple_of(2) { &shard } else { "" };
        Check {
            key: key.in_shard(shard).unwrap(),
            plan: self.plans[plan].clone(),
            cost: Cost::new(cost).unwrap(),
            mode: Mode::Charge,
        }
    }

    pub(super) fn gate(&self, number: u64) -> Check {
        ask(&self.full, &format!("gate {number}"), 1)
    }

    /// Uses up the gates. They lie before and behind others.
    pub(super) async fn close_gates(&self, store: &RedisStore) {
        for number in 0..8 {
            let closed = store.decide_one(&self.gate(number), WAIT).await;
            assert!(closed.unwrap().fits);
        }
    }

    pub(super) async fn call(&self, store: &RedisStore, seed: u64, deadline: Duration) -> Found {
        let mut random = Random(seed);
        let mut found = Found::default();
        while self.next.fetch_add(1, Ordering::Relaxed) < self.decisions
            && !self.over.load(Ordering::Relaxed)
        {
            let mut subjects: Vec<(Subject, u64)> = Vec::new();
            while subjects.len() < 3 {
                let plan = random.below(self.plans.len() as u64) as usize;
                let number = random.below(self.subjects as u64) as usize;
                subjects.push(((plan, number), 1 + random.below(COST_MAX)));
            }
            let checks = subjects
                .iter()
                .map(|(subject, cost)| self.check(*subject, *cost));
            let mut checks: Vec<Check> = checks.collect();
            if random.below(10) < 3 {
                let place = random.below(4) as usize;
                checks.insert(place, self.gate(random.below(8)));
            }
            match store.decide_joint(&checks, StoreDeadline(deadline)).await {
                Ok(verdicts) => {
                    let passes = all_fit(&checks, &verdicts);
                    found.decided[usize::from(passes)] += 1;
                    if passes {
                        found.allow(subjects);
                    }
                }
                Err(failure) => {
                    found.failed += 1;
                    if let StoreError::Deadline(_) = failure.error {
                        found.unanswered += subjects.iter().map(|(_, cost)| cost).sum::<u64>();
                    }
                }
            }
        }
        found
    }

    pub(super) async fn run(self: &Arc<Self>, stores: &[RedisStore], deadline: Duration) -> Found {
        let tasks = (0..AT_ONCE).map(|caller| {
            let load = self.clone();
            let store = stores[caller % stores.len()].clone();
            tokio::spawn(async move { load.call(&store, caller as u64, deadline).await })
        });
        let mut all = Found::default();
        for task in tasks.collect::<Vec<_>>() {
            let found = task.await.unwrap();
            all.allow(found.allowed);
            all.decided = std::array::from_fn(|index| all.decided[index] + found.decided[index]);
            all.failed += found.failed;
            all.unanswered += found.unanswered;
        }
        println!(
            "{} decisions denied, {} allowed, {} failed; {} units got no answer",
            all.decided[0], all.decided[1], all.failed, all.unanswered
        );
        all
    }

    /// Asserts that each subject that `counts` has used what was allowed, and no more than its quota. All together may have used
    /// `may_stay` units more.
    pub(super) async fn assert_exact(
        &self,
        store: &RedisStore,
        found: &Found,
        may_stay: u64,
        counts: impl Fn(&Check) -> bool,
    ) {
        let mut looked_at = 0;
        let mut left = 0;
        for plan in 0..self.plans.len() {
            for number in 0..self.subjects {
                let check = self.check((plan, number), 1);
                if !counts(&check) {
                    continue;
                }
                let expected = found.allowed.get(&(plan, number)).copied().unwrap_or(0);
                let used = used_by(store, &check).await;
                left += used.saturating_sub(expected);
                assert!(
                    (expected..=QUOTA).contains(&used) && left <= may_stay,
                    "{used} for {expected}, {left} of {may_stay} left, {:?}",
                    self.plans[plan].limits()
                );
                looked_at += 1;
            }
        }
        assert!(
            looked_at > self.subjects,
            "{looked_at} subjects tell nothing"
        );
        println!("{left} units are left over, and {may_stay} may be");
    }
}
