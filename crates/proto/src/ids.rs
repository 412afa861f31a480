//! What names the ends of a connection, their hosts, their rails and the subnets of these.

use std::fmt;

use super::MAX_RAILS;
use super::wire::{Codec, DecodeError, Layout, Reader, Within, Writer, numbered, within};

numbered! {
    /// An end of a connection.
    Role, "end", "0 or 1":
        /// The end that connects and then sends.
        Connector = 0,
        /// The end that accepts and then receives.
        Acceptor = 1,
}

impl Role {
    /// Returns the role of the other end.
    pub const fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connector => "connector",
            Self::Acceptor => "acceptor",
        })
    }
}

/// A value for each end of a connection. Both ends hold the same pair; each finds its own value by
/// its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ends<T> {
    /// The connector's value.
    pub connector: T,
    /// The acceptor's value.
    pub acceptor: T,
}

impl<T> Ends<T> {
    /// Orders the values of the end with `role` and of its peer.
    pub fn new(role: Role, local: T, remote: T) -> Self {
        match role {
            Role::Connector => Self { connector: local, acceptor: remote },
            Role::Acceptor => Self { connector: remote, acceptor: local },
        }
    }

    /// Returns the value of the end with `role`.
    pub const fn local(&self, role: Role) -> &T {
        match role {
            Role::Connector => &self.connector,
            Role::Acceptor => &self.acceptor,
        }
    }

    /// Returns the value of the peer of the end with `role`.
    pub const fn remote(&self, role: Role) -> &T {
        self.local(role.other())
    }

    /// Returns references to both values.
    pub const fn as_ref(&self) -> Ends<&T> {
        Ends { connector: &self.connector, acceptor: &self.acceptor }
    }

    /// Applies `f` to both values.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Ends<U> {
        Ends { connector: f(self.connector), acceptor: f(self.acceptor) }
    }
}

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
}

const ROLE: Within = within("rail", 0..=MAX_RAILS as u64 - 1, "0 to 7");

impl Layout for RailRole {
    fn write(&self, out: &mut Writer) {
        ROLE.write(&self.0, out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        ROLE.read(from).map(Self)
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

/// The kernel and the network namespace of a process.
///
/// The two parts are separate because they answer different questions: a loopback address leads to
/// the listener only within its network namespace, while the bridges of a host also join namespaces
/// (containers) of the same kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostId {
    /// A hash of the kernel's boot id; 0 if it is unknown.
    pub boot: u32,
    /// A hash of boot id and network namespace; 0 if it is unknown.
    pub network: u32,
}

impl HostId {
    /// Returns whether processes with these ids may share a kernel: unknown ids may.
    pub fn may_share_kernel(self, other: Self) -> bool {
        may_be_same(self.boot, other.boot)
    }

    /// Returns whether processes with these ids may share a network namespace: unknown ids may.
    pub fn may_share_network(self, other: Self) -> bool {
        self.may_share_kernel(other) && may_be_same(self.network, other.network)
    }
}

fn may_be_same(a: u32, b: u32) -> bool {
    a == b || a == 0 || b == 0
}

// A GID of an InfiniBand port contains the prefix of the subnet beside the GUID. If routers join
// subnets, the subnet manager adds a GID with the port's FLID, which is site-local:
//
// | bytes | content |
// |---|---|
// | 0 to 3 | `fec0:0` |
// | 4, 5 | the FLID |
// | 6, 7 | the low 16 bits of the subnet prefix |
// | 8 to 15 | the port's GUID |

/// Returns the first eight bytes of a GID as a number.
fn prefix(gid: [u8; 16]) -> u64 {
    // The upper half.
    (u128::from_be_bytes(gid) >> 64) as u64
}

/// Returns the FLID in a GID; `None` if the GID has none.
pub fn flid(gid: [u8; 16]) -> Option<u16> {
    let flid = u16::from_be_bytes([gid[4], gid[5]]);
    (gid[..4] == [0xfe, 0xc0, 0, 0] && flid != 0).then_some(flid)
}

/// A subnet, as the first half of a GID identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    prefix: u64,
    /// Whether the low 16 bits of the prefix are all that is known.
    partial: bool,
}

impl Subnet {
    /// Returns the subnet of the port with this GID.
    pub fn of(gid: [u8; 16]) -> Self {
        match flid(gid) {
            Some(_) => Self { prefix: prefix(gid) & 0xffff, partial: true },
            None => Self { prefix: prefix(gid), partial: false },
        }
    }

    /// Returns whether both are one subnet, by the bits that are known of both.
    pub fn is_same(self, other: Self) -> bool {
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
