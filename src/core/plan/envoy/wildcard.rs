//! Texts with `*`, each of which stands for any letters or none.

use std::fmt;

/// A text with at least one `*`, and at least one other letter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Wildcard {
    /// What stands before, between and after the `*`, at least two. Only the first and the last may be empty.
    pieces: Box<[Box<str>]>,
}

impl Wildcard {
    /// The wildcard that a text writes, `**` being the same as `*`; `None` for a text without `*`, or of nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut pieces: Vec<Box<str>> = text.split('*').map(Box::from).collect();
        let last = pieces.len() - 1;
        if last == 0 || pieces.iter().all(|piece| piece.is_empty()) {
            return None;
        }
        let mut index = 0;
        pieces.retain(|piece| {
            index += 1;
            index == 1 || index == last + 1 || !piece.is_empty()
        });
        Some(Self {
            pieces: pieces.into(),
        })
    }

    /// What a value begins with; may be empty.
    pub fn begin(&self) -> &str {
        self.pieces.first().map_or("", |piece| piece)
    }

    /// What a value has after its beginning and before its end, in this order.
    pub(super) fn middle(&self) -> &[Box<str>] {
        self.pieces
            .get(1..self.pieces.len() - 1)
            .unwrap_or_default()
    }

    /// What a value ends with; may be empty.
    pub fn end(&self) -> &str {
        self.pieces.last().map_or("", |piece| piece)
    }

    /// Whether a value matches. Of another wildcard's text it tells whether all values of that one match: a `*` is a letter that
    /// no piece has, so only a `*` can stand for it. The time is linear in the value's length: of each piece the first place is as good as any.
    pub fn matches(&self, value: &str) -> bool {
        let Some(rest) = value
            .strip_prefix(self.begin())
            .and_then(|rest| rest.strip_suffix(self.end()))
        else {
            return false;
        };
        let after = |rest: &'_ str, piece: &str| rest.find(piece).map(|place| place + piece.len());
        self.middle()
            .iter()
            .try_fold(rest, |rest, piece| {
                after(rest, piece).map(|place| &rest[place..])
            })
            .is_some()
    }

    /// Bytes of its pieces: as many as the shortest value that matches has.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Number of `*`.
    pub fn stars(&self) -> usize {
        self.pieces.len() - 1
    }
}

impl fmt::Display for Wildcard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.pieces.join("*"))
    }
}
