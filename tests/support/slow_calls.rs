//! Script calls that take Redis long, by its slow log, beside calls of constant work that are sent to it all the while.
//!
//! A machine that others share slows down for milliseconds, and counts that as the process's own time. Calls of constant work, on the
//! same 10 kB each time, tell how often it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::redis::Redis;
use super::wire::Wire;

/// Some two milliseconds of work.
const CONSTANT: &str =
    "local text = string.rep('x', 10000) for _ = 1, 140 do redis.sha1hex(text) end return 1";
/// Between two calls of constant work.
const PAUSE: Duration = Duration::from_millis(20);
/// Calls that may take more than the promised 5 ms beyond those of the machine: so many, and one in so many of those that take more than
/// 1 ms. In few calls, those of constant work may meet no pause of the machine where a script does. And a machine at two thirds of its
/// speed makes more than 5 ms of a call of 3.5, but not of one of 2, which calls of constant work take.
const SPARE: u64 = 3;
const SPARE_DIVISOR: u64 = 20;
/// However slow the machine is, it is one in so many at most.
const LATE_DIVISOR: u64 = 5;

/// Of the calls above 1 ms of tollgate's scripts, and of constant work: how many there are, how many took more than 5 ms, and the longest,
/// in microseconds. Each third field is a time, each fourth the command. Emptying a long log is slow itself, and no script call.
const CALLS: &str = "local seen = {EVALSHA = {0, 0, 0}, EVAL = {0, 0, 0}}
for _, entry in ipairs(redis.call('slowlog', 'get', 10000)) do
  local of_command = seen[string.upper(entry[4][1])]
  if of_command then
    of_command[1], of_command[2] = of_command[1] + 1, of_command[2] + (entry[3] > 5000 and 1 or 0)
    of_command[3] = math.max(of_command[3], entry[3])
  end
end
return table.concat(seen.EVALSHA, ' ') .. ' ' .. table.concat(seen.EVAL, ' ')";

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

    /// Script calls since the log was emptied took no more than 5 ms, but for what calls of constant work took too.
    pub fn assert_short(&self, about: &str) {
        let counted = self.redis.cli(&["eval", CALLS, "0"]);
        let counted = counted.split_whitespace().map(|number| number.parse());
        let counted: Vec<u64> = counted.map(Result::unwrap).collect();
        let [
            calls,
            late,
            longest,
            constant,
            constant_late,
            constant_longest,
        ] = counted[..]
        else {
            panic!("{about}: {counted:?}");
        };
        let seen = format!(
            "{about}: {late} of {calls} slow calls above 5 ms, the longest {longest} us; \
             of constant work {constant_late} of {constant}, the longest {constant_longest} us"
        );
        println!("{seen}");
        let of_machine = calls * constant_late / constant.max(1);
        let late_max = SPARE + calls / SPARE_DIVISOR + of_machine;
        assert!(late <= late_max.min(calls / LATE_DIVISOR), "{seen}");
    }
}

impl Drop for SlowCalls<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It ends before Redis does. If it failed, it has said so.
        let _ = self.constant.take().map(JoinHandle::join);
    }
}
