//! Whether the store decides, and one sentence that says so. Page, `tollgate top`, start line, log and `/readyz` show that sentence.

use std::fmt;

use super::StoreError;
use tollgate_core::utc::Utc;

/// Whether the store decides. As a text it is one sentence for people: since when it does not, why, and what answers meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreState {
    /// The store is this process's own memory.
    Embedded,
    /// Redis decides.
    Deciding,
    /// The store is there, and refused requests in the last seconds.
    Refusing {
        /// Whether it is this process's own memory.
        embedded: bool,
        /// The refusals.
        outage: Outage,
    },
    /// No connection to Redis was usable since the start, such as with a wrong password.
    NeverReached(Outage),
    /// Redis decided, and does not decide now.
    Unreachable {
        /// The longest outage of a connection.
        outage: Outage,
        /// Connections that are out.
        out: usize,
        /// All connections of this process.
        connections: usize,
    },
}

/// Since when the store does not decide, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// Microseconds since 1970.
    pub since_us: u64,
    /// The last error, for people.
    pub why: String,
}

/// What is known of one connection to Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionHealth {
    /// Whether it was ever usable.
    pub reached: bool,
    /// Why it is not usable now.
    pub outage: Option<Outage>,
}

impl StoreState {
    /// The state of a store with these connections.
    pub fn new(connections: &[ConnectionHealth]) -> Self {
        let outages: Vec<&Outage> = connections
            .iter()
            .filter_map(|connection| connection.outage.as_ref())
            .collect();
        match outages.iter().min_by_key(|outage| outage.since_us) {
            None if connections.is_empty() => Self::Embedded,
            None => Self::Deciding,
            Some(outage) if connections.iter().any(|connection| connection.reached) => {
                Self::Unreachable {
                    outage: Outage::clone(outage),
                    out: outages.len(),
                    connections: connections.len(),
                }
            }
            Some(outage) => Self::NeverReached(Outage::clone(outage)),
        }
    }

    /// Whether the store decides every request.
    pub fn decides(&self) -> bool {
        matches!(self, Self::Embedded | Self::Deciding)
    }

    /// Whether a connection to Redis is not in use.
    pub fn is_out(&self) -> bool {
        matches!(self, Self::NeverReached(_) | Self::Unreachable { .. })
    }
}

impl Outage {
    /// An outage since `since_us` because of this error.
    pub fn new(since_us: u64, error: &StoreError) -> Self {
        let why = match error {
            StoreError::Unreachable(why) | StoreError::NotSent(why) => why.clone(),
            error => error.to_string(),
        };
        Self { since_us, why }
    }
}

impl fmt::Display for StoreState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => {
                out.write_str("The embedded store decides: this replica counts in its own memory.")
            }
            Self::Deciding => out.write_str("Redis decides."),
            Self::Refusing { embedded, outage } => {
                let store = if *embedded {
                    "The embedded store"
                } else {
                    "Redis"
                };
                write!(
                    out,
                    "{store} has refused requests {outage} Each plan's on_store_failure answers those."
                )
            }
            Self::NeverReached(outage) => {
                write!(
                    out,
                    "Redis was never reached {outage} Each plan's on_store_failure answers meanwhile."
                )
            }
            Self::Unreachable {
                outage,
                out: some,
                connections,
            } if some < connections => write!(
                out,
                "Redis has not decided on {some} of {connections} connections {outage} Each plan's on_store_failure answers there."
            ),
            Self::Unreachable { outage, .. } => {
                write!(
                    out,
                    "Redis has not decided {outage} Each plan's on_store_failure answers meanwhile."
                )
            }
        }
    }
}

/// A part of the sentence: `since 2000-10-10T13:55:36Z: Connection refused.`
impl fmt::Display for Outage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "since {}: {}.",
            Utc(self.since_us),
            self.why.trim_end_matches('.')
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_US: u64 = 971_211_336_000_000;

    fn connection(reached: bool, out_for_s: Option<u64>, error: &StoreError) -> ConnectionHealth {
        let outage = out_for_s.map(|seconds| Outage::new(AT_US - seconds * 1_000_000, error));
        ConnectionHealth { reached, outage }
    }

    #[test]
    fn the_sentence_says_whether_the_store_decides_since_when_not_why_and_what_answers() {
        let gone = StoreError::Unreachable("Connection refused".to_owned());
        let wrong = StoreError::Refused(
            "WRONGPASS invalid username-password pair or user is disabled.".to_owned(),
        );
        let well = connection(true, None, &gone);
        let lost = connection(true, Some(6), &gone);
        let never = connection(false, Some(36), &wrong);
        for (connections, decides, sentence) in [
            (
                vec![],
                true,
                "The embedded store decides: this replica counts in its own memory.",
            ),
            (vec![well.clone(), well.clone()], true, "Redis decides."),
            (
                vec![never.clone(), never.clone()],
                false,
                "Redis was never reached since 2000-10-10T20:55:00Z: the store refused: WRONGPASS invalid username-password pair or \
                 user is disabled. Each plan's on_store_failure answers meanwhile.",
            ),
            (
                vec![lost.clone(), connection(true, Some(1), &wrong)],
                false,
                "Redis has not decided since 2000-10-10T20:55:30Z: Connection refused. Each plan's on_store_failure answers meanwhile.",
            ),
            (
                vec![well.clone(), lost.clone(), well],
                false,
                "Redis has not decided on 1 of 3 connections since 2000-10-10T20:55:30Z: Connection refused. Each plan's \
                 on_store_failure answers there.",
            ),
            // One connection was up, so Redis was reached.
            (
                vec![lost, never],
                false,
                "Redis has not decided since 2000-10-10T20:55:00Z: the store refused: WRONGPASS invalid username-password pair or user \
                 is disabled. Each plan's on_store_failure answers meanwhile.",
            ),
        ] {
            let state = StoreState::new(&connections);
            assert_eq!(
                (state.to_string().as_str(), state.decides()),
                (sentence, decides)
            );
            assert_eq!(state.is_out(), !decides);
        }
        let refusing = StoreState::Refusing {
            embedded: true,
            outage: Outage::new(AT_US, &StoreError::Full),
        };
        assert_eq!(
            refusing.to_string(),
            "The embedded store has refused requests since 2000-10-10T20:55:36Z: the embedded store is full of live keys. Each plan's \
             on_store_failure answers those."
        );
    }
}
