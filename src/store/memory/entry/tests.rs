//! Entries as bytes: what is written is read back.

use std::time::Duration;

use super::*;
use tollgate_core::plan::{Algorithm, Limit};

#[test]
fn an_entry_reads_back_as_it_was_written() {
    let fingerprint = |seconds| {
        Limit::new("l", 5, Duration::from_secs(seconds), Algorithm::SlidingLog)
            .unwrap()
            .fingerprint()
    };
    let name = Name::new(b"group", &[b'k'; 512]).unwrap();
    let states = [
        Stored::State(State::Window(Window {
            start_us: u64::MAX,
            count: 7,
        })),
        Stored::Log(u32::MAX),
        Stored::State(State::Counter(Counter {
            start_us: 1,
            current: u64::MAX,
            previous: 3,
        })),
        Stored::State(State::Bucket(Bucket {
            tat_us: 4,
            at_us: 0,
            quota: QUOTA_MAX,
        })),
        Stored::Block(Block {
            end_us: (1 << 56) - 1,
            length_us: 31 * 24 * 3_600 * 1_000_000,
        }),
        Stored::Holds(7),
    ];
    for slack in [0, 1, 7] {
        let mut slot = Vec::new();
        name.write_head(&mut slot);
        assert_eq!(slot.len(), name.head_bytes());
        for (index, stored) in states.iter().enumerate() {
            let before = slot.len();
            stored.write(fingerprint(1 + index as u64), &mut slot);
            assert_eq!(slot.len() - before, stored.bytes());
        }
        slot.resize(slot.len() + slack, 0);
        let entry = EntryView(&slot);
        assert!(entry.is_of(name));
        assert!(
            !entry.is_of(Name::new(b"groupk", &[b'k'; 511]).unwrap()),
            "the boundary between group and key is part of the name"
        );
        let records: Vec<Record> = entry.records().collect();
        assert_eq!(records.len(), states.len());
        for (index, (record, stored)) in records.iter().zip(&states).enumerate() {
            assert_eq!(
                (record.fingerprint, &record.stored),
                (fingerprint(1 + index as u64), stored)
            );
            let found = match record.stored {
                Stored::Block(_) => entry.block(record.fingerprint).map(|(at, _)| at),
                Stored::Holds(index) => (entry.holds() == Some(index)).then_some(record.at),
                _ => entry.record(record.fingerprint).map(|found| found.at),
            };
            assert_eq!(found, Some(record.at));
        }
    }
}

#[test]
fn a_name_that_is_too_long_for_an_entry_is_none() {
    assert!(Name::new(&[b'g'; 255], &[b'k'; 65_535]).is_some());
    assert!(Name::new(&[b'g'; 256], b"k").is_none() && Name::new(b"g", &[b'k'; 65_536]).is_none());
}

#[test]
fn a_record_is_overwritten_in_its_place() {
    let fingerprint = Limit::new("l", 5, Duration::from_secs(1), Algorithm::SlidingCounter)
        .unwrap()
        .fingerprint();
    let state = |tat_us| {
        State::Bucket(Bucket {
            tat_us,
            at_us: 9,
            quota: 1,
        })
    };
    let bucket = |tat_us| Stored::State(state(tat_us));
    let mut slot = Vec::new();
    Name::new(b"g", b"k").unwrap().write_head(&mut slot);
    bucket(1).write(fingerprint, &mut slot);
    bucket(2).write(fingerprint, &mut slot);
    let first = EntryView(&slot).records().next().unwrap().at;
    overwrite(&mut slot, first, &state(3));
    let stored: Vec<Stored> = EntryView(&slot)
        .records()
        .map(|record| record.stored)
        .collect();
    assert_eq!(stored, [bucket(3), bucket(2)]);
}
