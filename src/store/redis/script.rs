//! The script's text: one chunk of Lua per algorithm, put together.

use fred::bytes_utils::Str;
use fred::util::sha1_hash;

use crate::plan::COMMON_WINDOWS_MS;

const CLOCK: &str = include_str!("script/clock.lua");
const CLOCK_INJECTED: &str = include_str!("script/clock_injected.lua");

const WORDS: &str = include_str!("script/words.lua");
/// In the order that Lua needs: what is used stands before its user.
const HEAD: [&str; 3] = [include_str!("script/request.lua"), include_str!("script/expiry.lua"), include_str!("script/stamp.lua")];
/// What is in one function, so that a call that needs none of it does not make it.
const GENERAL: [&str; 10] = [
    include_str!("script/general/expiry.lua"),
    include_str!("script/general/stamp.lua"),
    include_str!("script/general/fixed_window.lua"),
    include_str!("script/general/gcra.lua"),
    include_str!("script/general/sliding_counter.lua"),
    include_str!("script/general/sliding_window.lua"),
    include_str!("script/general/log_index.lua"),
    include_str!("script/general/sliding_log.lua"),
    include_str!("script/general/refund.lua"),
    include_str!("script/general/groups.lua"),
];
const DECIDE: &str = include_str!("script/decide.lua");
/// The lines of [`DECIDE`] that [`QUICK`] stands for: in the loop over names that most calls are made of, and in the other.
const QUICK_HERE: &str = "--> quick";
/// Blocks of one statement, which is no function, so that it costs nothing to make.
const QUICK: [&str; 4] = [
    include_str!("script/quick/fixed_window.lua"),
    include_str!("script/quick/gcra.lua"),
    include_str!("script/quick/sliding_counter.lua"),
    include_str!("script/quick/sliding_window.lua"),
];

/// A script and the name that Redis knows it by.
pub(super) struct Script {
    pub text: Str,
    pub sha: Str,
}

impl Script {
    /// Of this text.
    pub(super) fn of(text: String) -> Self {
        Self { sha: sha1_hash(&text).into(), text: text.into() }
    }

    /// The deciding script, on Redis's clock or, for tests, on one sent as the last argument.
    pub(super) fn new(injected_clock: bool) -> Self {
        let clock = if injected_clock { CLOCK_INJECTED } else { CLOCK };
        let windows = common_windows();
        let general = [&["local function make_general()", &windows], GENERAL.as_slice(), &["end"]].concat();
        let decide = DECIDE.replace(QUICK_HERE, &QUICK.join("\n"));
        let text = [&[WORDS, clock], HEAD.as_slice(), &general, &[&decide]].concat().join("\n");
        Self::of(text)
    }
}

/// The list that shapes refer to, in microseconds; as a function, since few calls need it.
fn common_windows() -> String {
    let windows: Vec<String> = COMMON_WINDOWS_MS.iter().map(|ms| (ms * 1_000).to_string()).collect();
    format!("local function common_windows() return {{ {} }} end", windows.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without them all would be decided as well, and cost several times as much.
    #[test]
    fn the_quick_ways_stand_where_they_are_meant_to() {
        assert_eq!(DECIDE.matches(QUICK_HERE).count(), 2);
        let script = Script::new(false);
        assert!(QUICK.iter().all(|block| script.text.matches(block).count() == 2));
        assert!(!script.text.contains(QUICK_HERE));
    }
}
