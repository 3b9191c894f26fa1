//! What is wrong, for the head of the page: in the order of harm, and in the words that log, `/readyz` and `tollgate top` have.

use serde_json::{Value, json};

use super::config_changes::{ConfigChange, ConfigOutcome};
use tollgate_core::utc::Utc;
use tollgate_store::StoreState;

/// The state of this replica, in which problems are looked for.
pub(super) struct Facts<'a> {
    pub store: &'a StoreState,
    /// The last change of the config.
    pub config: Option<&'a ConfigChange>,
    /// Whether the changed files of TLS cannot be used.
    pub certificate_refused: bool,
    /// Replicas that publish counts which could not be added.
    pub replicas_missing: u64,
    /// Whether no counts of other replicas could be read.
    pub alone: bool,
    /// Requests of the last seconds that name an unknown plan and got no decision.
    pub unknown_plans: u64,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// Whether callers get other answers than the plans say.
    pub is_bad: bool,
    /// What tollgate does: the words after its name in the headline.
    pub headline: &'static str,
    /// The whole sentence.
    pub text: String,
}

impl Problem {
    pub(super) fn json(&self) -> Value {
        json!({ "level": if self.is_bad { "bad" } else { "warn" }, "headline": self.headline, "text": self.text })
    }
}

/// What is wrong, the most harmful first.
pub(super) fn list(facts: &Facts) -> Vec<Problem> {
    [
        store(facts.store),
        config(facts.config),
        certificate(facts),
        replicas(facts),
        unknown_plans(facts),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn store(state: &StoreState) -> Option<Problem> {
    let headline = match state {
        StoreState::Embedded | StoreState::Deciding => return None,
        StoreState::NeverReached(_) => "never reached Redis",
        StoreState::Unreachable {
            out, connections, ..
        } if out < connections => "serves partly without Redis",
        StoreState::Unreachable { .. } => "serves without Redis",
        StoreState::Refusing { embedded: true, .. } => "has a full store",
        StoreState::Refusing { .. } => "is refused by Redis",
    };
    Some(Problem {
        is_bad: true,
        headline,
        text: state.to_string(),
    })
}

fn config(last: Option<&ConfigChange>) -> Option<Problem> {
    let refused = last.filter(|change| change.outcome == ConfigOutcome::Refused)?;
    let text = format!(
        "The config was refused at {}, and the plans stay as they were: {}",
        Utc(refused.at_us),
        refused.text
    );
    Some(Problem {
        is_bad: true,
        headline: "serves an old config",
        text,
    })
}

fn certificate(facts: &Facts) -> Option<Problem> {
    let text = || {
        "The changed TLS files cannot be used, and the old certificate stays: the log says why."
            .to_owned()
    };
    facts.certificate_refused.then(|| Problem {
        is_bad: true,
        headline: "serves an old certificate",
        text: text(),
    })
}

/// While the store is out, that is the reason, and it is told already.
fn replicas(facts: &Facts) -> Option<Problem> {
    let text = match (facts.alone && !facts.store.is_out(), facts.replicas_missing) {
        (true, _) => {
            "\"Who is limited\" lacks the counts of other replicas, since Redis does not give them."
                .to_owned()
        }
        (false, 0) => return None,
        (false, 1) => "\"Who is limited\" lacks the counts of 1 replica.".to_owned(),
        (false, missing) => format!("\"Who is limited\" lacks the counts of {missing} replicas."),
    };
    Some(Problem {
        is_bad: false,
        headline: "misses replicas",
        text,
    })
}

fn unknown_plans(facts: &Facts) -> Option<Problem> {
    let requests = match facts.unknown_plans {
        0 => return None,
        1 => "1 request".to_owned(),
        count => format!("{count} requests"),
    };
    let text = format!(
        "{requests} of the last seconds had no decision: the config does not have the plan that they name."
    );
    Some(Problem {
        is_bad: false,
        headline: "is asked for unknown plans",
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_store::{Outage, StoreError};

    const AT_US: u64 = 971_211_336_000_000;

    fn outage() -> Outage {
        let error = StoreError::Unreachable("Connection refused".to_owned());
        Outage::new(AT_US, &error)
    }

    fn change(outcome: ConfigOutcome) -> ConfigChange {
        ConfigChange {
            at_us: AT_US,
            outcome,
            text: "plans.free.limits[0].quota is none".to_owned(),
        }
    }

    const WELL: Facts<'static> = Facts {
        store: &StoreState::Deciding,
        config: None,
        certificate_refused: false,
        replicas_missing: 0,
        alone: false,
        unknown_plans: 0,
    };

    #[test]
    fn what_harms_most_comes_first() {
        let gone = StoreState::Unreachable {
            outage: outage(),
            out: 2,
            connections: 2,
        };
        let found = list(&Facts {
            store: &gone,
            config: Some(&change(ConfigOutcome::Refused)),
            certificate_refused: true,
            replicas_missing: 2,
            alone: true,
            unknown_plans: 1,
        });
        let headlines: Vec<&str> = found.iter().map(|problem| problem.headline).collect();
        let expected = [
            "serves without Redis",
            "serves an old config",
            "serves an old certificate",
            "misses replicas",
            "is asked for unknown plans",
        ];
        assert_eq!(headlines, expected);
        assert_eq!(found[0].text, gone.to_string());
        assert_eq!(
            found[1].text,
            "The config was refused at 2000-10-10T20:55:36Z, and the plans stay as they were: plans.free.limits[0].quota is none"
        );
        assert_eq!(
            found[3].text,
            "\"Who is limited\" lacks the counts of 2 replicas."
        );
    }

    #[test]
    fn a_well_server_has_no_problem() {
        assert_eq!(list(&WELL), []);
        let reloaded = change(ConfigOutcome::Reloaded);
        let config = Some(&reloaded);
        assert_eq!(list(&Facts { config, ..WELL }), []);
    }

    #[test]
    fn a_server_alone_and_a_store_that_is_partly_gone_have_words_of_their_own() {
        let alone = list(&Facts {
            alone: true,
            ..WELL
        });
        assert!(
            alone.len() == 1
                && alone[0].text.contains("Redis does not give them")
                && !alone[0].is_bad,
            "{alone:?}"
        );
        let never = store(&StoreState::NeverReached(outage())).unwrap();
        assert_eq!(never.headline, "never reached Redis");
        let partly = StoreState::Unreachable {
            outage: outage(),
            out: 1,
            connections: 2,
        };
        let partly = store(&partly).unwrap();
        assert_eq!(partly.headline, "serves partly without Redis");
    }
}
