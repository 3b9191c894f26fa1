//! The parameters of a URL.

use url::Url;

use super::url_parts::{UrlForm, node};
use super::{HostAndPort, NODES_MAX, RIGHT};
use tollgate_core::nearest::nearest;

/// The parameters of a URL, behind its question mark.
#[derive(Default)]
pub(super) struct UrlParameters {
    pub(super) nodes: Vec<HostAndPort>,
    pub(super) service: Option<String>,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

impl UrlParameters {
    pub(super) fn from_url(url: &Url, form: UrlForm) -> Result<Self, String> {
        let known: &[&str] = match form {
            UrlForm::Alone | UrlForm::Unix => &[],
            UrlForm::Cluster => &["node"],
            UrlForm::Sentinel => &[
                "node",
                "sentinelServiceName",
                "sentinelUsername",
                "sentinelPassword",
            ],
        };
        let mut parameters = Self::default();
        for (name, value) in url.query_pairs() {
            let Some(name) = known.iter().find(|known| **known == name) else {
                return Err(unknown(known, &name));
            };
            parameters.set(name, &value)?;
        }
        if parameters.nodes.len() >= NODES_MAX {
            return Err(format!(
                "names more than {NODES_MAX} nodes; some are enough"
            ));
        }
        Ok(parameters)
    }

    /// Sets one that is known. Errors: it was set before.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let slot = match name {
            "sentinelServiceName" => &mut self.service,
            "sentinelUsername" => &mut self.username,
            "sentinelPassword" => &mut self.password,
            _ => {
                self.nodes.push(node(value)?);
                return Ok(());
            }
        };
        if slot.replace(value.to_owned()).is_some() {
            return Err(format!("says {name} twice; remove one of them"));
        }
        Ok(())
    }

    /// All nodes without duplicates, `first` before the others.
    pub(super) fn nodes_after(&mut self, first: HostAndPort) -> Vec<HostAndPort> {
        let mut nodes = vec![first];
        for node in self.nodes.drain(..) {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }
}

/// The error for an unknown parameter. It does not repeat the name, which may be the end of a password with a question mark.
fn unknown(known: &[&str], name: &str) -> String {
    match nearest(name, known.iter().copied()) {
        Some(known) => format!("has a parameter that is not known here; did you mean {known}?"),
        None if known.is_empty() => format!(
            "has parameters, and none are known here (write %3F for a ? in a password); {RIGHT}"
        ),
        None => {
            format!(
                "has a parameter that is not known here (write %3F for a ? in a password); there are {}",
                known.join(", ")
            )
        }
    }
}
