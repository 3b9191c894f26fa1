//! Script calls that take Redis long, by its slow log, beside calls of constant work that are sent to it all the while.
//!
//! A machine that others share is slower for some ten milliseconds, again and again, and counts that as the process's own time. Calls
//! of constant work, on the same 10 kB each time, tell how fast it is just then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::redis::Redis;
use super::wire::Wire;

/// [`CONSTANT_US`] of work.
const CONSTANT: &str =
    "local text = string.rep('x', 10000) for _ = 1, 140 do redis.sha1hex(text) end return 1";
/// Time of a call of constant work on the machine for which [`MOST_US`] holds. A slower machine may take more for both, in proportion.
const CONSTANT_US: u64 = 2_000;
/// Maximum time of a script call on that machine.
const MOST_US: u64 = 5_000;
/// Between two calls of constant work.
const PAUSE: Duration = Duration::from_millis(10);
/// So many calls may take more, since the machine may slow down between two calls of constant work.
const SPARE: usize = 3;
/// And one in so many at most, where there are few calls.
const LATE_DIVISOR: usize = 5;

/// The calls above 1 ms, the last one first: EVALSHA is one of tollgate's scripts, EVAL constant work; and their times in microseconds. Each
/// third field is a time, each fourth the command. Emptying a long log is slow itself, and no script call.
const CALLS: &str = "local seen = {}
for _, entry in ipairs(redis.call('slowlog', 'get', 10000)) do
  local command = string.upper(entry[4][1])
  if command == 'EVALSHA' or command == 'EVAL' then
    seen[#seen + 1] = command .. ' ' .. entry[3]
  end
end
return table.concat(seen, ',')";

/// The slow log of one Redis. Best of one that runs [`by processor time`](super::preload::by_processor_time).
pub struct SlowCalls<'a> {
    redis: &'a Redis,
    stop: Arc<AtomicBool>,
    constant: Option<JoinHandle<()>>,
}

impl<'a> SlowCalls<'a> {
    /// Has the slow log see calls of more than a millisecond, and sends calls of constant work from now on.
    pub fn of(redis: &'a Redis) -> Self {
        redis.cli(&["config", "set", "slowlog-log-slower-than", "1000"]);
        redis.cli(&["config", "set", "slowlog-max-len", "10000"]);
        // A clock that stands still would show no slow call.
        redis.cli(&["eval", "for _ = 1, 10000000 do end", "0"]);
        assert_ne!(redis.cli(&["slowlog", "len"]), "0", "no slow call is seen");
        let stop = Arc::<AtomicBool>::default();
        let mut wire = Wire::to(redis);
        let stopped = stop.clone();
        let constant = std::thread::spawn(move || {
            let words = [CONSTANT, "0"].map(|word| word.as_bytes().to_vec());
            while !stopped.load(Ordering::Relaxed) {
                wire.call("EVAL", &words);
                std::thread::sleep(PAUSE);
            }
        });
        let slow_calls = Self {
            redis,
            stop,
            constant: Some(constant),
        };
        slow_calls.forget();
        slow_calls
    }

    /// Empties the log.
    pub fn forget(&self) {
        self.redis.cli(&["slowlog", "reset"]);
    }

    /// Script calls since the log was emptied took [`MOST_US`] at most, or as much more as the machine was slower just then.
    pub fn assert_short(&self, about: &str) {
        let told = self.redis.cli(&["eval", CALLS, "0"]);
        let calls: Vec<(bool, u64)> = told
            .split_terminator(',')
            .map(|call| {
                let (command, us) = call.split_once(' ').unwrap();
                (command == "EVALSHA", us.parse().unwrap())
            })
            .collect();
        let constant_us = |call: &(bool, u64)| (!call.0).then_some(call.1);
        // What each took, in percent of what it may.
        let mut parts = Vec::new();
        for (index, (is_script, us)) in calls.iter().enumerate() {
            if *is_script {
                let after = calls[..index].iter().rev().find_map(constant_us);
                let before = calls[index..].iter().find_map(constant_us);
                let speed_us = before.max(after).unwrap_or(0).max(CONSTANT_US);
                parts.push(us * 100 * CONSTANT_US / (MOST_US * speed_us));
            }
        }
        let count = parts.len();
        let late = parts.iter().filter(|part| **part > 100).count();
        let most = parts.iter().max().unwrap_or(&0);
        let seen = format!(
            "{about}: {late} of {count} slow calls took too long, up to {most} % of what they may"
        );
        println!("{seen}");
        assert!(late <= SPARE.min(count / LATE_DIVISOR), "{seen}");
    }
}

impl Drop for SlowCalls<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It ends before Redis does. If it failed, it has said so.
        let _ = self.constant.take().map(JoinHandle::join);
    }
}
