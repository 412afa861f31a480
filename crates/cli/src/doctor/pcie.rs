//! Checks the PCIe link of each adapter's function: its width and generation against what the
//! device supports, and its rate against that of the ports behind it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Port};

use super::sysfs::line;
use crate::output::units::port_rate;

/// A link, as negotiated or at most.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Link {
    /// GT/s.
    speed: f64,
    /// Number of serial links side by side.
    width: u32,
}

impl Link {
    /// Reads `current_link_…` or `max_link_…` of a function.
    fn read(function: &Path, which: &str) -> Option<Self> {
        let of = |what: &str| line(&function.join(format!("{which}_link_{what}")));
        // "16.0 GT/s PCIe"; the kernel shows "Unknown" and 0 for virtual functions.
        let speed = of("speed")?.split_whitespace().next()?.parse().ok()?;
        let width = of("width")?.parse().ok().filter(|width| (1..=32).contains(width))?;
        Some(Self { speed, width })
    }

    /// Returns the rate in Mb/s without the line code: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s,
    /// 242 of 256 bytes of a flit from then on.
    fn mbps(self) -> f64 {
        let code = match self.speed {
            s if s <= 5.0 => 0.8,
            s if s <= 32.0 => 128.0 / 130.0,
            _ => 242.0 / 256.0,
        };
        self.speed * 1000.0 * code * f64::from(self.width)
    }

    fn is_below(self, other: Self) -> bool {
        self.speed < other.speed || self.width < other.width
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} GT/s x{}", self.speed, self.width)
    }
}

/// Returns the rate of the PCIe link of a port's adapter in Mb/s, if sysfs shows it.
pub(super) fn rate(port: &Port) -> Option<u32> {
    Link::read(Path::new(port.pci_path.as_ref()?), "current").map(|link| link.mbps() as u32)
}

/// Checks the links of the functions whose ports are used.
pub(super) fn checks(all: &[Port]) -> Vec<Check> {
    let mut functions: BTreeMap<&str, Vec<&Port>> = BTreeMap::new();
    for port in all.iter().filter(|port| port.device.is_some()) {
        if let Some(path) = &port.pci_path {
            functions.entry(path).or_default().push(port);
        }
    }
    let (mut good, mut checks) = (Vec::new(), Vec::new());
    for (path, ports) in functions {
        let (now, most) = (Link::read(Path::new(path), "current"), Link::read(Path::new(path), "max"));
        let Some(now) = now else { continue };
        let others: f64 = other_links(&ports, all).iter().map(|link| link.mbps()).sum();
        match judge(&ports, others, now, most) {
            None => good.push(format!("{} {now} ({})", names(&ports), shown(now.mbps()))),
            Some(check) => checks.push(check),
        }
    }
    if !good.is_empty() {
        let text = format!("PCIe links are not slower than their ports: {}", good.join("; "));
        checks.insert(0, Check::new("pcie", Level::Ok, text));
    }
    checks
}

/// Returns the links of other functions that share the wire of these ports.
fn other_links(ports: &[&Port], all: &[Port]) -> Vec<Link> {
    let shares = |other: &&Port| {
        let is_shared = ports.iter().any(|port| port.wire.is_some() && port.wire == other.wire);
        is_shared && other.device.is_some() && other.pci_path != ports[0].pci_path
    };
    let links = all.iter().filter(shares).filter_map(|other| other.pci_path.as_deref());
    let paths: BTreeSet<&str> = links.collect();
    paths.into_iter().filter_map(|path| Link::read(Path::new(path), "current")).collect()
}

/// Returns the finding on a link that is slower than its ports or than its device. Links of other
/// functions of the same port carry `others` Mb/s of its rate.
fn judge(ports: &[&Port], others: f64, now: Link, most: Option<Link>) -> Option<Check> {
    let names = names(ports);
    let speed: u32 = ports.iter().filter_map(|port| Some(port.state.as_ref()?.speed_mbps)).sum();
    let most = most.filter(|most| now.is_below(*most));
    let supported = most.map_or_else(
        || "as much as the device supports".to_owned(),
        |most| format!("the device supports {most} ({})", shown(most.mbps())),
    );
    if now.mbps() + others < f64::from(speed) {
        let text = format!(
            "the PCIe link of {names} runs at {now} ({}), less than the {} of its ports; {supported}",
            shown(now.mbps()),
            port_rate(speed)
        );
        return Some(Check::new("pcie", Level::Warn, text).remedy(
            "check the slot (lspci -vv: LnkCap, LnkSta), reseat the card or the riser, and update the firmware; \
             a device of several ports gives one behind a narrow slot what it carries (MPIB_SPLIT=measured, the default)",
        ));
    }
    most?;
    let text = format!(
        "the PCIe link of {names} runs at {now} ({}), {supported}; it is not slower than the ports",
        shown(now.mbps())
    );
    Some(Check::new("pcie", Level::Note, text))
}

fn names(ports: &[&Port]) -> String {
    ports.iter().map(|port| port.name()).collect::<Vec<_>>().join(", ")
}

fn shown(mbps: f64) -> String {
    port_rate((mbps / 1000.0).round() * 1000.0)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::doctor::sysfs::port;

    /// Makes a function with these links: speed and width now, and at most.
    fn function(root: &Path, address: &str, now: (&str, &str), most: (&str, &str)) -> PathBuf {
        let path = root.join(address);
        fs::create_dir_all(&path).unwrap();
        for (which, (speed, width)) in [("current", now), ("max", most)] {
            fs::write(path.join(format!("{which}_link_speed")), format!("{speed} GT/s PCIe\n")).unwrap();
            fs::write(path.join(format!("{which}_link_width")), format!("{width}\n")).unwrap();
        }
        path
    }

    //= doctor.md: PCIe width and generation are judged by what the device supports and by its port
    #[test]
    fn a_link_that_is_slower_than_its_port_or_its_device_is_named() {
        let root = tempfile::tempdir().unwrap();
        let of = |address: &str, now, most| function(root.path(), address, now, most);
        let full = of("0000:01:00.0", ("32.0", "16"), ("32.0", "16"));
        let narrow = of("0000:02:00.0", ("32.0", "2"), ("32.0", "4"));
        let older = of("0000:03:00.0", ("16.0", "16"), ("32.0", "16"));
        let small = of("0000:04:00.0", ("8.0", "8"), ("8.0", "8"));
        let hidden = of("0000:05:00.0", ("Unknown", "0"), ("Unknown", "0"));
        let ports = [
            port("full", 400_000, Some(&full)),
            port("narrow", 100_000, Some(&narrow)),
            port("older", 200_000, Some(&older)),
            port("small", 100_000, Some(&small)),
            port("hidden", 100_000, Some(&hidden)),
            port("soft", 100_000, None),
        ];
        let found = checks(&ports);
        let text: Vec<_> = found.iter().map(|c| (c.level, &*c.text, c.remedy.is_some())).collect();
        assert_eq!(
            text,
            [
                (
                    Level::Ok,
                    "PCIe links are not slower than their ports: full:1 32.0 GT/s x16 (504 Gb/s)",
                    false
                ),
                (
                    Level::Warn,
                    "the PCIe link of narrow:1 runs at 32.0 GT/s x2 (63 Gb/s), less than the 100 Gb/s of its ports; \
                     the device supports 32.0 GT/s x4 (126 Gb/s)",
                    true
                ),
                (
                    Level::Note,
                    "the PCIe link of older:1 runs at 16.0 GT/s x16 (252 Gb/s), the device supports 32.0 GT/s x16 \
                     (504 Gb/s); it is not slower than the ports",
                    false
                ),
                (
                    Level::Warn,
                    "the PCIe link of small:1 runs at 8.0 GT/s x8 (63 Gb/s), less than the 100 Gb/s of its ports; \
                     as much as the device supports",
                    true
                ),
            ]
        );
        assert_eq!((rate(&ports[1]), rate(&ports[4]), rate(&ports[5])), (Some(63_015), None, None));
        let mut idle = port("narrow", 100_000, Some(&narrow));
        idle.device = None;
        assert_eq!(checks(&[idle]), []);
    }

    //= doctor.md: links of functions of one port are judged together
    #[test]
    fn functions_of_one_port_share_its_rate() {
        let root = tempfile::tempdir().unwrap();
        let half = |address: &str| function(root.path(), address, ("32.0", "4"), ("32.0", "4"));
        let [one, two] = ["0000:01:00.0", "0002:01:00.0"].map(half);
        let mut ports = [port("a", 200_000, Some(&one)), port("b", 200_000, Some(&two))];
        let levels = |ports: &[Port]| checks(ports).iter().map(|check| check.level).collect::<Vec<_>>();
        assert_eq!(levels(&ports), [Level::Warn; 2]);
        ports.iter_mut().for_each(|port| port.wire = Some(0));
        assert_eq!(levels(&ports), [Level::Ok]);
        ports[1].device = None;
        assert_eq!(levels(&ports), [Level::Warn]);
    }

    #[test]
    fn two_ports_of_a_function_share_its_link() {
        let root = tempfile::tempdir().unwrap();
        let path = function(root.path(), "0000:01:00.0", ("16.0", "8"), ("16.0", "8"));
        let [mut a, mut b] = [port("a", 100_000, Some(&path)), port("a", 100_000, Some(&path))];
        assert_eq!(checks(&[a.clone()])[0].level, Level::Ok);
        (a.port, b.port) = (1, 2);
        let found = checks(&[a, b]);
        assert!(
            found[0]
                .text
                .starts_with("the PCIe link of a:1, a:2 runs at 16.0 GT/s x8 (126 Gb/s), less than the 200")
        );
    }
}
