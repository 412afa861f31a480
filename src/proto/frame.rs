//! Frames on the control channel: a little-endian u32 that counts what follows, a type byte, a payload.

use super::message::kind;
use super::wire::{DecodeError, Writer, number};
use super::{MAGIC, Message, Nonce};

/// Bytes of the count.
pub const HEADER_BYTES: usize = 4;
/// Most that a count may say.
pub const MAX_FRAME_BYTES: usize = 64 << 10;
/// Count, type, magic, version and nonce: the part of a HELLO that no version of the protocol changes.
pub const HELLO_PREFIX_BYTES: usize = HEADER_BYTES + 1 + MAGIC.len() + 2 + size_of::<Nonce>();

/// Why a frame is refused before its body is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Nothing in it.
    #[error("a frame of 0 bytes")]
    Empty,
    /// Longer than any message.
    #[error("a frame of {0} bytes: at most {MAX_FRAME_BYTES} are allowed")]
    TooLong(usize),
    /// A first frame that is no HELLO.
    #[error("the first bytes are no MPIB HELLO")]
    NotHello,
}

/// What the front of a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peeked {
    /// The frame is not whole.
    Partial,
    /// A body of `len` bytes begins at [`HEADER_BYTES`] and is there.
    Whole {
        /// Bytes of the body: type and payload.
        len: usize,
    },
}

impl Peeked {
    /// Looks at the front of what has come so far.
    pub fn at(bytes: &[u8]) -> Result<Self, FrameError> {
        let Some(header) = bytes.get(..HEADER_BYTES) else { return Ok(Self::Partial) };
        let len = number(header) as usize;
        match len {
            0 => Err(FrameError::Empty),
            n if n > MAX_FRAME_BYTES => Err(FrameError::TooLong(n)),
            n if bytes.len() - HEADER_BYTES >= n => Ok(Self::Whole { len }),
            _ => Ok(Self::Partial),
        }
    }
}

/// The unchanging part of a HELLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloPrefix {
    /// The sender's protocol version.
    pub version: u16,
    /// What the sender says the listener's nonce is.
    pub nonce: Nonce,
}

impl HelloPrefix {
    /// Judges what has come so far of a first frame: an error as soon as it can be no HELLO of any version,
    /// `None` while that is open.
    pub fn at(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
        let mut start = [0; HELLO_PREFIX_BYTES];
        let known = bytes.len().min(HELLO_PREFIX_BYTES);
        start[..known].copy_from_slice(&bytes[..known]);
        if known >= HEADER_BYTES {
            Peeked::at(&start)?;
            if (number(&start[..HEADER_BYTES]) as usize) < HELLO_PREFIX_BYTES - HEADER_BYTES {
                return Err(FrameError::NotHello);
            }
        }
        let marks = [kind::HELLO, MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3]];
        if start[HEADER_BYTES.min(known)..known].iter().zip(marks).any(|(a, b)| *a != b) {
            return Err(FrameError::NotHello);
        }
        if known < HELLO_PREFIX_BYTES {
            return Ok(None);
        }
        let mut nonce = Nonce::default();
        nonce.copy_from_slice(&start[11..]);
        Ok(Some(Self { version: number(&start[9..11]) as u16, nonce }))
    }
}

impl Message {
    /// The whole frame. An error means that the message breaks the protocol's own limits.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let mut out = Writer::default();
        out.u32(0);
        self.write(&mut out)?;
        let mut frame = out.0;
        let len = frame.len() - HEADER_BYTES;
        if len > MAX_FRAME_BYTES {
            return Err(DecodeError::TooLong { what: self.name(), found: len, limit: MAX_FRAME_BYTES });
        }
        frame[..HEADER_BYTES].copy_from_slice(&(len as u32).to_le_bytes());
        Ok(frame)
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
