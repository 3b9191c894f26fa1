//! Splits a call that a node of a Cluster refused in whole or in part. Nothing of it was executed.

use std::collections::{HashMap, HashSet};

use super::{Call, Group};
use crate::redis::{name, script_codec};

impl Call {
    /// Splits it into one call for each name.
    pub(in crate::redis::batcher) fn split(mut self) -> Vec<Self> {
        let groups = std::mem::take(&mut self.groups);
        groups
            .into_iter()
            .map(|group| self.part(vec![group], false))
            .collect()
    }

    /// Splits a call by names, which the node refused as a whole, into one call for each slot.
    pub(in crate::redis::batcher) fn split_by_slot(mut self) -> Vec<Self> {
        self.split_slots(|_| true)
    }

    /// Splits a call by names, of which the node refused some: one call for each slot of theirs, and one for the others, if any.
    /// `None` if the reply tells of no refusal.
    pub(in crate::redis::batcher) fn split_refused(&mut self, reply: &[u8]) -> Option<Vec<Self>> {
        let refused = script_codec::parse_refused(reply)?;
        let slots: HashSet<u16> = self
            .keys()
            .iter()
            .enumerate()
            .filter(|(place, _)| refused.contains(place))
            .map(|(_, name)| name::slot(std::str::from_utf8(name).unwrap_or_default()))
            .collect();
        if slots.is_empty() {
            return None;
        }
        Some(self.split_slots(|slot| slots.contains(&slot)))
    }

    /// One call for each refused slot, and one by names for the others, if any.
    fn split_slots(&mut self, is_refused: impl Fn(u16) -> bool) -> Vec<Self> {
        let mut by_slot: HashMap<u16, Vec<Group>> = HashMap::new();
        let mut others = Vec::new();
        for group in std::mem::take(&mut self.groups) {
            let slot = name::slot(group.name());
            if is_refused(slot) {
                by_slot.entry(slot).or_default().push(group)
            } else {
                others.push(group)
            }
        }
        let mut parts: Vec<Self> = by_slot
            .into_values()
            .map(|groups| Self {
                was_refused: true,
                ..self.part(groups, false)
            })
            .collect();
        if !others.is_empty() {
            parts.push(self.part(others, true));
        }
        parts
    }

    /// A call of some of its groups, to which no request is added.
    fn part(&self, groups: Vec<Group>, by_names: bool) -> Self {
        Self {
            plans: self.plans.clone(),
            requests: groups.iter().map(|group| group.requests.len()).sum(),
            work: groups.iter().map(Group::work).sum(),
            groups,
            hashes: Vec::new(),
            by_names,
            was_refused: false,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::clock::monotonic;
    use crate::redis::batcher::call::{
        LIMIT_WORK, SEARCH_STEP_WORK, SEARCH_STEPS_MIN, ScriptRequest, WORK_MAX,
    };
    use tollgate_core::algorithm::{Algorithm, Mode};
    use tollgate_core::plan::{Limit, Plan, Rule};

    /// Of a request of the plan below, which has a log and another limit.
    const WORK: usize = SEARCH_STEPS_MIN as usize * SEARCH_STEP_WORK + LIMIT_WORK;

    fn call_of(names: &[&str]) -> Call {
        let limits = [Algorithm::SlidingCounter, Algorithm::SlidingLog]
            .map(|of| Limit::new("l", 1, Duration::from_secs(1), of).unwrap());
        let plan = Arc::new(Plan::new("p", Rule::limits(limits)));
        let mut call = Call::new(names.len(), WORK_MAX);
        for name in names {
            let request = ScriptRequest::named(
                (*name).to_owned(),
                plan.clone(),
                1,
                Mode::Charge,
                monotonic(),
            );
            assert!(call.add(request).is_none());
        }
        call.arrange();
        call.by_names = true;
        call
    }

    fn names(call: &Call) -> Vec<&str> {
        call.groups.iter().map(Group::name).collect()
    }

    #[test]
    fn names_of_a_refused_slot_go_by_keys_and_the_others_together() {
        let all = ["{a}1", "{b}1", "{a}2", "{c}1", "{d}1"];
        let place = |call: &Call, name: &str| {
            call.keys()
                .iter()
                .position(|key| *key == name.as_bytes())
                .unwrap()
        };
        for refused in [vec!["{a}2"], vec!["{a}1", "{d}1"], all.to_vec()] {
            let mut call = call_of(&all);
            let places = refused
                .iter()
                .flat_map(|name| u16::try_from(place(&call, name)).unwrap().to_le_bytes());
            let reply: Vec<u8> = [b'R'].into_iter().chain(places).collect();
            let parts = call.split_refused(&reply).unwrap();
            let mut sent: Vec<&str> = parts.iter().flat_map(names).collect();
            sent.sort_unstable();
            assert_eq!(sent, ["{a}1", "{a}2", "{b}1", "{c}1", "{d}1"]);
            for part in &parts {
                let refused = names(part)
                    .iter()
                    .any(|name| refused.iter().any(|refused| refused[..3] == name[..3]));
                assert_eq!(
                    (part.by_names, part.was_refused),
                    (!refused, refused),
                    "{:?}",
                    names(part)
                );
                assert!(
                    !refused
                        || names(part)
                            .iter()
                            .all(|name| name[..3] == names(part)[0][..3]),
                    "{:?}",
                    names(part)
                );
                assert_eq!(
                    (part.len(), part.work),
                    (names(part).len(), names(part).len() * WORK)
                );
            }
            assert!(parts.iter().filter(|part| part.by_names).count() <= 1);
        }
    }

    #[test]
    fn a_call_that_is_refused_as_a_whole_is_split_into_one_for_each_slot() {
        let parts = call_of(&["{a}1", "{b}1", "{a}2"]).split_by_slot();
        let mut sent: Vec<_> = parts
            .iter()
            .map(|part| (names(part).len(), part.by_names, part.work))
            .collect();
        sent.sort_unstable();
        assert_eq!(sent, [(1, false, WORK), (2, false, 2 * WORK)]);
    }

    /// A log's own name stands behind those of all states.
    #[test]
    fn the_refusal_of_a_log_is_that_of_its_name() {
        let mut call = call_of(&["{a}1", "{b}1"]);
        let parts = call.split_refused(b"R\x03\x00").unwrap();
        assert_eq!(
            parts
                .iter()
                .map(|part| (names(part), part.by_names))
                .collect::<Vec<_>>(),
            [(vec!["{b}1"], false), (vec!["{a}1"], true)]
        );
    }

    #[test]
    fn other_replies_tell_of_no_refusal() {
        let mut call = call_of(&["{a}1", "{b}1"]);
        for reply in [
            &b""[..],
            b"R",
            b"R\x00",
            b"R\x63\x00",
            b"1\x00\x00",
            b"E\x01\x00x",
        ] {
            assert!(call.split_refused(reply).is_none(), "{reply:?}");
        }
    }
}
