//! Messages that arrive in pieces, or compressed.

use super::*;

fn gathered(pieces: &[&[u8]], most: usize) -> Result<Vec<u8>, tonic::Code> {
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    for piece in pieces {
        gather(&mut first, &mut rest, Bytes::copy_from_slice(piece), most)
            .map_err(|status| status.code())?;
    }
    Ok(if rest.is_empty() {
        first.to_vec()
    } else {
        rest
    })
}

#[test]
fn a_message_is_gathered_however_it_is_split_and_only_up_to_its_announced_length() {
    let message = [0, 0, 0, 0, 3, 1, 2, 3];
    for cut in 0..message.len() {
        for other in cut..message.len() {
            let pieces = [&message[..cut], &message[cut..other], &message[other..]];
            assert_eq!(gathered(&pieces, 3).unwrap(), message);
            assert_eq!(gathered(&pieces, 2), Err(tonic::Code::OutOfRange));
        }
    }
    assert_eq!(
        gathered(&[&message, &[0]], 3),
        Err(tonic::Code::InvalidArgument)
    );
    // The prefix alone shows that a message is too large.
    assert_eq!(
        gathered(&[&[0, 0, 0x10], &[0, 1]], 1 << 20),
        Err(tonic::Code::OutOfRange)
    );
}

#[test]
fn a_compressed_message_reserves_bytes_for_what_it_may_become() {
    assert_eq!(bytes_needed(&[0, 0, 0, 4, 0], 1 << 20), Some(1024));
    assert_eq!(bytes_needed(&[1, 0, 0, 4, 0], 1 << 20), Some(16 << 10));
    assert_eq!(bytes_needed(&[1, 0, 4, 0, 0], 1 << 20), Some(1 << 20));
    assert_eq!(bytes_needed(&[0, 0, 0, 4], 1 << 20), None);
}
