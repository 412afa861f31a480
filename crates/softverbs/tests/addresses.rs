//! The addresses of a port change while programs run.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::common::*;
use crate::peer::own_process;
use crate::peer::{Peer, here};

const GID_CHANGE: u32 = 18;

/// Returns the first entries of the table; empty ones are zero.
fn gids(end: &End) -> Vec<Ipv6Addr> {
    (0..6).map(|index| Ipv6Addr::from(end.gid_at(index))).collect()
}

fn write(from: &End, to: &End) -> u32 {
    let mut sges = [from.sge(0, 8)];
    assert_eq!(from.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to.address(), 0)), 0);
    from.poll_send().status
}

/// An address and a number make a queue pair, as on the wire.
//= softverbs-model.md: each adapter numbers its queue pairs for itself, from one number on
#[test]
fn queue_pairs_of_different_adapters_have_one_number() {
    const DEVICES: &str = "a:addr=10.0.0.1/24;b:addr=10.0.0.2/24;b/2:addr=10.0.0.3/24;c:addr=10.0.0.4/24";
    own_process!();
    softverbs::configure(softverbs::DeviceSpec::parse_list(DEVICES).unwrap()).unwrap();
    let on = |device, port| End::new(Opts { device, port, ..Opts::default() });
    let ends = [on(0, 1), on(1, 1), on(2, 1)];
    let number = |end: &End| end.address().qpn;
    assert_eq!(ends.each_ref().map(number), [number(&ends[0]); 3]);
    assert_ne!(number(&on(1, 2)), number(&ends[1]), "the ports of one adapter");

    let [a, b, c] = ends;
    a.connect(&b.address());
    b.connect(&a.address());
    c.connect(&c.address());
    let loopback = |end: &&End| {
        let found = |qp: &softverbs::QpAttributes| {
            (qp.qpn, qp.dgid) == (number(end), Some(end.address().gid)) && qp.loopback
        };
        softverbs::qp_attributes().iter().any(found)
    };
    assert_eq!([&a, &b, &c].each_ref().map(loopback), [false, false, true]);
    for (from, to) in [(&a, &b), (&b, &a), (&c, &c)] {
        assert_eq!(write(from, to), 0);
    }
    // The keys are those of other protection domains: another queue pair would refuse them.
    drop(b);
    let c = End::new(Opts { device: 2, timeout: 8, retry: 1, ..Opts::default() });
    c.connect(&a.address());
    assert_eq!(write(&c, &a), status::IBV_WC_RETRY_EXC_ERR, "it is connected to another");
}

/// Two ports on one wire that have link-local addresses only, as on a cable.
#[test]
fn ports_with_link_local_addresses_alone_reach_each_other() {
    own_process!();
    let local = |d| (IpAddr::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, d)), 64);
    let global = (IpAddr::from([192, 168, 7, 2]), 24);
    for (other, expected) in [(local(2), 0), (global, status::IBV_WC_RETRY_EXC_ERR)] {
        for (device, addr) in [("soft0", local(1)), ("soft1", other)] {
            softverbs::set_addrs(device, &[Some(addr)]).expect("there is such a device");
        }
        let on = |device| End::new(Opts { device, timeout: 10, retry: 1, ..Opts::default() });
        let (a, b) = (on(0), on(1));
        a.connect(&b.address());
        b.connect(&a.address());
        assert_eq!(write(&a, &b), expected, "{other:?}");
    }
}

/// Every process sees the new table, the context gets an event, and a QP that uses an index of the
/// old table gets no answer.
#[test]
fn addresses_change_for_every_process() {
    own_process!();
    let v4 = |d| Some((IpAddr::from([192, 168, 200, d]), 24));
    let mapped = |d: u8| Ipv4Addr::new(192, 168, 200, d).to_ipv6_mapped();
    let none = Ipv6Addr::UNSPECIFIED;
    let new = || End::new(Opts { timeout: 10, retry: 1, ..Opts::default() });
    let mut peer = Peer::start(here!(), &[]);
    let here = new();
    let there = peer.connect(&here);
    let before = gids(&here);
    assert_eq!(before[2..], [mapped(1), mapped(1), none, none]);
    let (stale, other) = (new(), new());
    let old = stale.address();

    // Entry 3 now belongs to another address.
    softverbs::set_addrs("soft0", &[v4(9), v4(1)]).expect("there is such a device");
    while async_event(here.ctx, true).expect("an event") != GID_CHANGE {}
    let after = gids(&here);
    assert_eq!(after[..2], before[..2]);
    assert_eq!(after[2..], [mapped(9), mapped(9), mapped(1), mapped(1)]);
    assert_eq!(peer.ask("gid 3"), mapped(9).to_string());
    // A process that starts later has the new table too.
    let mut late = Peer::start(here!(), &[]);
    assert_eq!(late.ask("gid 3"), mapped(9).to_string());
    late.finish();
    // Connected QPs stay connected.
    let mut sges = [here.sge(0, 8)];
    assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&there, 0)), 0);
    assert_eq!(here.poll_send().status, 0);

    let (a, b) = pair(Opts::default(), Opts::default());
    assert_eq!(write(&a, &b), 0);
    // The other end has the earlier address of entry 3.
    other.connect(&old);
    stale.connect(&other.address());
    assert_eq!(write(&stale, &other), status::IBV_WC_RETRY_EXC_ERR);

    // A removed address leaves its entries empty.
    softverbs::set_addrs("soft0", &[None, v4(1)]).expect("there is such a device");
    assert_eq!(gids(&here)[2..], [none, none, mapped(1), mapped(1)]);
    let end = new();
    end.to_init();
    let (mut rtr, bits) = rtr_attr(&end.opts, &old);
    assert_eq!(end.modify(&mut rtr, bits), libc::EINVAL, "index 3 is empty");

    for wrong in [
        softverbs::set_addrs("soft7", &[]),
        softverbs::set_addrs("soft0", &[Some((IpAddr::from([10, 0, 0, 1]), 33))]),
        softverbs::set_addrs("soft0", &[v4(1), v4(1)]),
        softverbs::set_addrs("soft0", &[None; softverbs::MAX_ADDRS + 1]),
    ] {
        assert!(wrong.unwrap_err().to_string().contains("device \"soft"));
    }
    peer.finish();
}
