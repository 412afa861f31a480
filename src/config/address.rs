//! Settings that choose the address of a port.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use mpib_proto::is_in_network;

use super::filter::{Family, HcaName, of_port, per_port, write_list};
use super::form::{Described, NotOfThisForm, number};

/// `NCCL_IB_GID_INDEX`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GidIndex {
    /// Each connection chooses.
    Auto,
    /// The same for every RoCE port.
    All(u8),
    /// For some ports, each named once.
    Each(Vec<(HcaName, u8)>),
}

impl GidIndex {
    /// Returns the index that is set for this port of this HCA.
    pub(crate) fn of(&self, hca: &str, port: u8) -> Option<u8> {
        match self {
            Self::Auto => None,
            Self::All(index) => Some(*index),
            Self::Each(list) => of_port(list, hca, port),
        }
    }

    /// Returns the HCAs and ports that it names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &HcaName> {
        let list: &[_] = if let Self::Each(list) = self { list } else { &[] };
        list.iter().map(|(name, _)| name)
    }
}

impl Described for GidIndex {
    const LIST: bool = true;
    const EXPECTED: &'static str =
        "-1 or a whole number from 0 to 255 or `name[:port]:number,…` with each port named once";
}

impl FromStr for GidIndex {
    type Err = NotOfThisForm;

    fn from_str(text: &str) -> Result<Self, NotOfThisForm> {
        let index = |text: &str| number(text).and_then(|n| u8::try_from(n).ok());
        if text == "-1" {
            return Ok(Self::Auto);
        }
        if !text.contains(':') {
            return index(text).map(Self::All).ok_or_else(NotOfThisForm::default);
        }
        per_port(text, index).map(Self::Each)
    }
}

impl fmt::Display for GidIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("-1"),
            Self::All(index) => index.fmt(f),
            Self::Each(list) => write_list(list, f),
        }
    }
}

/// `NCCL_IB_ADDR_RANGE`: addresses with a common prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddrRange {
    ip: IpAddr,
    prefix: u8,
}

impl AddrRange {
    /// Whether the address is in the range. An IPv4 address is in no IPv6 range.
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        is_in_network(ip, self.ip, self.prefix)
    }

    /// Returns the family of its addresses.
    pub(crate) fn family(&self) -> Family {
        if self.ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

impl Described for AddrRange {
    const EXPECTED: &'static str = "an IPv4 or IPv6 address and a prefix length, as in 10.1.0.0/16";
}

impl FromStr for AddrRange {
    type Err = NotOfThisForm;

    fn from_str(text: &str) -> Result<Self, NotOfThisForm> {
        let (ip, prefix) = text.split_once('/').ok_or_else(NotOfThisForm::default)?;
        let ip: IpAddr = ip.parse().map_err(|_| NotOfThisForm::default())?;
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let digits = prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix =
            prefix.parse().ok().filter(|p| *p <= bits && digits).ok_or_else(NotOfThisForm::default)?;
        let mapped = matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
        if mapped { Err(NotOfThisForm::default()) } else { Ok(Self { ip, prefix }) }
    }
}

impl fmt::Display for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_for_all_or_for_each() {
        let index = |text: &str| text.parse::<GidIndex>();
        assert_eq!(index("-1"), Ok(GidIndex::Auto));
        assert_eq!(index("0x3"), Ok(GidIndex::All(3)));
        let list = index("mlx5_0:3, mlx5_1:1:5,mlx5_1:2:0").unwrap();
        for (hca, port, expected) in [
            ("mlx5_0", 1, Some(3)),
            ("mlx5_0", 2, Some(3)),
            ("mlx5_1", 1, Some(5)),
            ("mlx5_1", 2, Some(0)),
            ("mlx5_1", 3, None),
            ("mlx5_10", 1, None),
        ] {
            assert_eq!(list.of(hca, port), expected, "{hca}:{port}");
            assert_eq!(GidIndex::All(7).of(hca, port), Some(7));
            assert_eq!(GidIndex::Auto.of(hca, port), None);
        }
        assert_eq!(list.to_string(), "mlx5_0:3,mlx5_1:1:5,mlx5_1:2:0");
        assert_eq!(list.names().count(), 3);
        for bad in [
            "",
            "-2",
            "256",
            "a",
            "a:",
            "a:x",
            "a:-1",
            "a:256",
            ":3",
            "a:0:3",
            "a:1:2:3",
            ":3,",
            "a:3,5",
            "5,a:3",
            "a:3,a:4",
            "a:3,a:1:4",
            "a:1:3,a:1:3",
            "a b:3",
            "^a:3",
        ] {
            assert!(index(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_range_is_its_first_bits() {
        for (range, ip, within) in [
            ("10.1.0.0/16", "10.1.255.1", true),
            ("10.1.2.3/16", "10.1.255.1", true),
            ("10.1.0.0/16", "10.2.0.1", false),
            ("10.1.2.3/32", "10.1.2.3", true),
            ("10.1.2.3/32", "10.1.2.2", false),
            ("0.0.0.0/0", "192.168.0.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "10.0.0.1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::1/128", "2001:db8::2", false),
        ] {
            assert_eq!(
                range.parse::<AddrRange>().unwrap().contains(ip.parse().unwrap()),
                within,
                "{range} {ip}"
            );
        }
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0/8",
            "/8",
            "::/129",
            "::ffff:10.0.0.0/104",
            "10.0.0.0/8/8",
            "10.0.0.0/8,11.0.0.0/8",
            "host/8",
            "fe80::1%eth0/64",
        ] {
            assert!(bad.parse::<AddrRange>().is_err(), "{bad}");
        }
    }
}
