//! Ports that are not among the devices, and names that select no port.

use super::selection::{Found, Plan, Trouble, selected};
use crate::config::{Config, HcaFilter, HcaName, nearest};

/// Ports that are not among the devices although no setting excludes them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Faulty ports, ports that `NCCL_IB_HCA` names, and those of devices that are down: somebody
    /// misses them.
    pub lost: Vec<String>,
    /// Ports that are down, as those without a cable are.
    pub idle: Vec<String>,
    /// Names in `NCCL_IB_HCA` that select no port, and why.
    pub unknown: Vec<String>,
}

impl LeftOut {
    /// Describes the ports that somebody misses.
    pub(super) fn lost_text(&self) -> Option<String> {
        (!self.lost.is_empty()).then(|| format!("ports that cannot be used: {}", self.lost.join("; ")))
    }

    /// Describes the names in `NCCL_IB_HCA` that select no port.
    pub(super) fn unknown_text(&self) -> Option<String> {
        let text = || format!("NCCL_IB_HCA names what this host does not have: {}", self.unknown.join("; "));
        (!self.unknown.is_empty()).then(text)
    }

    /// Describes the ports that nobody misses.
    pub(super) fn idle_text(&self) -> Option<String> {
        (!self.idle.is_empty()).then(|| format!("ports left out: {}", self.idle.join("; ")))
    }
}

/// Returns what a plan of one device per port leaves out, and the ports of the planned devices that
/// are down. With SOUT and SUP no other port is missed.
pub(super) fn left_out(config: &Config, found: &[Found], plans: &[Plan]) -> LeftOut {
    let mut out = LeftOut::default();
    let members = plans.iter().flat_map(|plan| &plan.rails).map(|i| &found[*i]);
    let down = members.filter(|port| port.trouble.is_some());
    out.lost.extend(down.map(|port| format!("{port}, which connections use once it is active")));
    if config.hca_sout.is_some() {
        return out;
    }
    let named = config.ib_hca.as_ref().is_some_and(HcaFilter::names);
    out.unknown = config.ib_hca.as_ref().map_or_else(Vec::new, |filter| unknown(filter, found));
    for port in found.iter().filter(|f| selected(config, f)) {
        match &port.trouble {
            None => {}
            Some(Trouble::Inactive) if !named => out.idle.push(port.to_string()),
            Some(_) => out.lost.push(port.to_string()),
        }
    }
    out
}

/// Describes each item of the filter that selects none of the ports.
fn unknown(filter: &HcaFilter, found: &[Found]) -> Vec<String> {
    let ports: Vec<(&str, u8)> = found.iter().map(|f| (f.hca.as_str(), f.port)).collect();
    let names: Vec<&str> = ports.iter().map(|(name, _)| *name).collect();
    let describe = |missing: &HcaName| match names.contains(&missing.name.as_str()) {
        true => format!("{missing} (the adapter has no such port)"),
        false => {
            let nearest = nearest(&missing.name, &names);
            nearest.map_or_else(
                || format!("{missing} (no adapter has a name like it)"),
                |name| format!("{missing} (the nearest name is {name})"),
            )
        }
    };
    filter.unmatched(&ports).into_iter().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::super::selection::tests::{config, host};
    use super::*;

    #[test]
    fn ports_that_a_filter_asks_for_are_lost_others_are_idle() {
        let mut found = host(&[("a", 1, true), ("a", 2, false), ("b", 1, false), ("c", 1, false)]);
        found[3].trouble = Some(Trouble::Fault("no GID".into()));
        let left = |vars: &[(&str, &str)]| {
            let LeftOut { lost, idle, unknown } = left_out(&config(vars), &found, &[]);
            assert_eq!(unknown, [""; 0]);
            (lost.join(" "), idle.join(" "))
        };
        let (a2, b1, c1) =
            ("a:2 (the port is not active)", "b:1 (the port is not active)", "c:1 (no GID)".to_owned());
        assert_eq!(left(&[]), (c1.clone(), format!("{a2} {b1}")));
        assert_eq!(left(&[("NCCL_IB_HCA", "^a")]), (c1, b1.to_owned()));
        assert_eq!(left(&[("NCCL_IB_HCA", "a,b:1")]), (format!("{a2} {b1}"), String::new()));
        assert_eq!(left(&[("MPIB_HCA_SOUT", "a:1"), ("MPIB_HCA_SUP", "a:2")]), Default::default());
    }

    //= configuration.md: NCCL_IB_HCA
    #[test]
    fn an_unknown_adapter_is_reported_with_the_nearest_name() {
        let found = host(&[("mlx5_0", 1, true), ("mlx5_1", 1, false), ("rocep1s0", 2, true)]);
        for (filter, unknown) in [
            ("mlx5_0,mlx5_1", &[][..]),
            ("mlx5,rocep1s0:2", &[]),
            ("mlx5_0,rocep1s", &[]),
            ("=mlx5_0,rocep1s", &["rocep1s (the nearest name is rocep1s0)"]),
            ("mlx_50,mlx5_0", &["mlx_50 (the nearest name is mlx5_0)"]),
            ("^mlx5_0,rocep2s0:1", &["rocep2s0:1 (the nearest name is rocep1s0)"]),
            ("mlx5_0,ibp59s0", &["ibp59s0 (no adapter has a name like it)"]),
            (
                "mlx5_0:1,mlx5_1:2,rocep1s0:1:4",
                &["mlx5_1:2 (the adapter has no such port)", "rocep1s0:1 (the adapter has no such port)"],
            ),
        ] {
            assert_eq!(
                left_out(&config(&[("NCCL_IB_HCA", filter)]), &found, &[]).unknown,
                unknown,
                "{filter}"
            );
        }
        let text = left_out(&config(&[("NCCL_IB_HCA", "=mlx5_0,x")]), &found, &[]).unknown_text();
        assert!(text.unwrap().starts_with("NCCL_IB_HCA names what this host does not have: x (no adapter"));
        let set = config(&[("NCCL_IB_HCA", "x"), ("MPIB_HCA_SOUT", "a"), ("MPIB_HCA_SUP", "b")]);
        assert_eq!(left_out(&set, &found, &[]), LeftOut::default());
    }
}
