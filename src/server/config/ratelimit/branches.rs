//! From nested descriptors to rules that choose as ratelimit does.
//!
//! At each level, ratelimit takes the descriptor of the whole value, else the first wildcard that matches, else the one without a
//! value. From then on only what is nested in it counts, even if nothing in it matches. A rule of tollgate competes as a whole,
//! and the more specific one decides. So each list of descriptors gets branches of its own:
//!
//! 1. One for each descriptor.
//! 2. One for what a wildcard and a later one both match, where the later one would decide there. It has what is in the first.
//! 3. In each branch, one for all that is nested in a wider branch beside it. It has what ratelimit finds there, or nothing.
//!
//! Of the branches that match an entry, the most specific one then has what ratelimit takes, and each rule below a wider one is
//! hidden by a rule below it.

use std::collections::{HashMap, HashSet};

use super::RULES_MAX;
use super::descriptors::ConfiguredDescriptor;
use super::limits::RateLimit;
use super::pattern::Pattern;

/// Maximum number of branches while rules are made. Most of them are not rules, where limits are deeply nested.
const BRANCHES_MAX: usize = 10 * RULES_MAX;

/// A pattern, with what ratelimit finds for the entries that it matches.
pub(super) struct Branch<'a> {
    pub(super) pattern: Pattern,
    pub(super) found: Option<&'a ConfiguredDescriptor>,
    /// Where the file has the reason for this branch.
    pub(super) path: &'a str,
    /// Whether it has a limit, or hides one.
    decides: bool,
    nested: Vec<Branch<'a>>,
}

/// One rule: a branch for each entry. Without a limit, the descriptor passes.
pub(super) struct BranchRule<'b, 'a> {
    pub(super) branches: Vec<&'b Branch<'a>>,
}

/// There would be too many rules.
#[derive(Debug)]
pub(super) struct TooMany;

impl<'a> BranchRule<'_, 'a> {
    pub(super) fn limit(&self) -> Option<&'a RateLimit> {
        self.branches.last()?.found?.limit.as_ref()
    }
}

/// The branches of all descriptors. Errors: there would be too many.
pub(super) fn branches(descriptors: &[ConfiguredDescriptor]) -> Result<Vec<Branch<'_>>, TooMany> {
    let mut budget = BRANCHES_MAX;
    in_list(descriptors, &[], &mut budget)
}

/// The rules of these branches. Errors: there are too many.
pub(super) fn rules<'b, 'a>(
    branches: &'b [Branch<'a>],
) -> Result<Vec<BranchRule<'b, 'a>>, TooMany> {
    let mut rules = Vec::new();
    add_rules(branches, &mut Vec::new(), &mut rules)?;
    Ok(rules)
}

fn add_rules<'b, 'a>(
    branches: &'b [Branch<'a>],
    above: &mut Vec<&'b Branch<'a>>,
    rules: &mut Vec<BranchRule<'b, 'a>>,
) -> Result<(), TooMany> {
    for branch in branches {
        above.push(branch);
        if branch.decides {
            rules.push(BranchRule {
                branches: above.clone(),
            });
        }
        if rules.len() > RULES_MAX {
            return Err(TooMany);
        }
        add_rules(&branch.nested, above, rules)?;
        above.pop();
    }
    Ok(())
}

/// A branch to be made.
struct Planned<'a> {
    pattern: Pattern,
    path: &'a str,
    /// The index of the descriptor that ratelimit takes.
    winner: Option<usize>,
}

/// The branches of one list, whose descriptors stand in the order in which ratelimit tries them. `hidden` are lists below wider
/// branches.
fn in_list<'a>(
    list: &'a [ConfiguredDescriptor],
    hidden: &[&[Branch<'a>]],
    budget: &mut usize,
) -> Result<Vec<Branch<'a>>, TooMany> {
    let same = by_pattern(hidden);
    let planned = plan(list, hidden, budget)?;
    let mut by_width: Vec<usize> = (0..planned.len()).collect();
    by_width.sort_by_key(|index| planned[*index].pattern.specificity());
    let mut made: Vec<Option<Branch>> = planned.iter().map(|_| None).collect();
    // Few branches are wide, and each is compared with all others.
    let mut wide = Vec::new();
    for index in by_width {
        let pattern = &planned[index].pattern;
        let wider = wide
            .iter()
            .filter_map(|index: &usize| made[*index].as_ref());
        let wider = wider.filter(|other: &&Branch| other.pattern.is_wider_than(pattern));
        let hidden: Vec<&Branch> = wider
            .chain(same.get(pattern).into_iter().flatten().copied())
            .collect();
        made[index] = Some(planned[index].branch(list, &hidden, budget)?);
        if !pattern.is_exact() {
            wide.push(index);
        }
    }
    Ok(made.into_iter().flatten().collect())
}

/// The branches of these lists, by their patterns.
fn by_pattern<'b, 'a>(lists: &[&'b [Branch<'a>]]) -> HashMap<&'b Pattern, Vec<&'b Branch<'a>>> {
    let mut found = HashMap::<&Pattern, Vec<&Branch>>::new();
    for branch in lists.iter().copied().flatten() {
        found.entry(&branch.pattern).or_default().push(branch);
    }
    found
}

impl<'a> Planned<'a> {
    /// The branch, with all that is nested in it. `hidden` are the branches that it hides, whose nested ones its own must hide.
    fn branch(
        &self,
        list: &'a [ConfiguredDescriptor],
        hidden: &[&Branch<'a>],
        budget: &mut usize,
    ) -> Result<Branch<'a>, TooMany> {
        let lists: Vec<&[Branch]> = hidden
            .iter()
            .map(|branch| &branch.nested[..])
            .filter(|nested| !nested.is_empty())
            .collect();
        let found = self.winner.map(|winner| &list[winner]);
        let decides = found.is_some_and(|found| found.limit.is_some())
            || hidden.iter().any(|branch| branch.decides);
        let nested = in_list(found.map_or(&[], |found| &found.nested), &lists, budget)?;
        Ok(Branch {
            pattern: self.pattern.clone(),
            found,
            path: self.path,
            decides,
            nested,
        })
    }
}

/// The patterns of a list's branches, each with the descriptor that ratelimit takes for the entries that it matches. Descriptors
/// come first: of rules that are equally specific the first decides.
fn plan<'a>(
    list: &'a [ConfiguredDescriptor],
    hidden: &[&[Branch<'a>]],
    budget: &mut usize,
) -> Result<Vec<Planned<'a>>, TooMany> {
    let mut plan = BranchPlan {
        list,
        planned: Vec::new(),
        known: HashSet::new(),
        budget,
    };
    for (index, descriptor) in list.iter().enumerate() {
        plan.add(&descriptor.pattern, &descriptor.path, Some(index))?;
    }
    for branch in hidden.iter().copied().flatten() {
        plan.add(&branch.pattern, branch.path, None)?;
    }
    let wildcards: Vec<usize> = (0..list.len())
        .filter(|index| !list[*index].pattern.is_exact())
        .collect();
    let mut next = 0;
    while let Some(planned) = plan.planned.get(next) {
        let path = planned.path;
        for pattern in meets(list, &wildcards, planned)? {
            plan.add(&pattern, path, None)?;
        }
        next += 1;
    }
    Ok(plan.planned)
}

/// The branches of a list that are planned so far.
struct BranchPlan<'a, 'b> {
    list: &'a [ConfiguredDescriptor],
    planned: Vec<Planned<'a>>,
    known: HashSet<Pattern>,
    /// How many more there may be.
    budget: &'b mut usize,
}

impl<'a> BranchPlan<'a, '_> {
    /// Adds a pattern that is not planned yet. Without a `winner`, it is the first descriptor that matches all of the pattern.
    fn add(
        &mut self,
        pattern: &Pattern,
        path: &'a str,
        winner: Option<usize>,
    ) -> Result<(), TooMany> {
        if !self.known.insert(pattern.clone()) {
            return Ok(());
        }
        *self.budget = self.budget.checked_sub(1).ok_or(TooMany)?;
        let first = || {
            self.list
                .iter()
                .position(|one| one.pattern.contains(pattern))
        };
        self.planned.push(Planned {
            pattern: pattern.clone(),
            path,
            winner: winner.or_else(first),
        });
        Ok(())
    }
}

/// What this branch and the wildcards that are tried before its winner both match, where that needs a branch of its own.
fn meets(
    list: &[ConfiguredDescriptor],
    wildcards: &[usize],
    planned: &Planned,
) -> Result<Vec<Pattern>, TooMany> {
    let pattern = &planned.pattern;
    let winner = planned.winner.map(|winner| &list[winner]);
    let before = wildcards
        .iter()
        .take_while(|first| planned.winner.is_none_or(|winner| **first < winner));
    let mut meets = Vec::new();
    for first in before.map(|index| &list[*index]) {
        if must_meet(first, pattern, winner) {
            meets.extend(first.pattern.meets(pattern).ok_or(TooMany)?);
        }
    }
    Ok(meets)
}

/// Whether the entries that both match need a branch of their own, so that the first decides for them, which ratelimit takes.
fn must_meet(
    first: &ConfiguredDescriptor,
    pattern: &Pattern,
    winner: Option<&ConfiguredDescriptor>,
) -> bool {
    if pattern.is_exact() || first.pattern.contains(pattern) || pattern.contains(&first.pattern) {
        return false;
    }
    let is_last = first.nested.is_empty() && winner.is_none_or(|winner| winner.nested.is_empty());
    // Of equals the first decides.
    !(is_last && first.limit.is_some() && first.pattern.specificity() >= pattern.specificity())
}
