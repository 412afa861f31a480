//! The frames of the control connection: a little-endian u32 length of the body, then the body,
//! which is a type byte, a payload, and on an authenticated connection a tag.

use super::hello::VersionedClaim;
use super::message::kind;
use super::release::RELEASE_BYTES;
use super::wire::{Codec, DecodeError, Layout, Reader, Writer, number};
use super::{Claim, HEADER_BYTES, ListenerId, MAGIC, Message, Nonce, Redial, TAG_BYTES};

/// The maximum length of a body.
pub const MAX_FRAME_BYTES: usize = 64 << 10;
/// Bytes of length, type, magic and version.
const CLAIM_OFFSET: usize = HEADER_BYTES + 1 + MAGIC.len() + 2;
/// Bytes of length, type, magic, version and claim: the part of a HELLO that is the same in every
/// version of the protocol from 10 on.
pub const HELLO_PREFIX_BYTES: usize =
    CLAIM_OFFSET + RELEASE_BYTES + size_of::<ListenerId>() + size_of::<Nonce>() + TAG_BYTES;

/// Bytes of a whole frame with a REDIAL.
pub const REDIAL_BYTES: usize = HEADER_BYTES + 1 + Redial::BYTES;

/// The reason why a frame is refused before its body is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The body is empty.
    #[error("a frame of 0 bytes")]
    Empty,
    /// The body is longer than any message.
    #[error("a frame of {0} bytes: at most {MAX_FRAME_BYTES} are allowed")]
    TooLong(usize),
    /// The first frame is not a HELLO.
    #[error("the first bytes are no MPIB HELLO")]
    NotHello,
}

/// The frame at the front of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peeked {
    /// The frame is incomplete.
    Partial,
    /// The frame is complete. Its body begins at [`HEADER_BYTES`].
    Whole {
        /// Bytes of the body.
        len: usize,
    },
}

impl Peeked {
    /// Examines the front of a buffer.
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

/// The part of a HELLO that is the same in every version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloPrefix {
    /// The sender's protocol version.
    pub version: u16,
    /// What the connector claims.
    pub claim: Claim,
}

impl HelloPrefix {
    /// Examines the bytes of a first frame that have arrived. `None` if more are needed.
    ///
    /// # Errors
    /// The bytes are not the beginning of a HELLO of any version.
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
        let claim = Claim::read(&mut Reader::new(&start[CLAIM_OFFSET..]));
        let claim = claim.map_err(|_| FrameError::NotHello)?;
        Ok(Some(Self { version: number(&start[CLAIM_OFFSET - 2..CLAIM_OFFSET]) as u16, claim }))
    }
}

/// Returns a HELLO that ends with its prefix: enough for a listener of another version to name both
/// versions.
pub fn hello_of_version(claim: &Claim) -> Vec<u8> {
    let mut out = Writer::default();
    VersionedClaim.write(claim, out.u32((HELLO_PREFIX_BYTES - HEADER_BYTES) as u32).u8(kind::HELLO));
    out.bytes
}

/// Room for nearly every message, with its tag.
const USUAL_BYTES: usize = 512;

impl Message {
    /// Returns the whole frame, without a tag.
    ///
    /// # Errors
    /// The message exceeds a limit of the protocol.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let mut out = Writer::with_capacity(USUAL_BYTES);
        self.write(out.u32(0));
        let mut frame = out.finish()?;
        let len = frame.len() - HEADER_BYTES;
        // The tag follows.
        let limit = MAX_FRAME_BYTES - TAG_BYTES;
        if len > limit {
            return Err(DecodeError::TooLong { what: self.name(), found: len, limit });
        }
        frame[..HEADER_BYTES].copy_from_slice(&(len as u32).to_le_bytes());
        Ok(frame)
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
pub(crate) mod tests;
