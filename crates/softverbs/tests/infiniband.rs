//! Delivery between InfiniBand ports: LIDs, subnets, FLIDs, required GRHs; and loopback.

use crate::common::*;
use crate::peer::own_process;
use rdma_sys::ibv_qp_state::IBV_QPS_RTR;
use softverbs::DeviceSpec;

const DEVICES: &str = "
    a:link=ib,lid=1; b:link=ib,lid=2; many:link=ib,lid=16,lmc=3; vf:link=ib,lid=3,grh=on; deaf:link=ib,lid=4,loopback=off;
    one:link=ib,lid=1,wire=1,subnet=0xfe80000000000001,flid=1001; two:link=ib,lid=2,wire=1,subnet=0xfe80000000000002,flid=1002;
    taker:link=ib,lid=1002,wire=1,subnet=0xfe80000000000001; plain:link=ib,lid=5,wire=1,subnet=0xfe80000000000002;
    r:addr=10.0.0.1/24,loopback=off";

/// Creates an end on the device with this name.
fn end(name: &str) -> End {
    let specs = DeviceSpec::parse_list(DEVICES).unwrap();
    let device = specs.iter().position(|spec| spec.name == name).unwrap();
    softverbs::configure(specs).unwrap();
    End::new(Opts { device, timeout: 8, retry: 1, ..Opts::default() })
}

/// The destination in an address vector, and the index of the source GID.
#[derive(Clone, Copy)]
struct To {
    dlid: u16,
    dgid: Option<[u8; 16]>,
    sgid_index: u8,
}

/// Addresses a port by its LID alone.
fn lid(dlid: u16) -> To {
    To { dlid, dgid: None, sgid_index: 0 }
}

/// Addresses a port by this LID and the entry `index` of its GID table. The own entry has the same
/// index.
fn grh(dlid: u16, peer: &End, index: u8) -> To {
    To { dlid, dgid: Some(peer.gid_at(index.into())), sgid_index: index }
}

/// Moves an end to RTR; returns the errno.
fn to_rtr(from: &End, qpn: u32, to: To) -> i32 {
    from.to_init();
    let peer = Address { qpn, gid: to.dgid.unwrap_or_default(), addr: 0, rkey: 0 };
    let (mut attr, bits) = rtr_attr(&from.opts, &peer);
    attr.ah_attr.dlid = to.dlid;
    attr.ah_attr.is_global = u8::from(to.dgid.is_some());
    attr.ah_attr.grh.sgid_index = to.sgid_index;
    from.modify(&mut attr, bits)
}

/// Returns whether a write from `a` arrives and is answered.
fn delivers(a: &End, there: To, b: &End, back: To) -> bool {
    assert_eq!((to_rtr(a, b.address_ib().qpn, there), to_rtr(b, a.address_ib().qpn, back)), (0, 0));
    a.to_rts();
    b.to_rts();
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&b.address_ib(), 0)), 0);
    let status = a.poll_send().status;
    assert!(status == 0 || status == status::IBV_WC_RETRY_EXC_ERR, "{status}");
    status == 0
}

fn port(end: &End) -> sys::ibv_port_attr {
    // SAFETY: integers may all be zero; the old symbol fills the struct up to `flags`.
    unsafe {
        let mut attr: sys::ibv_port_attr = std::mem::zeroed();
        assert_eq!(sys::ibv_query_port(end.ctx, 1, (&raw mut attr).cast()), 0);
        attr
    }
}

trait InfiniBand {
    fn address_ib(&self) -> Address;
}

impl InfiniBand for End {
    fn address_ib(&self) -> Address {
        // SAFETY: alive as long as `self`.
        let (qpn, rkey) = unsafe { ((*self.qp).qp_num, (*self.mr).rkey) };
        Address { qpn, gid: self.gid_at(0), addr: self.at(0), rkey }
    }
}

#[test]
fn the_lid_decides_in_a_subnet() {
    own_process!();
    let reached = |there, back| delivers(&end("a"), lid(there), &end("b"), lid(back));
    assert!(reached(2, 1));
    // The LID of another port, that of none, and answers that go to another port.
    assert!(!reached(16, 1) && !reached(9, 1) && !reached(2, 2));
    let (a, b) = (end("a"), end("b"));
    assert!(delivers(&a, grh(2, &b, 0), &b, grh(1, &a, 0)), "a GRH is allowed");
    let (a, b) = (end("a"), end("b"));
    assert!(!delivers(&a, grh(1, &b, 0), &b, grh(1, &a, 0)), "a GRH does not replace the LID");
}

#[test]
fn a_port_with_lmc_has_all_its_lids() {
    own_process!();
    for (dlid, reached) in [(15, false), (16, true), (19, true), (23, true), (24, false)] {
        assert_eq!(delivers(&end("a"), lid(dlid), &end("many"), lid(1)), reached, "LID {dlid}");
    }
    let attr = port(&end("many"));
    assert_eq!((attr.lid, attr.lmc, attr.flags), (16, 3, 0));
}

#[test]
fn a_port_that_requires_a_grh_refuses_and_drops_packets_without_one() {
    own_process!();
    let (vf, b) = (end("vf"), end("b"));
    assert_eq!(port(&vf).flags, 1);
    assert_eq!(to_rtr(&vf, b.address_ib().qpn, lid(2)), libc::EINVAL);
    let (vf, b) = (end("vf"), end("b"));
    assert!(delivers(&vf, grh(2, &b, 0), &b, grh(3, &vf, 0)));
    let (vf, b) = (end("vf"), end("b"));
    assert!(!delivers(&vf, grh(2, &b, 0), &b, lid(3)), "the answers lack a GRH");
    let (vf, b) = (end("vf"), end("b"));
    assert!(!delivers(&b, lid(3), &vf, grh(2, &b, 0)), "the packets lack a GRH");
    // To itself as well.
    let vf = end("vf");
    let to = grh(3, &vf, 0);
    assert_eq!(to_rtr(&vf, vf.address_ib().qpn, lid(3)), libc::EINVAL);
    assert_eq!(to_rtr(&end("vf"), vf.address_ib().qpn, to), 0);
}

#[test]
fn routers_forward_by_the_flid_alone() {
    own_process!();
    let (one, two) = (end("one"), end("two"));
    assert_eq!(one.gid_at(0)[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 1]);
    assert_eq!(one.gid_at(1)[..8], [0xfe, 0xc0, 0, 0, 0x03, 0xe9, 0, 1]);
    assert!(delivers(&one, grh(1002, &two, 1), &two, grh(1001, &one, 1)));
    for (there, wrong) in [
        (grh(2, &end("two"), 0), "the LID and GID of the other subnet"),
        (grh(2, &end("two"), 1), "the LID of the other subnet"),
        (grh(1002, &end("two"), 0), "the GID without FLID"),
        (lid(1002), "no GRH: the port with this LID in the own subnet gets the packets"),
    ] {
        let (one, two) = (end("one"), end("two"));
        assert!(!delivers(&one, there, &two, grh(1001, &one, 1)), "{wrong}");
    }
    let (one, two) = (end("one"), end("two"));
    assert!(!delivers(&one, grh(1002, &two, 1), &two, grh(1, &one, 0)), "the answers get lost");
    // A port without an FLID is in its subnet only.
    let (one, plain) = (end("one"), end("plain"));
    let back = To { sgid_index: 0, ..grh(1001, &one, 1) };
    assert!(!delivers(&one, grh(5, &plain, 0), &plain, back));
    let (two, plain) = (end("two"), end("plain"));
    assert!(delivers(&two, lid(5), &plain, lid(2)));
    // The same number is a LID in one subnet and an FLID in the other.
    let (one, taker) = (end("one"), end("taker"));
    assert!(delivers(&one, lid(1002), &taker, lid(1)));
}

#[test]
fn a_port_without_loopback_drops_packets_to_itself() {
    own_process!();
    for (name, reached) in [("a", true), ("deaf", false)] {
        let own = if name == "a" { 1 } else { 4 };
        let (one, other) = (end(name), end(name));
        assert_eq!(delivers(&one, lid(own), &other, lid(own)), reached, "{name}");
        let (one, other) = (end("b"), end(name));
        assert!(delivers(&one, lid(own), &other, lid(2)), "{name}");
    }
    let (a, b) = (end("r"), end("r"));
    a.connect(&b.address());
    b.connect(&a.address());
    assert_eq!(b.state(), IBV_QPS_RTR + 1);
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&b.address(), 0)), 0);
    assert_eq!(a.poll_send().status, status::IBV_WC_RETRY_EXC_ERR);
}
