//! PCI addresses of adapters, and their places in the PCI tree.

use std::fmt;
use std::path::Path;

/// Domain, bus, device and function, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl Address {
    /// Parses the last part of a device's path in sysfs, as in `0000:17:00.1`.
    pub(super) fn of(path: &str) -> Option<Self> {
        let (_, last) = path.rsplit_once('/')?;
        let (domain, rest) = last.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        Some(Self {
            domain: hex(domain)?,
            bus: hex(bus)?.try_into().ok()?,
            device: hex(device)?.try_into().ok()?,
            function: hex(function)?.try_into().ok()?,
        })
    }

    /// Whether both are functions of one card: a slot's bus has one card, whose virtual functions
    /// have other device numbers.
    pub(super) fn is_of_card(&self, other: &Self) -> bool {
        (self.domain, self.bus) == (other.domain, other.bus)
    }
}

/// Where a PCI device is: devices under one root and at one NUMA node are equally far from a GPU,
/// as far as sysfs shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Path in sysfs.
    path: String,
    /// The host bridge, as in `pci0000:40`.
    root: Option<String>,
    /// `None` if the kernel does not know it, as on hosts with one node.
    numa_node: Option<u32>,
}

impl Place {
    /// Returns the place of the device with this path in sysfs.
    pub(crate) fn of(path: String) -> Self {
        let is_root = |part: &&str| part.strip_prefix("pci").is_some_and(|rest| rest.contains(':'));
        let root = path.split('/').find(is_root).map(str::to_owned);
        let node = std::fs::read_to_string(Path::new(&path).join("numa_node")).ok();
        let numa_node = node.and_then(|node| node.trim().parse().ok());
        Self { path, root, numa_node }
    }

    /// Whether the two are known to be under different roots or at different NUMA nodes.
    pub(crate) fn is_away_from(&self, other: &Self) -> bool {
        fn differ<T: PartialEq>(a: Option<&T>, b: Option<&T>) -> bool {
            a.zip(b).is_some_and(|(a, b)| a != b)
        }
        differ(self.root.as_ref(), other.root.as_ref())
            || differ(self.numa_node.as_ref(), other.numa_node.as_ref())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        self.numa_node.map_or(Ok(()), |node| write!(f, ", NUMA node {node}"))
    }
}

fn hex(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: &str) -> Option<Address> {
        Address::of(&format!("/sys/devices/pci0000:16/0000:16:02.0/{last}"))
    }

    #[test]
    fn addresses_are_in_the_order_of_their_numbers() {
        let sorted =
            ["0000:05:00.0", "0000:17:00.0", "0000:17:00.1", "0000:17:01.0", "0000:b1:00.0", "10000:01:00.0"];
        let sorted: Vec<_> = sorted.into_iter().map(|text| at(text).unwrap()).collect();
        assert!(sorted.is_sorted() && sorted.windows(2).all(|w| w[0] != w[1]));
    }

    #[test]
    fn a_card_is_a_bus() {
        let one = at("0000:17:00.0").unwrap();
        for (other, same) in
            [("0000:17:00.1", true), ("0000:17:02.3", true), ("0000:18:00.0", false), ("0001:17:00.0", false)]
        {
            assert_eq!(one.is_of_card(&at(other).unwrap()), same, "{other}");
        }
    }

    #[test]
    fn places_differ_by_root_or_numa_node_if_both_are_known() {
        let sys = tempfile::tempdir().unwrap();
        let place = |path: &str, node: &str| {
            let path = sys.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("numa_node"), node).unwrap();
            Place::of(path.to_string_lossy().into_owned())
        };
        let a = place("devices/pci0000:40/0000:40:01.0/0000:42:00.0", "0\n");
        for (path, node, away) in [
            ("devices/pci0000:40/0000:40:02.0/0000:43:00.0", "0\n", false),
            ("devices/pci0000:40/0000:40:02.0/0000:44:00.0", "1\n", true),
            ("devices/pci0000:40/0000:40:02.0/0000:45:00.0", "-1\n", false),
            ("devices/pci0000:80/0000:80:02.0/0000:81:00.0", "0\n", true),
            ("devices/platform/HISI0000:00", "0\n", false),
        ] {
            let b = place(path, node);
            assert_eq!((a.is_away_from(&b), b.is_away_from(&a)), (away, away), "{b}");
        }
        assert!(a.to_string().ends_with("/0000:42:00.0, NUMA node 0"));
        assert!(!a.is_away_from(&Place::of("/nowhere".into())));
    }

    #[test]
    fn what_is_no_address_has_none() {
        for last in [
            "",
            "virtio3",
            "0000:17:00",
            "0000:17",
            "0000:17:00.",
            "0000:1g:00.0",
            "0000:+7:00.0",
            "0000:117:00.0",
        ] {
            assert_eq!(at(last), None, "{last}");
        }
        assert_eq!(Address::of("0000:17:00.0"), None, "no path");
    }
}
