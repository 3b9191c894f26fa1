//! Whatever a file says: a config, or mistakes with their sentences.

use super::*;

#[path = "../../tests/support/hostile.rs"]
#[allow(unreachable_pub, reason = "shared with the suites")]
mod hostile;

/// Whatever a seed makes is a config, or mistakes that each say where and repeat no secret.
#[test]
fn fuzz_hostile_configs() {
    bolero::check!().with_type::<u64>().for_each(|seed| {
        let hostile::Hostile { kind, bytes, set, environment } = hostile::hostile(*seed);
        let flag = |text: &String| text.split_once('=').map_or(Flag::set("", ""), |(path, value)| Flag::set(path, value));
        let text = (Origin::StandardInput, String::from_utf8_lossy(&bytes).into_owned());
        let sources = Sources { text: Some(text), environment, flags: set.iter().map(flag).collect(), ..Sources::default() };
        let loaded = Config::load(sources);
        if let Err(mistakes) = &loaded {
            for mistake in &mistakes.mistakes {
                let told = mistake.to_string();
                let placed = !mistake.path.is_empty() || mistake.place.is_some();
                assert!(placed || is_of_the_whole(&mistake.message), "{kind}, seed {seed}: {told}");
                assert!(!told.contains(char::is_control) && told.len() < 4_096, "{kind}, seed {seed}: {told:?}");
                assert!(kind == "random signs" || !told.contains(hostile::SECRET), "{kind}, seed {seed}: {told}");
            }
            assert!(mistakes.in_one_line().len() < 10_000);
        }
        sound(loaded);
    });
}

fn is_of_the_whole(message: &str) -> bool {
    ["is empty; ", "is not UTF-8: line ", "has more than ", "the variable ", "a flag or variable ", "a path names "]
        .iter()
        .any(|begin| message.starts_with(begin))
        || message.contains(" brackets, commas and colons; ")
}

fn load(text: String) -> Result<Config, Mistakes> {
    Config::of(&Sources::default(), Ok(text))
}

#[test]
fn fuzz_files() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        sound(load(String::from_utf8_lossy(bytes).into_owned()));
    });
}

/// The example, and everything else that has a meaning, cut up and put together again.
#[test]
fn fuzz_edits_of_the_example() {
    const WORDS: [&str; 40] = [
        "plans:",
        "limits:",
        "quota:",
        "window:",
        "algorithm:",
        "burst:",
        "precision:",
        "anchor:",
        "name:",
        "store:",
        "listen:",
        "url:",
        "deadline:",
        "workers:",
        "deny_cache:",
        "entries:",
        "shadow:",
        "counts_as:",
        "on_store_failure:",
        "unlimited:",
        "sliding_log",
        "token_bucket",
        "first_request",
        "true",
        "0",
        "-1",
        "18446744073709551616",
        "1e9",
        "366d",
        "1ms",
        "10s",
        "\"\"",
        "[",
        "]",
        "{",
        "}",
        "- ",
        "\n  ",
        ", ",
        "null",
    ];
    bolero::check!().with_type::<Vec<(u16, u8, u8)>>().for_each(|edits| {
        let mut text = EXAMPLE.to_owned();
        for (place, word, cut) in edits {
            let at = usize::from(*place) % (text.len() + 1);
            let end = (at + usize::from(*cut % 16)).min(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(end) {
                text.replace_range(at..end, WORDS[usize::from(*word) % WORDS.len()]);
            }
        }
        sound(load(text));
    });
}

fn sound(loaded: Result<Config, Mistakes>) {
    match loaded {
        Ok(config) => assert!((1..=10_000).contains(&config.plans.len()) && !config.listen_grpc.is_empty()),
        Err(mistakes) => {
            assert!(!mistakes.mistakes.is_empty() && mistakes.mistakes.iter().all(|mistake| !mistake.message.is_empty()));
            assert!(!mistakes.in_one_line().contains('\n'), "{}", mistakes.in_one_line());
        }
    }
}

#[test]
fn fuzz_urls_of_stores() {
    const SCHEMES: [&str; 9] =
        ["redis", "rediss", "redis-cluster", "redis-sentinel", "rediss-cluster", "redis+unix", "valkey", "http", "canary"];
    const WORDS: [&str; 16] =
        ["host", ":6379", ":99999", ":", "/", "0", "256", "?", "node=", "=", "&", "[::1]", "%", "é", ",", "#"];
    bolero::check!().with_type::<(u8, bool, Vec<u8>)>().for_each(|(scheme, separated, bytes)| {
        let scheme = SCHEMES[usize::from(*scheme) % SCHEMES.len()];
        let rest: String = bytes.iter().map(|byte| WORDS[usize::from(*byte) % WORDS.len()]).collect();
        let text = format!("{scheme}{}canary:canary@{rest}", if *separated { "://" } else { ":" });
        let told = match StoreUrl::parse(&text) {
            Ok(url) => format!("{url} {url:?}"),
            Err(sentence) => sentence,
        };
        assert!(!told.contains("canary"), "{text}: {told}");
    });
}
