//! Puts the script's text together from files of Lua: one for each algorithm, some for the short way, one for the general way.
//! `script/request.lua` describes the two ways.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::LazyLock;

use fred::bytes_utils::Str;
use fred::util::sha1_hash;

use tollgate_core::plan::{COMMON_WINDOWS_MS, RecordKind};

const CLOCK: &str = include_str!("script/clock.lua");
const CLOCK_INJECTED: &str = include_str!("script/clock_injected.lua");

/// The statements that every call runs, in the order that Lua needs. A line that begins with [`PLACE`] stands for a region of
/// [`PARTS`].
const MAIN: [&str; 4] = [
    include_str!("script/request.lua"),
    include_str!("script/read.lua"),
    include_str!("script/variables.lua"),
    include_str!("script/decide.lua"),
];
/// The same of calls with an id, and of those about holds. They read all states whole.
const HOLDS_MAIN: [&str; 5] = [
    include_str!("script/request.lua"),
    READS_WHOLE,
    include_str!("script/read.lua"),
    include_str!("script/variables.lua"),
    include_str!("script/holds.lua"),
];
const READS_WHOLE: &str = "has_rings = false\n";
const WORDS: &str = include_str!("script/words.lua");
/// Files of regions. Each file is valid Lua, so that editors and checkers can parse it. Lines outside of its regions serve only
/// that purpose and are not part of the script.
const PARTS: [&str; 26] = [
    include_str!("script/short/group.lua"),
    include_str!("script/short/names.lua"),
    include_str!("script/short/logs.lua"),
    include_str!("script/short/requests.lua"),
    include_str!("script/short/joint.lua"),
    include_str!("script/algorithm/fixed_window.lua"),
    include_str!("script/algorithm/gcra.lua"),
    include_str!("script/algorithm/sliding_counter.lua"),
    include_str!("script/algorithm/sliding_window.lua"),
    include_str!("script/algorithm/sliding_log.lua"),
    include_str!("script/log_writes.lua"),
    include_str!("script/log_undo.lua"),
    include_str!("script/log_index.lua"),
    include_str!("script/expiry.lua"),
    include_str!("script/stored.lua"),
    include_str!("script/block.lua"),
    include_str!("script/general.lua"),
    include_str!("script/joint.lua"),
    include_str!("script/holds/notes.lua"),
    include_str!("script/holds/ids.lua"),
    include_str!("script/holds/give_back.lua"),
    include_str!("script/holds/view.lua"),
    include_str!("script/holds/calls.lua"),
    include_str!("script/holds/ends.lua"),
    include_str!("script/holds/requests.lua"),
    include_str!("script/holds/short.lua"),
];
/// Begins a line that is replaced by a region; the region's name follows.
const PLACE: &str = "--> ";
/// The line before a region begins with the first, and the region's name follows. The line after it is the second.
const REGION: (&str, &str) = ("--{ ", "--}");
/// The region that each algorithm's file has: an `if` without its `end`. Together these regions are one chain of `elseif`.
const CHOICE: &str = "decide";

/// A script and the name that Redis knows it by.
pub(super) struct Script {
    pub text: Str,
    pub sha: Str,
}

impl Script {
    /// The script with this text.
    pub(super) fn from_text(text: String) -> Self {
        Self {
            sha: sha1_hash(&text).into(),
            text: text.into(),
        }
    }

    /// The deciding script, on Redis's clock or, for tests, on one sent as the last argument.
    pub(super) fn new(injected_clock: bool) -> Self {
        Self::from_parts(&MAIN, injected_clock)
    }

    /// The script of calls with an id, and of those about holds.
    pub(super) fn for_holds(injected_clock: bool) -> &'static LazyLock<Self> {
        static ON_CLOCK: LazyLock<Script> =
            LazyLock::new(|| Script::from_parts(&HOLDS_MAIN, false));
        static INJECTED: LazyLock<Script> = LazyLock::new(|| Script::from_parts(&HOLDS_MAIN, true));
        if injected_clock { &INJECTED } else { &ON_CLOCK }
    }

    fn from_parts(main: &[&str], injected_clock: bool) -> Self {
        let clock = if injected_clock {
            CLOCK_INJECTED
        } else {
            CLOCK
        };
        let mut text = [&with_kinds(WORDS), clock].concat();
        let regions = regions();
        main.iter()
            .for_each(|part| put_together(&mut text, &with_kinds(part), &regions));
        Self::from_text(text)
    }

    /// Whether a script may have run before it ended with this error. An error while it runs names the place in its text, on
    /// every make of Redis. One that the deciding script returns names tollgate.
    pub(super) fn may_have_run(error: &str) -> bool {
        error.contains("user_script") || error.contains("tollgate: ")
    }
}

/// All regions by their names. Regions of one name are joined, in the order of [`PARTS`].
fn regions() -> HashMap<String, String> {
    let mut regions = HashMap::from([("common_windows".to_owned(), common_windows())]);
    for part in PARTS {
        let mut region: Option<&mut String> = None;
        for line in with_kinds(part).lines() {
            if let Some(name) = line.strip_prefix(REGION.0) {
                let text = regions.entry(name.to_owned()).or_default();
                text.push_str(if name == CHOICE { "else" } else { "" });
                region = Some(text);
            } else if line == REGION.1 {
                region = None;
            } else if let Some(text) = &mut region {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    regions
}

/// Adds a part to a text, with its [`PLACE`] lines replaced by their regions. No region contains itself.
fn put_together(text: &mut String, part: &str, regions: &HashMap<String, String>) {
    for line in part.lines() {
        match line.strip_prefix(PLACE).and_then(|name| regions.get(name)) {
            Some(region) => put_together(text, region, regions),
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}

/// A part with the numbers of kinds of records in place of their names, which Lua would have to look up.
fn with_kinds(part: &str) -> String {
    let mut kinds = RecordKind::NAMES;
    // Names that begin with another one come first.
    kinds.sort_by_key(|(_, name)| Reverse(name.len()));
    kinds.iter().fold(part.to_owned(), |text, (kind, name)| {
        text.replace(name, &kind.number().to_string())
    })
}

/// The list that fingerprints refer to, in microseconds.
fn common_windows() -> String {
    let windows: Vec<String> = COMMON_WINDOWS_MS
        .iter()
        .map(|ms| (ms * 1_000).to_string())
        .collect();
    windows.join(", ") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A [`PLACE`] line whose name is not a region's would stay in the text as a comment.
    #[test]
    fn every_place_has_its_region_and_every_region_its_place() {
        let texts =
            [&Script::new(false).text, &Script::for_holds(false).text].map(ToString::to_string);
        let text = texts.concat();
        let left = |line: &str| {
            [PLACE, REGION.0, REGION.1]
                .iter()
                .any(|mark| line.starts_with(mark))
        };
        assert!(!text.lines().any(left));
        for (name, text) in regions() {
            let first = text.lines().find(|line| !line.starts_with(PLACE)).unwrap();
            assert!(text.contains(first), "{name}");
        }
    }

    /// As Redis 6.2, Redis 7.0 and Valkey say it.
    #[test]
    fn an_error_tells_whether_the_script_may_have_run() {
        let ran = [
            "ERR Error running script (call to f_5a26): @user_script:1: WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR user_script:1: bad argument #2 to 'unpack' (data string too short) script: 5a26, on @user_script:1.",
            "ERR ACL failure in script: User default has no permissions to run the 'set' command script: on @user_script:1.",
            "ERR tollgate: the request of this call is malformed",
        ];
        assert!(ran.into_iter().all(Script::may_have_run));
        let refused = [
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array",
        ];
        assert!(!refused.into_iter().any(Script::may_have_run));
    }

    /// A loop without an algorithm would leave it to the general way, which decides alike and costs several times as much.
    #[test]
    fn the_short_way_has_each_algorithm_in_its_three_loops_and_the_general_way_has_it_too() {
        let choice = &regions()[CHOICE];
        assert_eq!(
            choice
                .lines()
                .filter(|line| line.starts_with("elseif kind"))
                .count(),
            4
        );
        let script = Script::new(false);
        assert!(
            choice
                .lines()
                .filter(|line| line.starts_with("elseif kind"))
                .all(|line| script.text.matches(line).count() == 4)
        );
    }
}
