//! Reading and writing of little-endian fields, with limits for all lengths.

use super::Release;
use super::text::{head, printable};

/// Bytes of the length field of a frame.
pub const HEADER_BYTES: usize = 4;
/// The maximum length of a reason for the operator.
pub(super) const REASON_BYTES: usize = 1024;

/// The reason why bytes from a peer are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends inside a field.
    #[error("the message ends inside its {0}")]
    Short(&'static str),
    /// A number is out of range.
    #[error("{what} is {found}: expected {expected}")]
    Range {
        /// Name of the field.
        what: &'static str,
        /// The number found.
        found: u64,
        /// The numbers allowed.
        expected: &'static str,
    },
    /// A list or text is longer than the protocol allows.
    #[error("{what}: {found} long, at most {limit} are allowed")]
    TooLong {
        /// Name of the field.
        what: &'static str,
        /// The length found.
        found: usize,
        /// The maximum length.
        limit: usize,
    },
    /// Bytes follow the last field.
    #[error("{0} bytes follow the end of the message")]
    Trailing(usize),
    /// The type of the message is unknown.
    #[error("unknown message type {0}")]
    Type(u8),
    /// The message belongs to another protocol.
    #[error("not an MPIB message: it begins with {0:02x?}")]
    Magic([u8; 4]),
    /// The message belongs to another version of the protocol.
    #[error("{}", super::release::mismatch("the peer's plugin", *found, *release))]
    Version {
        /// The peer's version.
        found: u16,
        /// The peer's release.
        release: Release,
    },
}

/// Returns the little-endian integer of up to eight bytes.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Reads fields from the front of a message.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn bytes(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let (field, rest) = self.0.split_at_checked(n).ok_or(DecodeError::Short(what))?;
        self.0 = rest;
        Ok(field)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N, what)?);
        Ok(out)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        Ok(number(self.bytes(1, what)?) as u8)
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        Ok(number(self.bytes(2, what)?) as u16)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        Ok(number(self.bytes(4, what)?) as u32)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        Ok(number(self.bytes(8, what)?))
    }

    /// Reads a byte below `limit`.
    pub(super) fn below(
        &mut self,
        limit: u8,
        what: &'static str,
        expected: &'static str,
    ) -> Result<u8, DecodeError> {
        let n = self.u8(what)?;
        if n < limit { Ok(n) } else { Err(DecodeError::Range { what, found: n.into(), expected }) }
    }

    /// Reads a byte that is 0 or 1.
    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        Ok(self.below(2, what, "0 or 1")? == 1)
    }

    /// Reads a list: its length in one byte, then its items.
    pub(super) fn list<T>(
        &mut self,
        limit: usize,
        what: &'static str,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let found = usize::from(self.u8(what)?);
        if found > limit {
            return Err(DecodeError::TooLong { what, found, limit });
        }
        (0..found).map(|_| item(self)).collect()
    }

    /// Reads a text: its length in two bytes, then UTF-8. Unprintable characters become `?`, which
    /// is never longer.
    pub(super) fn text(&mut self, limit: usize, what: &'static str) -> Result<String, DecodeError> {
        let found = usize::from(self.u16(what)?);
        if found > limit {
            return Err(DecodeError::TooLong { what, found, limit });
        }
        let text =
            String::from_utf8_lossy(self.bytes(found, what)?).replace(char::REPLACEMENT_CHARACTER, "?");
        Ok(printable(&text))
    }

    pub(super) fn end(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.0.len())) }
    }
}

/// Appends fields to a message.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u8(&mut self, n: u8) -> &mut Self {
        self.bytes(&[n])
    }

    pub(super) fn u16(&mut self, n: u16) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }

    pub(super) fn u32(&mut self, n: u32) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }

    pub(super) fn u64(&mut self, n: u64) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }

    /// Appends a list. A list that is too long is a mistake of this end, found before it is sent.
    pub(super) fn list<T>(
        &mut self,
        items: &[T],
        limit: usize,
        what: &'static str,
        mut item: impl FnMut(&mut Self, &T) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        let count = u8::try_from(items.len()).ok().filter(|n| usize::from(*n) <= limit);
        let count = count.ok_or(DecodeError::TooLong { what, found: items.len(), limit })?;
        self.u8(count);
        items.iter().try_for_each(|i| item(self, i))
    }

    /// Appends a text, cut to `limit` bytes.
    pub(super) fn text(&mut self, text: &str, limit: usize) -> &mut Self {
        let text = head(text, limit.min(usize::from(u16::MAX)));
        self.u16(text.len() as u16).bytes(text.as_bytes())
    }
}
