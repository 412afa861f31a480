//! Adapters on the PCI bus: their addresses, and the paths that NCCL sees.

use std::fs;
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

    /// Whether both are functions of one card: a slot's bus has one card, and its virtual functions
    /// may have other device numbers.
    pub(super) fn is_of_card(&self, other: &Self) -> bool {
        (self.domain, self.bus) == (other.domain, other.bus)
    }
}

/// Returns the path that NCCL sees in place of an adapter's own, by which it computes distances and
/// the bandwidth of PCI links: that of function 0, for each function of a card has the card's one
/// link. A virtual function counts as its physical one if `merge_vfs`. Function 0 must exist,
/// because NCCL reads speed and width of the link there.
pub(super) fn folded(path: &str, merge_vfs: bool) -> String {
    let physical = if merge_vfs { physical(path) } else { path.to_owned() };
    let first = physical.rsplit_once('.').filter(|_| Address::of(&physical).is_some());
    let first = first.map(|(before, _)| format!("{before}.0"));
    first.filter(|first| Path::new(first).exists()).unwrap_or(physical)
}

/// Returns the address of the card of an adapter: of its physical function, if the adapter is a
/// virtual one whose physical one this host has.
pub(super) fn card(path: &str) -> Option<Address> {
    Address::of(&physical(path))
}

fn physical(path: &str) -> String {
    let physical = fs::canonicalize(Path::new(path).join("physfn")).ok();
    physical.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| path.to_owned())
}

/// Returns the NUMA node of a PCI device; `None` if the kernel knows none, which it shows as -1.
pub fn numa_node(path: &str) -> Option<u32> {
    fs::read_to_string(Path::new(path).join("numa_node")).ok()?.trim().parse().ok()
}

/// Describes what is between two adapters if they are far from each other: two NUMA nodes, or else
/// two PCI roots. `None` if they are not, or if that is not known.
pub(super) fn apart(a: &str, b: &str) -> Option<String> {
    if let (Some(a), Some(b)) = (numa_node(a), numa_node(b))
        && a != b
    {
        return Some(format!("on NUMA nodes {a} and {b}"));
    }
    let root = |path: &str| path.split('/').find(|part| part.starts_with("pci")).map(str::to_owned);
    match (root(a), root(b)) {
        (Some(a), Some(b)) if a != b => Some(format!("below the PCI roots {a} and {b}")),
        _ => None,
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

    /// A sysfs with these folders of functions and links to physical functions.
    fn sysfs(functions: &[&str], physfns: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        functions.iter().for_each(|f| fs::create_dir_all(folder.path().join(f)).unwrap());
        for (of, to) in physfns {
            let link = folder.path().join(of).join("physfn");
            std::os::unix::fs::symlink(folder.path().join(to), link).unwrap();
        }
        folder
    }

    //= fused-devices.md: functions of one card have one PCI path
    #[test]
    fn functions_of_a_card_are_folded() {
        let (one, two) = ("pci0000:16/0000:16:02.0", "pci0000:3a/0000:3a:00.0");
        let all = ["0000:17:00.0", "0000:17:00.1", "0000:17:00.2", "0000:17:01.3", "0000:18:00.5"];
        let all = all.map(|f| format!("{one}/{f}"));
        let lone = format!("{two}/0000:3b:00.1");
        let functions: Vec<&str> = all.iter().map(String::as_str).chain([&*lone]).collect();
        // The last two are virtual functions of 0000:17:00.1, on its bus and on the next.
        let physfns = [(&*all[2], &*all[1]), (&*all[3], &*all[1]), (&*all[4], &*all[1])];
        let folder = sysfs(&functions, &physfns);
        let base = fs::canonicalize(folder.path()).unwrap();
        let path = |function: &str| base.join(function).to_str().unwrap().to_owned();
        let first = path(&all[0]);
        for (function, merged, separate) in [
            (&all[0], &first, &first),
            (&all[1], &first, &first),
            (&all[2], &first, &first),
            (&all[3], &first, &path(&all[3])),
            (&all[4], &first, &path(&all[4])),
            // Function 0 is not here, as in a guest.
            (&lone, &path(&lone), &path(&lone)),
        ] {
            assert_eq!(
                (folded(&path(function), true), folded(&path(function), false)),
                (merged.clone(), separate.clone())
            );
            assert_eq!(card(&path(function)).unwrap().is_of_card(&card(&first).unwrap()), *function != lone);
        }
        assert_eq!(folded("/sys/devices/virtual/x.y", true), "/sys/devices/virtual/x.y");
    }

    #[test]
    fn two_adapters_are_apart_by_their_nodes_or_their_roots() {
        let (a, b, c) = ("pci0000:16/0000:16:02.0", "pci0000:16/0000:16:03.0", "pci0000:3a/0000:3a:00.0");
        let folder = sysfs(&[a, b, c], &[]);
        let at = |function: &str| folder.path().join(function).to_str().unwrap().to_owned();
        let node = |function: &str, text: &str| fs::write(at(function) + "/numa_node", text).unwrap();
        assert_eq!(apart(&at(a), &at(b)), None);
        assert_eq!(apart(&at(a), &at(c)).unwrap(), "below the PCI roots pci0000:16 and pci0000:3a");
        [(a, "0\n"), (b, "1\n"), (c, "0\n")].iter().for_each(|(function, text)| node(function, text));
        assert_eq!(apart(&at(a), &at(b)).unwrap(), "on NUMA nodes 0 and 1");
        assert_eq!(apart(&at(a), &at(c)).unwrap(), "below the PCI roots pci0000:16 and pci0000:3a");
        node(b, "-1\n");
        assert_eq!((numa_node(&at(b)), apart(&at(a), &at(b))), (None, None));
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
