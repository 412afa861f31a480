//! Reading and writing of little-endian fields, with limits for all lengths.
//!
//! [`layout!`] makes a structure's write and its read of one list of fields, each with its codec. The
//! name of a field alone is the codec of any number, flag or array.

use std::ops::RangeInclusive;

pub use nccl_net_mpib_agent_iface::text::printable;

use super::Release;

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

/// Returns the longest head of `text` with at most `limit` bytes.
pub fn head(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
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

    /// Reads a byte that is 0 or 1.
    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        match self.u8(what)? {
            n @ 0..2 => Ok(n == 1),
            n => Err(DecodeError::Range { what, found: n.into(), expected: "0 or 1" }),
        }
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

    /// Returns the bytes that are not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(super) fn end(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.0.len())) }
    }
}

/// Appends fields to a message.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
    /// The first list that is too long: a mistake of this end.
    fault: Option<DecodeError>,
}

impl Writer {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), fault: None }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn u8(&mut self, n: u8) -> &mut Self {
        self.bytes(&[n])
    }

    pub(super) fn flag(&mut self, flag: bool) -> &mut Self {
        self.u8(flag.into())
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

    /// Appends a list.
    pub(super) fn list<T>(
        &mut self,
        items: &[T],
        limit: usize,
        what: &'static str,
        item: impl Fn(&mut Self, &T),
    ) -> &mut Self {
        let found = items.len();
        if found > limit {
            self.fault.get_or_insert(DecodeError::TooLong { what, found, limit });
        }
        self.u8(found as u8);
        items.iter().for_each(|i| item(self, i));
        self
    }

    /// Appends a text, cut to `limit` bytes.
    pub(super) fn text(&mut self, text: &str, limit: usize) -> &mut Self {
        let text = head(text, limit.min(usize::from(u16::MAX)));
        self.u16(text.len() as u16).bytes(text.as_bytes())
    }

    /// Returns the bytes.
    ///
    /// # Errors
    /// A list is too long.
    pub(super) fn finish(self) -> Result<Vec<u8>, DecodeError> {
        self.fault.map_or(Ok(self.bytes), Err)
    }
}

/// How a field is written, and what is accepted of a peer.
pub(super) trait Codec<T> {
    fn write(&self, value: &T, out: &mut Writer);
    fn read(&self, from: &mut Reader<'_>) -> Result<T, DecodeError>;
}

macro_rules! plain_codecs {
    ($($type:ident: $method:ident),+) => {$(
        impl Codec<$type> for &'static str {
            fn write(&self, value: &$type, out: &mut Writer) {
                out.$method(*value);
            }

            fn read(&self, from: &mut Reader<'_>) -> Result<$type, DecodeError> {
                from.$method(self)
            }
        }
    )+};
}

plain_codecs!(u8: u8, u16: u16, u32: u32, u64: u64, bool: flag);

impl<const N: usize> Codec<[u8; N]> for &'static str {
    fn write(&self, value: &[u8; N], out: &mut Writer) {
        out.bytes(value);
    }

    fn read(&self, from: &mut Reader<'_>) -> Result<[u8; N], DecodeError> {
        from.array(self)
    }
}

/// A number in a range.
pub(super) struct Within {
    what: &'static str,
    range: RangeInclusive<u64>,
    expected: &'static str,
}

pub(super) const fn within(what: &'static str, range: RangeInclusive<u64>, expected: &'static str) -> Within {
    Within { what, range, expected }
}

/// A set of rails that is not empty.
pub(super) const fn some_rails(what: &'static str) -> Within {
    within(what, 1..=u8::MAX as u64, "at least one rail")
}

impl<T: Copy + Into<u64>> Codec<T> for Within
where
    &'static str: Codec<T>,
{
    fn write(&self, value: &T, out: &mut Writer) {
        self.what.write(value, out);
    }

    fn read(&self, from: &mut Reader<'_>) -> Result<T, DecodeError> {
        let (value, &Self { what, ref range, expected }) = (self.what.read(from)?, self);
        let found = value.into();
        if range.contains(&found) { Ok(value) } else { Err(DecodeError::Range { what, found, expected }) }
    }
}

/// A text, cut to `limit` bytes when it is written.
pub(super) struct Text {
    what: &'static str,
    limit: usize,
}

pub(super) const fn text(what: &'static str, limit: usize) -> Text {
    Text { what, limit }
}

impl Codec<String> for Text {
    fn write(&self, value: &String, out: &mut Writer) {
        out.text(value, self.limit);
    }

    fn read(&self, from: &mut Reader<'_>) -> Result<String, DecodeError> {
        from.text(self.limit, self.what)
    }
}

/// A list of at most `limit` items.
pub(super) struct List<C> {
    what: &'static str,
    limit: usize,
    item: C,
    /// The lengths that are allowed, if an empty list is not.
    not_empty: Option<&'static str>,
}

pub(super) const fn list<C>(what: &'static str, limit: usize, item: C) -> List<C> {
    List { what, limit, item, not_empty: None }
}

impl<C> List<C> {
    /// Refuses an empty list.
    pub(super) fn not_empty(self, expected: &'static str) -> Self {
        Self { not_empty: Some(expected), ..self }
    }
}

impl<T, C: Codec<T>> Codec<Vec<T>> for List<C> {
    fn write(&self, value: &Vec<T>, out: &mut Writer) {
        out.list(value, self.limit, self.what, |out, item| self.item.write(item, out));
    }

    fn read(&self, from: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
        let list = from.list(self.limit, self.what, |from| self.item.read(from))?;
        match self.not_empty {
            Some(expected) if list.is_empty() => {
                Err(DecodeError::Range { what: self.what, found: 0, expected })
            }
            _ => Ok(list),
        }
    }
}

/// A flag, and the value if it is set.
pub(super) struct Optional<C>(pub(super) &'static str, pub(super) C);

impl<T, C: Codec<T>> Codec<Option<T>> for Optional<C> {
    fn write(&self, value: &Option<T>, out: &mut Writer) {
        out.flag(value.is_some());
        if let Some(value) = value {
            self.1.write(value, out);
        }
    }

    fn read(&self, from: &mut Reader<'_>) -> Result<Option<T>, DecodeError> {
        from.flag(self.0)?.then(|| self.1.read(from)).transpose()
    }
}

/// Two values, one behind the other.
impl<A, B, C: Codec<A>, D: Codec<B>> Codec<(A, B)> for (C, D) {
    fn write(&self, value: &(A, B), out: &mut Writer) {
        self.0.write(&value.0, out);
        self.1.write(&value.1, out);
    }

    fn read(&self, from: &mut Reader<'_>) -> Result<(A, B), DecodeError> {
        Ok((self.0.read(from)?, self.1.read(from)?))
    }
}

impl<T, C: Codec<T>> Codec<[T; 2]> for [C; 2] {
    fn write(&self, value: &[T; 2], out: &mut Writer) {
        self.iter().zip(value).for_each(|(codec, value)| codec.write(value, out));
    }

    fn read(&self, from: &mut Reader<'_>) -> Result<[T; 2], DecodeError> {
        Ok([self[0].read(from)?, self[1].read(from)?])
    }
}

/// A type with one layout.
pub(super) trait Layout: Sized {
    fn write(&self, out: &mut Writer);
    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// A value by its type's [`Layout`].
pub(super) struct Nested;

impl<T: Layout> Codec<T> for Nested {
    fn write(&self, value: &T, out: &mut Writer) {
        value.write(out);
    }

    fn read(&self, from: &mut Reader<'_>) -> Result<T, DecodeError> {
        T::read(from)
    }
}

/// Defines a structure and its [`Layout`]: the fields in their order, each with its codec.
macro_rules! layout {
    ($(#[$attr:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* pub $field:ident: $type:ty = $codec:expr,)+
    }) => {
        $(#[$attr])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)+
        }

        impl Layout for $name {
            fn write(&self, out: &mut Writer) {
                $($codec.write(&self.$field, out);)+
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(Self { $($field: $codec.read(from)?,)+ })
            }
        }
    };
}
pub(super) use layout;

/// Defines an enum of small numbers, and its [`Layout`] of one byte.
macro_rules! numbered {
    ($(#[$attr:meta])* $name:ident, $what:literal, $expected:literal:
        $($(#[$doc:meta])* $variant:ident = $n:literal,)+
    ) => {
        $(#[$attr])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant = $n,)+
        }

        impl $name {
            /// All variants.
            pub const ALL: [Self; [$($n),+].len()] = [$(Self::$variant),+];

            /// Returns the variant with this number; `None` for others.
            pub const fn from_raw(n: u32) -> Option<Self> {
                match n {
                    $($n => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl Layout for $name {
            fn write(&self, out: &mut Writer) {
                out.u8(*self as u8);
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let (what, expected) = ($what, $expected);
                let found = from.u8(what)?.into();
                Self::from_raw(found).ok_or(DecodeError::Range { what, found: found.into(), expected })
            }
        }
    };
}
pub(super) use numbered;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_head_is_as_long_as_it_may_be(text: String, limit in 0usize..40) {
            let head = head(&text, limit);
            prop_assert!(text.starts_with(head) && head.len() <= limit);
            // The next character does not fit.
            let next = text[head.len()..].chars().next().map_or(limit + 1, |c| head.len() + c.len_utf8());
            prop_assert!(next > limit);
        }
    }
}
