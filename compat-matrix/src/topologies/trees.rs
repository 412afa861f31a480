//! The hosts whose PCI trees real NCCL searches. Both hosts of a communicator have the same tree.

use crate::pci::{Link, Pci, Root, Tree, bridge, gpu, link, nic, virtual_function};

/// Links of the DGX Spark's adapter: two of width 4, where other cards have one of width 16.
const NARROW: Link = link("32.0 GT/s PCIe", 4);

/// Returns every tree, in the page's order.
pub(super) fn all() -> Vec<Tree> {
    vec![no_pci_path(), one_card(), two_cards(), virtual_functions(), dgx(), dgx_spark()]
}

/// Two GPUs, each behind a root port.
fn two_gpus() -> Vec<Pci> {
    vec![bridge("0000:00:01.0", vec![gpu("0000:01:00.0")]), bridge("0000:00:02.0", vec![gpu("0000:02:00.0")])]
}

fn no_pci_path() -> Tree {
    Tree {
        name: "no PCI path",
        what: "two GPUs; two adapters of 100 Gb/s that are not on PCI, as softverbs and rxe make them",
        roots: vec![Root::new("0000:00", 0, two_gpus())],
        // No card either: each has the system GUID that the others have not.
        elsewhere: vec![nic("", "mlx5_0", 100, 0x51), nic("", "mlx5_1", 100, 0x52)],
    }
}

fn one_card() -> Tree {
    let card = vec![nic("0000:03:00.0", "mlx5_0", 200, 0x51), nic("0000:03:00.1", "mlx5_1", 200, 0x51)];
    let below = [two_gpus(), vec![bridge("0000:00:03.0", card)]].concat();
    Tree {
        name: "one card",
        what: "two GPUs; one card with two ports of 200 Gb/s, each a function",
        roots: vec![Root::new("0000:00", 0, below)],
        elsewhere: Vec::new(),
    }
}

fn two_cards() -> Tree {
    let fast = bridge("0000:00:03.0", vec![nic("0000:03:00.0", "mlx5_0", 200, 0x51)]);
    let slow = bridge("0000:00:04.0", vec![nic("0000:04:00.0", "mlx5_1", 100, 0x52)]);
    Tree {
        name: "two cards",
        what: "two GPUs; a card of 200 Gb/s and one of 100 Gb/s",
        roots: vec![Root::new("0000:00", 0, [two_gpus(), vec![fast, slow]].concat())],
        elsewhere: Vec::new(),
    }
}

/// Virtual functions beyond the seventh have another device number than their physical function.
fn virtual_functions() -> Tree {
    let physical = "0000:03:00.0";
    let card = vec![
        Pci::plain_nic(physical),
        virtual_function("0000:03:00.7", physical, "mlx5_7", 200, 0x51),
        virtual_function("0000:03:01.0", physical, "mlx5_8", 200, 0x51),
    ];
    let below = [two_gpus(), vec![bridge("0000:00:03.0", card)]].concat();
    Tree {
        name: "virtual functions",
        what: "two GPUs; two virtual functions of one port, as a container with its own RDMA devices \
               sees them: the physical function is on PCI but no RDMA device",
        roots: vec![Root::new("0000:00", 0, below)],
        elsewhere: Vec::new(),
    }
}

/// Eight GPUs, each behind a switch with its own card. Four switches belong to each NUMA node.
fn dgx() -> Tree {
    let pair = |n: u32| {
        // Buses of the root port, of the switch's upstream port and of its downstream ports.
        let (root, bus) = (n / 4 * 0x80, n / 4 * 0x80 + 0x10 + n % 4 * 0x10);
        let at = |bus: u32, device: u32| format!("0000:{bus:02x}:{device:02x}.0");
        let card = nic(&at(bus + 4, 0), &format!("mlx5_{n}"), 400, 0x50 + u64::from(n));
        let ports =
            vec![bridge(&at(bus + 2, 0), vec![gpu(&at(bus + 3, 0))]), bridge(&at(bus + 2, 1), vec![card])];
        bridge(&at(root, n % 4 + 1), vec![bridge(&at(bus + 1, 0), ports)])
    };
    let half = |node: u32| (4 * node..4 * node + 4).map(pair).collect();
    Tree {
        name: "DGX",
        what: "eight GPUs and eight cards of 400 Gb/s, a pair behind each of eight switches, on two \
               NUMA nodes; no NVLink, which softcuda does not have",
        roots: vec![Root::new("0000:00", 0, half(0)), Root::new("0000:80", 1, half(1))],
        elsewhere: Vec::new(),
    }
}

fn dgx_spark() -> Tree {
    let half = |domain: &str, name: &str| {
        let function = nic(&format!("{domain}:01:00.0"), name, 200, 0x51).with_link(NARROW);
        let port = bridge(&format!("{domain}:00:00.0"), vec![function]).with_link(NARROW);
        Root::new(&format!("{domain}:00"), 0, vec![port])
    };
    let gpus = vec![bridge("000f:00:00.0", vec![gpu("000f:01:00.0")])];
    Tree {
        name: "DGX Spark",
        what: "one GPU; one port of 200 Gb/s with a function in each of two PCI domains, by a link \
               of width 4 each",
        roots: vec![half("0000", "rocep1s0f0"), half("0002", "roceP2p1s0f0"), Root::new("000f:00", 0, gpus)],
        elsewhere: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_tree_has_gpus_and_adapters_whose_addresses_and_names_differ() {
        for tree in all() {
            let lines = tree.picture();
            let addresses: Vec<_> = lines.lines().filter_map(|line| line.split_whitespace().next()).collect();
            let unique: BTreeSet<_> = addresses.iter().filter(|address| address.contains(':')).collect();
            let of_pci = addresses.iter().filter(|address| address.contains(':')).count();
            assert_eq!(unique.len(), of_pci, "{lines}");
            let names: BTreeSet<_> = tree.adapters().into_iter().map(|adapter| &adapter.name).collect();
            assert_eq!(names.len(), tree.adapters().len());
            assert!(!tree.gpus().is_empty() && names.len() >= 2, "{}", tree.name);
        }
        assert_eq!(all().iter().map(|tree| tree.gpus().len()).collect::<Vec<_>>(), [2, 2, 2, 2, 8, 1]);
    }
}
