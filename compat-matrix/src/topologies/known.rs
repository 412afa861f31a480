//! Known differences between the plugin's adapters and those of NCCL's own transport, each with its
//! reason. A difference without an entry fails a run, and so does an entry without a difference.

use super::judge::Difference;
use crate::matrix::{RMA_TABLE, Release};

/// A known difference.
#[derive(Debug)]
pub(super) struct Known {
    /// The facts, with `*` for any text and `?` for any character.
    facts: &'static [&'static str],
    /// What the plugin's adapters and those of the transport have, likewise; `-`: no such fact.
    plugin: &'static str,
    net_ib: &'static str,
    /// Where it occurs.
    places: &'static [Place],
    /// The first release without it, if it is not the table that ends it.
    before: Option<&'static str>,
    pub(super) reason: &'static str,
}

/// Trees, and the versions of the table that releases use: the first and the last.
type Place = (&'static [&'static str], (u32, u32));

/// Trees whose adapters are not on PCI.
const NO_PCI: &[&str] = &["no PCI path"];
/// Trees with cards of several ports or functions.
const ONE_CARD: &[&str] = &[
    "one card",
    "two ports a GPU",
    "GB200",
    "virtual functions",
    "physical and virtual functions",
    "a GUID for each function",
];
/// Those of them whose adapters are one port.
const ONE_PORT: &[&str] = &["virtual functions", "physical and virtual functions"];
const GB200: &[&str] = &["GB200"];
const GUID_EACH: &[&str] = &["a GUID for each function"];
const ONE_GUID: &[&str] = &["one GUID"];
/// Trees whose adapters NCCL does not join.
const SEPARATE: &[&str] =
    &["two cards", "DGX", "DGX Spark", "DGX Spark, parts", "two PCIe links a card", "guest"];
/// All trees on which both have the same devices.
const ALIKE: &[Place] = &[
    (ONE_GUID, (6, 12)),
    (NO_PCI, (6, 7)),
    (NO_PCI, (9, 9)),
    (ONE_CARD, (6, 7)),
    (ONE_CARD, (9, 12)),
    (SEPARATE, (6, 12)),
];
/// Those on which both have the same GUIDs, too: without the first place.
const ALIKE_BUT_ONE_GUID: &[Place] = ALIKE.split_at(1).1;

pub(super) const KNOWN: &[Known] = &[
    Known {
        facts: &["communicator"],
        plugin: "up",
        net_ib: "failed",
        places: &[(NO_PCI, (10, 12))],
        before: None,
        reason: "NCCL takes adapters without a PCI path for ports of one card and requests a fused device, \
                 to which it then finds no path from a GPU. The plugin refuses such a device, and NCCL \
                 uses the separate adapters.",
    },
    Known {
        facts: &["communicator"],
        plugin: "up",
        net_ib: "failed",
        places: &[(NO_PCI, (8, 8))],
        before: None,
        reason: "The transport of NCCL 2.20 to 2.23 crashes if an adapter has no PCI path.",
    },
    Known {
        facts: &["device 2"],
        plugin: "-",
        net_ib: "mlx5_0+mlx5_1, *",
        places: &[(NO_PCI, (9, 9))],
        before: None,
        reason: "NCCL requests the same fused device, which the plugin refuses. It uses the adapters in both \
                 cases.",
    },
    Known {
        facts: &["device *", "net *", "link to NET/*", "path *", "graph * channel *"],
        plugin: "*",
        net_ib: "*",
        places: &[(ONE_CARD, (8, 8))],
        before: None,
        reason: "The transport of NCCL 2.20 to 2.23 joins the ports of a card without a request of NCCL. \
                 The plugin joins what `MPIB_HCA_SOUT` and `MPIB_HCA_SUP` name; without them each port is \
                 a device, and NCCL uses both.",
    },
    Known {
        facts: &["* speed", "* port", "* plane", "link to *", "path *", "graph *"],
        plugin: "*",
        net_ib: "*",
        places: &[(ONE_PORT, (6, 12))],
        before: None,
        reason: "The transport counts the port's speed for each function. The plugin shows it once: the \
                 functions have one pair of GUID and port, and together the speed of their port.",
    },
    Known {
        facts: &["* port", "* plane"],
        plugin: "*",
        net_ib: "*",
        places: &[(GUID_EACH, (6, 7)), (GUID_EACH, (9, 12))],
        before: None,
        reason: "The transport counts the functions of a card. The plugin numbers the ports of a GUID.",
    },
    Known {
        facts: &["* guid", "* rail", "graph *"],
        plugin: "*",
        net_ib: "*",
        places: &[(ONE_GUID, (6, 12))],
        before: None,
        reason: "NCCL takes cards with one GUID for one, and uses one of them. The plugin gives each card a \
                 GUID.",
    },
    Known {
        facts: &["net * guid", "gin * guid", "rma * guid"],
        plugin: "0x5?",
        net_ib: "0x5?00000000000000",
        places: ALIKE_BUT_ONE_GUID,
        before: None,
        reason: "The plugin has the number in the order of the host's bytes, as `ibv_devinfo` prints it; the \
                 transport has it in that of the network. NCCL compares the numbers of one host only.",
    },
    Known {
        facts: &["net * maxconn", "gin * maxconn", "rma * maxconn"],
        plugin: "8192",
        net_ib: "32768",
        places: ALIKE,
        before: None,
        reason: "The plugin divides what the adapter has by the queue pairs, completion queues and shared \
                 receive queues of a connection; the transport has the adapter's number of queue pairs.",
    },
    Known {
        facts: &["gin *", "rma *", "net * gin", "path *GIN*", "path *RMA*", "link to GIN*", "link to RMA*"],
        plugin: "-",
        net_ib: "*",
        places: &[(ONE_CARD, (11, 12)), (SEPARATE, (11, 12)), (ONE_GUID, (11, 12))],
        before: Some(RMA_TABLE),
        reason: "The transport has adapters for communication that kernels start (GIN) and for one-sided \
                 access (RMA). The plugin does not have the tables for GIN of releases before 2.30.7.",
    },
    Known {
        facts: &["graph *"],
        plugin: "*",
        net_ib: "*",
        places: &[(GB200, (8, 8))],
        before: None,
        reason: "NCCL finds other rings over a joined device of 800 Gb/s than over two of 400 Gb/s.",
    },
];

impl Known {
    /// Returns whether the difference must occur in a release on a tree.
    pub(super) fn applies(&self, release: &Release, tree: &str) -> bool {
        let here = |(trees, (first, last)): &Place| {
            (*first..=*last).contains(&release.table) && trees.contains(&tree)
        };
        let ended = self.before.is_some_and(|first| release.is_at_least(first));
        !ended && self.places.iter().any(here)
    }

    /// Describes the difference as cells of a table: facts, both values, places and reason.
    pub(super) fn describe(&self) -> String {
        let facts: Vec<_> = self.facts.iter().map(|fact| format!("`{fact}`")).collect();
        let place = |(trees, (first, last)): &Place| format!("v{first} to v{last}: {}", trees.join(", "));
        let places: Vec<_> = self.places.iter().map(place).collect();
        let before = self.before.map(|first| format!(", before {first}")).unwrap_or_default();
        let (facts, places) = (facts.join(", "), places.join("; ") + &before);
        format!("{facts} | {} | {} | {places} | {}", self.plugin, self.net_ib, self.reason)
    }

    pub(super) fn explains(&self, difference: &Difference) -> bool {
        let value = |value: &Option<String>, pattern| matches(pattern, value.as_deref().unwrap_or("-"));
        self.facts.iter().any(|pattern| matches(pattern, &difference.fact))
            && value(&difference.plugin, self.plugin)
            && value(&difference.net_ib, self.net_ib)
    }
}

/// Returns whether a text is of a pattern: `*` stands for any text and `?` for any character.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.chars();
    match parts.next() {
        None => text.is_empty(),
        Some('*') => text
            .char_indices()
            .map(|(at, _)| at)
            .chain([text.len()])
            .any(|at| matches(parts.as_str(), &text[at..])),
        Some(first) => {
            let mut rest = text.chars();
            rest.next().is_some_and(|c| first == '?' || first == c) && matches(parts.as_str(), rest.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_is_any_text() {
        assert!(matches("net * port", "net mlx5_0 port"));
        assert!(matches("net *", "net mlx5_0+mlx5_1 speed"));
        assert!(matches("*+*", "a+b") && matches("*", "") && matches("a*", "a"));
        assert!(matches("0x5?", "0x51") && !matches("0x5?", "0x5") && !matches("0x5?", "0x511"));
        assert!(!matches("net * port", "net mlx5_0 speed"));
        assert!(!matches("net", "net mlx5_0") && !matches("*b", "bc"));
    }
}
