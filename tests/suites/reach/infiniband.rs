//! InfiniBand ports: LIDs, required GRHs, and subnets that routers join. Both ends are in one
//! process: softverbs shows what was set on the queue pairs of each.

use mpib_tests::code::{Code, InvalidUsage, Success};
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{connect_between, init, until};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{SHORT, here, isolated};
use softverbs::QpAttributes;

/// Uses the pair of ports that the test names, and flushes at the receiver.
fn env(devices: &str) -> Vec<(&str, &str)> {
    let own = [("SOFTVERBS_DEVICES", devices), ("MPIB_ROUTE", "strict"), ("MPIB_FLUSH", "1")];
    [&own[..], &SHORT].concat()
}

/// Connects device 0, which sends, to device 1, which receives and flushes. Returns the attributes
/// of the sender's queue pair, of the receiver's, and of the receiver's for flushes.
fn joined() -> [QpAttributes; 3] {
    let (table, ctx) = (newest(), init(newest()));
    let pair = connect_between(table, ctx, 0, 1);
    pair.message(100_000, 100_000, 1);
    let to = pair.recv_buffer(100);
    let (rc, flush) = table.iflush(pair.recv, &[(to.addr(), 100, to.mr)]);
    assert!(rc == Success && !flush.is_null());
    pair.wait(flush);
    to.dereg();
    let all = softverbs::qp_attributes();
    let find = |device: &str, loopback: bool| {
        let mut found = all.iter().filter(|qp| qp.device == device && qp.loopback == loopback);
        let one = *found.next().unwrap_or_else(|| panic!("{device}: {all:?}"));
        assert!(found.next().is_none(), "{all:?}");
        one
    };
    let attributes = [find("s", false), find("r", false), find("r", true)];
    pair.close();
    assert_eq!((table.finalize(ctx), take_warnings()), (Success, Vec::new()));
    attributes
}

/// The DLID of each, and whether its packets carry a GRH.
fn paths(attributes: [QpAttributes; 3]) -> [(u16, bool); 3] {
    attributes.map(|qp| (qp.dlid, qp.dgid.is_some()))
}

//= reach.md: in one InfiniBand subnet packets go by LID
#[test]
fn ports_of_one_subnet_need_no_grh() {
    isolated(here!(), &env("s:link=ib,lid=3;r:link=ib,lid=4"), || {
        assert_eq!(paths(joined()), [(4, false), (3, false), (4, false)]);
    });
}

/// The port that requires a GRH also drops packets of others that have none.
fn with_grh(test: &str, devices: &str, loopback: bool) {
    isolated(test, &env(devices), || {
        assert_eq!(paths(joined()), [(4, true), (3, true), (4, loopback)]);
    });
}

//= reach.md: if a port requires a GRH, both ends send it
#[test]
fn the_senders_port_may_require_a_grh() {
    with_grh(here!(), "s:link=ib,lid=3,grh=on;r:link=ib,lid=4", false);
}

//= reach.md: if a port requires a GRH, both ends send it
#[test]
fn the_receivers_port_may_require_a_grh() {
    with_grh(here!(), "s:link=ib,lid=3;r:link=ib,lid=4,grh=on", true);
}

//= reach.md: if a port requires a GRH, both ends send it
//= adapters.md: A4: GRHs where a port requires them
#[test]
fn both_ports_may_require_a_grh() {
    with_grh(here!(), "s:link=ib,lid=3,grh=on;r:link=ib,lid=4,grh=on", true);
}

//= reach.md: a port with LMC is addressed by its base LID
#[test]
fn ports_with_lmc_have_their_base_lid() {
    isolated(here!(), &env("s:link=ib,lid=8,lmc=3;r:link=ib,lid=16,lmc=2"), || {
        assert_eq!(paths(joined()), [(16, false), (8, false), (16, false)]);
    });
}

/// Two subnets of one wire. Both ports have the same LID, each in its own subnet.
const ROUTED: &str = "s:link=ib,lid=3,subnet=0xfe80000000000001,flid=1001;\
                      r:link=ib,lid=3,subnet=0xfe80000000000002,flid=1002,lmc=0";

//= reach.md: InfiniBand subnets are joined by FLIDs
//= adapters.md: A4: FLIDs behind routers
#[test]
fn a_router_is_reached_by_the_flid() {
    isolated(here!(), &env(ROUTED), || {
        let [send, recv, loopback] = joined();
        assert_eq!(paths([send, recv, loopback]), [(1002, true), (1001, true), (3, false)]);
        assert_eq!((send.sgid_index, recv.sgid_index), (1, 1));
        let flid = |qp: QpAttributes| qp.dgid.map(|gid| [gid[4], gid[5], gid[6], gid[7]]);
        assert_eq!(flid(send), Some([3, 0xea, 0, 2]));
        assert_eq!(flid(recv), Some([3, 0xe9, 0, 1]));
    });
}

/// A connection that fails at both ends; their codes, and the warnings as one text.
fn refused() -> ([Code; 2], String) {
    let (table, ctx) = (newest(), init(newest()));
    let mut handle = [0; 128];
    let (rc, listen) = table.listen(ctx, 1, &mut handle);
    assert_eq!(rc, Success);
    let mut codes: [Option<Code>; 2] = [None; 2];
    let failed = |(rc, comm): (Code, Ptr)| {
        assert!(comm.is_null(), "connected");
        (rc != Success).then_some(rc)
    };
    until("connect and accept to fail", || {
        codes[0] = codes[0].or_else(|| failed(table.connect(ctx, 0, &mut handle)));
        codes[1] = codes[1].or_else(|| failed(table.accept(listen)));
        codes.iter().all(Option::is_some).then_some(())
    });
    assert!(softverbs::qp_attributes().is_empty());
    // The connector creates one before it knows the peer, for the WIRING that follows its HELLO.
    let made = softverbs::counters().into_iter().map(|device| (device.name, device.qps.len()));
    assert_eq!(made.collect::<Vec<_>>(), [("s".to_owned(), 1), ("r".to_owned(), 0)]);
    let used = softverbs::counters().into_iter().flat_map(|device| device.qps);
    for qp in used {
        assert_eq!(qp.counters, softverbs::Counters::default(), "a pair that cannot work is not tried");
    }
    assert_eq!(table.close_listen(listen), Success);
    (codes.map(Option::unwrap), take_warnings().concat())
}

fn without_flid(test: &str, flid: &str, index: &str, lacking: &str) {
    let devices = format!(
        "s:link=ib,lid=3,subnet=0xfe80000000000001,flid=9;r:link=ib,lid=4,subnet=0xfe80000000000002{flid}"
    );
    let index = ("NCCL_IB_ROUTABLE_FLID_GID_INDEX", index);
    isolated(test, &[&env(&devices)[..], &[index]].concat(), || {
        let (codes, text) = refused();
        assert_eq!(codes, [InvalidUsage; 2], "{text}");
        let why = format!(
            "s:1 is in InfiniBand subnet fe80000000000001, r:1 in fe80000000000002: a router needs the FLID of each \
             port, which the subnet manager assigns; without an FLID in GID entry NCCL_IB_ROUTABLE_FLID_GID_INDEX: \
             {lacking}"
        );
        assert_eq!(text.matches(&why).count(), 2, "each end names the reason: {text}");
    });
}

//= reach.md: InfiniBand subnets are joined by FLIDs
//= adapters.md: A4: FLIDs behind routers
#[test]
fn a_port_without_flid_is_refused_at_once() {
    without_flid(here!(), "", "1", "r:1");
}

//= configuration.md: NCCL_IB_ROUTABLE_FLID_GID_INDEX
#[test]
fn the_setting_names_the_entry_with_the_flid() {
    without_flid(here!(), ",flid=10", "7", "s:1, r:1");
}
