//! The bodies and the first bytes of control frames.

use mpib_proto::{HEADER_BYTES, HELLO_PREFIX_BYTES, HelloPrefix, Message, Peeked};

use crate::allocation;

/// Most bytes that decoding allocates for each byte of input: a list grows by doubling, and a text is
/// copied three times.
const FACTOR: usize = 24;
/// The same for a short input: a list of one item has room for four.
const BASE: usize = 2048;

/// Decodes the bytes as the body of a frame, and as the first bytes of a connection. What is decoded
/// encodes to the same bytes, but for characters that a log must not have.
pub fn messages(data: &[u8]) {
    let (allocated, decoded) = allocation::of(|| Message::decode(data));
    let limit = BASE + FACTOR * data.len();
    assert!(allocated <= limit, "{allocated} bytes allocated for {} bytes, limit {limit}", data.len());
    if let Ok(message) = &decoded {
        let frame = message.encode().expect("a message that was decoded");
        assert_eq!(Peeked::at(&frame), Ok(Peeked::Whole { len: frame.len() - HEADER_BYTES }));
        let body = &frame[HEADER_BYTES..];
        assert_eq!(Message::decode(body).as_ref(), Ok(message));
        assert!(body.len() <= data.len(), "{message:?} has grown");
        if body.len() == data.len() {
            let differ = body.iter().zip(data).find(|(ours, theirs)| ours != theirs && **ours != b'?');
            assert_eq!(differ, None, "{message:?}");
        }
    }
    first_bytes(data);
}

/// More bytes of a connection change nothing of what the first ones have decided.
fn first_bytes(data: &[u8]) {
    let mut before = Ok(None);
    for len in 0..=data.len().min(HELLO_PREFIX_BYTES + 2) {
        let found = HelloPrefix::at(&data[..len]);
        if !matches!(before, Ok(None)) {
            assert_eq!(found, before, "after {len} bytes");
        }
        before = found;
    }
    let _ = Peeked::at(data);
}
