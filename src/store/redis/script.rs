//! The script's text: one chunk of Lua per algorithm, put together.

use fred::bytes_utils::Str;
use fred::util::sha1_hash;

use crate::plan::COMMON_WINDOWS_MS;

const WORDS: &str = include_str!("script/words.lua");
const CLOCK: &str = include_str!("script/clock.lua");
const CLOCK_INJECTED: &str = include_str!("script/clock_injected.lua");

/// In the order that Lua needs: what is used stands before its user.
const CHUNKS: [&str; 9] = [
    include_str!("script/expiry.lua"),
    include_str!("script/stamp.lua"),
    include_str!("script/fixed_window.lua"),
    include_str!("script/gcra.lua"),
    include_str!("script/sliding_counter.lua"),
    include_str!("script/sliding_window.lua"),
    include_str!("script/sliding_log.lua"),
    include_str!("script/refund.lua"),
    include_str!("script/decide.lua"),
];

/// A script and the name that Redis knows it by.
pub(super) struct Script {
    pub text: Str,
    pub sha: Str,
}

impl Script {
    /// The deciding script, on Redis's clock or, for tests, on one sent as the last argument.
    pub(super) fn new(injected_clock: bool) -> Self {
        let clock = if injected_clock { CLOCK_INJECTED } else { CLOCK };
        let text = [WORDS, clock, &common_windows()].into_iter().chain(CHUNKS).collect::<Vec<_>>().join("\n");
        Self { sha: sha1_hash(&text).into(), text: text.into() }
    }
}

/// The list that shapes refer to, in microseconds; as a function, since few calls need it.
fn common_windows() -> String {
    let windows: Vec<String> = COMMON_WINDOWS_MS.iter().map(|ms| (ms * 1_000).to_string()).collect();
    format!("local function common_windows() return {{ {} }} end", windows.join(", "))
}
