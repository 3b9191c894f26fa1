//! Kinds of calls, which have bounds of their own.

/// Maximum number of calls for one decision that a worker holds at once. It is twice what may wait for Redis, which answers
/// within `store.deadline`: 8,192 calls of 25 ms each are 300,000 a second.
pub(super) const CALLS_MAX: usize = 8192;
/// The same for calls with a large request or answer: batches, and the list of plans. 128 batches of a millisecond each, of
/// 100 requests, are 12 million decisions a second.
pub(super) const LARGE_CALLS_MAX: usize = 128;
/// The same for streams of decisions.
const STREAM_CALLS_MAX: usize = 1024;
/// The same for health checks. They share permits with nothing else. If a probe were refused because of other calls, an
/// orchestrator could take this process for dead and restart it.
const CHECKS_MAX: usize = 1024;
/// The same for health watches: one for each connection that a worker takes, since clients that balance by health hold one on
/// each.
const WATCHES_MAX: usize = 4096;
/// The same for all other calls: reflection, and unknown methods.
const OTHER_CALLS_MAX: usize = 256;
/// What a call takes beside its messages, in bytes: its task, its few header fields, and what HTTP/2 keeps of it.
pub(super) const CALL_BYTES: usize = 4 << 10;
/// The same for a stream of decisions, with 64 requests in progress and their answers.
const STREAM_CALL_BYTES: usize = 24 << 10;

/// Kinds of calls, by the resources that they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::grpc) enum CallKind {
    /// One decision.
    Decision,
    /// A call whose request or answer may be large.
    Large,
    /// A stream of decisions, as long as the client likes.
    Stream,
    /// A health check.
    Check,
    /// A watch of the server's health.
    Watch,
    /// Anything else.
    Other,
}

impl CallKind {
    pub(super) const COUNT: usize = 6;
    /// Those that need room in the account. Health has its permits, and room, in any case.
    pub(super) const NEED_ROOM: [Self; 4] =
        [Self::Decision, Self::Large, Self::Stream, Self::Other];

    pub(super) fn calls_max(self) -> usize {
        match self {
            Self::Decision => CALLS_MAX,
            Self::Large => LARGE_CALLS_MAX,
            Self::Stream => STREAM_CALLS_MAX,
            Self::Check => CHECKS_MAX,
            Self::Watch => WATCHES_MAX,
            Self::Other => OTHER_CALLS_MAX,
        }
    }

    /// What such a call takes beside its messages, in bytes.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Stream => STREAM_CALL_BYTES,
            Self::Decision | Self::Large | Self::Check | Self::Watch | Self::Other => CALL_BYTES,
        }
    }
}
