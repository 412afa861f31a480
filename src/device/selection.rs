//! Selects the devices that NCCL sees from the ports that exist. Pure: makes no verbs object.

use std::fmt;
use std::io;

use crate::config::{Config, HcaFilter, HcaName, nearest};
use crate::error::{Error, Result};

/// One port of one adapter, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The adapter's name.
    pub(crate) hca: String,
    /// Port number.
    pub(crate) port: u8,
    /// Why it cannot be used, if so.
    pub(crate) trouble: Option<Trouble>,
}

/// Why a port cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It is down. A port without a cable is down, and nobody misses it.
    Inactive,
    /// Any other reason.
    Fault(String),
}

/// Why a port that is down cannot be used.
pub(crate) const INACTIVE: &str = "the port is not active";

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inactive => f.write_str(INACTIVE),
            Self::Fault(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.hca, self.port)?;
        self.trouble.as_ref().map_or(Ok(()), |why| write!(f, " ({why})"))
    }
}

/// One device for NCCL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// Unique.
    pub(crate) name: String,
    /// Indices of its ports in what was found: SOUT and SUP, or one.
    pub(crate) rails: Vec<usize>,
    /// Rail and plane of the network that `NCCL_IB_HCA` gives it.
    pub(crate) ids: (Option<i16>, Option<i16>),
}

/// Plans the devices that `config` requests.
pub(super) fn plan(config: &Config, found: &[Found]) -> Result<Vec<Plan>> {
    if found.is_empty() {
        // No setting can be the reason.
        return Err(nothing(config, found));
    }
    let unknown =
        |name: &&HcaName| !found.iter().any(|f| f.hca == name.name && name.port.is_none_or(|p| p == f.port));
    let refuse = |variable, text: String, name: &HcaName| {
        let expected = format!("HCAs and ports of this host, which {name} is not: it has {}", list(found));
        Err(Error::config(variable, format!("\"{text}\""), expected))
    };
    if let Some(name) = config.gid_index.names().find(unknown) {
        return refuse("NCCL_IB_GID_INDEX", config.gid_index.to_string(), name);
    }
    if let Some((speeds, name)) =
        config.rail_speed.as_ref().and_then(|s| s.names().find(unknown).map(|name| (s, name)))
    {
        return refuse("MPIB_RAIL_SPEED", speeds.to_string(), name);
    }
    let plans = match (&config.hca_sout, &config.hca_sup) {
        (Some(sout), Some(sup)) => vec![sout_sup((sout, sup), config.failover, found)?],
        // One without the other was refused when the settings were read.
        _ => one_per_port(config, found),
    };
    if plans.is_empty() { Err(nothing(config, found)) } else { Ok(plans) }
}

/// Explains why there is no device.
fn nothing(config: &Config, found: &[Found]) -> Error {
    let usable = found.iter().any(|f| f.trouble.is_none());
    if let Some(filter) = config.ib_hca.as_ref().filter(|_| usable) {
        let expected = format!("a filter that leaves a port that can be used; this host has {}", list(found));
        return Error::config("NCCL_IB_HCA", format!("\"{filter}\""), expected);
    }
    let what = if found.is_empty() {
        "no RDMA device found (does ibv_devices list one, is the adapter's driver loaded, does the container have \
         /dev/infiniband?)"
            .to_owned()
    } else {
        format!("no usable RDMA port (see ibv_devinfo -v); this host has {}", list(found))
    };
    Error::io(what, io::Error::from_raw_os_error(libc::ENODEV))
}

/// Lists the settings of the selection that have changed, with both values.
pub(super) fn changed(then: &Config, now: &Config) -> Vec<String> {
    fn shown<T: ToString>(value: Option<&T>) -> String {
        value.map_or("unset".into(), T::to_string)
    }
    fn row<T: PartialEq + ToString>(name: &str, then: Option<&T>, now: Option<&T>) -> Option<String> {
        (then != now).then(|| format!("{name}={} (was {})", shown(now), shown(then)))
    }
    let rows = [
        row("MPIB_HCA_SOUT", then.hca_sout.as_ref(), now.hca_sout.as_ref()),
        row("MPIB_HCA_SUP", then.hca_sup.as_ref(), now.hca_sup.as_ref()),
        row("NCCL_IB_HCA", then.ib_hca.as_ref(), now.ib_hca.as_ref()),
        row(
            "NCCL_IB_DEVICE_PCI_ORDER",
            Some(&u8::from(then.device_pci_order)),
            Some(&u8::from(now.device_pci_order)),
        ),
        row("NCCL_IB_MERGE_VFS", Some(&u8::from(then.merge_vfs)), Some(&u8::from(now.merge_vfs))),
        row("MPIB_RAIL_SPEED", then.rail_speed.as_ref(), now.rail_speed.as_ref()),
        row("NCCL_IB_GID_INDEX", Some(&then.gid_index), Some(&now.gid_index)),
        row("NCCL_IB_ROUTABLE_FLID_GID_INDEX", Some(&then.flid_gid_index), Some(&now.flid_gid_index)),
        row("NCCL_IB_ADDR_FAMILY", then.addr_family.as_ref(), now.addr_family.as_ref()),
        row("NCCL_IB_ADDR_RANGE", then.addr_range.as_ref(), now.addr_range.as_ref()),
        row("NCCL_IB_ROCE_VERSION_NUM", then.roce_version.as_ref(), now.roce_version.as_ref()),
    ];
    rows.into_iter().flatten().collect()
}

/// Whether `NCCL_IB_HCA` selects the port.
pub(super) fn selected(config: &Config, port: &Found) -> bool {
    config.ib_hca.as_ref().is_none_or(|filter| filter.matches(&port.hca, port.port))
}

fn one_per_port(config: &Config, found: &[Found]) -> Vec<Plan> {
    let usable: Vec<usize> =
        (0..found.len()).filter(|i| found[*i].trouble.is_none() && selected(config, &found[*i])).collect();
    let several = |hca: &str| usable.iter().filter(|i| found[**i].hca == hca).count() > 1;
    let plan = |i: usize| {
        let Found { hca, port, .. } = &found[i];
        let name = if several(hca) { format!("{hca}:{port}") } else { hca.clone() };
        let ids = config.ib_hca.as_ref().map_or((None, None), |filter| filter.ids(hca, *port));
        Plan { name, rails: vec![i], ids }
    };
    usable.iter().copied().map(plan).collect()
}

/// Plans the device of SOUT and SUP. With `failover` one of them may be down: connections use it once
/// it is up.
fn sout_sup((sout, sup): (&HcaName, &HcaName), failover: bool, found: &[Found]) -> Result<Plan> {
    let ports = |takes_down| {
        let a = find("MPIB_HCA_SOUT", sout, takes_down, found)?;
        Ok((a, find("MPIB_HCA_SUP", sup, takes_down, found)?))
    };
    let works = |&(a, b): &(usize, usize)| found[a].trouble.is_none() || found[b].trouble.is_none();
    let (a, b) = match ports(failover) {
        Ok(both) if works(&both) => both,
        // The error names the first port that is down.
        _ => ports(false)?,
    };
    if a == b {
        let expected =
            format!("another HCA or port than MPIB_HCA_SOUT={sout}; this host has {}", list(found));
        return Err(Error::config("MPIB_HCA_SUP", format!("\"{sup}\""), expected));
    }
    let one = found[a].hca == found[b].hca;
    let name =
        |i: usize| if one { format!("{}:{}", found[i].hca, found[i].port) } else { found[i].hca.clone() };
    Ok(Plan { name: format!("{}+{}", name(a), name(b)), rails: vec![a, b], ids: (None, None) })
}

/// Finds the port that `wanted` names, or the first usable one of the HCA. If none is usable and
/// `takes_down` is set, the first one that is down.
fn find(variable: &'static str, wanted: &HcaName, takes_down: bool, found: &[Found]) -> Result<usize> {
    let refuse = |expected: String| Err(Error::config(variable, format!("\"{wanted}\""), expected));
    let mut named = found.iter().enumerate().filter(|(_, f)| f.hca == wanted.name).peekable();
    if named.peek().is_none() {
        let names: Vec<&str> = found.iter().map(|f| &*f.hca).collect();
        let meant =
            nearest(&wanted.name, &names).map_or_else(String::new, |meant| format!("; is {meant} meant?"));
        return refuse(format!("an HCA of this host, which has {}{meant}", list(found)));
    }
    let mut ports = named.filter(|(_, f)| wanted.port.is_none_or(|p| p == f.port)).peekable();
    if ports.peek().is_none() {
        return refuse(format!("a port of that HCA; this host has {}", list(found)));
    }
    let is_down = |(_, f): &(usize, &Found)| takes_down && f.trouble == Some(Trouble::Inactive);
    let down = ports.clone().find(is_down);
    match ports.find(|(_, f)| f.trouble.is_none()).or(down) {
        Some((i, _)) => Ok(i),
        None => refuse(format!("a port that can be used; this host has {}", list(found))),
    }
}

/// Lists what exists, for a message.
fn list(found: &[Found]) -> String {
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Ports that are not among the devices although no setting excludes them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Faulty ports, ports that `NCCL_IB_HCA` names, and those of devices that are down: somebody
    /// misses them.
    pub(crate) lost: Vec<String>,
    /// Ports that are down, as those without a cable are.
    pub(crate) idle: Vec<String>,
    /// Names in `NCCL_IB_HCA` that select no port, and why.
    pub(crate) unknown: Vec<String>,
}

impl LeftOut {
    /// Describes the ports that somebody misses.
    pub(super) fn lost_text(&self) -> Option<String> {
        sentence("ports that cannot be used", &self.lost)
    }

    /// Describes the names in `NCCL_IB_HCA` that select no port.
    pub(super) fn unknown_text(&self) -> Option<String> {
        sentence("NCCL_IB_HCA names what this host does not have", &self.unknown)
    }

    /// Describes the ports that nobody misses.
    pub(super) fn idle_text(&self) -> Option<String> {
        sentence("ports left out", &self.idle)
    }
}

fn sentence(what: &str, items: &[String]) -> Option<String> {
    (!items.is_empty()).then(|| format!("{what}: {}", items.join("; ")))
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
pub(super) mod tests {
    use super::*;
    use nccl_net_versions::Failure;

    pub(crate) fn host(ports: &[(&str, u8, bool)]) -> Vec<Found> {
        let found = |&(hca, port, up): &(&str, u8, bool)| Found {
            hca: hca.to_owned(),
            port,
            trouble: (!up).then_some(Trouble::Inactive),
        };
        ports.iter().map(found).collect()
    }

    pub(crate) fn config(vars: &[(&str, &str)]) -> Config {
        Config::read(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into())).unwrap()
    }

    fn mpib(sout: &str, sup: &str) -> Config {
        config(&[("MPIB_HCA_SOUT", sout), ("MPIB_HCA_SUP", sup)])
    }

    //= mpib.md: a job begins while SOUT or SUP is down
    #[test]
    fn one_of_two_rails_may_be_down_with_failover() {
        let mut found = host(&[("a", 1, true), ("b", 1, false), ("c", 1, false)]);
        let rails =
            |sout, sup, found: &[Found]| plan(&mpib(sout, sup), found).map(|plans| plans[0].rails.clone());
        assert_eq!(rails("a", "b", &found).unwrap(), [0, 1]);
        assert_eq!(rails("c", "a", &found).unwrap(), [2, 0]);
        let both = rails("b", "c", &found).unwrap_err().to_string();
        assert!(both.contains("MPIB_HCA_SOUT=\"b\": expected a port that can be used"), "{both}");
        let off = [("MPIB_HCA_SOUT", "a"), ("MPIB_HCA_SUP", "b"), ("MPIB_FAILOVER", "0")];
        let off = plan(&config(&off), &found).unwrap_err().to_string();
        assert!(off.contains("MPIB_HCA_SUP=\"b\": expected a port that can be used"), "{off}");
        found[1].trouble = Some(Trouble::Fault("no GID".into()));
        assert!(rails("a", "b", &found).is_err());
    }

    #[test]
    fn two_rails_become_one_device() {
        let found = host(&[("a", 1, true), ("b", 1, false), ("b", 2, true)]);
        let plans = plan(&mpib("b", "a"), &found).unwrap();
        assert_eq!(plans, [Plan { name: "b+a".into(), rails: vec![2, 0], ids: (None, None) }]);
        assert_eq!(plan(&mpib("b:2", "a:1"), &found).unwrap()[0].rails, [2, 0]);
        let two_ports = host(&[("a", 1, true), ("a", 2, true)]);
        assert_eq!(plan(&mpib("a:2", "a:1"), &two_ports).unwrap()[0].name, "a:2+a:1");
    }

    #[test]
    fn a_rail_name_without_a_port_is_refused_with_the_ports_that_exist() {
        let found = host(&[("a", 1, true), ("b", 1, false), ("mlx5_0", 1, true)]);
        for (sout, sup, expected) in [
            ("a", "x", "MPIB_HCA_SUP=\"x\": expected an HCA of this host"),
            ("mlx5_0", "mlx5_O", "b:1 (the port is not active), mlx5_0:1; is mlx5_0 meant?"),
            ("a:3", "b", "MPIB_HCA_SOUT=\"a:3\": expected a port of that HCA"),
        ] {
            let e = plan(&mpib(sout, sup), &found).unwrap_err();
            let text = e.to_string();
            assert!(text.contains(expected) && text.contains("a:1, b:1 (the port is not active)"), "{text}");
            assert_eq!(e.failure(), Failure::InvalidUsage);
        }
    }

    #[test]
    fn every_usable_port_is_a_device_with_a_name_of_its_own() {
        let mut ports: Vec<(String, u8)> = (0..20).map(|i| (format!("m{i}"), 1)).collect();
        ports.push(("m3".into(), 2));
        let found: Vec<Found> =
            ports.iter().map(|(h, p)| Found { hca: h.clone(), port: *p, trouble: None }).collect();
        let plans = plan(&Config::default(), &found).unwrap();
        let names: std::collections::HashSet<_> = plans.iter().map(|p| p.name.clone()).collect();
        assert_eq!((plans.len(), names.len()), (21, 21));
        assert!(names.contains("m0") && names.contains("m3:1") && names.contains("m3:2"));
        let only = plan(&config(&[("NCCL_IB_HCA", "=m3:2")]), &found).unwrap();
        assert_eq!((only.len(), only[0].name.as_str()), (1, "m3"));
    }

    #[test]
    fn the_filter_gives_devices_their_rail_and_plane() {
        let found = host(&[("a", 1, true), ("a", 2, true), ("b", 1, true), ("c", 1, true)]);
        let plans = plan(&config(&[("NCCL_IB_HCA", "=a:1:4,a:2:5:6,b,c:1:0:0")]), &found).unwrap();
        let ids: Vec<_> = plans.iter().map(|p| p.ids).collect();
        assert_eq!(ids, [(Some(4), None), (Some(5), Some(6)), (None, None), (Some(0), Some(0))]);
    }

    #[test]
    fn a_speed_of_a_port_that_is_not_there_is_refused() {
        let found = host(&[("a", 1, true)]);
        assert!(plan(&config(&[("MPIB_RAIL_SPEED", "a:1:5")]), &found).is_ok());
        for name in ["b", "a:2"] {
            let e = plan(&config(&[("MPIB_RAIL_SPEED", &format!("{name}:5"))]), &found).unwrap_err();
            let expected = format!(
                "MPIB_RAIL_SPEED=\"{name}:5\": expected HCAs and ports of this host, which {name} is not"
            );
            assert!(e.to_string().contains(&expected), "{e}");
        }
    }

    #[test]
    fn nothing_usable_is_an_error_that_lists_what_is_there() {
        for config in [Config::default(), mpib("a", "b"), config(&[("NCCL_IB_HCA", "a")])] {
            let e = plan(&config, &[]).unwrap_err();
            assert!(e.to_string().contains("no RDMA device found (does ibv_devices list one"), "{e}");
            assert_eq!(e.failure(), Failure::System);
        }
        let e = plan(&Config::default(), &host(&[("a", 1, false)])).unwrap_err();
        assert!(e.to_string().contains("a:1 (the port is not active)"), "{e}");
        let e = plan(&config(&[("NCCL_IB_HCA", "mlx")]), &host(&[("a", 1, true)])).unwrap_err();
        assert!(
            e.to_string().starts_with("NCCL_IB_HCA=\"mlx\": expected a filter that leaves a port"),
            "{e}"
        );
        assert!(e.to_string().ends_with("this host has a:1"), "{e}");
        assert_eq!(e.failure(), Failure::InvalidUsage);
        // Not the filter's fault.
        let e = plan(&config(&[("NCCL_IB_HCA", "a")]), &host(&[("a", 1, false)])).unwrap_err();
        assert!(e.to_string().starts_with("no usable RDMA port"), "{e}");
    }

    #[test]
    fn changed_device_settings_are_reported_with_both_values() {
        let then = config(&[("NCCL_IB_HCA", "a"), ("NCCL_IB_GID_INDEX", "3"), ("MPIB_SUP_SHARE", "1")]);
        assert_eq!(changed(&then, &then), Vec::<String>::new());
        assert_eq!(
            changed(&then, &config(&[("NCCL_IB_HCA", "^b")])),
            ["NCCL_IB_HCA=^b (was a)", "NCCL_IB_GID_INDEX=-1 (was 3)"]
        );
        assert_eq!(
            changed(&Config::default(), &mpib("a", "b")),
            ["MPIB_HCA_SOUT=a (was unset)", "MPIB_HCA_SUP=b (was unset)"]
        );
    }

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
