//! Calls that a server wants name by name, or slot by slot.

use super::*;

/// A sender that takes calls for one name only.
#[derive(Default)]
struct OneByOne {
    /// The number of names of each call.
    names: Mutex<Vec<usize>>,
}

impl OneByOne {
    fn names(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CommandSender for OneByOne {
    async fn ready(&self) {}

    async fn send(&self, command: RedisCommand) -> Result<CommandReply, CallError> {
        let names = key_count(&command);
        self.names().push(names);
        tokio::task::yield_now().await;
        Err(if names > 1 {
            CallError::TryAgain
        } else {
            StoreError::Refused(REFUSAL.to_owned()).into()
        })
    }
}

/// Number of keys of a script call. Each name here has one.
fn key_count(command: &RedisCommand) -> usize {
    usize::try_from(command.arguments[1].as_i64().unwrap()).unwrap()
}

#[tokio::test]
async fn a_call_that_cannot_be_sent_whole_is_sent_name_by_name() {
    let one_by_one = Arc::new(OneByOne::default());
    let batcher = start(LONG, one_by_one.clone());
    for round in 1..=3 {
        let requests = (0..100)
            .map(|place| request(&(place % 40).to_string(), LONG))
            .collect();
        let answers = batcher.take_batch(requests, LONG).unwrap().await.unwrap();
        assert_eq!(
            answers.each,
            vec![Err(StoreError::Refused(REFUSAL.to_owned())); 100]
        );
        let names = one_by_one.names().clone();
        let alone = names.iter().filter(|names| **names == 1).count();
        let together: usize = names.iter().filter(|names| **names > 1).sum();
        assert_eq!(
            alone, together,
            "each name of a split call was sent once more: {names:?}"
        );
        assert!(together >= 40 * round, "{names:?}");
        assert_eq!(batcher.waiting.load(Ordering::SeqCst), 0);
    }
}

/// A node of a Cluster that refuses every call by names as a whole, and takes names of one slot as keys.
struct WantsKeys {
    calls_by_names: AtomicUsize,
}

impl CommandSender for WantsKeys {
    async fn ready(&self) {}

    async fn send(&self, command: RedisCommand) -> Result<CommandReply, CallError> {
        tokio::task::yield_now().await;
        if key_count(&command) == 0 {
            self.calls_by_names.fetch_add(1, Ordering::SeqCst);
        }
        Err(StoreError::Refused(REFUSAL.to_owned()).into())
    }
}

#[tokio::test]
async fn every_slot_of_a_call_that_was_refused_as_a_whole_is_served_again() {
    let node = Arc::new(WantsKeys {
        calls_by_names: AtomicUsize::new(0),
    });
    let batcher = Batcher::start(settings("redis-cluster://127.0.0.1:1", LONG), node.clone());
    for round in 0..3 {
        let batch = (0..32)
            .map(|number| request(&format!("{{{number}}}"), SHORT))
            .collect();
        let answers = batcher.take_batch(batch, SHORT).unwrap().await.unwrap();
        assert_eq!(
            answers.each,
            vec![Err(StoreError::Refused(REFUSAL.to_owned())); 32],
            "round {round}"
        );
        assert_eq!(node.calls_by_names.load(Ordering::SeqCst), 1);
    }
}
