//! Keeps the overrides that are set at runtime in one hash, by a small script. In a Cluster the hash is in one slot.
//!
//! The hash is read in pages, so that no call occupies Redis for long. Pages of different versions do not belong together: then the
//! reading begins again.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Instant;

use fred::bytes::Bytes;
use fred::types::Value;
use futures_util::future::BoxFuture;

use super::script::Script;
use super::{RedisStore, name};
use crate::overrides::{
    Expiry, OverrideChange, OverrideChanged, OverrideRecord, OverrideSet, OverrideStore,
    OverrideVersion,
};
use crate::{ReplicaId, StoreError};

/// See `script/overrides.lua`.
static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::from_text(include_str!("script/overrides.lua").to_owned()));

/// Records that one call reads or copies, about. It takes Redis some 0.1 ms.
const PAGE: usize = 100;
/// Maximum number of times that a reading begins. Each time the set was changed meanwhile.
const READINGS_MAX: usize = 8;
/// Stands for no version in a question, so that a page is given in any case.
const ANY: &str = "any";

/// The reply to one page.
struct OverridesPage {
    now_us: u64,
    version: OverrideVersion,
    /// `None`: the version is the one that was asked about.
    content: Option<Content>,
}

struct Content {
    fields: u64,
    next_cursor: String,
    records: Vec<OverrideRecord>,
}

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
            let changed = format!("the overrides changed during each of {READINGS_MAX} readings");
            Err(StoreError::Refused(changed))
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
    /// Reads all pages. `None`: they do not belong together.
    async fn read_once(
        &self,
        known: OverrideVersion,
        until: Instant,
    ) -> Result<Option<OverrideSet>, StoreError> {
        let mut known_text = text_of(known);
        let mut cursor = "0".to_owned();
        let mut version = None;
        let mut records = BTreeMap::new();
        loop {
            let page = self.read_page(&known_text, &cursor, until).await?;
            let set = OverrideSet {
                now_us: page.now_us,
                version: page.version,
                records: None,
            };
            let content = match page.content {
                Some(content) if page.version.number >= known.number => content,
                _ => return Ok(Some(set)),
            };
            if *version.get_or_insert(page.version) != page.version {
                return Ok(None);
            }
            let named = content.records.into_iter();
            records.extend(named.map(|record| (record.name.clone(), record)));
            if content.next_cursor == "0" {
                // A cursor of another server may have passed over some.
                let complete =
                    u64::try_from(records.len()).is_ok_and(|read| read == content.fields);
                return Ok(complete.then(|| OverrideSet {
                    records: Some(records.into_values().collect()),
                    ..set
                }));
            }
            (known_text, cursor) = (ANY.to_owned(), content.next_cursor);
        }
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

fn page(reply: &[Value]) -> Option<OverridesPage> {
    let (now_us, version) = (reply.first()?.as_u64()?, reply.get(1)?.as_bytes()?);
    let content = match &reply[2..] {
        [] => None,
        [fields, next_cursor, Value::Array(pairs)] => {
            let (pairs, []) = pairs.as_chunks::<2>() else {
                return None;
            };
            let read =
                |[name, value]: &[Value; 2]| Some(record(name.as_bytes()?, value.as_bytes()?));
            let records: Option<Vec<_>> = pairs.iter().map(read).collect();
            let mut records = records?;
            // The version is a field, too.
            records.retain(|record| !record.name.is_empty());
            let of_version = u64::from(!version.is_empty());
            Some(Content {
                fields: fields.as_u64()?.checked_sub(of_version)?,
                next_cursor: next_cursor.as_string()?,
                records,
            })
        }
        _ => return None,
    };
    Some(OverridesPage {
        now_us,
        version: version_in(version),
        content,
    })
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
