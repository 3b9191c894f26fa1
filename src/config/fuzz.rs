//! Whatever a file says: a config, or mistakes with their sentences.

use super::*;

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
