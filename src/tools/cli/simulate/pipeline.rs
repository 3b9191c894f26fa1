//! The replay over threads: this one reads lines and puts them in order; each of the others decides for its part of the keys.
//!
//! All requests of a key go to one thread, in order of time. So the result does not depend on the number of threads.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Setup;
use super::input::{Line, OpenedLog};
use super::progress::ProgressBar;
use crate::simulate::line::{LineReader, LineRequest, Skipped};
use crate::simulate::order::{Event, ReorderBuffer};
use crate::simulate::replay::{Replay, TooMuchMemory, components};
use crate::simulate::report::LogSummary;

/// Maximum number of threads that decide. One thread reads about as many lines as four decide.
const THREADS_MAX: usize = 4;
/// Requests that go to a thread at once, and how many such batches wait for it.
const BATCH_EVENTS: usize = 2_048;
const BATCHES_WAITING: usize = 4;
/// Unreadable lines that are reported with their reasons.
const UNREADABLE_SHOWN: usize = 5;
/// Memory for counters that grow with the requests, over all threads: those of `sliding_log` and `sliding_window`.
const COUNTER_BYTES_MAX: usize = 1 << 30;
/// Lines between two looks at the clock.
const PROGRESS_LINES: u64 = 1 << 14;

/// Requests on their way to a thread.
#[derive(Debug, Default)]
struct Batch {
    /// Each with the end of its key in `keys`.
    events: Vec<(Event, usize)>,
    keys: Vec<u8>,
}

/// The plans by name; a log may name one in each line.
struct PlansByName {
    indexes: HashMap<Vec<u8>, usize>,
    default: Option<usize>,
    /// For each plan, what is equal for plans that count together; see [`components`].
    components: Vec<usize>,
}

/// Where requests go.
struct Threads {
    batches: Vec<(SyncSender<Batch>, Batch)>,
    /// A thread has ended before its time.
    is_broken: bool,
}

/// Replays a log. Errors: a sentence that follows the name of the log.
pub(super) fn replay(
    log: OpenedLog,
    reader: LineReader,
    setup: &Setup,
) -> Result<(LogSummary, Vec<Replay>), String> {
    let count = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(THREADS_MAX);
    std::thread::scope(|scope| {
        let (threads, handles) = start(scope, setup, count)?;
        let summary = read(log, reader, setup, threads);
        let mut parts = Vec::new();
        for handle in handles {
            let part = handle
                .join()
                .map_err(|_| "cannot be replayed: a thread failed".to_owned())?;
            parts.push(part.map_err(|TooMuchMemory| too_much_memory())?);
        }
        Ok((summary?, parts))
    })
}

fn too_much_memory() -> String {
    let mebibytes = COUNTER_BYTES_MAX >> 20;
    format!(
        "needs counters of more than {mebibytes} MiB by these limits; use sliding_window instead of sliding_log, or a part of the log"
    )
}

type Handles<'scope> = Vec<ScopedJoinHandle<'scope, Result<Replay, TooMuchMemory>>>;

fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    setup: &Setup,
    count: usize,
) -> Result<(Threads, Handles<'scope>), String> {
    let mut batches = Vec::new();
    let mut handles = Vec::new();
    for _ in 0..count {
        let replay = Replay::new(
            &setup.plans,
            setup.keys_max.div_ceil(count),
            COUNTER_BYTES_MAX / count,
        )
        .with_overrides(&setup.configs);
        let (sender, receiver) = sync_channel(BATCHES_WAITING);
        let thread =
            std::thread::Builder::new().spawn_scoped(scope, move || decide(replay, &receiver));
        handles.push(
            thread.map_err(|error| {
                format!("cannot be replayed: no thread can be started: {error}")
            })?,
        );
        batches.push((sender, Batch::default()));
    }
    Ok((
        Threads {
            batches,
            is_broken: false,
        },
        handles,
    ))
}

fn decide(mut replay: Replay, batches: &Receiver<Batch>) -> Result<Replay, TooMuchMemory> {
    for batch in batches {
        let mut start = 0;
        for (event, end) in &batch.events {
            replay.record(event, &batch.keys[start..*end])?;
            start = *end;
        }
    }
    Ok(replay)
}

impl Threads {
    fn send(&mut self, event: Event, key: &[u8]) {
        // Not the lowest bits, which choose the place in a thread's table.
        let thread = usize::try_from(event.hash >> 40).unwrap_or(0) % self.batches.len();
        let (sender, batch) = &mut self.batches[thread];
        batch.keys.extend_from_slice(key);
        batch.events.push((event, batch.keys.len()));
        if batch.events.len() >= BATCH_EVENTS {
            let next = Batch {
                events: Vec::with_capacity(BATCH_EVENTS),
                keys: Vec::with_capacity(batch.keys.len()),
            };
            self.is_broken |= sender.send(std::mem::replace(batch, next)).is_err();
        }
    }

    fn finish(self) {
        for (sender, batch) in self.batches {
            // A thread that ended says why.
            let _ = sender.send(batch);
        }
    }
}

impl PlansByName {
    fn new(setup: &Setup) -> Self {
        let names = setup.names.iter().map(|name| name.clone().into_bytes());
        Self {
            indexes: names.zip(0..).collect(),
            default: setup.default,
            components: components(&setup.plans, &setup.configs),
        }
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        self.indexes.get(name).copied().or(self.default)
    }
}

fn read(
    mut log: OpenedLog,
    mut reader: LineReader,
    setup: &Setup,
    threads: Threads,
) -> Result<LogSummary, String> {
    let mut progress = ProgressBar::new(log.bytes);
    let mut requests = Requests::new(&log, setup, threads);
    let mut request = LineRequest::default();
    let mut number = 0;
    while let Some(line) = log
        .lines
        .next()
        .map_err(|error| format!("cannot be read after line {number}: {error}"))?
    {
        number += 1;
        if number % PROGRESS_LINES == 0 {
            progress.draw(number, log.read.load(Ordering::Relaxed));
        }
        let read = match line {
            Line::Text([]) => continue,
            Line::Text(_) if number == 1 && reader.has_header() => continue,
            Line::Text(line) => reader.read(line, &mut request),
            Line::TooLong => Err(Skipped::Unreadable("it is longer than 64 KiB")),
        };
        requests.take(number, read.map(|()| &request));
        if requests.threads.is_broken {
            break;
        }
    }
    Ok(requests.finish())
}

/// The requests of a log on their way to the threads, and what is known of the log.
struct Requests {
    names: PlansByName,
    /// A seed that the writer of a log cannot know, so that no keys can be made to share a hash.
    seed: u64,
    order: ReorderBuffer,
    threads: Threads,
    summary: LogSummary,
}

impl Requests {
    fn new(log: &OpenedLog, setup: &Setup, threads: Threads) -> Self {
        Self {
            names: PlansByName::new(setup),
            seed: std::hash::RandomState::new().hash_one(0),
            order: ReorderBuffer::default(),
            threads,
            summary: LogSummary {
                name: log.name.clone(),
                keys_max: setup.keys_max,
                ..LogSummary::default()
            },
        }
    }

    /// Takes what the line of this number says.
    fn take(&mut self, number: u64, read: Result<&LineRequest, Skipped>) {
        self.summary.lines += 1;
        match read {
            Err(skipped) => skip(&mut self.summary, number, skipped),
            Ok(request) => match self.names.find(&request.plan) {
                Some(plan) => self.push(request, plan),
                None => skip_without_plan(&mut self.summary, &request.plan),
            },
        }
    }

    fn push(&mut self, request: &LineRequest, plan: usize) {
        let at_us = request.at_us;
        let cost = request.cost;
        let (first, last) = self.summary.times_us.unwrap_or((at_us, at_us));
        self.summary.times_us = Some((first.min(at_us), last.max(at_us)));
        let seed = self.seed.wrapping_add(self.names.components[plan] as u64);
        let event = Event {
            hash: xxh3_64_with_seed(&request.key, seed),
            at_us,
            even_us: at_us,
            cost,
            plan,
        };
        self.order.push(event, &request.key);
        let threads = &mut self.threads;
        self.order
            .release(&mut |event, key| threads.send(event, key));
    }

    /// Sends all that is held, and ends the batches.
    fn finish(mut self) -> LogSummary {
        let mut threads = self.threads;
        self.order
            .finish(&mut |event, key| threads.send(event, key));
        threads.finish();
        self.summary.late = self.order.late();
        self.summary
    }
}

fn skip_without_plan(summary: &mut LogSummary, plan: &[u8]) {
    summary.without_plan += 1;
    summary
        .first_without_plan
        .get_or_insert_with(|| String::from_utf8_lossy(plan).into_owned());
}

fn skip(summary: &mut LogSummary, number: u64, skipped: Skipped) {
    match skipped {
        Skipped::NoKey => summary.without_key += 1,
        Skipped::NoCost => summary.without_cost += 1,
        Skipped::Unreadable(reason) => {
            summary.unreadable += 1;
            if summary.first_unreadable.len() < UNREADABLE_SHOWN {
                summary.first_unreadable.push((number, reason.to_owned()));
            }
        }
    }
}
