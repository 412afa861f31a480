//! Which addresses the ends of the cables have or get. Both hosts compute the same.

use std::net::Ipv4Addr;

use super::announcement::End;
use super::meeting::Cable;
use super::net::Ipv4Net;

/// The third bytes of the networks that are proposed, 192.168.N.0/24.
const NETWORKS: std::ops::RangeInclusive<u8> = 177..=254;
/// The last bytes of both hosts.
const LOWER: u8 = 11;
const UPPER: u8 = 12;
/// A whole message, in the unit of `MPIB_SUP_SHARE`.
const WHOLE: u64 = 1024;
/// Bytes of the largest Ethernet frames that all adapters take.
pub(super) const JUMBO: u32 = 9000;

/// A cable with the addresses of its ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) ours: End,
    pub(super) theirs: End,
    pub(super) here: Ipv4Net,
    pub(super) there: Ipv4Net,
    /// Whether the ends do not have these addresses yet.
    pub(super) is_new: bool,
}

/// Both hosts, as one of them sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) rows: Vec<Row>,
    pub(super) peer: String,
    /// Whether this host has the lower hardware address, and with it the lower IPv4 addresses.
    pub(super) is_lower: bool,
}

impl Plan {
    /// `used`: the networks of this host's other interfaces.
    ///
    /// # Errors
    /// No network is free at both hosts.
    pub(super) fn new(mut cables: Vec<Cable>, used: &[Ipv4Net]) -> Result<Self, String> {
        let is_lower = cables.iter().map(|cable| cable.ours.mac).min()
            < cables.iter().map(|cable| cable.theirs.end.mac).min();
        cables.sort_by_key(|cable| if is_lower { cable.ours.mac } else { cable.theirs.end.mac });
        let peer = cables.first().map_or_else(String::new, |cable| cable.theirs.host.clone());
        let mut taken: Vec<Ipv4Net> = used.to_vec();
        for cable in &cables {
            taken.extend(cable.theirs.used.iter().chain(&cable.theirs.end.nets).chain(&cable.ours.nets));
        }
        let (mut rows, mut given): (Vec<Row>, Vec<Ipv4Net>) = Default::default();
        for Cable { ours, theirs } in cables {
            let kept = present(&ours, &theirs.end)
                .filter(|(here, _)| !rows.iter().any(|row| row.here.overlaps(*here)))
                .filter(|(here, _)| !used.iter().chain(&theirs.used).any(|net| net.overlaps(*here)));
            let is_new = kept.is_none();
            let (here, there) = match kept {
                Some(kept) => kept,
                None => {
                    let of = |number: u8, last: u8| Ipv4Net::new(Ipv4Addr::new(192, 168, number, last), 24);
                    let is_free =
                        |net: &Ipv4Net| !taken.iter().chain(&given).any(|other| other.overlaps(*net));
                    let free = NETWORKS.filter_map(|number| Some((of(number, LOWER)?, of(number, UPPER)?)));
                    let free = free.into_iter().find(|(lower, _)| is_free(lower));
                    let (lower, upper) = free.ok_or_else(|| {
                        format!(
                            "no network of 192.168.{}.0/24 to 192.168.{}.0/24 is free at both hosts: give the ports addresses by \
                             hand, a network for each cable",
                            NETWORKS.start(),
                            NETWORKS.end()
                        )
                    })?;
                    given.push(lower);
                    if is_lower { (lower, upper) } else { (upper, lower) }
                }
            };
            rows.push(Row { ours, theirs: theirs.end, here, there, is_new });
        }
        Ok(Self { rows, peer, is_lower })
    }

    /// Returns whether all ends have their addresses.
    pub(super) fn is_done(&self) -> bool {
        self.rows.iter().all(|row| !row.is_new)
    }

    /// Returns the settings of a job that uses the cables.
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![("NCCL_NET_PLUGIN", "mpib".to_owned()), ("NCCL_NET", "MPIB".into())];
        match &self.rows[..] {
            [one, two] => {
                let (a, b) = (u64::from(one.ours.speed), u64::from(two.ours.speed));
                let share = (WHOLE * b).checked_div(a + b).unwrap_or(WHOLE / 2);
                all.push(("MPIB_HCA_SOUT", one.ours.port.clone()));
                all.push(("MPIB_HCA_SUP", two.ours.port.clone()));
                all.push(("MPIB_SUP_SHARE", share.to_string()));
            }
            rows => {
                let ports: Vec<&str> = rows.iter().map(|row| &*row.ours.port).collect();
                all.push(("NCCL_IB_HCA", format!("={}", ports.join(","))));
            }
        }
        all
    }
}

/// Returns those networks of a host's other interfaces that decide which addresses ends keep or get. Both
/// hosts must know all of them, and an announcement has room for a few.
pub(super) fn decisive(used: impl Iterator<Item = Ipv4Net>, ends: &[&End]) -> Vec<Ipv4Net> {
    let proposed = Ipv4Net::new(Ipv4Addr::new(192, 168, 0, 0), 16);
    let of_ends = ends.iter().flat_map(|end| &end.nets).copied();
    let decides: Vec<Ipv4Net> = proposed.into_iter().chain(of_ends).collect();
    used.filter(|net| decides.iter().any(|other| other.overlaps(*net))).collect()
}

/// Returns addresses of both ends by which they reach each other.
fn present(ours: &End, theirs: &End) -> Option<(Ipv4Net, Ipv4Net)> {
    ours.nets.iter().find_map(|here| Some((*here, *theirs.nets.iter().find(|there| here.meets(**there))?)))
}

#[cfg(test)]
mod tests {
    use super::super::announcement::{
        Announcement,
        tests::{end, host},
    };
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.to_owned().try_into().unwrap()
    }

    /// A cable between ends with these numbers and addresses.
    fn cable((a, ours): (u8, &[&str]), (b, theirs): (u8, &[&str]), used: &[&str]) -> Cable {
        let of = |n, nets: &[&str]| End { nets: nets.iter().map(|text| net(text)).collect(), ..end(n, None) };
        let mut peer = host("node2", 2);
        peer.used = used.iter().map(|text| net(text)).collect();
        Cable { ours: of(a, ours), theirs: Announcement::new(&peer, &of(b, theirs), Vec::new(), Vec::new()) }
    }

    fn shown(plan: &Plan) -> Vec<String> {
        let line = |row: &Row| {
            let new = if row.is_new { "new" } else { "kept" };
            format!("{} {} {} {} {new}", row.ours.interface, row.here, row.theirs.interface, row.there)
        };
        plan.rows.iter().map(line).collect()
    }

    //= direct-cables.md: each cable has a network that neither host has yet
    #[test]
    fn each_cable_gets_a_free_network_with_the_lower_host_first() {
        let cables = [
            cable((1, &["169.254.3.4/16"]), (12, &[]), &["192.168.178.9/24"]),
            cable((2, &[]), (11, &[]), &[]),
        ];
        let plan = Plan::new(cables.to_vec(), &[net("192.168.177.1/25")]).unwrap();
        assert!(plan.is_lower && !plan.is_done());
        assert_eq!(
            shown(&plan),
            [
                "eth1 192.168.179.11/24 eth12 192.168.179.12/24 new",
                "eth2 192.168.180.11/24 eth11 192.168.180.12/24 new"
            ]
        );
    }

    #[test]
    fn both_hosts_compute_the_same() {
        let here =
            Plan::new(vec![cable((1, &[]), (12, &[]), &[]), cable((2, &[]), (11, &[]), &[])], &[]).unwrap();
        let there =
            Plan::new(vec![cable((12, &[]), (1, &[]), &[]), cable((11, &[]), (2, &[]), &[])], &[]).unwrap();
        let turned = there.rows.iter().map(|row| (row.theirs.mac, row.there, row.here));
        assert!(here.rows.iter().map(|row| (row.ours.mac, row.here, row.there)).eq(turned));
        assert!(here.is_lower && !there.is_lower);
    }

    //= direct-cables.md: addresses that fit are kept
    #[test]
    fn addresses_that_fit_are_kept() {
        let fits = cable((1, &["10.0.0.5/30"]), (11, &["10.0.0.6/30"]), &[]);
        let same = cable((2, &["10.0.0.5/30"]), (12, &["10.0.0.6/30"]), &[]);
        let plan = Plan::new(vec![fits.clone(), same], &[]).unwrap();
        assert_eq!(
            shown(&plan),
            ["eth1 10.0.0.5/30 eth11 10.0.0.6/30 kept", "eth2 192.168.177.11/24 eth12 192.168.177.12/24 new"]
        );
        assert!(Plan::new(vec![fits.clone()], &[]).unwrap().is_done());
        // Another interface is in the same network.
        assert!(!Plan::new(vec![fits], &[net("10.0.0.1/8")]).unwrap().is_done());
    }

    #[test]
    fn both_hosts_know_the_networks_that_decide() {
        let end = End { nets: vec![net("10.0.0.5/30")], ..end(1, None) };
        let bridges = (0..40).map(|n| Ipv4Net::new([172, 17, n, 1].into(), 24).unwrap());
        let used = bridges.chain([net("192.168.177.1/20"), net("10.0.0.1/8")]);
        assert_eq!(decisive(used, &[&end]), [net("192.168.177.1/20"), net("10.0.0.1/8")]);
    }

    #[test]
    fn without_a_free_network_the_plan_says_so() {
        let why = Plan::new(vec![cable((1, &[]), (11, &[]), &[])], &[net("192.168.0.1/16")]).unwrap_err();
        assert!(why.contains("192.168.177.0/24 to 192.168.254.0/24"), "{why}");
    }

    #[test]
    fn two_cables_are_two_rails_by_their_speeds() {
        let mut cables = vec![cable((1, &[]), (11, &[]), &[]), cable((2, &[]), (12, &[]), &[])];
        let last = |cables: &[Cable]| Plan::new(cables.to_vec(), &[]).unwrap().settings().pop().unwrap();
        assert_eq!(last(&cables), ("MPIB_SUP_SHARE", "512".into()));
        cables[1].ours.speed = 100_000;
        assert_eq!(last(&cables), ("MPIB_SUP_SHARE", "341".into()));
        cables.pop();
        assert_eq!(last(&cables), ("NCCL_IB_HCA", "=mlx5_1:1".into()));
    }
}
