//! What a GID of an InfiniBand port contains beside the GUID: the prefix of the subnet, or the FLID.
//!
//! The subnet manager gives each port a GID that begins with the prefix of its subnet. If routers
//! join subnets, it adds one with the port's FLID, which is site-local:
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 3 | `fec0:0` |
//! | 4, 5 | the FLID |
//! | 6, 7 | the low 16 bits of the subnet prefix |
//! | 8 to 15 | the port's GUID |

use std::fmt;

/// Returns the first eight bytes of a GID as a number.
fn prefix(gid: [u8; 16]) -> u64 {
    // The upper half.
    (u128::from_be_bytes(gid) >> 64) as u64
}

/// Returns the FLID in a GID; `None` if the GID has none.
pub(crate) fn flid(gid: [u8; 16]) -> Option<u16> {
    let flid = u16::from_be_bytes([gid[4], gid[5]]);
    (gid[..4] == [0xfe, 0xc0, 0, 0] && flid != 0).then_some(flid)
}

/// A subnet, as the first half of a GID identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subnet {
    prefix: u64,
    /// Whether the low 16 bits of the prefix are all that is known.
    partial: bool,
}

impl Subnet {
    /// Returns the subnet of the port with this GID.
    pub(crate) fn of(gid: [u8; 16]) -> Self {
        match flid(gid) {
            Some(_) => Self { prefix: prefix(gid) & 0xffff, partial: true },
            None => Self { prefix: prefix(gid), partial: false },
        }
    }

    /// Returns whether both are one subnet, by the bits that are known of both.
    pub(crate) fn is_same(self, other: Self) -> bool {
        let mask = if self.partial || other.partial { 0xffff } else { u64::MAX };
        self.prefix & mask == other.prefix & mask
    }
}

/// The prefix in hexadecimal.
impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partial {
            true => write!(f, "…{:04x}", self.prefix),
            false => write!(f, "{:016x}", self.prefix),
        }
    }
}
