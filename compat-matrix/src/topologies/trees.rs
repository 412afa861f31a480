//! The hosts whose PCI trees real NCCL searches. Both hosts of a communicator have the same tree.

use crate::pci::{
    BCM57508, GUEST_MLX5, HFI1, LOWER_SWITCH, Link, Pci, Root, Tree, UPPER_SWITCH, bridge, gpu, link, nic,
    virtual_function,
};

/// Links of the DGX Spark's adapter: two of width 4, where other cards have one of width 16.
const NARROW: Link = link("32.0 GT/s PCIe", 4);
const GEN3: Link = link("8.0 GT/s PCIe", 16);

/// Returns every tree, in the page's order.
pub(super) fn all() -> Vec<Tree> {
    vec![
        no_pci_path(),
        one_card(),
        two_cards(),
        virtual_functions(),
        dgx(),
        two_ports_a_gpu(),
        grace(),
        dgx_spark(),
        dgx_spark_in_parts(),
        physical_and_virtual(),
        one_guid(),
        socket_direct(),
        guid_of_each_function(),
        guest(),
    ]
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
        settings: &[],
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
        settings: &[],
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
        settings: &[],
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
        settings: &[],
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
               NUMA nodes; no NVLink, which softcuda does not have (aliyun/SimAI#128; read 2026-11-29)",
        roots: vec![Root::new("0000:00", 0, half(0)), Root::new("0000:80", 1, half(1))],
        settings: &[],
        elsewhere: Vec::new(),
    }
}

/// Eight GPUs, each behind a switch with a card of two ports. The names leave out those of the two
/// adapters of the host's own network.
fn two_ports_a_gpu() -> Tree {
    let pair = |(n, (bus, first)): (usize, (u32, u32))| {
        let at = |bus: u32, device: u32, function: u32| format!("0000:{bus:02x}:{device:02x}.{function}");
        let lower = |bus: u32, below| {
            let port = bridge(&at(bus + 1, 0, 0), below);
            bridge(&at(bus, 0, 0), vec![port]).with_identity(LOWER_SWITCH)
        };
        let port = |function: u32| {
            let name = format!("mlx5_{}", first + function);
            nic(&at(bus + 4, 0, function), &name, 200, 0x50 + n as u64)
        };
        let ports = vec![
            bridge(&at(bus + 1, 0, 0), vec![lower(bus + 2, vec![port(0), port(1)])]),
            bridge(&at(bus + 1, 1, 0), vec![lower(bus + 5, vec![gpu(&at(bus + 7, 0, 0))])]),
        ];
        let upper = bridge(&at(bus, 0, 0), ports).with_identity(UPPER_SWITCH);
        let root = bus - 1;
        let port = bridge(&at(root, 1, 0), vec![upper]);
        Root::new(&format!("0000:{root:02x}"), i32::from(n >= 4), vec![port])
    };
    let switches =
        [(0x08, 0), (0x26, 3), (0x3d, 5), (0x54, 7), (0x82, 9), (0xa1, 12), (0xb9, 14), (0xd1, 16)];
    Tree {
        name: "two ports a GPU",
        what: "eight GPUs and eight cards with two ports of 200 Gb/s, a GPU and a card behind each of \
               eight switches of two levels, on two NUMA nodes: OCI's BM.GPU.H100.8 \
               (`samples/gpu/H100-topology.xml` of oracle-quickstart/oci-hpc; read 2026-11-30); no NVLink",
        roots: switches.into_iter().enumerate().map(pair).collect(),
        settings: &[],
        elsewhere: Vec::new(),
    }
}

/// Four GPUs and four cards with two functions, each in a PCI domain. The names leave out that of the
/// adapter of the host's own network.
fn grace() -> Tree {
    let alone = |domain: &str, node: i32, below: Pci| {
        let port = bridge(&format!("{domain}:00:00.0"), vec![below]);
        Root::new(&format!("{domain}:00"), node, vec![port])
    };
    let card = |domain: &str, node: i32, first: u32| {
        let function = |n: u32| {
            let name = format!("mlx5_{}", first + n);
            nic(&format!("{domain}:03:00.{n}"), &name, 400, 0x50 + u64::from(first))
        };
        let port = bridge(&format!("{domain}:02:00.0"), vec![function(0), function(1)]);
        alone(domain, node, bridge(&format!("{domain}:01:00.0"), vec![port]))
    };
    let gpu = |domain: &str, node: i32| {
        alone(domain, node, bridge(&format!("{domain}:01:00.0"), vec![gpu(&format!("{domain}:06:00.0"))]))
    };
    Tree {
        name: "GB200",
        what: "four GPUs and four ConnectX-8 with two functions of 400 Gb/s, each in a PCI domain, on two \
               NUMA nodes: OCI's BM.GPU.GB200-v3.4 (`examples/oke-bm-gpu-gb200-rocev2-dranet` of \
               kubernetes-sigs/dranet; the bridges as in the topology tests of kvcache-ai/Mooncake; \
               read 2026-11-30); no NVLink, neither between GPUs nor to the processors",
        roots: vec![
            card("0000", 0, 0),
            card("0002", 0, 2),
            gpu("0008", 0),
            gpu("0009", 0),
            card("0010", 1, 5),
            card("0012", 1, 7),
            gpu("0018", 1),
            gpu("0019", 1),
        ],
        settings: &[],
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
               of width 4 each, and one system image GUID (geerlingguy/sbc-reviews#92, \
               NVIDIA/daqiri#108; read 2026-11-29)",
        roots: vec![half("0000", "rocep1s0f0"), half("0002", "roceP2p1s0f0"), Root::new("000f:00", 0, gpus)],
        settings: &[],
        elsewhere: Vec::new(),
    }
}

fn dgx_spark_in_parts() -> Tree {
    Tree {
        name: "DGX Spark, parts",
        what: "the same, with `MPIB_RAIL_SPEED=rocep1s0f0:100000,roceP2p1s0f0:100000`",
        settings: &[("MPIB_RAIL_SPEED", "rocep1s0f0:100000,roceP2p1s0f0:100000")],
        ..dgx_spark()
    }
}

fn physical_and_virtual() -> Tree {
    let physical = "0000:03:00.0";
    let card = vec![
        nic(physical, "mlx5_0", 200, 0x51),
        virtual_function("0000:03:00.2", physical, "mlx5_4", 200, 0x51),
        virtual_function("0000:03:00.3", physical, "mlx5_5", 200, 0x51),
    ];
    Tree {
        name: "physical and virtual functions",
        what: "two GPUs; a port's physical function and two virtual ones of it, as a container that has \
               all devices of the host sees them (NVIDIA/nccl#1422, NVIDIA/nccl#748; read 2026-11-29)",
        roots: vec![Root::new("0000:00", 0, [two_gpus(), vec![bridge("0000:00:03.0", card)]].concat())],
        settings: &[],
        elsewhere: Vec::new(),
    }
}

fn one_guid() -> Tree {
    let card = |n: u32| {
        let function = nic(&format!("0000:{:02x}:00.0", n + 3), &format!("hfi1_{n}"), 100, 0x51);
        bridge(&format!("0000:00:{:02x}.0", n + 3), vec![function.with_identity(HFI1)])
    };
    let gpus = bridge("0000:00:01.0", vec![gpu("0000:01:00.0")]);
    Tree {
        name: "one GUID",
        what: "one GPU; four cards of 100 Gb/s whose driver gives them one system image GUID, as hfi1 \
               does (ROCm/rocm-systems#11138; read 2026-11-29). The GPU's link of 48 GB/s carries three \
               channels: NCCL counts 6/5 of a GPU's traffic through an Intel CPU (src/graph/search.cc)",
        roots: vec![Root::new("0000:00", 0, [vec![gpus], (0..4).map(card).collect()].concat())],
        settings: &[],
        elsewhere: Vec::new(),
    }
}

fn socket_direct() -> Tree {
    let link = |n: u32, name: &str, system| {
        let function = nic(&format!("0000:{:02x}:00.0", n + 3), name, 100, system).with_link(GEN3);
        bridge(&format!("0000:00:{:02x}.0", n + 3), vec![function]).with_link(GEN3)
    };
    let cards = vec![
        link(0, "mlx5_0", 0x51),
        link(1, "mlx5_1", 0x51),
        link(2, "mlx5_2", 0x52),
        link(3, "mlx5_3", 0x52),
    ];
    Tree {
        name: "two PCIe links a card",
        what: "two GPUs; two cards with one port of 100 Gb/s and two PCIe links each, a function on each \
               link (NVIDIA/nccl#307; read 2026-11-29)",
        roots: vec![Root::new("0000:00", 0, [two_gpus(), cards].concat())],
        settings: &[],
        elsewhere: Vec::new(),
    }
}

/// Each function has a PCI domain, and is no virtual function to the guest's kernel.
fn guest() -> Tree {
    let alone = |domain: &str, pci| Root::new(&format!("{domain}:00"), 0, vec![pci]);
    let nic = |domain: &str, name: &str, system| {
        alone(domain, nic(&format!("{domain}:00:00.0"), name, 200, system).with_identity(GUEST_MLX5))
    };
    Tree {
        name: "guest",
        what: "two GPUs and two virtual functions of two cards, each in a PCI domain, as guests of Azure \
               have them (Azure/azhpc-images#249, #44; read 2026-11-29)",
        roots: vec![
            alone("0001", gpu("0001:00:00.0")),
            alone("0002", gpu("0002:00:00.0")),
            nic("0101", "mlx5_0", 0x51),
            nic("0102", "mlx5_1", 0x52),
        ],
        settings: &[],
        elsewhere: Vec::new(),
    }
}

fn guid_of_each_function() -> Tree {
    let card = vec![
        nic("0000:03:00.0", "bnxt_re0", 100, 0x51).with_identity(BCM57508),
        nic("0000:03:00.1", "bnxt_re1", 100, 0x52).with_identity(BCM57508),
    ];
    Tree {
        name: "a GUID for each function",
        what: "two GPUs; a card with two ports of 100 Gb/s whose driver makes a GUID of each function's \
               MAC address (bnxt_re of Linux 5.15; read 2026-11-29)",
        roots: vec![Root::new("0000:00", 0, [two_gpus(), vec![bridge("0000:00:03.0", card)]].concat())],
        settings: &[],
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
        assert_eq!(
            all().iter().map(|tree| tree.gpus().len()).collect::<Vec<_>>(),
            [2, 2, 2, 2, 8, 8, 4, 1, 1, 2, 1, 2, 2, 2]
        );
    }
}
