//! How many denials are kept, and what they take.

use super::*;

#[test]
fn a_full_cache_forgets_one_that_is_over_before_one_that_holds() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(3);
    let remember = |key: &str, wait_us, asked_us| {
        cache.remember(
            &check(&plan, key, 1),
            &denied_for(wait_us, &plan.limits()[0], 1),
            asked_us,
        );
    };
    let held = |now_us: u64| -> Vec<&str> {
        ["a", "b", "c", "d", "e"]
            .into_iter()
            .filter(|key| cache.lookup(&check(&plan, key, 1), now_us).is_some())
            .collect()
    };
    remember("a", 1_000, 0);
    remember("b", 10, 0);
    remember("c", 1_000, 0);
    assert_eq!(held(9), ["a", "b", "c"]);
    remember("d", 1_000, 10);
    assert_eq!(held(10), ["a", "c", "d"]);
    remember("e", 1_000, 10);
    let left = held(10);
    assert!(left.len() == 3 && left.contains(&"e"), "{left:?}");
}

#[test]
fn denials_that_are_over_make_room_so_that_only_those_that_hold_take_memory() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(1_000_000);
    // A new key is denied every 10 us for 10 ms: a thousand hold at any time.
    for index in 0..200_000_u64 {
        cache.remember(
            &check(&plan, &index.to_string(), 1),
            &denied_for(10_000, &plan.limits()[0], 1),
            index * 10,
        );
    }
    let table = cache.table();
    assert!(
        (1_000..2_000).contains(&table.entries.len()),
        "{}",
        table.entries.len()
    );
    assert_eq!(table.entries.len(), table.by_name.len());
}

#[test]
fn it_stays_within_its_entries_and_each_is_found() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(5_000);
    for index in 0..50_000 {
        cache.remember(
            &check(&plan, &index.to_string(), 1),
            &denied_for(SECOND_US, &plan.limits()[0], 1),
            0,
        );
        assert!(
            cache
                .lookup(&check(&plan, &index.to_string(), 1), 0)
                .is_some()
        );
    }
    let held = (0..50_000)
        .filter(|index| {
            cache
                .lookup(&check(&plan, &index.to_string(), 1), 0)
                .is_some()
        })
        .count();
    let table = cache.table();
    assert_eq!(
        (held, table.entries.len(), table.by_name.len()),
        (5_000, 5_000, 5_000)
    );
    assert!(table.entries.capacity() <= 5_000);
}

/// The documented figure. The allocator's overhead per key is not included.
#[test]
fn an_entry_takes_about_a_hundred_bytes_beside_its_key() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(DENY_CACHE_DEFAULT);
    let mut most = 0;
    let mut last = 0;
    for index in 0..DENY_CACHE_DEFAULT {
        cache.remember(
            &check(&plan, &index.to_string(), 1),
            &denied_for(SECOND_US, &plan.limits()[0], 1),
            0,
        );
        let table = cache.table();
        let bytes =
            table.entries.capacity() * size_of::<DenialEntry>() + table.by_name.allocation_size();
        last = bytes / table.entries.len();
        if index >= 1_000 {
            most = most.max(last);
        }
    }
    println!("bytes an entry beside its key: {last} when full, at most {most} on the way");
    assert!(last <= 100 && most <= 112, "{last}, {most}");
}

#[test]
fn too_many_forgotten_keys_forget_all_keys_and_take_no_more_room() {
    let plan = plan(&[(BUCKET, 3_600_000)]);
    let cache = cache_with_denial(&plan, 60 * SECOND_US);
    for number in 0..FORGOTTEN_MAX as u64 {
        cache.forget(
            "plan",
            &Key::new(format!("other {number}")).unwrap(),
            10 + number,
        );
        assert!(cache.lookup(&check(&plan, "key", 1), 10 + number).is_some());
    }
    let last_us = 10 + FORGOTTEN_MAX as u64;
    cache.forget("plan", &Key::new("one too many").unwrap(), last_us);
    assert_eq!(cache.lookup(&check(&plan, "key", 1), last_us + 1), None);
    assert!(cache.table().forgotten.at_us.len() <= FORGOTTEN_MAX);
    cache.remember(
        &check(&plan, "key", 1),
        &denied_for(60 * SECOND_US, &plan.limits()[0], 1),
        last_us + 1,
    );
    assert!(cache.lookup(&check(&plan, "key", 1), last_us + 2).is_some());
}
