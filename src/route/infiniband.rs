//! How two InfiniBand ports are addressed. A LID is valid in its own subnet only. A router forwards
//! packets from one subnet to another if their DLID is the FLID of the destination.

use mpib_proto::{Ends, RailAddr, RailInfo, Subnet, flid};

/// Returns the addresses by which two InfiniBand rails can be joined, as indices into their lists,
/// and whether the rails are in one subnet. Then it is the first of each list, otherwise those with
/// FLIDs. The order of the rails does not matter. The error is the reason why they cannot be joined.
pub(super) fn best(a: &RailInfo, b: &RailInfo) -> Result<(Ends<usize>, bool), String> {
    let first = |rail: &RailInfo| rail.addrs.first().map(|addr| Subnet::of(addr.gid));
    let (Some(ours), Some(theirs)) = (first(a), first(b)) else {
        return Err(format!("{} or {} has no GID", a.name, b.name));
    };
    if ours.is_same(theirs) {
        return Ok((Ends { connector: 0, acceptor: 0 }, true));
    }
    let routable = |rail: &RailInfo| rail.addrs.iter().position(|addr: &RailAddr| flid(addr.gid).is_some());
    match (routable(a), routable(b)) {
        (Some(connector), Some(acceptor)) => Ok((Ends { connector, acceptor }, false)),
        (ours_at, theirs_at) => {
            let lacking = [(ours_at, a), (theirs_at, b)].into_iter().filter(|(at, _)| at.is_none());
            let lacking: Vec<_> = lacking.map(|(_, rail)| rail.name.as_str()).collect();
            Err(format!(
                "{} is in InfiniBand subnet {ours}, {} in {theirs}: a router needs the FLID of each port, which the \
                 subnet manager assigns; without an FLID in GID entry NCCL_IB_ROUTABLE_FLID_GID_INDEX: {}",
                a.name,
                b.name,
                lacking.join(", ")
            ))
        }
    }
}

/// Returns the DLID of packets to this GID of a rail.
pub(crate) fn dlid(rail: &RailInfo, gid: [u8; 16], one_subnet: bool) -> u16 {
    // A port with LMC answers to its base LID, which is the one that verbs report.
    flid(gid).filter(|_| !one_subnet).unwrap_or(rail.lid)
}

#[cfg(test)]
mod tests {
    use mpib_proto::{GidKind, RailAddr};

    use super::*;
    use crate::route::tests::ib;
    use std::net::Ipv6Addr;

    /// An InfiniBand rail with these GIDs.
    fn rail(name: &str, gids: &[&str]) -> RailInfo {
        let addr = |(index, gid): (usize, &&str)| RailAddr {
            gid: gid.parse::<Ipv6Addr>().unwrap().octets(),
            gid_index: index as u8,
            gid_kind: GidKind::Ib,
            prefix_len: 0,
        };
        RailInfo { addrs: gids.iter().enumerate().map(addr).collect(), ..ib(name, 0) }
    }

    /// The entries that both use, and whether they are in one subnet. The order of the rails does
    /// not matter.
    fn joined(a: &RailInfo, b: &RailInfo) -> Result<(usize, usize, bool), String> {
        let back = best(b, a).map(|(at, one_subnet)| (at.acceptor, at.connector, one_subnet));
        let there = best(a, b).map(|(at, one_subnet)| (at.connector, at.acceptor, one_subnet));
        assert_eq!(there.as_ref().ok(), back.as_ref().ok());
        there
    }

    //= reach.md: InfiniBand subnets are joined by FLIDs
    #[test]
    fn ports_of_one_subnet_use_lids_and_others_flids() {
        let a = rail("a", &["fe80::1:2:3:4:5"]);
        let b = rail("b", &["fe80::1:6:7:8:9", "fec0:0:7:1:6:7:8:9"]);
        let c = rail("c", &["fe80::2:6:7:8:9", "fec0:0:8:2:6:7:8:9"]);
        assert_eq!(joined(&a, &b), Ok((0, 0, true)));
        assert_eq!(joined(&b, &c), Ok((1, 1, false)));
        assert_eq!((flid(b.addrs[1].gid), flid(b.addrs[0].gid)), (Some(7), None));
        assert_eq!((dlid(&b, b.addrs[1].gid, false), dlid(&b, b.addrs[0].gid, true)), (7, b.lid));
        // A port whose only entry has its FLID, since NCCL_IB_GID_INDEX names that entry.
        let only = rail("only", &["fec0:0:9:1:6:7:8:9"]);
        assert_eq!(joined(&a, &only), Ok((0, 0, true)));
        assert_eq!(dlid(&only, only.addrs[0].gid, true), only.lid, "the FLID is for routers alone");
        assert_eq!(joined(&only, &c), Ok((0, 1, false)));
    }

    //= reach.md: InfiniBand subnets are joined by FLIDs
    #[test]
    fn subnets_without_flids_are_refused_with_what_lacks() {
        let a = rail("a", &["fe80::1:2:3:4:5"]);
        let b = rail("b", &["fe80::2:6:7:8:9", "fec0:0:8:2:6:7:8:9"]);
        let plain = rail("c", &["fe80::2:6:7:8:9"]);
        let text = "a is in InfiniBand subnet fe80000000000001, b in fe80000000000002: a router needs the FLID of each \
                    port, which the subnet manager assigns; without an FLID in GID entry \
                    NCCL_IB_ROUTABLE_FLID_GID_INDEX: a";
        assert_eq!(joined(&a, &b).unwrap_err(), text);
        assert!(joined(&a, &plain).unwrap_err().ends_with("FLID_GID_INDEX: a, c"));
    }

    #[test]
    fn every_bit_of_a_prefix_counts_where_it_is_known() {
        let a = rail("a", &["2001:db8:7:1:2:3:4:5"]);
        let b = rail("b", &["2001:db8:8:1:6:7:8:9"]);
        assert!(joined(&a, &b).is_err(), "a global prefix has no FLID in it");
        // A site-local prefix without an FLID is a plain prefix.
        let (c, d) = (rail("c", &["fec0::1:2:3:4:5"]), rail("d", &["fe80::1:2:3:4:5"]));
        assert!(joined(&c, &d).is_err());
        assert_eq!(joined(&c, &c), Ok((0, 0, true)));
    }
}
