//! Calls with ids where Redis refuses a write, or keeps garbage under a name.

use super::*;

/// What Redis refuses.
fn refuse(wire: &mut Wire, what: &str, refused: bool) {
    wire.run(&match (what, refused) {
        ("no memory", true) => "CONFIG SET maxmemory 1".to_owned(),
        ("no memory", false) => "CONFIG SET maxmemory 0".to_owned(),
        (write, true) => format!("ACL SETUSER default -{write}"),
        (write, false) => format!("ACL SETUSER default +{write}"),
    });
}

fn random_call(random: &mut Random) -> HoldCall {
    match random.below(8) {
        0..=2 => reserve(1 + random.below(30_000), 1 + random.below(20)),
        3..=5 => settle(random.below(30_000)),
        6 => HoldCall::Record { cost: 100 },
        _ => HoldCall::Charge { cost: 1_000 },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_86_a_call_with_an_id_that_redis_refuses_changes_nothing_whichever_write_it_is() {
    let refusals = ["set", "setrange", "del", "hset", "pexpireat", "no memory"];
    let mut met = HashMap::<&str, u64>::new();
    for algorithms in [&[FIXED][..], &[BUCKET], &[WINDOW], &[FIXED, WINDOW]] {
        let redis = Redis::start();
        let clock = FakeClock::new();
        let store = store_on(&redis, &clock);
        let mut wire = Wire::to(&redis);
        assert!(store.connected(PATIENCE.0).await);
        let embedded = MemoryStore::new(1 << 26, Arc::new(clock.clone()));
        let plan = plan(algorithms, None, 4);
        let mut random = Random(algorithms.len() as u64);
        for step in 0..1_200 {
            clock.advance(random.below(4 * S));
            let id = format!("id {}", step / 8 + random.below(6));
            let check = ask(&plan, "key", (&id, random_call(&mut random)));
            let refusal = (step % 2 == 0).then(|| *random.pick(&refusals));
            refusal
                .iter()
                .for_each(|what| refuse(&mut wire, what, true));
            let answer = store.decide_hold(&check, PATIENCE).await;
            refusal
                .iter()
                .for_each(|what| refuse(&mut wire, what, false));
            match answer {
                Ok(verdict) => {
                    let expected = embedded.hold(&check).unwrap();
                    assert_eq!(
                        (verdict.event, verdict.view),
                        (expected.event, expected.view),
                        "{step}: {check:?}"
                    );
                }
                Err(StoreError::Refused(_)) if refusal.is_some() => {
                    *met.entry(refusal.unwrap()).or_default() += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(redis.keys_without_expiry(), "");
    }
    println!("{met:?}");
    let often = ["set", "hset", "pexpireat", "no memory"];
    assert!(
        often.iter().all(|refusal| met.contains_key(refusal)),
        "{met:?}"
    );
}

/// What lies under a name, as the command that makes it has it.
const GARBAGE: [&[&str]; 7] = [
    &["SET", "hello"],
    &["SET", "\u{1}\u{1}"],
    &["SET", "\u{1}\u{1}\u{1}abcdefgh"],
    &["RPUSH", "hello"],
    &["SADD", "hello"],
    &["ZADD", "1", "hello"],
    &["HSET", "\u{1}a", "short"],
];

/// Records with ids, of which the first ones then are in the hash.
async fn record_many(store: &RedisStore, plan: &Arc<Plan>, count: u64) {
    for id in 0..count {
        let record = HoldCall::Record { cost: 1 };
        call(store, &ask(plan, "bad", (&format!("{id}"), record))).await;
    }
}

#[tokio::test]
async fn fault_98_garbage_under_the_names_of_holds_concerns_calls_with_ids_of_that_key_alone() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let store = store_on(&redis, &clock);
    let plan = plan(&[FIXED], None, 4);
    for name in ["{group:bad}holds", "{group:bad}ids"] {
        for garbage in GARBAGE {
            redis.cli(&["DEL", "{group:bad}holds", "{group:bad}ids", "{group:bad}"]);
            let before = if name.ends_with("ids") { 20 } else { 0 };
            record_many(&store, &plan, before).await;
            redis.cli(&["DEL", name]);
            let mut command = vec![garbage[0], name];
            command.extend(&garbage[1..]);
            redis.cli(&command);
            redis.cli(&["EXPIRE", name, "1000"]);
            let bad = ask(&plan, "bad", ("a", reserve(1, 5)));
            let good = ask(&plan, "good", ("a", reserve(1, 5)));
            let (bad, good) = tokio::join!(
                store.decide_hold(&bad, PATIENCE),
                store.decide_hold(&good, PATIENCE)
            );
            assert!(
                matches!(bad, Err(StoreError::Refused(_))),
                "{name}, {garbage:?}: {bad:?}"
            );
            assert!(good.is_ok(), "{good:?}");
            assert_eq!(
                used(&store, &plan, "bad").await,
                before,
                "nothing is charged"
            );
        }
        redis.cli(&["DEL", name]);
    }
    let charge = check(&plan, "bad", Mode::Charge);
    assert!(store.decide_one(&charge, PATIENCE).await.unwrap().fits);
}
