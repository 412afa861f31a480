//! Addresses of interfaces: hardware addresses, and IPv4 addresses with their networks.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The hardware address of an Ethernet interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) struct Mac(pub(super) [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes: Option<Vec<u8>> = text
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2))
            .collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| "no hardware address".into())
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// An IPv4 address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) struct Ipv4Net {
    pub(super) addr: Ipv4Addr,
    len: u8,
}

impl Ipv4Net {
    /// `None` if the length is not 0 to 32.
    pub(super) fn new(addr: Ipv4Addr, len: u8) -> Option<Self> {
        (len <= 32).then_some(Self { addr, len })
    }

    /// Returns whether an address is in the network.
    fn contains(self, addr: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.len)).unwrap_or(0);
        (self.addr.to_bits() ^ addr.to_bits()) & mask == 0
    }

    /// Returns whether the networks have an address in common.
    pub(super) fn overlaps(self, other: Self) -> bool {
        self.contains(other.addr) && self.len <= other.len
            || other.contains(self.addr) && other.len <= self.len
    }

    /// Returns whether two ends of a cable with these addresses reach each other by them.
    pub(super) fn meets(self, other: Self) -> bool {
        self.len == other.len
            && self.contains(other.addr)
            && self.addr != other.addr
            && !self.addr.is_link_local()
    }
}

impl fmt::Display for Ipv4Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

impl From<Ipv4Net> for String {
    fn from(net: Ipv4Net) -> Self {
        net.to_string()
    }
}

impl TryFrom<String> for Ipv4Net {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let net =
            text.split_once('/').and_then(|(addr, len)| Self::new(addr.parse().ok()?, len.parse().ok()?));
        net.ok_or_else(|| "no IPv4 address with a prefix length".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.to_owned().try_into().unwrap()
    }

    #[test]
    fn networks_overlap_if_one_has_the_other() {
        for (a, b, overlap) in [
            ("192.168.177.11/24", "192.168.177.12/24", true),
            ("192.168.177.11/24", "192.168.178.11/24", false),
            ("192.168.0.1/16", "192.168.178.11/24", true),
            ("192.168.178.11/24", "192.168.0.1/16", true),
            ("0.0.0.0/0", "10.0.0.1/32", true),
            ("10.0.0.2/32", "10.0.0.1/32", false),
        ] {
            assert_eq!(net(a).overlaps(net(b)), overlap, "{a} {b}");
        }
    }

    #[test]
    fn ends_meet_in_one_network_by_different_addresses() {
        for (a, b, meet) in [
            ("192.168.177.11/24", "192.168.177.12/24", true),
            ("192.168.177.11/24", "192.168.177.11/24", false),
            ("192.168.177.11/24", "192.168.177.12/16", false),
            ("169.254.1.1/16", "169.254.1.2/16", false),
        ] {
            assert_eq!(net(a).meets(net(b)), meet, "{a} {b}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "1.2.3.4", "1.2.3.4/33", "1.2.3/8", "1.2.3.4/x"] {
            assert!(Ipv4Net::try_from(text.to_owned()).is_err(), "{text}");
        }
        for text in ["", "0:1:2:3:4:5", "00:11:22:33:44", "00:11:22:33:44:55:66", "gg:11:22:33:44:55"] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
        assert_eq!("02:aB:22:33:44:55".parse::<Mac>().unwrap().to_string(), "02:ab:22:33:44:55");
    }
}
