//! What the kernel shows of adapters in sysfs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nccl_net_mpib_agent_iface::hw_counters::{ADAPTIVE, NOT_READY, SEQUENCE, TIMEOUTS};
use nix::net::if_::InterfaceFlags;

use crate::{Adapter, Count, Port};

/// The counters of a link that are shown, in the folder `counters`, with what they count.
const COUNTERS: [(&str, &str); 3] = [
    ("link_downed", "Times that the link failed to recover and went down"),
    ("symbol_error", "Symbols received with an error"),
    ("port_rcv_errors", "Packets received with an error"),
];

/// The counters of RDMA that are shown, in the folder `hw_counters`, with what they count.
const HW_COUNTERS: [(&str, &str); 12] = [
    (ADAPTIVE, "Retransmissions before the timeout, on RoCE"),
    (TIMEOUTS, "Timeouts of acknowledgements"),
    (SEQUENCE, "Packets that the peer received out of order"),
    (NOT_READY, "Packets that found no receive at the peer"),
    ("out_of_sequence", "Packets received out of order"),
    ("duplicate_request", "Requests received twice"),
    ("implied_nak_seq_err", "Acknowledgements that imply a lost packet"),
    ("out_of_buffer", "Packets dropped since a receive queue was empty"),
    ("np_cnp_sent", "Congestion notifications sent"),
    ("np_ecn_marked_roce_packets", "Packets received with a mark of congestion"),
    ("rp_cnp_handled", "Congestion notifications that have slowed a sender"),
    ("rx_icrc_encapsulated", "Packets received with a wrong ICRC"),
];

/// Returns all counters that are shown, with what they count.
pub(crate) fn counters() -> impl Iterator<Item = (&'static str, &'static str)> {
    COUNTERS.into_iter().chain(HW_COUNTERS)
}

/// Reads what `root`, usually `/sys/class/infiniband`, has of a port; `None` if there is no such
/// port.
pub(crate) fn adapter(root: &Path, port: &Port) -> Option<Adapter> {
    // The names come from a page that another process has written.
    let is_plain = |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains('/');
    let dir = root.join(&port.device).join("ports").join(port.port.to_string());
    if !is_plain(&port.device) || !dir.is_dir() {
        return None;
    }
    // "4: ACTIVE"
    let state = |name: &str| Some(line(&dir.join(name))?.split_once(':')?.1.trim().to_owned());
    let count = |folder: &str, name: &str| line(&dir.join(folder).join(name))?.parse().ok().map(Count);
    let counts = |folder: &str, all: &[(&str, &str)]| -> BTreeMap<String, Count> {
        all.iter().filter_map(|(name, _)| Some(((*name).to_owned(), count(folder, name)?))).collect()
    };
    let physical = state("phys_state");
    let set_down = match line(&dir.join("link_layer")).as_deref() {
        // Drivers report Disabled for a port without a cable, too.
        Some("Ethernet") => interface_is_down(root, port),
        _ => physical.as_deref() == Some("Disabled"),
    };
    Some(Adapter {
        link: state("state"),
        physical,
        set_down,
        link_lost_ms: None,
        speed: line(&dir.join("rate")).as_deref().and_then(speed),
        counters: counts("counters", &COUNTERS),
        hw_counters: counts("hw_counters", &HW_COUNTERS),
    })
}

/// Returns the folders of the network interfaces that an adapter's port has here. `root` is usually
/// `/sys/class/infiniband`.
pub fn interfaces_of(root: &Path, device: &str, port: u32) -> impl Iterator<Item = PathBuf> {
    let folders = fs::read_dir(root.join(device).join("device/net")).into_iter().flatten().flatten();
    folders.map(|entry| entry.path()).filter(move |folder| {
        // Counts the ports of a function from 0.
        let number = line(&folder.join("dev_port")).and_then(|number| number.parse::<u32>().ok());
        number.is_none_or(|number| Some(number) == port.checked_sub(1))
    })
}

/// Returns whether a port has network interfaces here, and an administrator has set all of them down.
fn interface_is_down(root: &Path, port: &Port) -> bool {
    let is_up = |folder: PathBuf| {
        let flags = line(&folder.join("flags"))?;
        let flags = i32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
        Some(InterfaceFlags::from_bits_retain(flags).contains(InterfaceFlags::IFF_UP))
    };
    let mut up = interfaces_of(root, &port.device, port.port).map(is_up).peekable();
    up.peek().is_some() && up.all(|up| up == Some(false))
}

/// Reads an attribute. The kernel fails the read where the driver has no value.
fn line(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns the ports of the adapters in a folder, usually `/sys/class/infiniband`, as HCA and port.
pub fn ports(root: &Path) -> BTreeSet<String> {
    let names = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let of = |device: String| {
        let ports = names(&root.join(&device).join("ports"));
        ports.into_iter().map(move |port| format!("{device}:{port}"))
    };
    names(root).into_iter().flat_map(of).collect()
}

/// Returns bytes/s of a text such as `100 Gb/sec (4X EDR)`.
fn speed(rate: &str) -> Option<Count> {
    let gigabits: f64 = rate.split_whitespace().next()?.parse().ok()?;
    Some(Count((gigabits * 1e9 / 8.0) as u64)).filter(|speed| speed.0 > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_read_as_far_as_it_is_there() {
        let root = tempfile::tempdir().unwrap();
        let port = |name: &str| Port::unused(name);
        let dir = root.path().join("mlx5_0/ports/1");
        assert_eq!(adapter(root.path(), &port("mlx5_0:1")), None);
        fs::create_dir_all(dir.join("hw_counters")).unwrap();
        assert_eq!(adapter(root.path(), &port("mlx5_0:1")), Some(Adapter::default()));
        fs::write(dir.join("state"), "4: ACTIVE\n").unwrap();
        fs::write(dir.join("rate"), "2.5 Gb/sec (1X SDR)\n").unwrap();
        fs::create_dir_all(dir.join("counters")).unwrap();
        fs::write(dir.join("counters/link_downed"), "3\n").unwrap();
        fs::write(dir.join("hw_counters/packet_seq_err"), "7\n").unwrap();
        fs::write(dir.join("hw_counters/out_of_buffer"), "junk\n").unwrap();
        fs::write(dir.join("hw_counters/lifespan"), "10\n").unwrap();
        let seen = adapter(root.path(), &port("mlx5_0:1")).unwrap();
        assert_eq!((seen.link.as_deref(), seen.speed), (Some("ACTIVE"), Some(Count(312_500_000))));
        assert_eq!(seen.counters, BTreeMap::from([("link_downed".into(), Count(3))]));
        assert_eq!(seen.hw_counters, BTreeMap::from([("packet_seq_err".into(), Count(7))]));
        fs::create_dir_all(root.path().join("mlx5_1/ports/2")).unwrap();
        assert_eq!(ports(root.path()), ["mlx5_0:1", "mlx5_1:2"].map(String::from).into());
        assert_eq!(ports(&root.path().join("no")), BTreeSet::new());
        for strange in ["../mlx5_0:1", "x/../mlx5_0:1", "..:1", ":1", "mlx5_0"] {
            assert_eq!(adapter(root.path(), &port(strange)), None, "{strange}");
        }
    }

    //= agent.md: the interface of an Ethernet port says whether it is set down
    #[test]
    fn a_cable_that_is_out_is_no_port_that_is_set_down() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join("mlx4_0").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let set_down = || adapter(root.path(), &Port::unused("mlx4_0:2")).unwrap().set_down;
        write("ports/2/phys_state", "2: Polling\n");
        write("ports/2/link_layer", "InfiniBand\n");
        assert!(!set_down());
        write("ports/2/phys_state", "3: Disabled\n");
        assert!(set_down());
        // What drivers of Ethernet report without a cable, too.
        write("ports/2/link_layer", "Ethernet\n");
        assert!(!set_down(), "without an interface nothing shows it");
        write("device/net/eth0/flags", "0x1003\n");
        write("device/net/eth0/dev_port", "0\n");
        write("device/net/eth1/flags", "0x1003\n");
        write("device/net/eth1/dev_port", "1\n");
        assert!(!set_down());
        write("device/net/eth1/flags", "0x1002\n");
        assert!(set_down());
        write("device/net/eth1/flags", "junk\n");
        assert!(!set_down());
    }
}
