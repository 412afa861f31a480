//! From the ports that exist to the devices that NCCL sees. Pure: no verbs.

use super::filter::{HcaFilter, Place};

/// What the user says about devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// `MPIB_HCA_SOUT`: `name` or `name:port`.
    pub sout: Option<String>,
    /// `MPIB_HCA_SUP`, likewise.
    pub sup: Option<String>,
    /// `NCCL_IB_HCA`, for the general profile.
    pub hca: String,
    /// `NCCL_IB_GID_INDEX`, where it is not left to us.
    pub gid_index: Option<u8>,
}

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
    /// What `NCCL_IB_HCA` says of its place.
    pub place: Place,
}

const NOWHERE: Place = Place { rail: -1, plane: -1 };

impl Selection {
    /// The devices, or a sentence that says why there are none.
    pub(super) fn plan(&self, found: &[Found]) -> Result<Vec<Plan>, String> {
        let plans = match (&self.sout, &self.sup) {
            (Some(sout), Some(sup)) => vec![fused(sout, sup, found)?],
            (None, None) => self.one_per_port(found)?,
            (Some(_), None) => return Err(half("MPIB_HCA_SOUT", "MPIB_HCA_SUP", found)),
            (None, Some(_)) => return Err(half("MPIB_HCA_SUP", "MPIB_HCA_SOUT", found)),
        };
        if plans.is_empty() {
            let filter = if self.hca.is_empty() {
                String::new()
            } else {
                format!(" that NCCL_IB_HCA={:?} lets through", self.hca)
            };
            return Err(format!("no usable RDMA port{filter}; this host has {}", list(found)));
        }
        Ok(plans)
    }

    fn one_per_port(&self, found: &[Found]) -> Result<Vec<Plan>, String> {
        let filter = HcaFilter::parse(&self.hca)?;
        let usable: Vec<(usize, Place)> = found
            .iter()
            .enumerate()
            .filter(|(_, f)| f.trouble.is_none())
            .filter_map(|(i, f)| Some((i, filter.place(&f.hca, f.port)?)))
            .collect();
        let several = |hca: &str| usable.iter().filter(|(i, _)| found[*i].hca == hca).count() > 1;
        let plan = |(i, place): (usize, Place)| {
            let Found { hca, port, .. } = &found[i];
            let name = if several(hca) { format!("{hca}:{port}") } else { hca.clone() };
            Plan { name, rails: vec![i], place }
        };
        Ok(usable.iter().copied().map(plan).collect())
    }
}

fn half(set: &str, unset: &str, found: &[Found]) -> String {
    format!("{set} is set and {unset} is not: set both, or neither; this host has {}", list(found))
}

fn fused(sout: &str, sup: &str, found: &[Found]) -> Result<Plan, String> {
    let a = find("MPIB_HCA_SOUT", sout, found)?;
    let b = find("MPIB_HCA_SUP", sup, found)?;
    if a == b {
        return Err(format!(
            "MPIB_HCA_SOUT={sout} and MPIB_HCA_SUP={sup} are the same port: the two rails must differ; this host has {}",
            list(found)
        ));
    }
    let name = |i: usize| {
        if found[a].hca == found[b].hca {
            format!("{}:{}", found[i].hca, found[i].port)
        } else {
            found[i].hca.clone()
        }
    };
    Ok(Plan { name: format!("{}+{}", name(a), name(b)), rails: vec![a, b], place: NOWHERE })
}

/// The port that `text` names: the one it says, or the first usable one of the device.
fn find(variable: &str, text: &str, found: &[Found]) -> Result<usize, String> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => {
            let port = port
                .parse::<u8>()
                .map_err(|_| format!("{variable}={text}: {port:?} is not a port number"))?;
            (name, Some(port))
        }
        None => (text, None),
    };
    let mut of_name = found.iter().enumerate().filter(|(_, f)| f.hca == name).peekable();
    if of_name.peek().is_none() {
        return Err(format!("{variable}={text}: there is no device {name:?}; this host has {}", list(found)));
    }
    let mut of_port = of_name.filter(|(_, f)| port.is_none_or(|p| p == f.port)).peekable();
    let Some((_, first)) = of_port.peek() else {
        return Err(format!("{variable}={text}: {name} has no such port; this host has {}", list(found)));
    };
    let trouble = first.trouble.clone().unwrap_or_default();
    of_port.find(|(_, f)| f.trouble.is_none()).map(|(i, _)| i).ok_or_else(|| {
        format!("{variable}={text}: the port cannot be used: {trouble}; this host has {}", list(found))
    })
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

    fn host(ports: &[(&str, u8, bool)]) -> Vec<Found> {
        let found = |&(hca, port, up): &(&str, u8, bool)| Found {
            hca: hca.to_owned(),
            port,
            trouble: (!up).then(|| "down".to_owned()),
        };
        ports.iter().map(found).collect()
    }

    fn mpib(sout: Option<&str>, sup: Option<&str>) -> Selection {
        Selection { sout: sout.map(str::to_owned), sup: sup.map(str::to_owned), ..Selection::default() }
    }

    #[test]
    fn two_rails_become_one_device() {
        let found = host(&[("a", 1, true), ("b", 1, false), ("b", 2, true)]);
        let plans = mpib(Some("b"), Some("a")).plan(&found).unwrap();
        assert_eq!(plans, [Plan { name: "b+a".into(), rails: vec![2, 0], place: NOWHERE }]);
        let plans = mpib(Some("b:2"), Some("a:1")).plan(&found).unwrap();
        assert_eq!(plans[0].rails, [2, 0]);
    }

    #[test]
    fn what_is_wrong_with_the_two_names_is_said_with_what_exists() {
        let found = host(&[("a", 1, true), ("b", 1, false)]);
        for (sout, sup, said) in [
            (Some("a"), None, "MPIB_HCA_SUP is not"),
            (None, Some("a"), "MPIB_HCA_SOUT is not"),
            (Some("a"), Some("a"), "same port"),
            (Some("a"), Some("x"), "MPIB_HCA_SUP=x: there is no device"),
            (Some("a"), Some("b"), "down"),
            (Some("a:3"), Some("b"), "MPIB_HCA_SOUT=a:3: a has no such port"),
            (Some("a:y"), Some("b"), "not a port number"),
        ] {
            let text = mpib(sout, sup).plan(&found).unwrap_err();
            assert!(text.contains(said), "{text}");
            assert!(said == "not a port number" || text.contains("this host has a:1, b:1 (down)"), "{text}");
        }
    }

    #[test]
    fn every_usable_port_is_a_device_with_a_name_of_its_own() {
        let mut ports: Vec<(String, u8)> = (0..20).map(|i| (format!("m{i}"), 1)).collect();
        ports.push(("m3".into(), 2));
        let found: Vec<Found> =
            ports.iter().map(|(h, p)| Found { hca: h.clone(), port: *p, trouble: None }).collect();
        let plans = Selection::default().plan(&found).unwrap();
        let names: std::collections::HashSet<_> = plans.iter().map(|p| p.name.clone()).collect();
        assert_eq!((plans.len(), names.len()), (21, 21));
        assert!(names.contains("m0") && names.contains("m3:1") && names.contains("m3:2"));
        let only = Selection { hca: "=m3:2".into(), ..Selection::default() }.plan(&found).unwrap();
        assert_eq!((only.len(), only[0].name.as_str()), (1, "m3"));
    }

    #[test]
    fn nothing_usable_is_an_error_that_lists_what_is_there() {
        let text = Selection::default().plan(&[]).unwrap_err();
        assert!(text.contains("no RDMA device"), "{text}");
        let text = Selection::default().plan(&host(&[("a", 1, false)])).unwrap_err();
        assert!(text.contains("a:1 (down)"), "{text}");
        let filtered = Selection { hca: "mlx".into(), ..Selection::default() };
        let text = filtered.plan(&host(&[("a", 1, true)])).unwrap_err();
        assert!(text.contains("NCCL_IB_HCA=\"mlx\"") && text.contains("a:1"), "{text}");
    }
}
