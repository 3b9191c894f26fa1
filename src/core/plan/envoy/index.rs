//! The search for the rule of a descriptor, in a time that does not grow with the number of rules.
//!
//! Rules with the same names of entries are one shape. Within a shape, rules that give the same part of each value are one form:
//! nothing, all of it, or so many bytes from its beginning and from its end. A descriptor has one text for each form: the parts
//! of its values that the form gives. So a look-up in the form's hash table finds the rule, if there is one. What a rule wants
//! between two `*` belongs to its form, so no other rule of the form has the same parts. Forms are tried from the most specific
//! on, and there are at most [`FORMS_MAX`] in a shape.

use std::cmp::Reverse;

use hashbrown::HashTable;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::pattern::ValuePattern;
use super::{DescriptorRule, Entry};

/// Maximum number of forms of one shape. A look-up takes about 50 ns, so 64 of them take 3 us.
pub const FORMS_MAX: usize = 64;

/// Why a rule cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleError {
    /// The rule at this index comes before it and has the same descriptor.
    SameAs(usize),
    /// There are [`FORMS_MAX`] other forms of the same entries.
    TooManyForms,
}

#[derive(Clone)]
pub(super) struct Index {
    shapes: Vec<Shape>,
    /// Indices of shapes, by the hash of their names.
    by_names: HashTable<usize>,
}

/// Rules with the same names of entries.
#[derive(Clone)]
struct Shape {
    /// Index of its first rule.
    first: usize,
    /// The most specific ones first.
    forms: Vec<RuleForm>,
}

/// Rules of a shape that give the same parts of the values.
#[derive(Clone)]
struct RuleForm {
    parts: SmallVec<[ValuePart; 4]>,
    specificity: Specificity,
    /// Indices of rules, by the hash of the parts.
    rules: HashTable<usize>,
}

/// The part of a value that a rule gives.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ValuePart {
    Nothing,
    All,
    /// So many bytes from the beginning and from the end, and texts between them.
    Ends {
        begin: usize,
        end: usize,
        between: Box<[Box<str>]>,
    },
}

/// How specific a rule is: of two rules the greater one decides. So one that matches less than another, and nothing else, decides
/// before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specificity {
    /// Values that are given, in full or in part.
    pub given: usize,
    /// Values that are given in full.
    pub full: usize,
    /// Bytes of the others, without `*`.
    pub bytes: usize,
    /// Number of `*`; fewer are more specific.
    pub stars: Reverse<usize>,
}

impl Index {
    pub(super) fn new(rules: &[DescriptorRule]) -> Result<Self, Vec<(usize, RuleError)>> {
        let mut index = Self {
            shapes: Vec::new(),
            by_names: HashTable::new(),
        };
        let mut errors = Vec::new();
        for rule_index in 0..rules.len() {
            if let Err(error) = index.add(rules, rule_index) {
                errors.push((rule_index, error));
            }
        }
        let forms = index.shapes.iter_mut().map(|shape| &mut shape.forms);
        forms.for_each(|forms| forms.sort_by_key(|form| Reverse(form.specificity)));
        if errors.is_empty() {
            Ok(index)
        } else {
            Err(errors)
        }
    }

    fn add(&mut self, rules: &[DescriptorRule], rule_index: usize) -> Result<(), RuleError> {
        let rule = &rules[rule_index];
        let names = |rule: &DescriptorRule| {
            hash(rule.patterns.iter().map(|pattern| pattern.name.as_bytes()))
        };
        let names_hash = names(rule);
        let shapes = &self.shapes;
        let known = self
            .by_names
            .find(names_hash, |shape| {
                have_same_names(&rules[shapes[*shape].first], rule)
            })
            .copied();
        let shape = known.unwrap_or_else(|| {
            self.shapes.push(Shape {
                first: rule_index,
                forms: Vec::new(),
            });
            let shapes = &self.shapes;
            let new = self.shapes.len() - 1;
            self.by_names
                .insert_unique(names_hash, new, |shape| names(&rules[shapes[*shape].first]));
            new
        });
        self.shapes[shape].add(rules, rule_index)
    }

    /// The index of the rule that decides.
    pub(super) fn find(&self, rules: &[DescriptorRule], entries: &[Entry]) -> Option<usize> {
        let names_hash = hash(entries.iter().map(|entry| entry.name.as_bytes()));
        let shape = self.by_names.find(names_hash, |shape| {
            rules[self.shapes[*shape].first].has_names(entries)
        })?;
        let mut best: Option<(Specificity, usize)> = None;
        for form in &self.shapes[*shape].forms {
            if best.is_some_and(|(specificity, _)| specificity > form.specificity) {
                break;
            }
            if let Some(rule_index) = form.find(rules, entries) {
                let first = best.map_or(rule_index, |(_, before)| before.min(rule_index));
                best = Some((form.specificity, first));
            }
        }
        best.map(|(_, rule_index)| rule_index)
    }
}

impl Shape {
    fn add(&mut self, rules: &[DescriptorRule], rule_index: usize) -> Result<(), RuleError> {
        let parts: SmallVec<[ValuePart; 4]> = rules[rule_index]
            .patterns
            .iter()
            .map(|pattern| ValuePart::for_value(&pattern.value))
            .collect();
        let form = match self.forms.iter().position(|form| form.parts == parts) {
            Some(form) => form,
            None if self.forms.len() >= FORMS_MAX => return Err(RuleError::TooManyForms),
            None => {
                let specificity = Specificity::for_rule(&rules[rule_index]);
                self.forms.push(RuleForm {
                    parts,
                    specificity,
                    rules: HashTable::new(),
                });
                self.forms.len() - 1
            }
        };
        self.forms[form].add(rules, rule_index)
    }
}

impl RuleForm {
    fn add(&mut self, rules: &[DescriptorRule], rule_index: usize) -> Result<(), RuleError> {
        let given = |rule_index: usize| {
            hash(
                rules[rule_index]
                    .patterns
                    .iter()
                    .flat_map(|pattern| given(&pattern.value)),
            )
        };
        let hash = given(rule_index);
        match self.rules.find(hash, |other| {
            rules[*other].patterns == rules[rule_index].patterns
        }) {
            Some(other) => Err(RuleError::SameAs(*other)),
            None => {
                self.rules
                    .insert_unique(hash, rule_index, |other| given(*other));
                Ok(())
            }
        }
    }

    fn find(&self, rules: &[DescriptorRule], entries: &[Entry]) -> Option<usize> {
        let mut values: SmallVec<[&[u8]; 4]> = SmallVec::new();
        for (part, entry) in self.parts.iter().zip(entries) {
            values.extend(part.cut(entry.value.as_bytes())?.into_iter().flatten());
        }
        self.rules
            .find(hash(values.into_iter()), |rule_index| {
                rules[*rule_index].matches(entries)
            })
            .copied()
    }
}

impl ValuePart {
    fn for_value(value: &ValuePattern) -> Self {
        match value {
            ValuePattern::Any => Self::Nothing,
            ValuePattern::Exact(_) => Self::All,
            ValuePattern::Wildcard(wildcard) => Self::Ends {
                begin: wildcard.begin().len(),
                end: wildcard.end().len(),
                between: wildcard.middle().into(),
            },
        }
    }

    /// This part of a value, as [`given`]; `None` when the value is shorter.
    fn cut<'a>(&self, value: &'a [u8]) -> Option<[Option<&'a [u8]>; 2]> {
        match self {
            Self::Nothing => Some([None, None]),
            Self::All => Some([Some(value), None]),
            Self::Ends { begin, end, .. } => {
                let (begin, rest) = value.split_at_checked(*begin)?;
                let end = rest.get(rest.len().checked_sub(*end)?..)?;
                Some([Some(begin), (!end.is_empty()).then_some(end)])
            }
        }
    }
}

/// What a pattern gives of its value.
fn given(value: &ValuePattern) -> impl Iterator<Item = &[u8]> {
    let (begin, end) = match value {
        ValuePattern::Any => (None, ""),
        ValuePattern::Exact(value) => (Some(&**value), ""),
        ValuePattern::Wildcard(wildcard) => (Some(wildcard.begin()), wildcard.end()),
    };
    begin
        .into_iter()
        .chain((!end.is_empty()).then_some(end))
        .map(str::as_bytes)
}

impl Specificity {
    pub(super) fn for_rule(rule: &DescriptorRule) -> Self {
        let none = Self {
            given: 0,
            full: 0,
            bytes: 0,
            stars: Reverse(0),
        };
        rule.patterns
            .iter()
            .fold(none, |sum, pattern| match &pattern.value {
                ValuePattern::Any => sum,
                ValuePattern::Exact(_) => Self {
                    given: sum.given + 1,
                    full: sum.full + 1,
                    ..sum
                },
                ValuePattern::Wildcard(wildcard) => Self {
                    given: sum.given + 1,
                    bytes: sum.bytes + wildcard.bytes(),
                    stars: Reverse(sum.stars.0 + wildcard.stars()),
                    ..sum
                },
            })
    }
}

/// A hash of texts. It needs no secret: tables hold only rules of the config, so a caller cannot make them slow.
fn hash<'a>(texts: impl Iterator<Item = &'a [u8]>) -> u64 {
    // Texts are short, and a hasher that takes them one after another has a state of half a kilobyte.
    texts.fold(0, |before, text| xxh3_64_with_seed(text, before))
}

fn have_same_names(rule: &DescriptorRule, other: &DescriptorRule) -> bool {
    rule.patterns
        .iter()
        .map(|pattern| &pattern.name)
        .eq(other.patterns.iter().map(|pattern| &pattern.name))
}

#[cfg(test)]
impl Index {
    /// The number of forms of each shape.
    pub(super) fn forms(&self) -> Vec<usize> {
        self.shapes.iter().map(|shape| shape.forms.len()).collect()
    }
}
