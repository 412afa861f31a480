//! Which nodes explain the pairs that are bad. A node is a host, or a port of one.

use std::{cmp::Reverse, collections::BTreeSet};

/// A measured pair of nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge {
    pub(super) nodes: [usize; 2],
    pub(super) is_bad: bool,
}

/// So many times as many bad pairs as good ones has a node that is bad. More than one: where half of
/// a network does not reach the other half, no host is to blame.
const TIMES: usize = 2;

/// Returns the nodes that are bad. Such a node is in bad pairs with several hosts and in few good
/// ones, and some of its bad pairs have no other bad node. `host` of each node.
pub(super) fn bad_nodes(host: &[usize], edges: &[Edge]) -> Vec<usize> {
    let mut of_node: Vec<Vec<&Edge>> = vec![Vec::new(); host.len()];
    for edge in edges {
        edge.nodes.iter().for_each(|node| of_node[*node].push(edge));
    }
    let mut suspects: Vec<usize> =
        (0..host.len()).filter(|node| is_suspect(*node, host, &of_node[*node])).collect();
    let mut found: Vec<usize> = Vec::new();
    loop {
        let open =
            |node: usize| of_node[node].iter().filter(|edge| edge.is_bad && !explains(&found, edge)).count();
        let good = |node: usize| of_node[node].iter().filter(|edge| !edge.is_bad).count();
        suspects.retain(|node| open(*node) > 0);
        // The first one of equal ones.
        let worst = suspects.iter().copied().rev().max_by_key(|node| (open(*node), Reverse(good(*node))));
        let Some(worst) = worst else { break };
        found.push(worst);
    }
    // One that was found first may be explained by those that were found later.
    for node in found.clone() {
        let others: Vec<usize> = found.iter().copied().filter(|other| *other != node).collect();
        if of_node[node].iter().filter(|edge| edge.is_bad).all(|edge| explains(&others, edge)) {
            found = others;
        }
    }
    found.sort_unstable();
    found
}

/// Returns whether a pair is bad because one of these nodes is.
pub(super) fn explains(bad: &[usize], edge: &Edge) -> bool {
    edge.nodes.iter().any(|node| bad.contains(node))
}

/// Returns whether a node with these pairs may be the bad one of some.
fn is_suspect(node: usize, host: &[usize], own: &[&Edge]) -> bool {
    let (bad, good): (Vec<&Edge>, Vec<&Edge>) = own.iter().copied().partition(|edge| edge.is_bad);
    let other = |edge: &Edge| host[if edge.nodes[0] == node { edge.nodes[1] } else { edge.nodes[0] }];
    let partners: BTreeSet<usize> = bad.iter().map(|edge| other(edge)).collect();
    partners.len() >= 2 && bad.len() >= TIMES * good.len()
}

#[cfg(test)]
mod tests {
    use super::super::plan::Pairs;
    use super::*;

    /// Returns the hosts that are named if pairs with these are bad, and these pairs.
    fn named(pairs: Pairs, hosts: usize, bad: &[usize], also: &[[usize; 2]]) -> Vec<usize> {
        let pairs = pairs.of(hosts, 5).unwrap();
        let edge = |nodes: [usize; 2]| Edge {
            nodes,
            is_bad: nodes.iter().any(|node| bad.contains(node)) || also.contains(&nodes),
        };
        let edges: Vec<Edge> = pairs.iter().map(|pair| edge([pair.from, pair.to])).collect();
        bad_nodes(&(0..hosts).collect::<Vec<_>>(), &edges)
    }

    //= fleet.md: a host in bad pairs with different partners is the bad one
    #[test]
    fn a_node_that_is_bad_with_several_others_is_named_alone() {
        for pairs in [Pairs::Ring, Pairs::Random(2), Pairs::All] {
            assert_eq!(named(pairs, 12, &[4], &[]), [4], "{pairs}");
            assert_eq!(named(pairs, 12, &[], &[]), [0; 0]);
        }
        assert_eq!(named(Pairs::All, 3, &[2], &[]), [2]);
        assert_eq!(named(Pairs::Random(3), 60, &[1, 17, 18, 59], &[]), [1, 17, 18, 59]);
        // Two with one host between them, and two beside each other.
        assert_eq!(named(Pairs::Ring, 12, &[3, 5], &[]), [3, 5]);
        assert_eq!(named(Pairs::Ring, 12, &[3, 4], &[]), [3, 4]);
    }

    #[test]
    fn one_bad_pair_names_no_host() {
        for pairs in [Pairs::Ring, Pairs::Random(2), Pairs::All] {
            let first = pairs.of(12, 5).unwrap()[3];
            assert_eq!(named(pairs, 12, &[], &[[first.from, first.to]]), [0; 0], "{pairs}");
        }
        assert_eq!(named(Pairs::All, 2, &[1], &[]), [0; 0]);
        // Two halves that do not reach each other: no host is worse than others.
        let halves: Vec<[usize; 2]> = (0..6).flat_map(|a| (6..12).map(move |b| [a, b])).collect();
        assert_eq!(named(Pairs::All, 12, &[], &halves), [0; 0]);
    }

    /// A port that fails with two ports of one host has one partner.
    #[test]
    fn several_ports_of_one_host_are_one_partner() {
        let edges = [[0, 1], [0, 2]].map(|nodes| Edge { nodes, is_bad: true });
        assert_eq!(bad_nodes(&[0, 1, 1], &edges), [0; 0]);
        assert_eq!(bad_nodes(&[0, 1, 2], &edges), [0]);
    }
}
