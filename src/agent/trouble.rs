//! What is wrong with the slots of connections.

use std::fmt;
use std::time::Instant;

use nccl_net_mpib_agent_iface::agent::{Hint, Status};

use super::hint::Addresses;

/// Why one connection gets no new hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The agent has refused a slot.
    Refused(Status),
    /// The slot stays half-written.
    HalfWritten(u8, u32),
    /// The slot has other addresses.
    WrongAddresses(u8, Hint),
}

/// Number of kinds of [`Trouble`].
pub(super) const TROUBLES: usize = 3;

impl Trouble {
    pub(super) fn kind(&self) -> usize {
        match self {
            Self::Refused(_) => 0,
            Self::HalfWritten(..) => 1,
            Self::WrongAddresses(..) => 2,
        }
    }
}

/// The troubles of one kind, over all connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sum {
    pub(super) trouble: Trouble,
    pub(super) first: Addresses,
    pub(super) count: usize,
    /// When the first of them began.
    pub(super) since: Instant,
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Addresses { sout_src, sout_dst, .. } = self.first;
        match self.trouble {
            Trouble::Refused(status) => {
                let meaning = status.meaning();
                write!(
                    f,
                    "the agent gives {sout_src} -> {sout_dst} no slot: status {}, {meaning}",
                    status.0
                )?;
            }
            Trouble::HalfWritten(slot, seq) => {
                write!(
                    f,
                    "slot {slot}, of {sout_src} -> {sout_dst}, stays half-written (sequence number {seq}): "
                )?;
                f.write_str("its writer has stopped in the middle")?;
            }
            Trouble::WrongAddresses(slot, found) => {
                let (src, dst) = (found.src, found.dst);
                write!(f, "slot {slot} is of {src} -> {dst}, expected {sout_src} -> {sout_dst}")?;
            }
        }
        match self.count {
            1 => Ok(()),
            n => write!(f, "; likewise {} more", n - 1),
        }
    }
}
