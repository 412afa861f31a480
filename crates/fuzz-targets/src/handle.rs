//! The handle that NCCL transports.

use mpib_proto::{HANDLE_BYTES, Handle, STATE_OFFSET};

/// Decodes the bytes as a handle; zeros follow them. What is decoded encodes to the same bytes without
/// those of the connector, which have no effect.
pub fn handle(data: &[u8]) {
    let mut bytes = [0; HANDLE_BYTES];
    bytes.iter_mut().zip(data).for_each(|(place, byte)| *place = *byte);
    let decoded = Handle::decode(&bytes);
    let mut without_state = bytes;
    without_state[STATE_OFFSET..].fill(0);
    assert_eq!(Handle::decode(&without_state), decoded);
    match decoded {
        Ok(handle) => {
            assert_eq!(handle.encode(), without_state);
            assert!(!handle.addrs().is_empty() && Handle::holds(handle.addrs()));
        }
        Err(e) => assert!((1..400).contains(&e.to_string().len()), "{e}"),
    }
}
