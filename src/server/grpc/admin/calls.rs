//! Counts admin calls by method and by status code.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tonic::Code;

use super::super::code::CODES;

/// Methods of the admin service.
#[derive(Debug, Clone, Copy)]
pub(super) enum AdminMethod {
    Reset,
    Refund,
    ReloadConfig,
    Explain,
    Top,
    Replicas,
    SetOverride,
    DeleteOverride,
    ListOverrides,
}

impl AdminMethod {
    const NAMES: [&str; 9] = [
        "Reset",
        "Refund",
        "ReloadConfig",
        "Explain",
        "Top",
        "Replicas",
        "SetOverride",
        "DeleteOverride",
        "ListOverrides",
    ];

    pub(super) fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether a call may change something.
    pub(super) fn changes(self) -> bool {
        match self {
            Self::Reset
            | Self::Refund
            | Self::ReloadConfig
            | Self::SetOverride
            | Self::DeleteOverride => true,
            Self::Explain | Self::Top | Self::Replicas | Self::ListOverrides => false,
        }
    }
}

/// Numbers of admin calls since the start. Clones share them.
#[derive(Clone, Default)]
pub struct AdminCalls(Arc<[[AtomicU64; CODES.len()]; AdminMethod::NAMES.len()]>);

impl AdminCalls {
    pub(super) fn count(&self, method: AdminMethod, code: Code) {
        self.0[method as usize][code as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Method, code and count of each combination that occurred, and of `OK` for each method.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        AdminMethod::NAMES
            .into_iter()
            .zip(self.0.iter())
            .flat_map(|(method, counts)| {
                let counts = CODES
                    .into_iter()
                    .zip(counts)
                    .map(move |(code, count)| (method, code, count.load(Ordering::Relaxed)));
                counts.filter(|(_, code, count)| *count > 0 || *code == CODES[0])
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_listed_by_method_and_code() {
        let calls = AdminCalls::default();
        calls.count(AdminMethod::Refund, Code::NotFound);
        calls.count(AdminMethod::Refund, Code::NotFound);
        let counts: Vec<_> = calls.counts().collect();
        let expected = [
            ("Reset", "OK", 0),
            ("Refund", "OK", 0),
            ("Refund", "NOT_FOUND", 2),
            ("ReloadConfig", "OK", 0),
            ("Explain", "OK", 0),
            ("Top", "OK", 0),
            ("Replicas", "OK", 0),
            ("SetOverride", "OK", 0),
            ("DeleteOverride", "OK", 0),
            ("ListOverrides", "OK", 0),
        ];
        assert_eq!(counts, expected);
    }
}
