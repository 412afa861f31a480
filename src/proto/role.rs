//! The role of a rail in its device.

use std::fmt;

use super::MAX_RAILS;
use super::wire::{DecodeError, Reader};

/// The index of a rail in its device, 0 to 7. The rails of a fused device are SOUT and SUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RailRole(u8);

impl RailRole {
    /// The first rail of a device; of a fused device the network that reaches every host.
    pub const SOUT: Self = Self(0);
    /// The second rail of a device; of a fused device the network of an island.
    pub const SUP: Self = Self(1);

    /// Yields the roles of a device's rails, in order.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        (0..MAX_RAILS as u8).map(Self)
    }

    /// Returns the role of a rail; `None` if a device has no such rail.
    pub const fn new(index: u8) -> Option<Self> {
        if index < MAX_RAILS as u8 { Some(Self(index)) } else { None }
    }

    /// Returns the index of the rail in its device.
    pub const fn index(self) -> u8 {
        self.0
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        from.below(MAX_RAILS as u8, "rail", "0 to 7").map(Self)
    }
}

/// The name of the rail of a fused device.
impl fmt::Display for RailRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::SOUT => "SOUT",
            Self::SUP => "SUP",
            _ => "a further rail",
        })
    }
}
