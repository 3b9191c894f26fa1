//! Script calls that take Redis long, by its slow log, beside calls of constant work that are sent to it all the while.
//!
//! A machine that others share slows down for milliseconds, and counts that as the process's own time. Calls of constant work, on the
//! same 10 kB each time, tell how often it does, and how fast the machine is at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::redis::Redis;
use super::wire::Wire;

/// [`CONSTANT_US`] of work.
const CONSTANT: &str =
    "local text = string.rep('x', 10000) for _ = 1, 140 do redis.sha1hex(text) end return 1";
/// What a call of constant work takes on a machine whose script calls are to take 5 ms at most. Where it takes longer, so may they.
const CONSTANT_US: u64 = 2_000;
/// Between two calls of constant work.
const PAUSE: Duration = Duration::from_millis(20);
/// So many calls may take more than the promised 5 ms beyond those of the machine. In few calls, those of constant work may meet no pause
/// of the machine where a script does.
const SPARE: u64 = 3;
/// However slow the machine is, it is one in so many at most.
const LATE_DIVISOR: u64 = 5;

/// Of the calls above 1 ms of tollgate's scripts, and of constant work: the time of each, in microseconds. Each third field is a time,
/// each fourth the command. Emptying a long log is slow itself, and no script call.
const CALLS: &str = "local seen = {EVALSHA = {}, EVAL = {}}
for _, entry in ipairs(redis.call('slowlog', 'get', 10000)) do
  local of_command = seen[string.upper(entry[4][1])]
  if of_command then
    of_command[#of_command + 1] = entry[3]
  end
end
return table.concat(seen.EVALSHA, ' ') .. ',' .. table.concat(seen.EVAL, ' ')";

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

    /// Script calls since the log was emptied took no more than 5 ms, or as much more as the machine is slower, but for what calls of
    /// constant work took too.
    pub fn assert_short(&self, about: &str) {
        let told = self.redis.cli(&["eval", CALLS, "0"]);
        let (of_scripts, constant) = told.split_once(',').unwrap();
        let of_scripts = times_us(of_scripts);
        let constant = times_us(constant);
        // A quarter of them took less, so no pause of the machine is in it.
        let speed_us = constant.get(constant.len() / 4).copied().unwrap_or(0);
        let most_us = 5_000 * speed_us.max(CONSTANT_US) / CONSTANT_US;
        let late = |times_us: &[u64]| times_us.iter().filter(|us| **us > most_us).count() as u64;
        let longest = |times_us: &[u64]| times_us.last().copied().unwrap_or(0);
        let calls = of_scripts.len() as u64;
        let late_calls = late(&of_scripts);
        let seen = format!(
            "{about}: {late_calls} of {calls} slow calls above {most_us} us, the longest {} us; \
             of constant work {} of {}, the longest {} us",
            longest(&of_scripts),
            late(&constant),
            constant.len(),
            longest(&constant),
        );
        println!("{seen}");
        let of_machine = calls * late(&constant) / constant.len().max(1) as u64;
        let late_max = SPARE + of_machine;
        assert!(late_calls <= late_max.min(calls / LATE_DIVISOR), "{seen}");
    }
}

/// The shortest first.
fn times_us(text: &str) -> Vec<u64> {
    let mut times: Vec<u64> = text
        .split_whitespace()
        .map(|us| us.parse().unwrap())
        .collect();
    times.sort_unstable();
    times
}

impl Drop for SlowCalls<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It ends before Redis does. If it failed, it has said so.
        let _ = self.constant.take().map(JoinHandle::join);
    }
}
