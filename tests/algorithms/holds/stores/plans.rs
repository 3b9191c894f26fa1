//! The plans of a history: each algorithm, and several together.

use super::*;

pub(super) const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 12 };
pub(super) const COARSE: Algorithm = Algorithm::SlidingWindow { precision: 4 };
/// What the plans of each history have.
pub(super) const SHAPES: [&[Algorithm]; 11] = [
    &[BUCKET],
    &[WINDOW],
    &[LOG],
    &[FIXED],
    &[COUNTER],
    &[ANCHORED],
    &[COARSE],
    &[WINDOW, BUCKET],
    &[LOG, FIXED],
    &[BUCKET, COUNTER, LOG],
    &[],
];

/// What a history is about.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum About {
    /// One key, whose ids are known for long.
    Ids,
    /// Blocks, and ids that are forgotten.
    Blocks,
    /// One plan, whose reserves and settles mostly go the short way.
    OnePlan,
}

pub(super) fn plans(
    random: &mut Random,
    shapes: &[Algorithm],
    (max_ids, about): (u32, About),
) -> Vec<Arc<Plan>> {
    let has_blocks = about == About::Blocks;
    let limits_of = |random: &mut Random| -> Vec<Limit> {
        let limit = |(place, algorithm): (u64, &Algorithm)| {
            let algorithm = match algorithm {
                Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
                    burst: 4 + random.below(12),
                },
                other => *other,
            };
            let window = Duration::from_secs(2 + place);
            let limit = Limit::new(
                format!("l{place}"),
                8 + 2 * random.below(5),
                window,
                algorithm,
            );
            limit.unwrap()
        };
        (0..).zip(shapes).map(limit).collect()
    };
    // What is over is forgotten at different times, which would show if the clock then steps back.
    let remember = Duration::from_millis(if has_blocks { 2_500 } else { 86_400_000 });
    let plan = |name: &str, (releases, slots): (bool, Option<u64>), limits: &[Limit]| {
        let holds = HoldTerms {
            ttl: Duration::from_secs(1),
            max_ttl: Duration::from_secs(6),
            release_on_expiry: releases,
            remember,
            max_open: if about == About::OnePlan { 6 } else { 3 },
            max_ids,
            concurrency: slots.map(|quota| Concurrency::new("concurrency", quota, 0).unwrap()),
        };
        Arc::new(Plan {
            counts_as: "group".into(),
            shadow: name == "shadow",
            holds: holds.into(),
            ..Plan::new(name, Rule::limits(limits.iter().cloned()))
        })
    };
    let mut plans = Vec::new();
    let own = limits_of(random);
    if about == About::OnePlan {
        return vec![plan("open", (false, None), &own)];
    }
    for limits in [own.clone(), own, limits_of(random)] {
        plans.push(plan("charges", (false, Some(2)), &limits));
        plans.push(plan("releases", (true, Some(4)), &limits));
        if let [first, others @ ..] = &limits[..] {
            let blocks = first.clone().with_block(Duration::from_secs(1)).unwrap();
            plans.push(plan("open", (true, None), &limits));
            plans.push(plan("shadow", (false, None), &limits));
            let limits: Vec<Limit> = [blocks].into_iter().chain(others.iter().cloned()).collect();
            if has_blocks {
                plans.push(plan("blocks", (random.below(2) == 0, None), &limits));
            }
        }
    }
    plans
}
