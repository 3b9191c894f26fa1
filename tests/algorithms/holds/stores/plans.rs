//! The plans of a history: each algorithm, and several together.

use super::*;

/// The algorithms of plans without a limit, and of plans with several.
const OTHERS: [&[Algorithm]; 4] = [
    &[],
    &[WINDOW, BUCKET],
    &[LOG, FIXED],
    &[BUCKET, COUNTER, LOG],
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

/// The algorithms of each history's plans, and what it is about.
pub(super) fn histories() -> impl Iterator<Item = (Vec<Algorithm>, About)> {
    let single = || {
        Algorithm::EVERY
            .into_iter()
            .map(|algorithm| vec![algorithm])
    };
    let all = single().chain(OTHERS.into_iter().map(<[_]>::to_vec));
    let of_several_plans = all.flat_map(|algorithms| {
        [
            (algorithms.clone(), About::Ids),
            (algorithms, About::Blocks),
        ]
    });
    // Twice, with many ids and with few.
    let of_one_plan = single()
        .chain(single())
        .map(|algorithms| (algorithms, About::OnePlan));
    of_several_plans.chain(of_one_plan)
}

pub(super) fn plans(
    random: &mut Random,
    algorithms: &[Algorithm],
    (max_ids, about): (u32, About),
) -> Vec<Arc<Plan>> {
    let has_blocks = about == About::Blocks;
    let limits_of = |random: &mut Random| -> Vec<Limit> {
        let limit = |(place, algorithm): (u64, &Algorithm)| {
            let algorithm = match algorithm {
                Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
                    burst: 4 + random.below(12),
                },
                Algorithm::SlidingWindow { precision: 2 } => Algorithm::SlidingWindow {
                    precision: *random.pick(&[2, 4]),
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
        (0..).zip(algorithms).map(limit).collect()
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
