//! The order of a batch's requests for one name. None is sent while one before it is in flight. A call that Redis refused may be
//! sent again, as when it has lost the script, and the later request would then be decided first.

use hashbrown::HashSet;

use super::{Call, ScriptRequest};

impl ScriptRequest {
    /// Notes for each request of a batch whether one before it is for its name.
    pub(in crate::redis::batcher) fn mark_repeated_names(requests: &mut [Self]) {
        let mut names = HashSet::with_capacity(requests.len());
        let named = requests.iter().map(|request| &*request.name);
        let repeated: Vec<bool> = named.map(|name| !names.insert(name)).collect();
        drop(names);
        for (request, repeats_name) in requests.iter_mut().zip(repeated) {
            request.repeats_name = repeats_name;
        }
    }
}

impl Call {
    /// Whether it has a request for the same name that stands before this one in its batch.
    pub(in crate::redis::batcher) fn has_one_before(&self, request: &ScriptRequest) -> bool {
        let is_before = |other: &ScriptRequest| match (&other.caller, &request.caller) {
            (Some(other), Some(caller)) => other.shares_batch_with(caller),
            _ => false,
        };
        request.repeats_name
            && self
                .groups
                .iter()
                .filter(|group| group.name() == request.name)
                .any(|group| group.requests.iter().any(is_before))
    }
}
