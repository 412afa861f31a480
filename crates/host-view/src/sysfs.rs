//! What the kernel shows of adapters in sysfs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use nccl_net_mpib_agent_iface::hw_counters::{ADAPTIVE, NOT_READY, SEQUENCE, TIMEOUTS};

use crate::{Adapter, Count, Port};

/// The counters that are shown, with what they count.
pub(crate) const HW_COUNTERS: [(&str, &str); 12] = [
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

/// Reads what `root`, usually `/sys/class/infiniband`, has of a port; `None` if there is no such
/// port.
pub(crate) fn adapter(root: &Path, port: &Port) -> Option<Adapter> {
    // The names come from a page that another process has written.
    let is_plain = |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains('/');
    let dir = root.join(&port.device).join("ports").join(port.port.to_string());
    if !is_plain(&port.device) || !dir.is_dir() {
        return None;
    }
    let text = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let number = |name: &str| text(&format!("hw_counters/{name}"))?.trim().parse().ok().map(Count);
    let counters = HW_COUNTERS.iter().filter_map(|(name, _)| Some(((*name).to_owned(), number(name)?)));
    Some(Adapter {
        // "4: ACTIVE"
        link: text("state").and_then(|state| Some(state.split_once(':')?.1.trim().to_owned())),
        speed: text("rate").as_deref().and_then(speed),
        hw_counters: counters.collect::<BTreeMap<_, _>>(),
    })
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
        fs::write(dir.join("hw_counters/packet_seq_err"), "7\n").unwrap();
        fs::write(dir.join("hw_counters/out_of_buffer"), "junk\n").unwrap();
        fs::write(dir.join("hw_counters/lifespan"), "10\n").unwrap();
        let seen = adapter(root.path(), &port("mlx5_0:1")).unwrap();
        assert_eq!((seen.link.as_deref(), seen.speed), (Some("ACTIVE"), Some(Count(312_500_000))));
        assert_eq!(seen.hw_counters, BTreeMap::from([("packet_seq_err".into(), Count(7))]));
        fs::create_dir_all(root.path().join("mlx5_1/ports/2")).unwrap();
        assert_eq!(ports(root.path()), ["mlx5_0:1", "mlx5_1:2"].map(String::from).into());
        assert_eq!(ports(&root.path().join("no")), BTreeSet::new());
        for strange in ["../mlx5_0:1", "x/../mlx5_0:1", "..:1", ":1", "mlx5_0"] {
            assert_eq!(adapter(root.path(), &port(strange)), None, "{strange}");
        }
    }
}
