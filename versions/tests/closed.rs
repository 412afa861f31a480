//! Handles that are used after their end. The only test of its process: memory of the handles that
//! another test closes and makes would come into it.

use std::ptr;

use crate::common;
use crate::common::net::{DATA, STALE};
use nccl_net_versions::Refusal;
use nccl_net_versions::abi::*;

fn check<const ID: u32>(version: u32) {
    let rig = common::Rig::<ID>::new(version);
    let (ctx, net) = (rig.init(), rig.net);
    let (send, recv) = (rig.send(ctx), rig.recv(ctx));
    let (mr, nil) = (rig.mr(send), ptr::null_mut());
    let (mut data, mut tag, mut size) = (DATA, 0, 1);
    let [mut sent, mut received, mut flushed] = [STALE; 3];
    assert_eq!(net.isend(send, DATA, 1, 0, mr, nil, &raw mut sent), ncclSuccess);
    let none = ptr::null_mut();
    let rc = net.irecv(recv, 1, &raw mut data, Some(&[1]), &raw mut tag, none, none, &raw mut received);
    assert_eq!(rc, ncclSuccess);
    assert_eq!(net.iflush(recv, 1, &raw mut data, &raw mut size, none, &raw mut flushed), ncclSuccess);
    assert_eq!(net.dereg_mr(send, mr), ncclSuccess);
    let mut request = STALE;
    assert_eq!(net.isend(send, DATA, 1, 0, mr, nil, &raw mut request), ncclInvalidArgument);
    assert_eq!(
        rig.record.refusal(),
        Some(("isend", Refusal::WrongHandle { what: "mhandle", expected: "mhandle" }))
    );
    assert_eq!(net.close_send(send), ncclSuccess);
    assert_eq!(net.close_recv(recv), ncclSuccess);

    let seen = rig.record.calls().len();
    for request in [sent, received, flushed] {
        let mut done = 7;
        assert_eq!(net.test(request, &raw mut done, ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(done, 0);
        assert_eq!(
            rig.record.refusal(),
            Some(("test", Refusal::WrongHandle { what: "request", expected: "request" }))
        );
    }
    assert_eq!(net.isend(send, DATA, 1, 0, nil, nil, &raw mut request), ncclInvalidArgument);
    let rc = net.irecv(recv, 1, &raw mut data, Some(&[1]), &raw mut tag, none, none, &raw mut request);
    assert_eq!(rc, ncclInvalidArgument);
    let rc = net.iflush(recv, 1, &raw mut data, &raw mut size, none, &raw mut request);
    assert_eq!(rc, ncclInvalidArgument);
    assert_eq!(rig.record.calls().len(), seen, "the plugin sees none of these");
}

#[test]
fn a_closed_handle_is_an_error() {
    check::<206>(6);
    check::<207>(7);
    check::<208>(8);
    check::<209>(9);
    check::<210>(10);
    check::<211>(11);
    check::<212>(12);
}
