//! Differences between two views of a host, and whether each is a known one.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    facts::Facts,
    known::{KNOWN, Known},
};
use crate::matrix::Release;

/// A fact that differs. `None`: NCCL has no such fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) fact: String,
    pub(super) plugin: Option<String>,
    pub(super) net_ib: Option<String>,
}

/// What a tree has shown in a release.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Differences by the position of their explanation in [`KNOWN`].
    pub(super) explained: BTreeMap<usize, Vec<Difference>>,
    pub(super) unexplained: Vec<Difference>,
    /// Explanations that must apply here and do not.
    pub(super) stale: Vec<&'static Known>,
    /// Facts that are the same.
    pub(super) same: usize,
}

impl Verdict {
    pub(super) fn is_good(&self) -> bool {
        self.unexplained.is_empty() && self.stale.is_empty()
    }
}

/// Compares the facts of both.
pub(super) fn differences(plugin: &Facts, net_ib: &Facts) -> Vec<Difference> {
    let names: BTreeSet<_> = plugin.keys().chain(net_ib.keys()).collect();
    let differs = |name: &&String| plugin.get(*name) != net_ib.get(*name);
    let difference = |name: &String| Difference {
        fact: name.clone(),
        plugin: plugin.get(name).cloned(),
        net_ib: net_ib.get(name).cloned(),
    };
    names.into_iter().filter(differs).map(difference).collect()
}

/// Judges the facts of both on a tree.
pub(super) fn judge(release: &Release, tree: &str, plugin: &Facts, net_ib: &Facts) -> Verdict {
    let differences = differences(plugin, net_ib);
    let same = plugin.len() - differences.iter().filter(|d| d.plugin.is_some()).count();
    let applies = |known: &Known| known.applies(release, tree);
    let mut verdict = Verdict { same, ..Verdict::default() };
    for difference in differences {
        match KNOWN.iter().position(|known| applies(known) && known.explains(&difference)) {
            Some(place) => verdict.explained.entry(place).or_default().push(difference),
            None => verdict.unexplained.push(difference),
        }
    }
    let unseen =
        |(place, known): &(usize, &'static Known)| applies(known) && !verdict.explained.contains_key(place);
    verdict.stale = KNOWN.iter().enumerate().filter(unseen).map(|(_, known)| known).collect();
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;

    fn facts(all: &[(&str, &str)]) -> Facts {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_known_difference_must_occur_and_no_other_may() {
        let release = Matrix::read().unwrap().one(None).unwrap();
        let judge = |tree, plugin: &[_], net_ib: &[_]| judge(&release, tree, &facts(plugin), &facts(net_ib));
        let tree = "no PCI path";
        let known = judge(
            tree,
            &[("communicator", "up"), ("same", "1")],
            &[("communicator", "failed"), ("same", "1")],
        );
        assert!(known.is_good() && known.explained.len() == 1 && known.same == 1, "{known:?}");
        let stale = judge(tree, &[("communicator", "up")], &[("communicator", "up")]);
        assert!(!stale.is_good() && stale.stale.len() == 1, "{stale:?}");
        let reversed = judge(tree, &[("communicator", "failed")], &[("communicator", "up")]);
        assert_eq!(reversed.unexplained.len(), 1);
        let missing =
            judge(tree, &[("communicator", "up")], &[("communicator", "failed"), ("net a speed", "1")]);
        let difference = Difference { fact: "net a speed".into(), plugin: None, net_ib: Some("1".into()) };
        assert_eq!(missing.unexplained, [difference]);
    }
}
