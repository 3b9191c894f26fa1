//! Keeps the overrides that are set at runtime in one hash, by a small script. In a Cluster the hash is in one slot.
//!
//! A reader asks for what has changed since the version it knows. Where that is not known any more, the whole hash is read, in pages,
//! so that no call occupies Redis for long. What changes meanwhile is read at the end.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Instant;

use fred::bytes::Bytes;
use fred::types::Value;
use futures_util::future::BoxFuture;

use super::script::Script;
use super::{RedisStore, name};
use crate::overrides::{
    Expiry, OverrideChange, OverrideChanged, OverrideNews, OverrideRecord, OverrideSet,
    OverrideStore, OverrideVersion,
};
use crate::{ReplicaId, StoreError};

/// See `script/overrides.lua`.
static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::from_text(include_str!("script/overrides.lua").to_owned()));

/// Records that one call reads or copies, about. It takes Redis some 0.1 ms.
const PAGE: usize = 100;
/// Maximum number of times that a reading begins. Each time more changed meanwhile than the hash remembers.
const READINGS_MAX: usize = 8;
/// The cursor of the first page, which also comes with the last one.
const FIRST: &str = "0";
/// Fields of the hash that are no records: its version, and its last changes.
const OTHERS: [&[u8]; 2] = [b"", b"changes"];
/// Stands for no version in a question, so that a page is given in any case.
const ANY: &str = "any";

/// The reply to one page.
struct OverridesPage {
    now_us: u64,
    version: OverrideVersion,
    /// The version as the hash has it, to ask what has changed since.
    version_text: String,
    /// Number of records in the set, if it is not the known one.
    count: u64,
    content: Content,
}

enum Content {
    /// The version is the one that was asked about.
    Known,
    /// What has changed since.
    Changes(Vec<ChangedRecord>),
    /// A part of the hash, and the cursor of the next part.
    Page(String, Vec<OverrideRecord>),
}

/// A name, and its record if there is one.
type ChangedRecord = (Vec<u8>, Option<OverrideRecord>);

impl OverrideStore for RedisStore {
    fn read_overrides(
        &self,
        known: OverrideVersion,
        until: Instant,
    ) -> BoxFuture<'_, Result<OverrideSet, StoreError>> {
        Box::pin(async move {
            for _ in 0..READINGS_MAX {
                if let Some(set) = self.read_once(known, until).await? {
                    return Ok(set);
                }
            }
            let torn = format!("none of {READINGS_MAX} readings of the overrides was a whole one");
            Err(StoreError::Refused(torn))
        })
    }

    fn change_overrides<'a>(
        &'a self,
        change: &'a OverrideChange<'a>,
        until: Instant,
    ) -> BoxFuture<'a, Result<OverrideChanged, StoreError>> {
        Box::pin(async move {
            let (name, expiry, payload) = change.put.unwrap_or((b"", Expiry::Never, b""));
            let expiry = match expiry {
                Expiry::Never => "0".to_owned(),
                Expiry::At(at_us) => format!("={at_us}"),
                Expiry::After(after_us) => format!("+{after_us}"),
            };
            let head = [
                Value::from("change"),
                Value::from(text_of(change.known)),
                Value::from((change.known.number + 1).to_string()),
                Value::from(expiry),
                bytes(name),
                bytes(payload),
            ];
            let removed = change.removed.iter().map(|name| bytes(name));
            let arguments = head.into_iter().chain(removed).collect();
            let reply = self.exchange_overrides(arguments, None, until).await?;
            changed(&reply).ok_or_else(unreadable)
        })
    }

    fn restore_overrides<'a>(
        &'a self,
        version: OverrideVersion,
        records: &'a [OverrideRecord],
        until: Instant,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            // Replicas that restore at once must not mix their copies.
            let copy = name::overrides_copy(&self.key_prefix, &ReplicaId::random());
            for page in records.chunks(PAGE) {
                let fields = page
                    .iter()
                    .flat_map(|record| [bytes(&record.name), Value::Bytes(value_of(record))]);
                let arguments = [Value::from("copy")].into_iter().chain(fields).collect();
                self.exchange_overrides(arguments, Some(&copy), until)
                    .await?;
            }
            let arguments = vec![Value::from("restore"), Value::from(text_of(version))];
            self.exchange_overrides(arguments, Some(&copy), until)
                .await
                .map(drop)
        })
    }
}

impl RedisStore {
    /// Reads what is news to a reader who knows this version. `None`: what was read does not belong together.
    async fn read_once(
        &self,
        known: OverrideVersion,
        until: Instant,
    ) -> Result<Option<OverrideSet>, StoreError> {
        let first = self.read_page(&text_of(known), FIRST, until).await?;
        let now_us = first.now_us;
        let version = first.version;
        let set = |news| OverrideSet {
            now_us,
            version,
            news,
        };
        let mut count = first.count;
        let (mut cursor, records) = match first.content {
            _ if version.number < known.number => return Ok(Some(set(OverrideNews::None))),
            Content::Known => return Ok(Some(set(OverrideNews::None))),
            Content::Changes(changes) => return Ok(Some(set(OverrideNews::Changes(changes)))),
            Content::Page(cursor, records) => (cursor, records),
        };
        let mut read: BTreeMap<_, _> = named(records).collect();
        while cursor != FIRST {
            let page = self.read_page(ANY, &cursor, until).await?;
            let Content::Page(next, records) = page.content else {
                return Err(unreadable());
            };
            (cursor, count) = (next, page.count);
            read.extend(named(records));
        }
        // What changed meanwhile was read as it was before or after.
        let end = self.read_page(&first.version_text, FIRST, until).await?;
        match end.content {
            Content::Known => {}
            Content::Changes(changes) => {
                count = end.count;
                apply(changes, &mut read);
            }
            Content::Page(..) => return Ok(None),
        }
        // A cursor of another server may have passed over some.
        let is_complete = u64::try_from(read.len()).is_ok_and(|read| read == count);
        Ok(is_complete.then(|| OverrideSet {
            now_us: end.now_us,
            version: end.version,
            news: OverrideNews::All(read.into_values().collect()),
        }))
    }

    async fn read_page(
        &self,
        known: &str,
        cursor: &str,
        until: Instant,
    ) -> Result<OverridesPage, StoreError> {
        let arguments = ["read", known, cursor, &PAGE.to_string()].map(Value::from);
        let reply = self
            .exchange_overrides(arguments.into(), None, until)
            .await?;
        page(&reply).ok_or_else(unreadable)
    }

    /// Calls the script, with the name of a copy if it needs one.
    async fn exchange_overrides(
        &self,
        arguments: Vec<Value>,
        copy: Option<&str>,
        until: Instant,
    ) -> Result<Vec<Value>, StoreError> {
        let name = name::overrides(&self.key_prefix);
        let keys = [Some(name.as_str()), copy].into_iter().flatten();
        let keys = keys.map(Value::from).collect();
        match self.exchange(&SCRIPT, keys, arguments, until).await? {
            Value::Array(reply) => Ok(reply),
            _ => Err(unreadable()),
        }
    }
}

fn unreadable() -> StoreError {
    StoreError::InvalidReply("the reply about overrides has an unknown form".to_owned())
}

fn bytes(bytes: &[u8]) -> Value {
    Value::Bytes(Bytes::copy_from_slice(bytes))
}

/// The version as the hash has it; empty for none.
fn text_of(version: OverrideVersion) -> String {
    match version.number {
        0 => String::new(),
        number => format!("{number} {}", version.mark),
    }
}

/// The version that a text is; none if it is not one, so that the set is written anew.
fn version_in(text: &[u8]) -> OverrideVersion {
    let numbers = std::str::from_utf8(text).ok().and_then(|text| {
        let (number, mark) = text.split_once(' ')?;
        Some((number.parse().ok()?, mark.parse().ok()?))
    });
    numbers.map_or_else(OverrideVersion::default, |(number, mark)| OverrideVersion {
        number,
        mark,
    })
}

fn value_of(record: &OverrideRecord) -> Bytes {
    let OverrideRecord {
        version,
        set_at_us,
        expires_at_us,
        ..
    } = record;
    let head = format!("{version} {set_at_us} {} ", expires_at_us.unwrap_or(0));
    [head.as_bytes(), &record.payload].concat().into()
}

/// A field of the hash as a record. Of a value in an unknown form, all is what it says.
fn record(name: &[u8], value: &[u8]) -> OverrideRecord {
    let mut parts = value.splitn(4, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let numbers = (number(), number(), number());
    let payload = parts.next();
    let (version, set_at_us, expires_at_us, payload) = match (numbers, payload) {
        ((Some(version), Some(set_at_us), Some(expiry)), Some(payload)) => (
            version,
            set_at_us,
            Some(expiry).filter(|at| *at > 0),
            payload,
        ),
        _ => (0, 0, None, value),
    };
    OverrideRecord {
        name: name.to_vec(),
        version,
        set_at_us,
        expires_at_us,
        payload: payload.to_vec(),
    }
}

fn named(records: Vec<OverrideRecord>) -> impl Iterator<Item = (Vec<u8>, OverrideRecord)> {
    records
        .into_iter()
        .map(|record| (record.name.clone(), record))
}

fn apply(changes: Vec<ChangedRecord>, records: &mut BTreeMap<Vec<u8>, OverrideRecord>) {
    for (name, record) in changes {
        match record {
            Some(record) => records.insert(name, record),
            None => records.remove(&name),
        };
    }
}

fn page(reply: &[Value]) -> Option<OverridesPage> {
    let now_us = reply.first()?.as_u64()?;
    let version = reply.get(1)?.as_bytes()?;
    let (fields, content) = match &reply[2..] {
        [] => (None, Content::Known),
        [fields, Value::Array(changes)] => (Some(fields), Content::Changes(changes_in(changes)?)),
        [fields, next_cursor, Value::Array(pairs)] => {
            let changes = changes_in(pairs)?.into_iter();
            let is_record = |record: &OverrideRecord| !OTHERS.contains(&record.name.as_slice());
            let records = changes.filter_map(|(_, record)| record).filter(is_record);
            let page = Content::Page(next_cursor.as_string()?, records.collect());
            (Some(fields), page)
        }
        _ => return None,
    };
    let of_version = u64::from(!version.is_empty());
    let count = match fields {
        Some(fields) => fields.as_u64()?.checked_sub(of_version)?,
        None => 0,
    };
    Some(OverridesPage {
        now_us,
        version: version_in(version),
        version_text: String::from_utf8_lossy(version).into_owned(),
        count,
        content,
    })
}

/// Names, each followed by its value or by nil.
fn changes_in(pairs: &[Value]) -> Option<Vec<ChangedRecord>> {
    let (pairs, []) = pairs.as_chunks::<2>() else {
        return None;
    };
    let read = |[name, value]: &[Value; 2]| {
        let name = name.as_bytes()?;
        let of_value = match value {
            Value::Null => None,
            value => Some(record(name, value.as_bytes()?)),
        };
        Some((name.to_vec(), of_value))
    };
    pairs.iter().map(read).collect()
}

fn changed(reply: &[Value]) -> Option<OverrideChanged> {
    let now_us = reply.first()?.as_u64()?;
    let (version, expiry) = match &reply[1..] {
        [] => (None, None),
        [version, expiry] => (Some(version_in(version.as_bytes()?)), expiry.as_u64()),
        _ => return None,
    };
    Some(OverrideChanged {
        now_us,
        version,
        expires_at_us: expiry.filter(|at_us| *at_us > 0),
    })
}
