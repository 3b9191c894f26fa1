//! The paths that workers answer, and the parameters that each takes beside its subject.

use axum::http::Method;

use super::subject::Subjects;

/// A path that workers answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallPath {
    /// One decision, or a joint one.
    Check,
    /// Charges units and holds them.
    Reserve,
    /// Ends a hold with what was used.
    Settle,
    /// Prolongs a lease.
    Extend,
    /// Charges what has happened.
    Record,
}

impl CallPath {
    /// Every call, in the order of messages.
    pub(super) const ALL: [Self; 5] = [
        Self::Check,
        Self::Reserve,
        Self::Settle,
        Self::Extend,
        Self::Record,
    ];

    /// The call of a path; `None` where others answer it.
    pub(super) fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|call| call.path() == path)
    }

    /// Its path.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Check => "/v1/check",
            Self::Reserve => "/v1/reserve",
            Self::Settle => "/v1/settle",
            Self::Extend => "/v1/extend",
            Self::Record => "/v1/record",
        }
    }

    /// Its methods. HEAD charges as GET does, since proxies check with the method of their caller's request. A call about a hold
    /// comes from an application, which can write JSON.
    pub(super) fn methods(self) -> &'static [Method] {
        match self {
            Self::Check => &[Method::GET, Method::HEAD, Method::POST],
            _ => &[Method::POST],
        }
    }

    /// Parameters of its own.
    fn own(self) -> &'static [&'static str] {
        match self {
            Self::Check => &["deny_status", "peek", "request_id"],
            Self::Reserve => &["deny_status", "request_id", "ttl"],
            Self::Settle => &["request_id", "actual", "if_unknown"],
            Self::Extend => &["request_id", "ttl"],
            Self::Record => &["request_id"],
        }
    }

    /// Whether it asks for units, which have a source.
    pub(super) fn has_cost(self) -> bool {
        !matches!(self, Self::Settle | Self::Extend)
    }
}

/// The names that a call takes: its own, and those of the sources in the config.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParameterNames<'a> {
    /// The call.
    pub call: CallPath,
    /// Who is counted. `None` in the query of a call whose parameters stand in its body.
    pub subjects: Option<&'a Subjects>,
}

impl<'a> ParameterNames<'a> {
    /// Those of a check.
    pub(super) fn for_check(subjects: &'a Subjects) -> Self {
        Self {
            call: CallPath::Check,
            subjects: Some(subjects),
        }
    }

    /// Those that may stand in a query.
    pub(super) fn in_query(self) -> Self {
        let subjects = self.subjects.filter(|_| self.call == CallPath::Check);
        Self { subjects, ..self }
    }

    /// Whether a text of `name=value` pairs may have this name.
    pub(super) fn takes(self, name: &str) -> bool {
        let of_subject = |subjects: &Subjects| subjects.takes(name, self.call.has_cost());
        self.own().any(|own| own == name) || self.subjects.is_some_and(of_subject)
    }

    /// Whether JSON may have this name.
    pub(super) fn takes_in_json(self, name: &str) -> bool {
        self.takes(name) || (self.call == CallPath::Check && name == "requests")
    }

    /// All names, for the answer to another one.
    pub(super) fn known(self) -> String {
        // Of a check, the newest name stands last.
        let (first, last): (Vec<&str>, Vec<&str>) =
            self.own().partition(|own| *own != "request_id");
        let has_cost = self.call.has_cost();
        let mut known = self
            .subjects
            .map_or_else(|| first.clone(), |all| all.parameters(&first, has_cost));
        known.extend(last);
        known.join(", ")
    }

    /// Why a parameter is not taken that most servers take.
    pub(super) fn not_taken(self, name: &str) -> Option<String> {
        self.subjects?.not_taken(name)
    }

    /// In the query of a call with a body, nothing stands but what a proxy may add. Listed subjects take no id: with it, a client would
    /// be charged once for all its requests.
    fn own(self) -> impl Iterator<Item = &'static str> {
        let own = self.call.own().iter().copied();
        let are_listed = matches!(self.subjects, Some(Subjects::Listed(_)));
        let takes_id = self.call != CallPath::Check || !are_listed;
        own.filter(move |name| match *name {
            "request_id" if !takes_id => false,
            name => self.subjects.is_some() || name == "deny_status",
        })
    }
}
