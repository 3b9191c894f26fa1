//! The policies for when the store cannot decide, and what each answers. Who carries them out reads it here, and knows none by name.

use crate::decision::{DecidedBy, Outcome};

/// The policy of a plan for when the store cannot decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStoreFailure {
    /// Count against this replica's share in its own memory. The share is `ceil(quota / replicas)`.
    #[default]
    Local,
    /// Allow (fail open).
    Allow,
    /// Deny (fail closed).
    Deny,
}

/// How a policy comes to its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyAnswer {
    /// By the count of this replica. Where it cannot count, it fails open.
    Counted,
    /// The same to every request, and nothing is counted.
    Always(Outcome, DecidedBy),
}

impl OnStoreFailure {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Local, Self::Allow, Self::Deny];

    /// Its value in the config. In capitals it is the end of its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }

    /// What it answers.
    pub fn answer(self) -> PolicyAnswer {
        match self {
            Self::Local => PolicyAnswer::Counted,
            Self::Allow => PolicyAnswer::Always(Outcome::Allowed, DecidedBy::FailOpen),
            Self::Deny => PolicyAnswer::Always(Outcome::Denied, DecidedBy::FailClosed),
        }
    }
}
