//! From the ports that exist to the devices that NCCL sees. Pure: no verbs.

use std::io;

use crate::config::{Config, HcaName};
use crate::error::{Error, Result};

/// One port of one device, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The device's name.
    pub hca: String,
    /// Port number.
    pub port: u8,
    /// Why it cannot be used; `None` where it can.
    pub trouble: Option<String>,
}

/// One device for NCCL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// Unique.
    pub name: String,
    /// Indices of its ports in what was found: SOUT and SUP, or one.
    pub rails: Vec<usize>,
}

/// The devices that `config` asks for.
pub(super) fn plan(config: &Config, found: &[Found]) -> Result<Vec<Plan>> {
    let plans = match (&config.hca_sout, &config.hca_sup) {
        (Some(sout), Some(sup)) => vec![fused(sout, sup, found)?],
        // One set without the other was refused with the settings.
        _ => one_per_port(config, found),
    };
    if plans.is_empty() {
        let filter = match &config.ib_hca {
            Some(filter) => format!(" that NCCL_IB_HCA={filter} lets through"),
            None => String::new(),
        };
        let what = format!("no usable RDMA port{filter}; this host has {}", list(found));
        return Err(Error::io(what, io::Error::from_raw_os_error(libc::ENODEV)));
    }
    Ok(plans)
}

fn one_per_port(config: &Config, found: &[Found]) -> Vec<Plan> {
    let lets = |f: &Found| config.ib_hca.as_ref().is_none_or(|filter| filter.matches(&f.hca, f.port));
    let usable: Vec<usize> =
        (0..found.len()).filter(|i| found[*i].trouble.is_none() && lets(&found[*i])).collect();
    let several = |hca: &str| usable.iter().filter(|i| found[**i].hca == hca).count() > 1;
    let plan = |i: usize| {
        let Found { hca, port, .. } = &found[i];
        let name = if several(hca) { format!("{hca}:{port}") } else { hca.clone() };
        Plan { name, rails: vec![i] }
    };
    usable.iter().copied().map(plan).collect()
}

fn fused(sout: &HcaName, sup: &HcaName, found: &[Found]) -> Result<Plan> {
    let a = find("MPIB_HCA_SOUT", sout, found)?;
    let b = find("MPIB_HCA_SUP", sup, found)?;
    if a == b {
        let expected =
            format!("another HCA or port than MPIB_HCA_SOUT={sout}; this host has {}", list(found));
        return Err(Error::config("MPIB_HCA_SUP", format!("\"{sup}\""), expected));
    }
    let one = found[a].hca == found[b].hca;
    let name =
        |i: usize| if one { format!("{}:{}", found[i].hca, found[i].port) } else { found[i].hca.clone() };
    Ok(Plan { name: format!("{}+{}", name(a), name(b)), rails: vec![a, b] })
}

/// The port that `wanted` names: the one it says, or the first usable one of the HCA.
fn find(variable: &'static str, wanted: &HcaName, found: &[Found]) -> Result<usize> {
    let refuse = |expected: String| Err(Error::config(variable, format!("\"{wanted}\""), expected));
    let mut named = found.iter().enumerate().filter(|(_, f)| f.hca == wanted.name).peekable();
    if named.peek().is_none() {
        return refuse(format!("an HCA of this host, which has {}", list(found)));
    }
    let mut ports = named.filter(|(_, f)| wanted.port.is_none_or(|p| p == f.port)).peekable();
    if ports.peek().is_none() {
        return refuse(format!("a port of that HCA; this host has {}", list(found)));
    }
    match ports.find(|(_, f)| f.trouble.is_none()) {
        Some((i, _)) => Ok(i),
        None => refuse(format!("a port that can be used; this host has {}", list(found))),
    }
}

/// What exists, for a message.
fn list(found: &[Found]) -> String {
    if found.is_empty() {
        return "no RDMA device".to_owned();
    }
    let name = |f: &Found| match &f.trouble {
        None => format!("{}:{}", f.hca, f.port),
        Some(why) => format!("{}:{} ({why})", f.hca, f.port),
    };
    found.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nccl_net_versions::Failure;

    fn host(ports: &[(&str, u8, bool)]) -> Vec<Found> {
        let found = |&(hca, port, up): &(&str, u8, bool)| Found {
            hca: hca.to_owned(),
            port,
            trouble: (!up).then(|| "down".to_owned()),
        };
        ports.iter().map(found).collect()
    }

    fn config(vars: &[(&str, &str)]) -> Config {
        Config::read(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into())).unwrap()
    }

    fn mpib(sout: &str, sup: &str) -> Config {
        config(&[("MPIB_HCA_SOUT", sout), ("MPIB_HCA_SUP", sup)])
    }

    #[test]
    fn two_rails_become_one_device() {
        let found = host(&[("a", 1, true), ("b", 1, false), ("b", 2, true)]);
        let plans = plan(&mpib("b", "a"), &found).unwrap();
        assert_eq!(plans, [Plan { name: "b+a".into(), rails: vec![2, 0] }]);
        assert_eq!(plan(&mpib("b:2", "a:1"), &found).unwrap()[0].rails, [2, 0]);
        let two_ports = host(&[("a", 1, true), ("a", 2, true)]);
        assert_eq!(plan(&mpib("a:2", "a:1"), &two_ports).unwrap()[0].name, "a:2+a:1");
    }

    #[test]
    fn a_name_that_does_not_fit_is_told_with_what_exists() {
        let found = host(&[("a", 1, true), ("b", 1, false)]);
        for (sout, sup, said) in [
            ("a", "x", "MPIB_HCA_SUP=\"x\": expected an HCA of this host"),
            ("a", "b", "MPIB_HCA_SUP=\"b\": expected a port that can be used"),
            ("a:3", "b", "MPIB_HCA_SOUT=\"a:3\": expected a port of that HCA"),
        ] {
            let e = plan(&mpib(sout, sup), &found).unwrap_err();
            let text = e.to_string();
            assert!(text.contains(said) && text.contains("a:1, b:1 (down)"), "{text}");
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
    fn nothing_usable_is_an_error_that_lists_what_is_there() {
        let e = plan(&Config::default(), &[]).unwrap_err();
        assert!(e.to_string().contains("this host has no RDMA device"), "{e}");
        assert_eq!(e.failure(), Failure::System);
        let e = plan(&Config::default(), &host(&[("a", 1, false)])).unwrap_err();
        assert!(e.to_string().contains("a:1 (down)"), "{e}");
        let e = plan(&config(&[("NCCL_IB_HCA", "mlx")]), &host(&[("a", 1, true)])).unwrap_err();
        assert!(e.to_string().contains("NCCL_IB_HCA=mlx") && e.to_string().contains("a:1"), "{e}");
    }
}
