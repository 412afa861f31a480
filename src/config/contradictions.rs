//! Settings that are valid alone, but contradict each other, or do nothing beside others: for devices
//! of SOUT and SUP, or for one device per port.

use mpib_proto::Mode;

use super::{Config, Finding, SplitBy};
use crate::error::BadSetting;

/// Settings that do nothing, and why.
struct Idle {
    variables: &'static [&'static str],
    why: &'static str,
    /// The user does not get what the settings request. Otherwise another setting decides.
    missed: bool,
}

/// Without SOUT and SUP.
const PLAIN: Idle = Idle {
    variables: &[
        "MPIB_MODE",
        "MPIB_ISLAND_PREFIX_LEN",
        "MPIB_SUP_SHARE",
        "MPIB_BDP_THRESHOLD",
        "MPIB_SOUT_QP",
        "MPIB_SUP_QP",
        "MPIB_HINTS",
        "MPIB_HINT_POLL_US",
    ],
    why: "it is for two rails, and MPIB_HCA_SOUT and MPIB_HCA_SUP are not set",
    missed: true,
};

/// With SOUT and SUP.
const TWO_RAILS: [Idle; 2] = [
    Idle {
        variables: &["NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS"],
        why: "between devices of SOUT and SUP queue pairs are MPIB_SOUT_QP and MPIB_SUP_QP, and each message uses one of a rail",
        missed: true,
    },
    Idle {
        variables: &["NCCL_IB_HCA", "MPIB_ROUTE"],
        why: "MPIB_HCA_SOUT and MPIB_HCA_SUP decide which ports are used and joined",
        missed: false,
    },
];

/// The setting of hints that changes transfers.
const THRESHOLD: [&str; 1] = ["MPIB_BDP_THRESHOLD"];
/// The settings of hints that describe the host's agent. They may be set for all of a host's jobs.
/// The agent's socket and user are not among them: an agent may scale ports in every profile.
const AGENT: [&str; 2] = ["MPIB_HINTS", "MPIB_HINT_POLL_US"];

impl Config {
    /// Lists the settings that contradict each other.
    pub(super) fn contradictions(&self) -> Vec<BadSetting> {
        let mut bad = Vec::new();
        let mut both =
            |variable, found: String, expected: String| bad.push(BadSetting { variable, found, expected });
        match (&self.hca_sout, &self.hca_sup) {
            (Some(sout), None) => both(
                "MPIB_HCA_SUP",
                "(unset)".into(),
                format!("an HCA, since MPIB_HCA_SOUT={sout}: set both or neither"),
            ),
            (None, Some(sup)) => both(
                "MPIB_HCA_SOUT",
                "(unset)".into(),
                format!("an HCA, since MPIB_HCA_SUP={sup}: set both or neither"),
            ),
            (Some(sout), Some(sup)) if sout.same_port(sup) => {
                both(
                    "MPIB_HCA_SUP",
                    format!("{:?}", sup.to_string()),
                    format!("another HCA or port than MPIB_HCA_SOUT={sout}"),
                );
            }
            _ => {}
        }
        let has_share = self.sup_share.is_some() || self.mode == Mode::Advanced;
        if self.split == SplitBy::Share && !(has_share && self.hca_sout.is_some()) {
            both(
                "MPIB_SPLIT",
                "\"share\"".into(),
                "speed or measured; share is for MPIB_HCA_SOUT and MPIB_HCA_SUP with MPIB_SUP_SHARE or MPIB_MODE=1".into(),
            );
        }
        if let (Some(family), Some(range)) = (self.addr_family, &self.addr_range)
            && family != range.family()
        {
            both(
                "NCCL_IB_ADDR_RANGE",
                format!("{:?}", range.to_string()),
                format!("a range of NCCL_IB_ADDR_FAMILY={family}"),
            );
        }
        bad
    }

    /// Describes the settings other than their defaults that do nothing beside the other settings.
    pub(super) fn idle(&self) -> Vec<Finding> {
        let hints = |why| {
            [
                Idle { variables: &THRESHOLD, why, missed: true },
                Idle { variables: &AGENT, why, missed: false },
            ]
        };
        let idle = match (self.hca_sout.is_some(), self.sup_share, self.mode) {
            (false, ..) => vec![PLAIN],
            (true, share, mode) => {
                let without = match (share, mode) {
                    (Some(_), _) => Some(hints("MPIB_SUP_SHARE fixes the split of all transfers")),
                    (None, Mode::Vanilla) => Some(hints("with MPIB_MODE=0 no transfer is split")),
                    (None, Mode::Advanced) => None,
                };
                TWO_RAILS.into_iter().chain(without.into_iter().flatten()).collect()
            }
        };
        let all = self.all();
        let set = all.iter().filter(|(_, _, default)| !default);
        set.filter_map(|(variable, value, _)| {
            let Idle { why, missed, .. } = idle.iter().find(|i| i.variables.contains(variable))?;
            let text = format!("{variable}={value} has no effect: {why}");
            Some(Finding { degraded: *missed, text })
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAILS: [(&str, &str); 2] = [("MPIB_HCA_SOUT", "a"), ("MPIB_HCA_SUP", "b")];

    fn idle(pairs: &[(&str, &str)]) -> Vec<(String, bool)> {
        let config = Config::read(|name| pairs.iter().find(|p| p.0 == name).map(|p| p.1.into())).unwrap();
        let split = |f: Finding| (f.text.split(" has no effect: ").next().unwrap().to_owned(), f.degraded);
        config.idle().into_iter().map(split).collect()
    }

    //= configuration.md: settings without effect beside others are logged, and fail a strict init
    #[test]
    fn settings_that_a_profile_ignores_are_reported() {
        let two = |more: &[(&'static str, &'static str)]| idle(&[&RAILS[..], more].concat());
        assert_eq!(idle(&[]), []);
        assert_eq!(two(&[]), []);
        let missed = |name: &str| [(name.to_owned(), true)];
        for variable in PLAIN.variables {
            let value = match *variable {
                "MPIB_HINTS" => "/run/x",
                "MPIB_HINT_POLL_US" => "5000",
                "MPIB_SOUT_QP" | "MPIB_SUP_QP" => "2",
                _ => "1",
            };
            assert_eq!(idle(&[(variable, value)]), missed(&format!("{variable}={value}")));
            // Advanced mode uses each of them.
            let mode = if *variable == "MPIB_MODE" { [].as_slice() } else { &[("MPIB_MODE", "1")] };
            assert_eq!(idle(&[&RAILS[..], mode, &[(variable, value)]].concat()), [], "{variable}");
        }
        let (threshold, hints) = (("MPIB_BDP_THRESHOLD", "1"), ("MPIB_HINTS", "/run/a"));
        let both = [("MPIB_BDP_THRESHOLD=1".to_owned(), true), ("MPIB_HINTS=/run/a".to_owned(), false)];
        assert_eq!(two(&[threshold, hints]), both);
        // The agent scales ports in every profile.
        assert_eq!(idle(&[("MPIB_AGENT_SOCKET", "/run/a"), ("MPIB_AGENT_UID", "7")]), []);
        assert_eq!(two(&[("MPIB_MODE", "1"), ("MPIB_SUP_SHARE", "512"), threshold, hints]), both);
        assert_eq!(two(&[("NCCL_IB_QPS_PER_CONNECTION", "4")]), missed("NCCL_IB_QPS_PER_CONNECTION=4"));
        assert_eq!(two(&[("NCCL_IB_SPLIT_DATA_ON_QPS", "1")]), missed("NCCL_IB_SPLIT_DATA_ON_QPS=1"));
        assert_eq!(two(&[("NCCL_IB_HCA", "=a")]), [("NCCL_IB_HCA==a".to_owned(), false)]);
        // The default, spelled out, loses nobody anything.
        assert_eq!(idle(&[("MPIB_MODE", "0"), ("MPIB_SUP_QP", "1")]), []);
    }
}
