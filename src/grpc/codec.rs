//! Protobuf to and from bytes, as tonic's own codec does it, but a message that cannot be decoded is the caller's mistake.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// What a call takes at once for a message that it has not received or written yet; a larger one takes what it needs. tonic's
/// own 8 KiB would be most of what a call costs.
const MESSAGE_BYTES: usize = 512;
/// Of answers that are sent as one: tonic's own bound.
const SENT_BYTES_MAX: usize = 32 << 10;

/// The codec of every method.
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = MessageDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(MESSAGE_BYTES, SENT_BYTES_MAX))
    }

    fn decoder(&mut self) -> Self::Decoder {
        MessageDecoder(PhantomData)
    }
}

/// Decodes one message. Errors: INVALID_ARGUMENT, where tonic's own decoder would claim an error of the server.
pub struct MessageDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for MessageDecoder<U> {
    type Item = U;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(MESSAGE_BYTES, SENT_BYTES_MAX)
    }

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(buffer).map(Some).map_err(|error| {
            Status::invalid_argument(format!("the message is no valid protobuf of this method: {error}; strings are UTF-8"))
        })
    }
}
