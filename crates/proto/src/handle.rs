//! The handle: 128 bytes that NCCL transports from a listener to its connectors.
//!
//! Layout, little-endian: magic @0, version u16 @4, port u16 @6, secret @8, host id (two u32) @24,
//! number of addresses u8 @32, release @33, addresses from 43, each {family 4 or 6, prefix length,
//! 4 or 16 bytes}, zeroes up to 120. The last eight bytes belong to the connector. Magic, version,
//! port, secret, release and addresses keep their places in every version from 10 on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::release::RELEASE_BYTES;
use super::wire::{DecodeError, Layout, Reader, Writer, number};
use super::{HostId, MAGIC, Nonce, PROTOCOL_VERSION, Release, Secret};

/// `NCCL_NET_HANDLE_MAXSIZE`
pub const HANDLE_BYTES: usize = 128;
/// Offset of the connector's eight bytes, which nothing here reads or checks.
pub const STATE_OFFSET: usize = HANDLE_BYTES - 8;
const RELEASE_OFFSET: usize = 33;
const ENTRIES_OFFSET: usize = RELEASE_OFFSET + RELEASE_BYTES;
/// From this version on, the fields keep their places.
const FIRST_STABLE_VERSION: u16 = 10;

/// An IP address of a host, with the prefix length of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Addr {
    ip: IpAddr,
    prefix: u8,
}

impl Addr {
    /// Returns an address; `None` if the prefix is longer than the address or if the address is
    /// unspecified.
    pub fn new(ip: IpAddr, prefix: u8) -> Option<Self> {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        (prefix <= bits && !ip.is_unspecified()).then_some(Self { ip, prefix })
    }

    /// Returns the IP address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Returns the prefix length of the network.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Returns whether `other` is in the network of this address. Addresses of different families
    /// are not.
    pub fn same_subnet(&self, other: IpAddr) -> bool {
        is_in_network(other, self.ip, self.prefix)
    }

    /// Returns the bytes of its [`Layout`].
    fn bytes(&self) -> usize {
        2 + if self.ip.is_ipv4() { 4 } else { 16 }
    }
}

impl Layout for Addr {
    fn write(&self, out: &mut Writer) {
        match self.ip {
            IpAddr::V4(ip) => out.bytes(&[4, self.prefix]).bytes(&ip.octets()),
            IpAddr::V6(ip) => out.bytes(&[6, self.prefix]).bytes(&ip.octets()),
        };
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (family, prefix) = (from.u8("address family")?, from.u8("prefix length")?);
        let range = |what, found: u8, expected| DecodeError::Range { what, found: found.into(), expected };
        let ip: IpAddr = match family {
            4 => Ipv4Addr::from(from.array::<4>("address")?).into(),
            6 => Ipv6Addr::from(from.array::<16>("address")?).into(),
            found => return Err(range("address family", found, "4 or 6")),
        };
        let expected = "a length within an address that is specified";
        Self::new(ip, prefix).ok_or(range("prefix length", prefix, expected))
    }
}

/// Returns whether the first `prefix` bits of both addresses are the same. Addresses of different
/// families have none in common.
pub fn is_in_network(ip: IpAddr, network: IpAddr, prefix: u8) -> bool {
    let (difference, bits) = match (ip, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
        _ => return false,
    };
    difference.checked_shr(bits - u32::from(prefix).min(bits)).unwrap_or(0) == 0
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// The content of a handle.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle {
    secret: Secret,
    host: HostId,
    port: u16,
    release: Release,
    addrs: Vec<Addr>,
}

/// The secret is not shown.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { secret: _, host, port, release, addrs } = self;
        let handle = &mut f.debug_struct("Handle");
        handle.field("host", host).field("port", port).field("release", release);
        handle.field("addrs", addrs).finish_non_exhaustive()
    }
}

/// The reason why 128 bytes are not a handle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// It is all zeroes.
    #[error("the handle is all zeroes: no listener has filled it in")]
    Zero,
    /// It belongs to another plugin, or it is damaged.
    #[error("not an MPIB handle: it begins with {0:02x?}; do all ranks use this plugin?")]
    Magic([u8; 4]),
    /// It belongs to another version of this plugin.
    #[error("{}", super::release::mismatch("the plugin that made the handle", *found, *release))]
    Version {
        /// The listener's version.
        found: u16,
        /// The listener's release. Unknown before version 10.
        release: Release,
    },
    /// The port is 0.
    #[error("the handle names port 0")]
    Port,
    /// It has no address.
    #[error("the handle has no address")]
    NoAddress,
    /// An address is invalid or exceeds the handle.
    #[error("address {index} of {count} in the handle is invalid: {what}")]
    Entry {
        /// Index of the address.
        index: usize,
        /// Number of addresses.
        count: usize,
        /// The fault.
        what: &'static str,
    },
    /// Data follows the last address.
    #[error("the handle has data behind its {0} addresses")]
    Trailing(usize),
}

impl Handle {
    /// Creates a handle with the first of `addrs` that fit: the most useful come first. Its host is
    /// unknown.
    pub fn new(secret: impl Into<Secret>, port: u16, addrs: &[Addr]) -> Result<Self, HandleError> {
        if port == 0 {
            return Err(HandleError::Port);
        }
        let mut room = STATE_OFFSET - ENTRIES_OFFSET;
        let fits = |a: &&Addr| {
            let fits = a.bytes() <= room;
            room -= if fits { a.bytes() } else { 0 };
            fits
        };
        let addrs: Vec<Addr> = addrs.iter().filter(fits).copied().collect();
        if addrs.is_empty() {
            Err(HandleError::NoAddress)
        } else {
            let release = Release::ours();
            Ok(Self { secret: secret.into(), host: HostId::default(), port, release, addrs })
        }
    }

    /// Sets the listener's host.
    pub fn on(self, host: HostId) -> Self {
        Self { host, ..self }
    }

    /// Sets the listener's release.
    #[cfg(test)]
    pub(crate) fn by(self, release: Release) -> Self {
        Self { release, ..self }
    }

    /// Returns whether a handle has room for all of these addresses.
    pub fn holds(addrs: &[Addr]) -> bool {
        addrs.iter().map(Addr::bytes).sum::<usize>() <= STATE_OFFSET - ENTRIES_OFFSET
    }

    /// Returns the random bytes that only processes with the handle know. They never cross the wire
    /// of a control connection.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Returns the listener's host.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Returns the TCP port, which is the same for each address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the addresses of the listener, the most useful first; never empty.
    pub fn addrs(&self) -> &[Addr] {
        &self.addrs
    }

    /// Returns the bytes of the handle. The connector's eight bytes are zero.
    pub fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut out = Writer::default();
        out.bytes(&MAGIC).u16(PROTOCOL_VERSION).u16(self.port).bytes(self.secret.bytes());
        out.u32(self.host.boot).u32(self.host.network).u8(self.addrs.len() as u8);
        self.release.write(&mut out);
        self.addrs.iter().for_each(|addr| addr.write(&mut out));
        let mut handle = [0; HANDLE_BYTES];
        handle.iter_mut().zip(out.bytes).for_each(|(to, byte)| *to = byte);
        handle
    }

    /// Decodes a handle. Accepts exactly what [`Self::encode`] returns; the connector's eight bytes
    /// are ignored.
    pub fn decode(bytes: &[u8; HANDLE_BYTES]) -> Result<Self, HandleError> {
        let body = &bytes[..STATE_OFFSET];
        if body.iter().all(|b| *b == 0) {
            return Err(HandleError::Zero);
        }
        if body[0..4] != MAGIC {
            return Err(HandleError::Magic([body[0], body[1], body[2], body[3]]));
        }
        let found = u16::from_le_bytes([body[4], body[5]]);
        if found != PROTOCOL_VERSION {
            let known = found >= FIRST_STABLE_VERSION;
            let release = if known { release(body) } else { Release::default() };
            return Err(HandleError::Version { found, release });
        }
        Self::decode_fields(body)
    }

    /// Decodes the handle of another version that has its fields at the same places: a connector
    /// reports its version to that listener. `None` if it has not.
    pub fn of_other_version(bytes: &[u8; HANDLE_BYTES]) -> Option<Self> {
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        let same = bytes[0..4] == MAGIC && version >= FIRST_STABLE_VERSION && version != PROTOCOL_VERSION;
        same.then(|| Self::decode_fields(&bytes[..STATE_OFFSET]).ok()).flatten()
    }

    fn decode_fields(body: &[u8]) -> Result<Self, HandleError> {
        let port = number(&body[6..8]) as u16;
        if port == 0 {
            return Err(HandleError::Port);
        }
        let mut secret = Nonce::default();
        secret.copy_from_slice(&body[8..24]);
        let host = HostId { boot: number(&body[24..28]) as u32, network: number(&body[28..32]) as u32 };
        let count = usize::from(body[32]);
        let mut from = Reader::new(&body[ENTRIES_OFFSET..]);
        let mut addr = |index| {
            let what = |fault| match fault {
                DecodeError::Short("address") => "the handle ends inside it",
                DecodeError::Short(_) => "the handle ends before it",
                DecodeError::Range { what: "address family", .. } => "its family is neither 4 nor 6",
                _ => "it is unspecified, or its prefix is too long",
            };
            Addr::read(&mut from).map_err(|fault| HandleError::Entry { index, count, what: what(fault) })
        };
        let addrs = (0..count).map(&mut addr).collect::<Result<Vec<_>, _>>()?;
        if addrs.is_empty() {
            Err(HandleError::NoAddress)
        } else if from.rest().iter().any(|b| *b != 0) {
            Err(HandleError::Trailing(count))
        } else {
            Ok(Self { secret: secret.into(), host, port, release: release(body), addrs })
        }
    }
}

/// Reads the listener's release. Any bytes are one.
fn release(body: &[u8]) -> Release {
    Release::read(&mut Reader::new(&body[RELEASE_OFFSET..])).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addr() -> impl Strategy<Value = Addr> {
        prop_oneof![
            (1u32.., 0u8..=32).prop_map(|(ip, p)| Addr::new(Ipv4Addr::from(ip).into(), p).unwrap()),
            (1u128.., 0u8..=128).prop_map(|(ip, p)| Addr::new(Ipv6Addr::from(ip).into(), p).unwrap()),
        ]
    }

    fn v4(text: &str, prefix: u8) -> Addr {
        Addr::new(text.parse().unwrap(), prefix).unwrap()
    }

    #[test]
    fn fields_stand_at_their_offsets() {
        let host = HostId { boot: 0x0a0b_0c0d, network: 0x0102_0304 };
        let release = Release { version: [1, 2, 3], stage: 4, commit: [5; 6] };
        let handle = Handle::new([7; 16], 0x1234, &[v4("10.1.2.3", 24)]).unwrap().on(host).by(release);
        let bytes = handle.encode();
        assert_eq!(bytes[..8], [b'M', b'P', b'I', b'B', 10, 0, 0x34, 0x12]);
        assert_eq!(bytes[8..24], [7; 16]);
        assert_eq!(bytes[24..32], [0x0d, 0x0c, 0x0b, 0x0a, 4, 3, 2, 1]);
        assert_eq!(bytes[32..43], [1, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5]);
        assert_eq!(bytes[43..50], [4, 24, 10, 1, 2, 3, 0]);
        assert_eq!(bytes[50..], [0; 78]);
        assert!(!format!("{handle:?}").contains("7, 7"), "the secret is shown");
    }

    #[test]
    fn what_does_not_fit_is_left_out_from_the_end() {
        let many: Vec<Addr> = (1..=20).map(|i| v4(&format!("10.0.0.{i}"), 8)).collect();
        assert_eq!(Handle::new([0; 16], 1, &many).unwrap().addrs(), &many[..12]);
        let six = Addr::new("fd00::1".parse().unwrap(), 64).unwrap();
        let mixed = [&[six; 6][..], &many[..2]].concat();
        // Three of 18 bytes leave 23, and after a fourth one 5, which hold none of six bytes.
        assert_eq!(Handle::new([0; 16], 1, &mixed).unwrap().addrs(), [six; 4]);
        let holds = [&many[..12], &many[..13], &[six; 4], &mixed].map(Handle::holds);
        assert_eq!(holds, [true, false, true, false]);
        assert_eq!(Handle::new([0; 16], 1, &[]), Err(HandleError::NoAddress));
        assert_eq!(Handle::new([0; 16], 0, &many), Err(HandleError::Port));
    }

    #[test]
    fn each_kind_of_damage_has_its_name() {
        let good = Handle::new([7; 16], 9, &[v4("10.1.2.3", 24), v4("10.1.2.4", 24)]).unwrap().encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Handle::decode(&bytes).unwrap_err()
        };
        assert_eq!(Handle::decode(&[0; 128]), Err(HandleError::Zero));
        let mut only_state = [0; 128];
        only_state[STATE_OFFSET..].fill(9);
        assert_eq!(Handle::decode(&only_state), Err(HandleError::Zero));
        assert_eq!(with(0, b'X'), HandleError::Magic(*b"XPIB"));
        assert_eq!(with(4, 9), HandleError::Version { found: 9, release: Release::default() });
        assert_eq!(with(4, 11), HandleError::Version { found: 11, release: Release::ours() });
        let text = with(4, 9).to_string();
        assert!(text.starts_with(
            "the plugin that made the handle is of an unknown version with protocol 9, this one version "
        ));
        assert_eq!(with(6, 0), HandleError::Port);
        assert_eq!(with(32, 0), HandleError::NoAddress);
        assert_eq!(with(32, 1), HandleError::Trailing(1));
        assert!(matches!(with(32, 3), HandleError::Entry { index: 2, count: 3, .. }));
        assert!(matches!(with(43, 5), HandleError::Entry { index: 0, .. }));
        assert!(matches!(with(50, 33), HandleError::Entry { index: 1, .. }));
        assert!(matches!(with(32, 255), HandleError::Entry { .. }));
        assert_eq!(with(119, 1), HandleError::Trailing(2));
    }

    #[test]
    fn subnets_are_by_prefix_and_family() {
        let a = v4("10.1.2.3", 24);
        assert!(a.same_subnet("10.1.2.200".parse().unwrap()));
        assert!(!a.same_subnet("10.1.3.3".parse().unwrap()));
        assert!(!a.same_subnet("::ffff:10.1.2.3".parse().unwrap()));
        assert!(v4("10.1.2.3", 0).same_subnet("192.168.0.1".parse().unwrap()));
        assert!(!v4("10.1.2.3", 32).same_subnet("10.1.2.2".parse().unwrap()));
        let six = Addr::new("fd00:1::5".parse().unwrap(), 64).unwrap();
        assert!(six.same_subnet("fd00:1::9".parse().unwrap()));
        assert!(!six.same_subnet("fd00:2::9".parse().unwrap()));
        assert_eq!(Addr::new("10.0.0.1".parse().unwrap(), 33), None);
        assert_eq!(Addr::new("0.0.0.0".parse().unwrap(), 8), None);
    }

    proptest! {
        #[test]
        fn decode_undoes_encode(secret: Nonce, boot: u32, network: u32, port in 1u16.., addrs in prop::collection::vec(addr(), 1..20), state: [u8; 8]) {
            let handle = Handle::new(secret, port, &addrs).unwrap().on(HostId { boot, network });
            let mut bytes = handle.encode();
            bytes[STATE_OFFSET..].copy_from_slice(&state);
            prop_assert_eq!(Handle::decode(&bytes), Ok(handle));
        }

        /// A valid handle with up to three changed bytes is accepted only if encode returns the
        /// same bytes.
        #[test]
        fn decode_accepts_exactly_what_encode_makes(
            secret: Nonce, port in 1u16.., addrs in prop::collection::vec(addr(), 1..6),
            changes in prop::collection::vec((prop_oneof![0usize..63, 0usize..128], prop_oneof![0u8..8, any::<u8>()]), 0..3),
        ) {
            let mut bytes = Handle::new(secret, port, &addrs).unwrap().encode();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Ok(handle) = Handle::decode(&bytes) {
                prop_assert_eq!(&handle.encode()[..STATE_OFFSET], &bytes[..STATE_OFFSET]);
            }
        }

        #[test]
        fn any_bytes_give_an_answer(head in prop::collection::vec(any::<u8>(), 120), magic: bool) {
            let mut bytes = [0; 128];
            bytes[..120].copy_from_slice(&head);
            if magic {
                bytes[..6].copy_from_slice(b"MPIB\x0a\0");
            }
            if let Ok(handle) = Handle::decode(&bytes) {
                prop_assert_eq!(&handle.encode()[..], &bytes[..]);
            }
        }
    }
}
