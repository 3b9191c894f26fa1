//! The keys with the most denials, with their texts.
//!
//! Counts only grow, and a key's text is at hand whenever it is denied. So the list is exact: a key that is not in it when it is
//! denied for the last time has fewer denials than all in it, and they only get more.

use std::cmp::Reverse;

/// Keys that are listed.
pub const WORST_MAX: usize = 20;

/// The list of one variant.
#[derive(Debug, Default)]
pub(in crate::simulate) struct Worst {
    keys: Vec<(usize, Box<[u8]>)>,
    /// A key with fewer denials than this is not among the worst.
    least: u32,
}

impl Worst {
    /// Records a denial. `denied` has the counts of all keys, this denial included. Of keys with equal counts, the first in
    /// the order of the alphabet are listed.
    pub(super) fn record(&mut self, index: usize, key: &[u8], denied: &[u32]) {
        if denied[index] < self.least || self.keys.iter().any(|(listed, _)| *listed == index) {
            return;
        }
        if self.keys.len() < WORST_MAX {
            self.keys.push((index, key.into()));
            return;
        }
        let rank = |listed: &(usize, Box<[u8]>)| (denied[listed.0], Reverse(listed.1.clone()));
        let Some((least_at, least)) = self
            .keys
            .iter()
            .map(rank)
            .enumerate()
            .min_by(|a, b| a.1.cmp(&b.1))
        else {
            return;
        };
        self.least = least.0;
        let own = (denied[index], Reverse(Box::from(key)));
        if own > least {
            self.keys[least_at] = (index, own.1.0);
        }
    }

    pub(in crate::simulate) fn keys(&self) -> &[(usize, Box<[u8]>)] {
        &self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_list_is_that_of_a_full_sort(denials in proptest::collection::vec(0..60_usize, 0..600)) {
            let mut worst = Worst::default();
            let mut denied = vec![0_u32; 60];
            let text = |index: usize| format!("k{}", index * 7 % 60);
            for index in denials {
                denied[index] += 1;
                worst.record(index, text(index).as_bytes(), &denied);
            }
            let mut all: Vec<usize> = (0..60).filter(|index| denied[*index] > 0).collect();
            all.sort_by_key(|index| (Reverse(denied[*index]), text(*index)));
            all.truncate(WORST_MAX);
            let mut listed: Vec<usize> = worst.keys().iter().map(|listed| listed.0).collect();
            listed.sort_by_key(|index| (Reverse(denied[*index]), text(*index)));
            prop_assert_eq!(listed, all);
        }
    }
}
