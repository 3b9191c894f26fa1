//! The format of states in Redis: each algorithm's state as literal bytes, which other versions of tollgate wrote or will read.
//!
//! If a test here fails, the format has changed. A rolling update then loses or refuses the usage of keys, unless the new version
//! also reads the old format.

use std::time::Duration;

use tollgate::algorithm::Reading;
use tollgate::plan::{Algorithm, Calendar, CalendarUnit, Limit, Zone};
use tollgate::store::{Store, StoreDeadline};

use crate::support::clock::{FakeClock, START_US};
use crate::support::clocked_store::store_on;
use crate::support::plans::{ANCHORED, COUNTER, FIXED, LOG, WINDOW, ask, limit, peek, plan};
use crate::support::redis::Redis;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
const MINUTE: Duration = Duration::from_secs(60);
/// Not one of the common windows, so that fingerprints hold it, and a log is in the index.
const OTHER_WINDOW: Duration = Duration::from_millis(61_500);
const FULL_BUCKET: Algorithm = Algorithm::TokenBucket { burst: 100 };
const PRECISE: Algorithm = Algorithm::SlidingWindow { precision: 5 };

/// The state of one key.
struct Stored {
    limits: Vec<Limit>,
    /// How long after the one before it, in milliseconds, and the cost.
    charges: &'static [(u64, u64)],
    /// Keys behind the name of the key's state, and what they hold: one string, or a list of several.
    keys: &'static [(&'static str, &'static [&'static str])],
    /// At the last charge's time.
    readings: Vec<Reading>,
}

const LOG_HEADER: &str = "00001a93fa350e000000";

/// What follows the record of a `sliding_window` with two runs: the mark of rings, the older run, and seven free slots.
macro_rules! two_runs {
    () => {
        "0600001a93fa350e0700000000\
         000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
         000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    };
}

fn runs(fresh_in: Duration) -> Vec<Reading> {
    vec![Reading::Log {
        used: 10,
        frees_in_us: 0,
        fresh_in_us: u64::try_from(fresh_in.as_micros()).unwrap(),
    }]
}

fn calendar_counts() -> Vec<Stored> {
    let unit = CalendarUnit::Month { starts: 1 };
    let month = Limit::by_calendar("month", 100, Calendar::new(unit, Zone::UTC)).unwrap();
    vec![Stored {
        limits: vec![month],
        charges: &[(0, 7), (1_000, 3)],
        keys: &[("", &["f837e9f4c800a0617fe0352e0a"])],
        readings: vec![Reading::Calendar {
            count: 10,
            ends_in_us: 2_566_399_000_000,
            window_us: 2_678_400_000_000,
        }],
    }]
}

fn counts() -> Vec<Stored> {
    vec![
        Stored {
            limits: vec![limit(100, MINUTE, FIXED)],
            charges: &[(0, 7), (1_000, 3)],
            keys: &[("", &["3800a6b790fa352e0a"])],
            readings: vec![Reading::Window {
                count: 10,
                ends_in_us: 19_000_000,
            }],
        },
        Stored {
            limits: vec![limit(100_000, MINUTE, FIXED)],
            charges: &[(0, 300)],
            keys: &[("", &["3800a6b790fa354e2c01"])],
            readings: vec![Reading::Window {
                count: 300,
                ends_in_us: 20_000_000,
            }],
        },
        Stored {
            limits: vec![limit(100, MINUTE, ANCHORED)],
            charges: &[(0, 7), (1_000, 3)],
            keys: &[("", &["3900001a93fa352e0a"])],
            readings: vec![Reading::Window {
                count: 10,
                ends_in_us: 59_000_000,
            }],
        },
        Stored {
            limits: vec![limit(100, MINUTE, COUNTER)],
            charges: &[(0, 7), (60_000, 3)],
            keys: &[("", &["3b002d4b94fa352e0307"])],
            readings: vec![Reading::Counter {
                current: 3,
                previous: 7,
                elapsed_us: 40_000_000,
            }],
        },
        Stored {
            limits: vec![limit(100, MINUTE, FULL_BUCKET)],
            charges: &[(0, 7), (1_000, 3)],
            keys: &[("", &["3f0164808d7593fa350e"])],
            readings: vec![Reading::Bucket {
                backlog_us: 5_000_000,
                emission_us: 600_000,
            }],
        },
        // A debt above a window, which has the time of its writing beside it.
        Stored {
            limits: vec![limit(100, MINUTE, Algorithm::TokenBucket { burst: 200 })],
            charges: &[(0, 150)],
            keys: &[("", &["3f0964804a7798fa350e00001a93fa350e"])],
            readings: vec![Reading::Bucket {
                backlog_us: 90_000_000,
                emission_us: 600_000,
            }],
        },
    ]
}

#[expect(
    clippy::too_many_lines,
    reason = "laid out by rustfmt's defaults and not yet split"
)]
fn runs_and_logs() -> Vec<Stored> {
    vec![
        Stored {
            limits: vec![limit(100, MINUTE, WINDOW)],
            charges: &[(0, 7), (1_000, 3)],
            keys: &[(
                "",
                &[concat!(
                    "3c",
                    "0a0000000000",
                    "8802002000",
                    "00001a93fa350e",
                    "40422993fa350e0300000000",
                    two_runs!()
                )],
            )],
            readings: runs(MINUTE),
        },
        Stored {
            limits: vec![limit(100, OTHER_WINDOW, PRECISE)],
            charges: &[(0, 7), (1_000, 3)],
            keys: &[(
                "",
                &[concat!(
                    "fd053cf00000",
                    "0a0000000000",
                    "8602002500",
                    "00001a93fa350e",
                    "40422993fa350e0300000000",
                    "06",
                    "00001a93fa350e0700000000",
                    "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
                )],
            )],
            readings: runs(OTHER_WINDOW),
        },
        Stored {
            limits: vec![limit(100, MINUTE, LOG)],
            charges: &[(0, 7), (1_000, 3)],
            keys: &[(
                "log:60000000",
                &[LOG_HEADER, "00001a93fa350700", "40422993fa350a00"],
            )],
            readings: runs(MINUTE),
        },
        Stored {
            limits: vec![limit(100, OTHER_WINDOW, LOG)],
            charges: &[(0, 7), (1_000, 3)],
            keys: &[
                (
                    "log:61500000",
                    &[LOG_HEADER, "00001a93fa350700", "40422993fa350a00"],
                ),
                ("logs", &["00001a93fa350e606aaa0300000050271c97fa350e"]),
            ],
            readings: runs(OTHER_WINDOW),
        },
        Stored {
            limits: vec![
                limit(100, MINUTE, FULL_BUCKET),
                limit(100, 60 * MINUTE, FIXED),
                limit(100, MINUTE, LOG),
            ],
            charges: &[(0, 7), (1_000, 3)],
            keys: &[
                ("", &["3f0164808d7593fa350e70007c427bfa352e0a"]),
                (
                    "log:60000000",
                    &[LOG_HEADER, "00001a93fa350700", "40422993fa350a00"],
                ),
            ],
            readings: vec![
                Reading::Bucket {
                    backlog_us: 5_000_000,
                    emission_us: 600_000,
                },
                Reading::Window {
                    count: 10,
                    ends_in_us: 3_199_000_000,
                },
                runs(MINUTE)[0],
            ],
        },
    ]
}

/// The value of a key, as hexadecimal digits.
fn dump(redis: &Redis, key: &str) -> String {
    let script = "local hex = function(text) return (text:gsub('.', function(c) return ('%02x'):format(c:byte()) end)) end \
                  local held, all = redis.call('TYPE', KEYS[1]).ok, {} \
                  if held == 'string' then return hex(redis.call('GET', KEYS[1])) end \
                  for i, element in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do all[i] = hex(element) end \
                  return table.concat(all, ' ')";
    redis.cli(&["EVAL", script, "1", key])
}

/// Puts a string there, or a list of several, past the program.
fn put(redis: &Redis, key: &str, elements: &[&str]) {
    let script = "local raw = function(hex) return (hex:gsub('..', function(c) return string.char(tonumber(c, 16)) end)) end \
                  if #ARGV == 1 then redis.call('SET', KEYS[1], raw(ARGV[1])) \
                  else for _, element in ipairs(ARGV) do redis.call('RPUSH', KEYS[1], raw(element)) end end \
                  return redis.call('PEXPIREAT', KEYS[1], '4000003650001')";
    let arguments = [&["EVAL", script, "1", key], elements].concat();
    assert_eq!(redis.cli(&arguments), "1");
}

fn name_of(suffix: &str) -> String {
    format!("{{group:key}}{suffix}")
}

/// The lowest three bits of a fingerprint are the kind of the record.
fn kind(limit: &Limit) -> u8 {
    limit.fingerprint().bytes()[0] % 8
}

fn assert_each_kind_is_among(all: &[Stored]) {
    for algorithm in Algorithm::EVERY {
        let wanted = kind(&limit(1, MINUTE, algorithm));
        let mut limits = all.iter().flat_map(|stored| &stored.limits);
        assert!(
            limits.any(|limit| kind(limit) == wanted),
            "no bytes of {algorithm:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_state_is_written_as_these_bytes_and_read_from_them() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let store = store_on(&redis, &clock);
    let all: Vec<Stored> = counts()
        .into_iter()
        .chain(calendar_counts())
        .chain(runs_and_logs())
        .collect();
    assert_each_kind_is_among(&all);
    for stored in all {
        redis.cli(&["FLUSHALL"]);
        clock.set(START_US);
        let plan = plan(stored.limits.clone());
        for (later_ms, cost) in stored.charges {
            clock.advance(later_ms * 1_000);
            assert!(
                store
                    .decide_one(&ask(&plan, "key", *cost), PATIENCE)
                    .await
                    .unwrap()
                    .fits
            );
        }
        let case = format!("{:?}", stored.limits);
        // Not all keys of the database: the store's first connection may write the one that it proves itself by at any time.
        let keys = redis.cli(&["EVAL", "return #redis.call('KEYS', '{group:key}*')", "0"]);
        assert_eq!(keys, stored.keys.len().to_string(), "{case}");
        for (suffix, elements) in stored.keys {
            assert_eq!(
                dump(&redis, &name_of(suffix)),
                elements.join(" "),
                "{case}, {suffix}"
            );
        }
        redis.cli(&["FLUSHALL"]);
        stored
            .keys
            .iter()
            .for_each(|(suffix, elements)| put(&redis, &name_of(suffix), elements));
        let verdict = store
            .decide_one(&peek(&plan, "key", 1), PATIENCE)
            .await
            .unwrap();
        assert_eq!(verdict.readings.to_vec(), stored.readings, "{case}");
        // A charge goes on from there.
        let verdict = store
            .decide_one(&ask(&plan, "key", 90), PATIENCE)
            .await
            .unwrap();
        assert_eq!(verdict.fits, !case.contains("burst: 200"), "{case}");
    }
}
