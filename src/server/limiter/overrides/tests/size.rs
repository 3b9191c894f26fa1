//! What the overrides of a replica take: what is known of each, and the table to decide by.

use super::*;
use allocation_counter::measure;
use tollgate_core::plan::OVERRIDE_KEYS_MAX;
use tollgate_core::plan::OVERRIDE_PREFIXES_MAX;

/// The effect of the override of this number.
type EffectOf = fn(u64) -> OverrideEffect;

/// Maximum memory that as many overrides as can be set at runtime may take.
const BYTES_MAX: i64 = 4 << 20;

/// As many records as a set may have, of usual lengths. Keys have 20 bytes, as identifiers do.
fn records(effect: impl Fn(u64) -> OverrideEffect) -> Vec<OverrideRecord> {
    let keys = (0..)
        .take(OVERRIDE_KEYS_MAX)
        .map(|at| key(&format!("{at:020}")));
    let prefixes = (0..)
        .take(OVERRIDE_PREFIXES_MAX)
        .map(|at| prefix(&format!("customer-{at}:")));
    let record = |(at, subject): (u64, OverrideSubject)| {
        let entry = PlanOverride {
            effect: effect(at),
            reason: "order 4711".into(),
            ..unset("free", subject)
        };
        OverrideRecord {
            name: codec::name(&entry.plan, &entry.subject),
            version: at,
            set_at_us: START_US,
            expires_at_us: Some(2 * START_US),
            payload: codec::payload(&entry),
        }
    };
    (0..).zip(keys.chain(prefixes)).map(record).collect()
}

#[test]
fn ten_thousand_overrides_take_no_more_than_the_documents_say() {
    let effects: [(&str, EffectOf); 3] = [
        ("of one plan", |_| use_plan("starter")),
        ("of a hundred quotas", |at| quota(1_000 + at % 100)),
        ("each of a quota of its own", |at| quota(1_000 + at)),
    ];
    for (which, effect) in effects {
        let plans = plans();
        let mut held = None;
        let measured = measure(|| {
            let known = codec::read(records(effect), OverrideVersion::default());
            let table = OverrideTable::new(&plans, &known.entries, START_US);
            held = Some((known, table));
        });
        let bytes = measured.bytes_current;
        println!("overrides {which} take {bytes} bytes");
        assert!(bytes <= BYTES_MAX, "{which}: {bytes} bytes");
        let counts = held.map(|(_, table)| table.counts[0]);
        assert_eq!(counts, Some([10_000, 256]), "{which}");
    }
}
