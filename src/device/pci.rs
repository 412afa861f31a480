//! Adapters on the PCI bus: their addresses, their places in the PCI tree, and the paths that NCCL
//! sees.

use std::fmt;
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
}

/// Where a PCI device is: devices under one root and at one NUMA node are equally far from a GPU,
/// as far as sysfs shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PciLocation {
    /// Path in sysfs.
    path: String,
    /// The host bridge, as in `pci0000:40`.
    root: Option<String>,
    /// `None` if the kernel does not know it, as on hosts with one node.
    numa_node: Option<u32>,
}

impl PciLocation {
    /// Returns the place of the device with this path in sysfs.
    pub(crate) fn of(path: String) -> Self {
        let is_root = |part: &&str| part.strip_prefix("pci").is_some_and(|rest| rest.contains(':'));
        let root = path.split('/').find(is_root).map(str::to_owned);
        // The kernel shows -1 where it knows no node.
        let node = fs::read_to_string(Path::new(&path).join("numa_node")).ok();
        let numa_node = node.and_then(|node| node.trim().parse().ok());
        Self { path, root, numa_node }
    }

    /// Describes what is between two devices that are far from each other: two NUMA nodes, or else
    /// two PCI roots. `None` if they are near, or if that is not known.
    pub(crate) fn away_from(&self, other: &Self) -> Option<String> {
        match (self.numa_node, other.numa_node) {
            (Some(a), Some(b)) if a != b => return Some(format!("on NUMA nodes {a} and {b}")),
            _ => {}
        }
        match (&self.root, &other.root) {
            (Some(a), Some(b)) if a != b => Some(format!("below the PCI roots {a} and {b}")),
            _ => None,
        }
    }

    /// Returns the NUMA node, if the kernel knows it.
    pub(crate) fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }
}

impl fmt::Display for PciLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        self.numa_node.map_or(Ok(()), |node| write!(f, ", NUMA node {node}"))
    }
}

/// Returns the path that NCCL sees in place of an adapter's own, by which it computes distances and
/// the bandwidth of PCI links: that of function 0, for each function of a card has the card's one
/// link. A virtual function counts as its physical one if `merge_vfs`. Function 0 must exist,
/// because NCCL reads speed and width of the link there.
pub(super) fn folded(path: &str, merge_vfs: bool) -> String {
    let physical = physfn(path).filter(|_| merge_vfs).unwrap_or_else(|| path.to_owned());
    let first = physical.rsplit_once('.').filter(|_| Address::of(&physical).is_some());
    let first = first.map(|(before, _)| format!("{before}.0"));
    first.filter(|first| Path::new(first).exists()).unwrap_or(physical)
}

/// Returns the path of the physical function behind an adapter: that of a virtual one, if this host
/// has it, or the one that a subfunction is below. `None` if the adapter is not on PCI.
pub(super) fn physical(path: &str) -> Option<String> {
    let path = physfn(path).unwrap_or_else(|| path.to_owned());
    let function =
        Path::new(&path).ancestors().filter_map(Path::to_str).find(|path| Address::of(path).is_some());
    function.map(str::to_owned)
}

fn physfn(path: &str) -> Option<String> {
    let physical = fs::canonicalize(Path::new(path).join("physfn")).ok()?;
    physical.to_str().map(str::to_owned)
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
    fn a_subfunction_is_below_its_physical_function() {
        let function = "/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.1";
        for (path, of) in [
            (function.to_owned(), Some(function)),
            (format!("{function}/mlx5_core.sf.4"), Some(function)),
            ("/sys/devices/platform/HISI0000:00".to_owned(), None),
        ] {
            assert_eq!(physical(&path).as_deref(), of, "{path}");
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

    //= devices.md: functions of one card have one PCI path
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
        }
        for virtual_one in &all[2..] {
            assert_eq!(physical(&path(virtual_one)), Some(path(&all[1])));
        }
        assert_eq!(folded("/sys/devices/virtual/x.y", true), "/sys/devices/virtual/x.y");
    }

    #[test]
    fn places_differ_by_root_or_numa_node_if_both_are_known() {
        let sys = tempfile::tempdir().unwrap();
        let place = |path: &str, node: &str| {
            let path = sys.path().join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("numa_node"), node).unwrap();
            PciLocation::of(path.to_string_lossy().into_owned())
        };
        let a = place("devices/pci0000:40/0000:40:01.0/0000:42:00.0", "0\n");
        let (nodes, roots) = ("on NUMA nodes 0 and 1", "below the PCI roots pci0000:40 and pci0000:80");
        for (path, node, away) in [
            ("devices/pci0000:40/0000:40:02.0/0000:43:00.0", "0\n", None),
            ("devices/pci0000:40/0000:40:02.0/0000:44:00.0", "1\n", Some(nodes)),
            ("devices/pci0000:40/0000:40:02.0/0000:45:00.0", "-1\n", None),
            ("devices/pci0000:80/0000:80:02.0/0000:81:00.0", "0\n", Some(roots)),
            ("devices/pci0000:80/0000:80:02.0/0000:82:00.0", "-1\n", Some(roots)),
            ("devices/pci0000:80/0000:80:02.0/0000:83:00.0", "1\n", Some(nodes)),
            ("devices/platform/HISI0000:00", "0\n", None),
        ] {
            let b = place(path, node);
            assert_eq!(a.away_from(&b).as_deref(), away, "{b}");
            assert_eq!(b.away_from(&a).is_some(), away.is_some(), "{b}");
        }
        assert!(a.to_string().ends_with("/0000:42:00.0, NUMA node 0"));
        assert_eq!(a.away_from(&PciLocation::of("/nowhere".into())), None);
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
