//! The bytes by which a replica publishes its lists.
//!
//! A version, a check number of the secret, and the lists of denials and of cost. A list has its numbers, and its plans with their
//! keys. Then come names of keys, if they are shown in clear, those of the heaviest first. Numbers have seven bits a byte, the lowest first; hashes have eight
//! bytes. What cannot be read is refused as a whole.
//!
//! Pure.

use std::collections::HashMap;

use super::TopBy;
use super::summary::{Estimate, PlanSummary, Summary};

const VERSION: u8 = 1;
/// Maximum number of bytes of names that are published.
const NAMES_BYTES_MAX: usize = 64 << 10;

/// What one replica publishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Published {
    /// Tells whether another replica has the same secret. Lists with another one cannot be added.
    pub(super) secret_check: u64,
    /// By denials, and by cost.
    pub(super) lists: [Summary; 2],
    /// Keys in clear, by the number that they are counted under.
    pub(super) names: HashMap<u64, String>,
}

impl Published {
    /// The list of this order.
    pub(super) fn list(&self, by: TopBy) -> &Summary {
        match by {
            TopBy::Denials => &self.lists[0],
            TopBy::Cost => &self.lists[1],
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.secret_check.to_le_bytes());
        for list in &self.lists {
            put(&mut bytes, list.total);
            put(&mut bytes, list.unlisted);
            put(&mut bytes, list.plans.len() as u64);
            for (id, plan) in &list.plans {
                bytes.extend(id.to_le_bytes());
                put(&mut bytes, plan.total);
                put(&mut bytes, plan.too_high);
                put(&mut bytes, plan.keys.len() as u64);
                for (hash, key) in &plan.keys {
                    bytes.extend(hash.to_le_bytes());
                    put(&mut bytes, key.estimate);
                    put(&mut bytes, key.at_least);
                }
            }
        }
        let until = bytes.len() + NAMES_BYTES_MAX;
        for (hash, name) in self.heaviest_names() {
            if bytes.len() + name.len() + 10 > until {
                break;
            }
            bytes.extend(hash.to_le_bytes());
            put(&mut bytes, name.len() as u64);
            bytes.extend(name.as_bytes());
        }
        bytes
    }

    /// Names by the better of their keys' ranks in the two lists.
    fn heaviest_names(&self) -> Vec<(u64, &String)> {
        let mut ranks = HashMap::new();
        for list in self.lists.iter().filter(|_| !self.names.is_empty()) {
            for (rank, key) in list.heaviest(None, usize::MAX).0.into_iter().enumerate() {
                let best = ranks.entry(key.hash).or_insert(rank);
                *best = rank.min(*best);
            }
        }
        let mut names: Vec<(u64, &String)> = self
            .names
            .iter()
            .map(|(hash, name)| (*hash, name))
            .collect();
        names.sort_by_cached_key(|(hash, _)| {
            (ranks.get(hash).copied().unwrap_or(usize::MAX), *hash)
        });
        names
    }

    /// `None` for bytes that no replica of this version publishes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, bytes) = bytes.split_first()?;
        let mut reader = Reader(bytes);
        if *version != VERSION {
            return None;
        }
        let secret_check = reader.fixed()?;
        let lists = [reader.list()?, reader.list()?];
        let mut names = HashMap::new();
        while !reader.0.is_empty() {
            let hash = reader.fixed()?;
            let length = usize::try_from(reader.number()?).ok()?;
            let (name, rest) = reader.0.split_at_checked(length)?;
            reader.0 = rest;
            names.insert(hash, std::str::from_utf8(name).ok()?.to_owned());
        }
        Some(Self {
            secret_check,
            lists,
            names,
        })
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn fixed(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    /// Memory grows with the bytes that are there, whatever the numbers say.
    fn list(&mut self) -> Option<Summary> {
        let mut list = Summary {
            total: self.number()?,
            unlisted: self.number()?,
            plans: HashMap::new(),
        };
        for _ in 0..self.number()? {
            let id = self.fixed()?;
            let mut plan = PlanSummary {
                total: self.number()?,
                too_high: self.number()?,
                keys: HashMap::new(),
            };
            for _ in 0..self.number()? {
                let hash = self.fixed()?;
                plan.keys.insert(
                    hash,
                    Estimate {
                        estimate: self.number()?,
                        at_least: self.number()?,
                    },
                );
            }
            list.plans.insert(id, plan);
        }
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn summary() -> impl Strategy<Value = Summary> {
        let key = (any::<u64>(), any::<u64>())
            .prop_map(|(estimate, at_least)| Estimate { estimate, at_least });
        let keys = prop::collection::hash_map(any::<u64>(), key, 0..20);
        let plan = (any::<u64>(), 0u64..99, keys).prop_map(|(total, too_high, keys)| PlanSummary {
            total,
            too_high,
            keys,
        });
        let plans = prop::collection::hash_map(any::<u64>(), plan, 0..5);
        (any::<u64>(), 0u64..300, plans).prop_map(|(total, unlisted, plans)| Summary {
            total,
            unlisted,
            plans,
        })
    }

    proptest! {
        #[test]
        fn what_is_published_is_read_back_and_parts_of_it_are_refused(
            one in summary(), other in summary(), secret_check in any::<u64>(),
            names in prop::collection::hash_map(any::<u64>(), "\\PC{0,40}", 0..9), cut in 1usize..9,
        ) {
            let published = Published { secret_check, lists: [one, other], names };
            let bytes = published.encode();
            prop_assert_eq!(Published::decode(&bytes), Some(published.clone()));
            let part = Published::decode(&bytes[..bytes.len() - cut]);
            prop_assert!(part.is_none_or(|part| part.names.len() < published.names.len()));
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            bytes.insert(0, VERSION);
            let _ = Published::decode(&bytes);
        }
    }

    #[test]
    fn names_of_the_heaviest_by_denials_or_by_cost_are_published_first() {
        let mut published = Published {
            names: (0..1_000).map(|key| (key, "x".repeat(512))).collect(),
            ..Published::default()
        };
        for (list, heaviest) in published.lists.iter_mut().zip([0u64, 500]) {
            let estimate = |key| Estimate {
                estimate: 1 + u64::from(key == heaviest),
                at_least: 1,
            };
            let keys = (0..1_000).map(|key| (key, estimate(key))).collect();
            list.plans.insert(
                7,
                PlanSummary {
                    keys,
                    ..PlanSummary::default()
                },
            );
        }
        let read = Published::decode(&published.encode()).unwrap().names;
        assert!(
            read.contains_key(&0) && read.contains_key(&500),
            "{:?}",
            read.keys()
        );
    }

    #[test]
    fn names_are_published_as_far_as_there_is_room() {
        let names = (0..1_000u64)
            .map(|number| (number, "x".repeat(512)))
            .collect();
        let bytes = Published {
            names,
            ..Published::default()
        }
        .encode();
        let read = Published::decode(&bytes).unwrap().names.len();
        assert!(
            bytes.len() <= NAMES_BYTES_MAX + 20 && read > 120,
            "{} bytes, {read} names",
            bytes.len()
        );
    }
}
