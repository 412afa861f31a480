//! Faults on command.

use crate::common::*;
use crate::peer::own_process;
use crate::peer::{Peer, here};

const PORT_ACTIVE: u32 = 9;
const PORT_ERR: u32 = 10;

fn port_state(end: &End) -> u32 {
    // SAFETY: an open context and a writable struct.
    unsafe {
        let mut attr: sys::ibv_port_attr = std::mem::zeroed();
        assert_eq!(sys::ibv_query_port(end.ctx, 1, (&raw mut attr).cast()), 0);
        attr.state
    }
}

/// Waits for the next event of the port, skipping other events.
fn port_event(end: &End) -> u32 {
    loop {
        match async_event(end.ctx, true) {
            Some(kind @ (PORT_ACTIVE | PORT_ERR)) => return kind,
            Some(_) => {}
            None => panic!("no event"),
        }
    }
}

#[test]
fn a_link_that_is_down_delivers_nothing_until_it_is_up() {
    own_process!();
    let mut peer = Peer::start(here!(), &[]);
    // Enough retries to outlast the time in which the link is down.
    let here = End::new(Opts { timeout: 20, retry: 7, ..Opts::default() });
    let there = peer.connect(&here);
    assert_eq!(port_state(&here), sys::ibv_port_state::IBV_PORT_ACTIVE);
    softverbs::set_link("soft0", false).expect("there is such a device");
    assert_eq!(port_event(&here), PORT_ERR);
    assert_eq!(port_state(&here), sys::ibv_port_state::IBV_PORT_DOWN);
    peer.ask("set 0 1");
    let mut sges = [here.sge(0, 8)];
    assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&there, 0)), 0);
    for _ in 0..100 {
        assert!(poll(here.scq).is_none());
    }
    assert_eq!(peer.ask("get 0"), "1");
    softverbs::set_link("soft0", true).expect("there is such a device");
    assert_eq!(port_event(&here), PORT_ACTIVE);
    assert_eq!(here.poll_send().status, 0);
    assert_eq!(peer.ask("get 0"), "0");

    // Down for too long: the work request fails and the QP enters ERR. The other device is not
    // affected.
    let other = || Opts { device: 1, ..Opts::default() };
    let (a, b) = pair(other(), other());
    let again = || End::new(Opts::default());
    let (c, d) = (again(), again());
    c.connect(&d.address());
    d.connect(&c.address());
    softverbs::set_link("soft0", false).expect("there is such a device");
    assert_eq!(c.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [c.sge(0, 8)]).to(&d.address(), 0)), 0);
    assert_eq!(c.poll_send().status, status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(c.state(), sys::ibv_qp_state::IBV_QPS_ERR);
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [a.sge(0, 8)]).to(&b.address(), 0)), 0);
    assert_eq!(a.poll_send().status, 0);
    assert_eq!(async_event(a.ctx, false).filter(|kind| *kind == PORT_ERR), None);
    softverbs::set_link("soft0", true).expect("there is such a device");
    assert!(softverbs::set_link("soft7", true).unwrap_err().to_string().contains("soft7"));
    peer.finish();
}
