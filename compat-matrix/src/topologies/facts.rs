//! What NCCL has made of a host, as facts that can be compared: every attribute of its dumps, and
//! the paths of its log.

use std::collections::BTreeMap;

use roxmltree::{Document, Node};

use super::run::Dumps;
use crate::failure::{Context, Result};

/// Facts by name, for instance `net mlx5_0 speed`.
pub(super) type Facts = BTreeMap<String, String>;

/// Attributes that identify an element, in the order in which they are looked for.
const IDENTITIES: [&str; 5] = ["busid", "numaid", "name", "dev", "id"];

/// Reads the dumps.
pub(super) fn of(dumps: &Dumps) -> Result<Facts> {
    let mut facts = Facts::new();
    for text in [&dumps.topology, &dumps.graphs] {
        let document = Document::parse(text).cannot("read NCCL's XML")?;
        element(document.root_element(), "", &mut facts);
    }
    facts.extend(log(&dumps.log));
    Ok(facts)
}

/// Adds the attributes of an element and of all below it. `within` names its parent.
fn element(node: Node<'_, '_>, within: &str, facts: &mut Facts) {
    let identity = IDENTITIES.iter().find_map(|name| node.attribute(*name));
    let own = match (node.tag_name().name(), identity) {
        ("nic", None) => within.to_owned(),
        // Channels have no identity, but an order.
        ("channel", _) => {
            let before = node.prev_siblings().filter(|n| n.has_tag_name("channel")).count() - 1;
            facts.insert(format!("{within} channel {before}"), hops(node));
            return;
        }
        (tag, None) => tag.to_owned(),
        (tag, Some(identity)) => format!("{tag} {identity}"),
    };
    for attribute in node.attributes().filter(|a| !identity_of(&node, a.name())) {
        facts.insert(format!("{own} {}", attribute.name()), attribute.value().to_owned());
    }
    if own != within {
        facts.insert(format!("{own} is at"), within.to_owned());
    }
    node.children().filter(Node::is_element).for_each(|child| element(child, &own, facts));
}

fn identity_of(node: &Node<'_, '_>, name: &str) -> bool {
    IDENTITIES.iter().find(|known| node.has_attribute(**known)) == Some(&name)
}

/// Returns the devices of a channel in their order.
fn hops(channel: Node<'_, '_>) -> String {
    let hop = |n: Node<'_, '_>| format!("{} {}", n.tag_name().name(), n.attribute("dev").unwrap_or("?"));
    channel.children().filter(Node::is_element).map(hop).collect::<Vec<_>>().join(", ")
}

/// Returns the facts of the log: the names of the devices, and the links and the paths of the search,
/// whose last result counts.
fn log(text: &str) -> Facts {
    let lines = text.lines().filter_map(|line| line.split_once(" NCCL INFO "));
    let facts = |(_, line): (&str, &str)| {
        let line = line.trim();
        device(line).or_else(|| link(line)).map_or_else(|| paths(line), |fact| vec![fact])
    };
    lines.flat_map(facts).collect()
}

/// Reads for instance `NET/IB : GPU Direct RDMA Enabled for HCA 2 'mlx5_0+mlx5_1'`.
fn device(line: &str) -> Option<(String, String)> {
    let (before, after) = line.split_once(" for HCA ")?;
    let (index, name) = after.split_once(' ')?;
    let direct = before.rsplit(' ').next()?;
    Some((
        format!("device {index}"),
        format!("{}, GPUDirect {}", name.trim_matches('\''), direct.to_lowercase()),
    ))
}

/// Reads for instance `+ NET[50.0] - NET/0-2 (0/51/1/50.000000)`: `link to NET/0-2` is `NET 50.0`.
fn link(line: &str) -> Option<(String, String)> {
    let (kind, rest) = line.strip_prefix("+ ")?.split_once('[')?;
    let (bandwidth, rest) = rest.split_once(']')?;
    let to = rest.trim_start_matches([' ', '-']).split(' ').next()?;
    Some((format!("link to {to}"), format!("{} {bandwidth}", kind.trim())))
}

/// Reads the paths of a node: `path GPU/0-1000 to NET/0-0` is for instance `3/24.0/PHB`: links, GB/s
/// and kind.
fn paths(line: &str) -> Vec<(String, String)> {
    let Some((from, rest)) = line.split_once(" :") else { return Vec::new() };
    let words: Vec<_> = rest.split_whitespace().collect();
    let path = |pair: &[&str]| {
        let path = pair[1].strip_prefix('(')?.strip_suffix(')')?;
        let is_path = from.contains('/') && path.split('/').count() == 3 && pair[0].contains('/');
        is_path.then(|| (format!("path {from} to {}", pair[0]), path.to_owned()))
    };
    words.chunks_exact(2).filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_devices_links_and_paths() {
        let text = "\
vm:1:1 [0] NCCL INFO NET/MPIB : GPU Direct RDMA Enabled for HCA 2 'mlx5_0+mlx5_1'
vm:1:1 [0] NCCL INFO NET/MPIB : version 0.2.0 (one two)
vm:1:1 [0] NCCL INFO === System : maxBw 48.0 totalBw 48.0 ===
vm:1:1 [0] NCCL INFO               + NET[50.0] - NET/0-2 (0/51/1/50.000000)
vm:1:1 [0] NCCL INFO GPU/0-1000 :GPU/0-1000 (0/5000.0/LOC) NET/0-2 (4/48.0/PHB) 
";
        let expected = [
            ("device 2", "mlx5_0+mlx5_1, GPUDirect enabled"),
            ("link to NET/0-2", "NET 50.0"),
            ("path GPU/0-1000 to GPU/0-1000", "0/5000.0/LOC"),
            ("path GPU/0-1000 to NET/0-2", "4/48.0/PHB"),
        ];
        assert_eq!(log(text), expected.map(|(name, value)| (name.into(), value.into())).into());
    }

    #[test]
    fn the_xml_has_attributes_places_and_channels() {
        let text = "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:03:00.0\" link_width=\"16\"><nic>\
                    <net name=\"a\" dev=\"0\" speed=\"5\"/></nic></pci></cpu><graph id=\"0\" nchannels=\"1\">\
                    <channel><net dev=\"2\"/><gpu dev=\"0\" rank=\"0\"/></channel></graph></system>";
        let mut facts = Facts::new();
        element(Document::parse(text).unwrap().root_element(), "", &mut facts);
        let expected = [
            ("cpu 0 is at", "system"),
            ("graph 0 channel 0", "net 2, gpu 0"),
            ("graph 0 is at", "system"),
            ("graph 0 nchannels", "1"),
            ("net a dev", "0"),
            ("net a is at", "pci 0000:03:00.0"),
            ("net a speed", "5"),
            ("pci 0000:03:00.0 is at", "cpu 0"),
            ("pci 0000:03:00.0 link_width", "16"),
            ("system is at", ""),
            ("system version", "1"),
        ];
        assert_eq!(facts, expected.map(|(name, value)| (name.into(), value.into())).into());
    }
}
