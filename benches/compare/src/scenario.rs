//! The rails on which plugins are compared.

use serde::Serialize;

use mpib::failure::{Failure, Kind};

/// One arrangement of simulated rails.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// The rate of each rail, in 10^9 bytes per second.
    pub(super) rates: &'static [f64],
    /// The second rail's share of a transfer, in parts per 1024, for plugins with such a setting.
    pub(super) share: u16,
    /// Verbs complete at once, in process; the rates do not matter.
    pub(super) null: bool,
    /// Whether the devices have hw_counters.
    pub(super) counters: bool,
    /// Whether this plugin knows the rails and their shares from its settings. Otherwise they are
    /// fused, and all report the same speed.
    pub(super) settings: bool,
    /// Whether each core has a busy loop.
    pub(super) busy: bool,
}

/// Rails that the settings name, in a quiet place.
const fn rails(name: &'static str, rates: &'static [f64], share: u16) -> Scenario {
    Scenario { name, rates, share, null: false, counters: false, settings: true, busy: false }
}

/// The rails on which faults are measured.
pub(super) const FAULTY: Scenario =
    Scenario { counters: true, ..rails("2+2 GB/s with faults", &[2.0, 2.0], 512) };

/// The rails of one-sided traffic, which are as fast as the machine.
pub(super) const ONE_RAIL: Scenario = rails("one rail", &[4.0], 0);
pub(super) const TWO_RAILS: Scenario = rails("two rails", &[2.0, 2.0], 512);

/// The sums are below what one core copies, so the rails decide. The shares follow the rates.
const ALL: [Scenario; 8] = [
    rails("one rail, 4 GB/s", &[4.0], 0),
    rails("equal rails, 2+2 GB/s", &[2.0, 2.0], 512),
    Scenario { busy: true, ..rails("busy cores, 2+2 GB/s", &[2.0, 2.0], 512) },
    rails("2+1 GB/s", &[2.0, 1.0], 341),
    rails("2+0.5 GB/s", &[2.0, 0.5], 205),
    Scenario { settings: false, ..rails("nothing set, 2+1 GB/s", &[2.0, 1.0], 341) },
    Scenario { null: true, ..rails("null verbs, one rail", &[4.0], 0) },
    Scenario { null: true, ..rails("null verbs, two rails", &[2.0, 2.0], 512) },
];

/// Returns the scenarios whose name begins with `only`, or all.
pub(super) fn chosen(only: Option<&str>) -> Result<Vec<Scenario>, Failure> {
    let wanted = only.unwrap_or_default();
    let chosen: Vec<_> = ALL.into_iter().filter(|s| s.name.starts_with(wanted)).collect();
    if chosen.is_empty() {
        let names = ALL.map(|s| format!("{:?}", s.name)).join(", ");
        return Err(Failure::new(
            Kind::Usage,
            format!("--only {wanted:?}: no scenario begins with this; expected one of {names}"),
        ));
    }
    Ok(chosen)
}

impl Scenario {
    /// Returns whether the rails have different rates.
    pub(super) fn unequal(&self) -> bool {
        self.rates.windows(2).any(|pair| pair[0] != pair[1])
    }

    /// Returns the sum of the rates, in 10^9 bytes per second.
    pub(super) fn sum(&self) -> f64 {
        self.rates.iter().sum()
    }

    /// Returns the value of `SOFTVERBS_DEVICES`. Without `rated`, the rails are as fast as the
    /// machine.
    pub(super) fn devices(&self, rated: bool) -> String {
        let device = |(i, rate): (usize, &f64)| {
            let rate = if rated { format!(",rate={rate}GB") } else { String::new() };
            let counters = if self.counters { ",counters=on" } else { "" };
            format!("rail{i}:addr=10.18.{i}.1/24{rate}{counters}")
        };
        self.rates.iter().enumerate().map(device).collect::<Vec<_>>().join(";")
    }

    /// Returns all variables for plugins and softverbs.
    pub(super) fn environment(&self, fabric: &str, rated: bool) -> Vec<(&'static str, String)> {
        let mut out = vec![
            ("SOFTVERBS_DEVICES", self.devices(rated)),
            ("SOFTVERBS_FABRIC", fabric.to_owned()),
            // RoCEv2 over IPv4. Otherwise NCCL's own transport would read sysfs, which softverbs
            // does not simulate.
            ("NCCL_IB_GID_INDEX", "3".into()),
            // Its devices have no PCI address, and are merged only on request.
            ("NCCL_NET_FORCE_MERGE", "rail0,rail1".into()),
        ];
        if !self.settings {
            out.push(("MPIB_RAIL_SPEED", "rail0:100000,rail1:100000".into()));
        } else if self.rates.len() == 2 {
            out.push(("MPIB_HCA_SOUT", "rail0".into()));
            out.push(("MPIB_HCA_SUP", "rail1".into()));
            out.push(("MPIB_SUP_SHARE", self.share.to_string()));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_in_proportion_to_the_rates() {
        for s in ALL.iter().filter(|s| s.rates.len() == 2) {
            let exact = s.rates[1] / s.sum() * 1024.0;
            assert!((exact - f64::from(s.share)).abs() < 1.0, "{}: {exact}", s.name);
        }
    }

    #[test]
    fn scenarios_are_chosen_by_the_beginning_of_their_name() {
        let names = |only| chosen(only).map(|all| all.iter().map(|s| s.name).collect::<Vec<_>>());
        assert_eq!(names(None).unwrap().len(), 8);
        assert_eq!(names(Some("2+")).unwrap(), ["2+1 GB/s", "2+0.5 GB/s"]);
        assert!(names(Some("three")).unwrap_err().message.contains("\"one rail, 4 GB/s\""));
    }

    #[test]
    fn devices_are_as_softverbs_reads_them() {
        assert_eq!(ALL[3].devices(true), "rail0:addr=10.18.0.1/24,rate=2GB;rail1:addr=10.18.1.1/24,rate=1GB");
        assert_eq!(ALL[0].devices(false), "rail0:addr=10.18.0.1/24");
        assert!(ALL[4].unequal() && !ALL[1].unequal() && !ALL[0].unequal());
    }

    #[test]
    fn settings_name_the_rails_unless_nothing_is_set() {
        for (scenario, set) in [(ALL[3], true), (ALL[5], false)] {
            let names: Vec<_> = scenario.environment("x", true).into_iter().map(|(name, _)| name).collect();
            assert_eq!(names.contains(&"MPIB_SUP_SHARE"), set, "{}", scenario.name);
        }
    }
}
