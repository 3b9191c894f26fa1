//! Overrides as the store keeps them: a name, and what they do as JSON.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{RuntimeOverrides, Unreadable, sort_key};
use tollgate_core::plan::{
    LimitQuota, OverrideEffect, OverrideSource, OverrideSubject, PlanOverride, REASON_BYTES_MAX,
};
use tollgate_store::{OverrideRecord, OverrideVersion};

/// Begins the names of overrides of keys, and those of prefixes.
const KEY: char = 'k';
const PREFIX: char = 'p';

/// What an override does. A field that this release does not know makes it unreadable: to pass over it could mean something else.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload {
    #[serde(skip_serializing_if = "Option::is_none")]
    use_plan: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quotas: Option<Vec<Quota>>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quota {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
}

/// The name of the override of this subject. Names of plans hold no colon, so it reads one way only.
pub(super) fn name(plan: &str, subject: &OverrideSubject) -> Vec<u8> {
    let kind = match subject {
        OverrideSubject::Key(_) => KEY,
        OverrideSubject::Prefix(_) => PREFIX,
    };
    format!("{kind}{plan}:{}", subject.text()).into_bytes()
}

/// What the override does, and why it was set.
pub(super) fn payload(entry: &PlanOverride) -> Vec<u8> {
    let text = |text: &Arc<str>| text.to_string();
    let (use_plan, quotas) = match &entry.effect {
        OverrideEffect::UsePlan(name) => (Some(text(name)), None),
        OverrideEffect::Quotas(quotas) => {
            let quota = |quota: &LimitQuota| Quota {
                name: quota.name.as_ref().map(text),
                quota: quota.quota,
                burst: quota.burst,
            };
            (None, Some(quotas.iter().map(quota).collect()))
        }
    };
    let payload = Payload {
        use_plan,
        quotas,
        reason: text(&entry.reason),
    };
    // Texts and numbers can always be written.
    serde_json::to_vec(&payload).unwrap_or_default()
}

/// All that is set, as records.
pub(super) fn records(overrides: &RuntimeOverrides) -> Vec<OverrideRecord> {
    let record = |entry: &Arc<PlanOverride>| OverrideRecord {
        name: name(&entry.plan, &entry.subject),
        version: entry.version,
        set_at_us: entry.set_at_us,
        expires_at_us: entry.expires_at_us,
        payload: payload(entry),
    };
    let unreadable = overrides.unreadable.iter();
    overrides
        .entries
        .iter()
        .map(record)
        .chain(unreadable.map(|unreadable| unreadable.record.clone()))
        .collect()
}

/// The overrides that these records are.
pub(super) fn read(records: Vec<OverrideRecord>, version: OverrideVersion) -> RuntimeOverrides {
    let mut read = RuntimeOverrides {
        version,
        ..RuntimeOverrides::default()
    };
    let mut texts = Texts::default();
    for record in records {
        match entry(&record, &mut texts) {
            Ok(entry) => read.entries.push(Arc::new(entry)),
            Err(problem) => read
                .unreadable
                .push(Arc::new(Unreadable { record, problem })),
        }
    }
    let by_order = |a: &Arc<PlanOverride>, b: &Arc<PlanOverride>| {
        sort_key(&a.plan, &a.subject).cmp(&sort_key(&b.plan, &b.subject))
    };
    read.entries.sort_by(by_order);
    read.entries.shrink_to_fit();
    read.unreadable
        .sort_by(|a, b| a.record.name.cmp(&b.record.name));
    read
}

/// Texts that many overrides have in common, each kept once.
#[derive(Default)]
struct Texts(HashSet<Arc<str>>);

impl Texts {
    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.0.insert(text.clone());
        text
    }
}

/// The plan and the subject that a record's name is of, if it can be read.
pub(super) fn parts_of(name: &[u8]) -> Option<(&str, OverrideSubject)> {
    let name = std::str::from_utf8(name).ok()?;
    let (plan, text) = name.split_once(':')?;
    let plan = plan.get(1..)?;
    let text = Box::from(text);
    let subject = match name.chars().next()? {
        KEY => OverrideSubject::Key(text),
        PREFIX => OverrideSubject::Prefix(text),
        _ => return None,
    };
    Some((plan, subject))
}

fn entry(record: &OverrideRecord, texts: &mut Texts) -> Result<PlanOverride, String> {
    let (plan, subject) =
        parts_of(&record.name).ok_or("its name in the store is none of this release")?;
    subject
        .check()
        .map_err(|problem| format!("its {} {problem}", subject.field()))?;
    let payload: Payload = serde_json::from_slice(&record.payload)
        .map_err(|error| format!("what the store has of it cannot be read: {error}"))?;
    let effect = match (payload.use_plan, payload.quotas) {
        (Some(name), None) => OverrideEffect::UsePlan(texts.shared(&name)),
        (None, Some(quotas)) => {
            let mut quota = |quota: Quota| LimitQuota {
                name: quota.name.map(|name| texts.shared(&name)),
                quota: quota.quota,
                burst: quota.burst,
            };
            // By a copy of just this size: what was read has room for four.
            let mut exact = Vec::with_capacity(quotas.len());
            exact.extend(quotas.into_iter().map(&mut quota));
            OverrideEffect::Quotas(exact)
        }
        _ => return Err("what the store has of it is not one effect".to_owned()),
    };
    if payload.reason.len() > REASON_BYTES_MAX {
        return Err(format!("its reason has more than {REASON_BYTES_MAX} bytes"));
    }
    Ok(PlanOverride {
        plan: texts.shared(plan),
        subject,
        effect,
        expires_at_us: record.expires_at_us,
        reason: texts.shared(&payload.reason),
        source: OverrideSource::Runtime,
        version: record.version,
        set_at_us: record.set_at_us,
    })
}
