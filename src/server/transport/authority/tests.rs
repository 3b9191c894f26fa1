//! The reader of `:authority` against blocks of any fields, cut anywhere.

use proptest::prelude::*;

use super::*;

const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

fn string(coded: bool, bytes: &[u8]) -> Vec<u8> {
    let flag = if coded { CODED } else { 0 };
    let mut encoded = Vec::new();
    if bytes.len() < 127 {
        encoded.push(flag | u8::try_from(bytes.len()).unwrap());
    } else {
        encoded.push(flag | 127);
        let mut rest = bytes.len() - 127;
        while rest >= 0x80 {
            encoded.push(0x80 | u8::try_from(rest % 0x80).unwrap());
            rest /= 0x80;
        }
        encoded.push(u8::try_from(rest).unwrap());
    }
    [encoded, bytes.to_vec()].concat()
}

fn passed(bytes: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut blank = AuthorityBlank::default();
    let mut from = 0;
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        let to = cut.clamp(from, bytes.len());
        blank.pass(&mut bytes[from..to]);
        from = to;
    }
    bytes
}

/// A field, and the same field after blanking.
fn field() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..300);
    let authority = || {
        let names = prop_oneof![
            Just(vec![0x41]),
            Just(vec![0x01]),
            Just(vec![0x11]),
            Just([vec![0x40], string(false, NAME)].concat()),
            Just([vec![0x00], string(true, NAME_CODED)].concat()),
        ];
        (
            names,
            any::<bool>(),
            proptest::collection::vec(any::<u8>(), 0..300),
        )
            .prop_map(|(name, coded, value)| {
                let blank = string(false, &vec![FILLER; value.len()]);
                (
                    [name.clone(), string(coded, &value)].concat(),
                    [name, blank].concat(),
                )
            })
    };
    let other = |fields: Vec<u8>| (fields.clone(), fields);
    prop_oneof![
        authority(),
        authority(),
        // An indexed field, and table size updates, short and long.
        prop_oneof![
            Just(vec![0x82]),
            Just(vec![0xff, 0x80, 0x01]),
            Just(vec![0x3f, 0xe1, 0x1f])
        ]
        .prop_map(other),
        // Other fields: with a name from the table, or a literal name that resembles `:authority`.
        (any::<bool>(), bytes.clone())
            .prop_map(move |(coded, value)| other([vec![0x44], string(coded, &value)].concat())),
        (any::<bool>(), bytes).prop_map(move |(coded, value)| other(
            [vec![0x0f, 0x32], string(coded, &value)].concat()
        )),
        prop_oneof![
            Just(":authoritz"),
            Just(":authorit"),
            Just(":authority2"),
            Just("")
        ]
        .prop_map(move |name| {
            other(
                [
                    vec![0x40],
                    string(false, name.as_bytes()),
                    string(false, b"tmp%2Fx"),
                ]
                .concat(),
            )
        }),
    ]
}

proptest! {
    #[test]
    fn every_authority_is_blanked_and_nothing_else_however_the_bytes_come(
        blocks in proptest::collection::vec((proptest::collection::vec(field(), 0..6), any::<u16>(), 0_u8..9, any::<bool>()), 1..5),
        cuts in proptest::collection::vec(0_usize..4_000, 0..40),
    ) {
        let mut sent = Vec::new();
        let mut expected = Vec::new();
        for (fields, split, pads, has_priority) in blocks {
            let (given, blanked): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
            for (out, block) in [(&mut sent, given.concat()), (&mut expected, blanked.concat())] {
                let (first, second) = block.split_at(usize::from(split) % (block.len() + 1));
                let mut flags = 0;
                let mut payload = Vec::new();
                if pads > 0 {
                    flags |= PADDED;
                    payload.push(pads);
                }
                if has_priority {
                    flags |= PRIORITY;
                    payload.extend([0x41, 3, 0x41, 3, 0x41]);
                }
                payload.extend(first);
                // If the padding were not skipped, it would be read as an authority.
                payload.extend(vec![0x41; usize::from(pads)]);
                out.extend(frame(HEADERS, flags, &payload));
                out.extend(frame(CONTINUATION, END_HEADERS, second));
                out.extend(frame(0, 0, &[vec![0x41, 3], b"tmp".to_vec()].concat()));
            }
        }
        let mut cuts = cuts;
        cuts.sort_unstable();
        prop_assert_eq!(passed(&sent, &cuts), expected);
    }

    #[test]
    fn any_bytes_keep_their_length_and_frames(bytes in proptest::collection::vec(any::<u8>(), 0..2_000), cut in 0_usize..2_000) {
        let whole = passed(&bytes, &[]);
        prop_assert_eq!(whole.len(), bytes.len());
        prop_assert_eq!(whole, passed(&bytes, &[cut]));
    }
}

#[test]
fn an_integer_without_an_end_stops_the_reader_for_that_block_only() {
    let endless = frame(HEADERS, END_HEADERS, &[vec![0x7f], vec![0xff; 40]].concat());
    let sound = frame(
        HEADERS,
        END_HEADERS,
        &[vec![0x41], string(false, b"%2F")].concat(),
    );
    let blanked = frame(
        HEADERS,
        END_HEADERS,
        &[vec![0x41], string(false, b"xxx")].concat(),
    );
    assert_eq!(
        passed(&[endless.clone(), sound].concat(), &[]),
        [endless, blanked].concat()
    );
}
