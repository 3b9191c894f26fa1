//! Asks a node of a Cluster which nodes have which slots.

use std::time::Instant;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};

use crate::redis::connection::options;
use crate::redis::target::HostAndPort;
use crate::redis::{ProbeCall, name};

/// Number of slots of a Cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slots from `first` to `last`, both included, and the master that has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) master: HostAndPort,
}

/// Asks a node for all ranges. Errors: it does not answer by `until`, or it reports that the Cluster is down. A node that is
/// cut off from the others reports so, too; its map may be old, so it is not used.
pub(super) async fn ask(
    client: &Client,
    asked: &HostAndPort,
    until: Instant,
) -> Result<Vec<Range>, Error> {
    let options = options(until)?;
    let query = |what| {
        let command = CustomCommand::new_static("CLUSTER", ClusterHash::FirstKey, false);
        let client = client.with_options(&options);
        async move {
            client
                .custom::<Value, Value>(command, vec![Value::from_static_str(what)])
                .await
        }
    };
    let (info, slots) = tokio::try_join!(query("INFO"), query("SLOTS"))?;
    if !info
        .as_str()
        .is_some_and(|info| info.contains("cluster_state:ok"))
    {
        return Err(Error::new(
            ErrorKind::Cluster,
            format!("{asked} says that the Cluster is down, or cannot see it"),
        ));
    }
    let ranges = parse(&slots, asked).filter(|ranges| !ranges.is_empty());
    ranges.ok_or_else(|| Error::new(ErrorKind::Cluster, format!("{asked} knows of no slots")))
}

/// Parses the reply to CLUSTER SLOTS; `None` when it has another form.
fn parse(slots: &Value, asked: &HostAndPort) -> Option<Vec<Range>> {
    let ranges = list(slots)?.iter();
    ranges.map(|range| parse_range(range, asked)).collect()
}

fn parse_range(range: &Value, asked: &HostAndPort) -> Option<Range> {
    let [first, last, master, ..] = list(range)? else {
        return None;
    };
    let [host, port, ..] = list(master)? else {
        return None;
    };
    // A node that does not know its own address leaves it out. It is the one that was just asked.
    let host = host
        .as_str()
        .filter(|host| !host.is_empty() && *host != "?")
        .map_or(asked.host.clone(), |host| host.to_string());
    let port = u16::try_from(port.as_u64()?).ok()?;
    Some(Range {
        first: parse_slot(first)?,
        last: parse_slot(last)?,
        master: HostAndPort { host, port },
    })
}

fn parse_slot(value: &Value) -> Option<u16> {
    let slot = u16::try_from(value.as_u64()?).ok()?;
    (slot < SLOTS).then_some(slot)
}

fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

/// For each slot, the index of its node in `masters`, which are sorted. A slot without a node has an index past the end.
pub(super) fn owners(masters: &[&HostAndPort], ranges: &[Range]) -> Vec<u16> {
    let mut owners = vec![u16::MAX; usize::from(SLOTS)];
    for range in ranges {
        let owner = masters
            .binary_search(&&range.master)
            .ok()
            .and_then(|place| u16::try_from(place).ok())
            .unwrap_or(u16::MAX);
        owners[usize::from(range.first)..=usize::from(range.last)].fill(owner);
    }
    owners
}

/// Whether the slot of this call's name is of this node.
pub(super) fn owns(master: &HostAndPort, probe_call: &ProbeCall, ranges: &[Range]) -> bool {
    let slot = name::slot(&probe_call.name);
    ranges
        .iter()
        .any(|range| range.master == *master && (range.first..=range.last).contains(&slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> HostAndPort {
        HostAndPort {
            host: host.to_owned(),
            port,
        }
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![
            host,
            Value::Integer(port),
            Value::from_static_str("id"),
            Value::Array(Vec::new()),
        ])
    }

    fn range(first: i64, last: i64, nodes: Vec<Value>) -> Value {
        Value::Array([vec![Value::Integer(first), Value::Integer(last)], nodes].concat())
    }

    #[test]
    fn the_first_node_of_a_range_is_its_master_and_a_nameless_one_is_where_it_was_asked() {
        let replica = || node(Value::from_static_str("10.0.0.9"), 9);
        let slots = Value::Array(vec![
            range(
                0,
                99,
                vec![node(Value::from_static_str("10.0.0.1"), 1), replica()],
            ),
            range(100, 16_383, vec![node(Value::Null, 2), replica()]),
        ]);
        let expected = [
            Range {
                first: 0,
                last: 99,
                master: address("10.0.0.1", 1),
            },
            Range {
                first: 100,
                last: 16_383,
                master: address("asked", 2),
            },
        ];
        assert_eq!(parse(&slots, &address("asked", 7)).unwrap(), expected);
    }

    #[test]
    fn a_reply_of_another_form_is_none() {
        let host = || Value::from_static_str("h");
        for slots in [
            Value::Null,
            Value::Array(vec![Value::Null]),
            Value::Array(vec![range(0, 1, Vec::new())]),
            Value::Array(vec![range(0, 16_384, vec![node(host(), 1)])]),
            Value::Array(vec![range(-1, 5, vec![node(host(), 1)])]),
            Value::Array(vec![range(0, 5, vec![node(host(), 70_000)])]),
        ] {
            assert_eq!(parse(&slots, &address("asked", 7)), None);
        }
    }
}
