//! The layout of the hint file.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic, 0x4D504948 |
//! | 4 | 4 | number of entries, 256 |
//! | 8 | 8 | zero |
//! | 16 + 16 i | 4 | `sup_bw` of slot i: share of SUP in parts per 1024 |
//! | 20 + 16 i | 4 | `seq` of slot i: odd while the slot is being written |
//! | 24 + 16 i | 4 | SOUT address of the plugin's end, network byte order |
//! | 28 + 16 i | 4 | SOUT address of the other end, network byte order |

use std::net::Ipv4Addr;

/// First word of the hint file.
pub const HINTS_MAGIC: u32 = 0x4D50_4948;
/// Number of slots in the file. Every `u8` is a valid slot.
pub const ENTRIES: usize = 256;
/// Size of the header in bytes.
pub const HEADER_SIZE: usize = 16;
/// Size of one entry in bytes.
pub const ENTRY_SIZE: usize = 16;
/// Size of the whole file in bytes. It never changes.
pub const HINTS_SIZE: usize = HEADER_SIZE + ENTRIES * ENTRY_SIZE;
/// The share that means all data on SUP. Greater values mean the same.
pub const SHARE_ONE: u16 = 1024;

/// Returns the offset of the entry of `slot`.
pub const fn entry_offset(slot: u8) -> usize {
    HEADER_SIZE + slot as usize * ENTRY_SIZE
}

/// Returns the header of every hint file.
pub const fn header() -> [u8; HEADER_SIZE] {
    let (m, n) = (HINTS_MAGIC.to_le_bytes(), (ENTRIES as u32).to_le_bytes());
    [m[0], m[1], m[2], m[3], n[0], n[1], n[2], n[3], 0, 0, 0, 0, 0, 0, 0, 0]
}

/// Why the first bytes of a file are not the header of a hint file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// Another kind of file, or another byte order.
    #[error("magic {0:#010x} at byte 0, expected {HINTS_MAGIC:#010x}")]
    Magic(u32),
    /// Another layout.
    #[error("{0} entries according to byte 4, expected {ENTRIES}")]
    Entries(u32),
}

/// Checks the first bytes of a hint file. The last eight bytes are ignored.
///
/// # Errors
/// [`BadHeader`] with the value found.
pub const fn check_header(bytes: &[u8; HEADER_SIZE]) -> Result<(), BadHeader> {
    let (magic, entries) = (word(bytes, 0), word(bytes, 4));
    if magic != HINTS_MAGIC {
        return Err(BadHeader::Magic(magic));
    }
    if entries != ENTRIES as u32 {
        return Err(BadHeader::Entries(entries));
    }
    Ok(())
}

const fn word(bytes: &[u8; 16], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// One entry of the hint file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// Share of SUP as written, in parts per 1024. It may exceed [`SHARE_ONE`]; see
    /// [`Hint::share`].
    pub sup_bw: u32,
    /// Sequence number: odd while the entry is being written.
    pub seq: u32,
    /// SOUT address of the plugin's end.
    pub src: Ipv4Addr,
    /// SOUT address of the other end.
    pub dst: Ipv4Addr,
}

impl Hint {
    /// Decodes an entry. Every bit pattern is valid.
    pub const fn decode(bytes: &[u8; ENTRY_SIZE]) -> Self {
        Self {
            sup_bw: word(bytes, 0),
            seq: word(bytes, 4),
            src: Ipv4Addr::new(bytes[8], bytes[9], bytes[10], bytes[11]),
            dst: Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]),
        }
    }

    /// Encodes the entry in the file's layout.
    pub const fn encode(&self) -> [u8; ENTRY_SIZE] {
        let (b, q) = (self.sup_bw.to_le_bytes(), self.seq.to_le_bytes());
        let (s, d) = (self.src.octets(), self.dst.octets());
        [b[0], b[1], b[2], b[3], q[0], q[1], q[2], q[3], s[0], s[1], s[2], s[3], d[0], d[1], d[2], d[3]]
    }

    /// Returns the share of SUP, 0 to [`SHARE_ONE`]. Greater values of `sup_bw` give [`SHARE_ONE`].
    pub const fn share(&self) -> u16 {
        if self.sup_bw < SHARE_ONE as u32 { self.sup_bw as u16 } else { SHARE_ONE }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_interface() {
        assert_eq!(HINTS_SIZE, 4112);
        assert_eq!(header(), *b"HIPM\x00\x01\x00\x00\0\0\0\0\0\0\0\0");
        assert_eq!((entry_offset(0), entry_offset(255)), (16, 4096));
        let hint = Hint {
            sup_bw: 0x0302_0100,
            seq: 0x0706_0504,
            src: [8, 9, 10, 11].into(),
            dst: [12, 13, 14, 15].into(),
        };
        assert_eq!(hint.encode(), std::array::from_fn(|i| i as u8));
    }

    proptest! {
        //= agent-interface.md: layouts of messages and hint file: decoding undoes encoding
        #[test]
        fn decode_undoes_encode(bytes: [u8; 16]) {
            prop_assert_eq!(Hint::decode(&bytes).encode(), bytes);
        }

        #[test]
        fn a_share_is_the_value_or_all(sup_bw in prop_oneof![0u32..3000, any::<u32>(), Just(u32::MAX), Just(65536)]) {
            let hint = Hint { sup_bw, seq: 0, src: [0; 4].into(), dst: [0; 4].into() };
            prop_assert_eq!(u32::from(hint.share()), sup_bw.min(1024));
        }

        /// A valid header with at most one byte changed.
        #[test]
        fn a_header_is_judged_by_its_first_eight_bytes(at in 0usize..16, value: u8) {
            let mut bytes = header();
            bytes[at] = value;
            prop_assert_eq!(check_header(&bytes).is_ok(), at >= 8 || bytes == header());
        }
    }
}
