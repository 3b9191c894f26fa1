//! A bucket gives back no more than it would have if each hold had been as large as its use from the start.

use super::*;

/// Charges at instants, each of the units that count of it by now.
#[derive(Default)]
struct AllKnowing(Vec<(u64, u64)>);

impl AllKnowing {
    /// When the bucket would be full.
    fn full_at_us(&self, unit_us: u64) -> u64 {
        let charges = self.0.iter();
        charges.fold(0, |full_us, (at_us, units)| {
            full_us.max(*at_us) + units * unit_us
        })
    }
}

/// Returns units that were given back, and those that could have been.
fn check(seed: u64) -> (u64, u64) {
    let mut random = Random(seed);
    let burst = 100 + random.below(301);
    let bucket = Algorithm::TokenBucket { burst };
    let window = Duration::from_secs(10);
    let limit = Limit::new("bucket", 100, window, bucket).unwrap();
    let unit_us = limit.emission_us();
    let mut subject = Subject::new(std::slice::from_ref(&limit));
    let plan = Arc::new(Plan::new("plan", Rule::limits([limit])));
    let mut now_us = START_US;
    let mut known = AllKnowing::default();
    let mut open: Vec<(String, usize, u64)> = Vec::new();
    let mut given = 0;
    let mut possible = 0;
    for step in 0..60 {
        now_us += random.below(S);
        if open.len() < 6 && random.below(2) == 0 {
            let id = format!("id {step}");
            let cost = 1 + random.below(80);
            let ttl_us = 600 * S;
            let ask = (&*id, HoldCall::Reserve { cost, ttl_us });
            if subject.call(&plan, now_us, ask).view.verdict.fits {
                open.push((id, known.0.len(), cost));
                known.0.push((now_us, cost));
            }
        } else if !open.is_empty() {
            let place = usize::try_from(random.below(open.len() as u64)).unwrap();
            let (id, index, cost) = open.swap_remove(place);
            let used = random.below(cost + 1);
            let before_us = known.full_at_us(unit_us).max(now_us);
            known.0[index].1 = used;
            possible += (before_us - known.full_at_us(unit_us).max(now_us)) / unit_us;
            let settle = HoldCall::Settle {
                actual: Some(used),
                if_unknown: IfUnknown::Charge,
            };
            let verdict = subject.call(&plan, now_us, (&*id, settle));
            let HoldEvent::Settled(settlement) = verdict.event else {
                panic!("{verdict:?}")
            };
            given += settlement.returned[0];
        }
        let State::Bucket(bucket) = &subject.states[0] else {
            panic!("a bucket")
        };
        let least_us = known.full_at_us(unit_us);
        assert!(
            bucket.tat_us.max(now_us) >= least_us.max(now_us),
            "seed {seed}, step {step}: {} us too much",
            least_us - bucket.tat_us.max(now_us)
        );
    }
    (given, possible)
}

#[test]
fn a_bucket_never_gives_back_more_than_all_knowing_and_mostly_as_much() {
    let histories = steps() / 5;
    let mut given = 0;
    let mut possible = 0;
    for seed in 0..histories {
        let (more, could) = check(seed);
        given += more;
        possible += could;
    }
    println!("{given} of {possible} units over {histories} histories");
    assert!(
        given <= possible && given * 10 > possible * 7,
        "{given} of {possible}"
    );
}
