//! Rails that die and come back: their queue pairs are made again, and they carry data again.

use std::thread;
use std::time::{Duration, Instant};

use mpib_tests::code::Success;
use mpib_tests::log::{INFO, LOG, has_logged, take_warnings, warnings};
use mpib_tests::pair::{Pair, failure, until};
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, carried, newest_device};
use mpib_tests::{SHORT, here, is_child, isolated};
use softverbs::{Direction, Fault, Only, Then, faults_struck, inject, inject_at};

use crate::points::{Ends, env, two_hosts};
use crate::{MIB, on_rails};

/// Limit of a failing test.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The messages that are exchanged while something is to happen: sizes of groups.
const TRAFFIC: [&[usize]; 4] = [&[3 * MIB + 1], &[1000], &[0], &[70_000, 5, 200_000, 0]];

pub(crate) fn exchange_all(rig: &mut Rig) {
    TRAFFIC.iter().for_each(|lens| rig.exchange(lens));
}

/// Exchanges messages until `f` holds.
pub(crate) fn exchange_until(rig: &mut Rig, what: &str, f: impl Fn() -> bool) {
    let start = Instant::now();
    while !f() {
        exchange_all(rig);
        assert!(start.elapsed() < LIMIT, "{what}");
    }
}

pub(crate) fn bytes(rails: usize, rail: usize) -> u64 {
    carried(rails)[rail].bytes
}

/// Takes a rail down under traffic until it carries nothing, and up until it carries data again.
fn flap(rig: &mut Rig, rails: usize, rail: usize) {
    flap_with(rig, rails, rail, || {});
}

/// Like [`flap`]; calls `meanwhile` while the rail is down.
fn flap_with(rig: &mut Rig, rails: usize, rail: usize, meanwhile: impl FnOnce()) {
    let name = format!("r{rail}");
    let before = bytes(rails, rail);
    exchange_all(rig);
    assert!(bytes(rails, rail) > before, "{name} carries nothing at first");
    softverbs::set_link(&name, false).unwrap();
    // The first exchange ends once the connection has given the rail up.
    rig.exchange(&[3 * MIB + 1]);
    let during = bytes(rails, rail);
    exchange_all(rig);
    assert_eq!(bytes(rails, rail), during, "{name} carries data while it is down");
    meanwhile();
    softverbs::set_link(&name, true).unwrap();
    exchange_until(rig, "the rail does not come back", || bytes(rails, rail) > during + MIB as u64);
    exchange_all(rig);
}

/// On `n` rails with these settings: each rail dies and comes back, the first one twice.
fn each_rail_comes_back(test: &str, n: usize, env: &[(&str, &str)], change: impl Fn(&mut Rig)) {
    on_rails(test, n, env, || {
        let (ctx, dev) = newest_device(n);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        change(&mut rig);
        take_warnings();
        for rail in (0..n).chain([0]) {
            flap(&mut rig, n, rail);
        }
        // Both ends are in this process, and share the port.
        let is_return = |(level, line): &&(_, String)| *level == INFO && line.contains("is back after");
        let returns = || LOG.lock().unwrap().iter().filter(is_return).count();
        // Another thread logs it.
        until("a line for each return", || (returns() > n).then_some(()));
        assert_eq!(returns(), n + 1, "one line for each return");
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Each adapter numbers its queue pairs for itself.
#[test]
fn a_rail_comes_back_and_carries_data_again() {
    each_rail_comes_back(here!(), 2, &[], |_| {
        let numbers = |rail: &str| {
            let all = softverbs::qp_attributes().into_iter().filter(|qp| qp.device == rail);
            all.map(|qp| qp.qpn).collect::<Vec<_>>()
        };
        assert_eq!(numbers("r0"), numbers("r1"), "no queue pairs of one number");
    });
}

#[test]
fn each_of_three_rails_comes_back() {
    each_rail_comes_back(here!(), 3, &[], |_| {});
}

#[test]
fn all_stripes_of_a_rail_come_back() {
    let stripes = [("NCCL_IB_SPLIT_DATA_ON_QPS", "1"), ("NCCL_IB_QPS_PER_CONNECTION", "2")];
    each_rail_comes_back(here!(), 2, &stripes, |_| {});
}

#[test]
fn a_rail_that_is_back_flushes() {
    each_rail_comes_back(here!(), 2, &[("MPIB_FLUSH", "1")], |rig| rig.flushes = true);
}

//= failover.md: fault: SUP of a vanilla connection within an island
//= mpib.md: vanilla, intra-island: SOUT stands in for SUP
#[test]
fn sout_stands_in_until_sup_comes_back() {
    let vanilla = [("MPIB_HCA_SOUT", "soft0"), ("MPIB_HCA_SUP", "soft1")];
    isolated(here!(), &[&SHORT[..], &vanilla].concat(), || {
        let mut rig = Rig::of(Pair::new(table(12)), 4 * MIB);
        let data = || ["soft0", "soft1"].map(sent);
        exchange_all(&mut rig);
        let [_, sup] = data();
        assert!(sup > MIB as u64, "SUP carries the data");
        softverbs::set_link("soft1", false).unwrap();
        let [sout, _] = data();
        exchange_all(&mut rig);
        let [now, down] = data();
        assert!(now > sout + MIB as u64, "SOUT stands in");
        softverbs::set_link("soft1", true).unwrap();
        exchange_until(&mut rig, "SUP does not come back", || data()[1] > down + MIB as u64);
        let [sout, _] = data();
        exchange_all(&mut rig);
        assert!(data()[0] < sout + MIB as u64, "SOUT stands back");
        rig.close();
    });
}

#[test]
fn optional_receives_go_on_over_a_rail_that_is_back() {
    each_rail_comes_back(here!(), 2, &[], |rig| rig.optional = true);
}

/// The address of the rail is at another index of the GID table, as after a flap of a real port.
//= failover.md: fault: an address that is taken off the port
#[test]
fn a_rail_comes_back_with_its_address_at_another_index() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        flap_with(&mut rig, 2, 1, || {
            let addr = Some(([10, 0, 1, 1].into(), 24));
            softverbs::set_addrs("r1", &[None, addr]).unwrap();
        });
        // And with another address.
        flap_with(&mut rig, 2, 1, || {
            softverbs::set_addrs("r1", &[Some(([10, 9, 1, 1].into(), 24))]).unwrap();
        });
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Waits for a line of the log with this text, and brings the links up.
fn bring_up_after(text: &'static str, links: &'static [&str]) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        until("a line of the log", || has_logged(text).then_some(()));
        links.iter().for_each(|link| softverbs::set_link(link, true).unwrap());
    })
}

//= failover.md: fault: the only rail of a connection: of a device of one port, or SOUT of a vanilla connection between islands
#[test]
fn a_connection_waits_for_its_only_rail() {
    on_rails(here!(), 1, &[], || {
        let (ctx, dev) = newest_device(1);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        for outage in 0..2 {
            exchange_all(&mut rig);
            take_warnings();
            softverbs::set_link("r0", false).unwrap();
            let helper = bring_up_after("waits up to 60 s for one to come back", &["r0"]);
            exchange_all(&mut rig);
            helper.join().unwrap();
            let waits = |line: &&String| line.contains("has no rail left; it waits up to 60 s");
            let warned = warnings().iter().filter(waits).count();
            // Both ends are in this process, and the second outage may follow the first one at once.
            assert!(warned == 1 || outage == 1 && warned == 0, "{:?}", warnings());
        }
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

#[test]
fn a_connection_waits_while_all_rails_are_dead() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        for back in [&["r0", "r1"][..], &["r1"]] {
            exchange_all(&mut rig);
            take_warnings();
            ["r0", "r1"].iter().for_each(|link| softverbs::set_link(link, false).unwrap());
            let helper = bring_up_after("for one to come back", back);
            exchange_all(&mut rig);
            helper.join().unwrap();
        }
        softverbs::set_link("r0", true).unwrap();
        let before = bytes(2, 0);
        exchange_until(&mut rig, "r0 does not come back", || bytes(2, 0) > before + MIB as u64);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= failover.md: fault: no rail works for `MPIB_FAILOVER_WAIT`
//= failover.md: the last error names the outage, the ports, the attempts and the first failure
#[test]
fn a_connection_without_rails_fails_in_the_end_and_names_what_was_tried() {
    on_rails(here!(), 2, &[("MPIB_FAILOVER_WAIT", "1")], || {
        let (ctx, dev) = newest_device(2);
        let rig = Rig::new(table(12), ctx, dev, MIB);
        let (from, to) = (rig.pair.send_buffer(vec![1; MIB]), rig.pair.recv_buffer(MIB));
        let recv = rig.pair.irecv(&[(to.addr(), MIB, 0, to.mr)]);
        ["r0", "r1"].iter().for_each(|rail| inject(rail, Fault::Silence(Direction::Both)).unwrap());
        let send = rig.pair.isend(from.addr(), MIB, 0, from.mr);
        take_warnings();
        let _ = failure(table(12), send);
        let _ = failure(table(12), recv);
        // The ports answer queries, and the attempts fail.
        let said = warnings().join("\n");
        for part in [
            "no rail of the connection with ",
            " has worked for 1.",
            " s (MPIB_FAILOVER_WAIT=1)",
            "; r0:1: the port is active; ",
            "; r1:1: the port is active; ",
            " to bring it back",
            "; the next one ",
            "; the first failure: ",
            "IBV_WC_RETRY_EXC_ERR",
        ] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        from.dereg();
        to.dereg();
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// The adapter would try for half a minute.
//= failover.md: a link that stays down ends the connections without another rail after the wait
#[test]
fn the_wait_begins_when_the_last_link_goes_down() {
    let devices = two_hosts(2);
    let settings = [("MPIB_FAILOVER_WAIT", "2"), ("NCCL_IB_TIMEOUT", "20"), ("NCCL_IB_RETRY_CNT", "7")];
    isolated(here!(), &env(&devices, &settings), || {
        let rig = Rig::of(Ends::two_hosts(12, 2).connect(), MIB);
        let (from, to) = (rig.pair.send_buffer(vec![1; MIB]), rig.pair.recv_buffer(MIB));
        let recv = rig.pair.irecv(&[(to.addr(), MIB, 0, to.mr)]);
        ["r0", "r1"].iter().for_each(|link| softverbs::set_link(link, false).unwrap());
        let _ = failure(table(12), recv);
        let said = warnings().join("\n");
        for part in [
            "no rail of the connection with ",
            " has worked for 2.",
            " s (MPIB_FAILOVER_WAIT=2)",
            "0:1: the port cannot be used: ",
            "1:1: the port cannot be used: ",
            "no attempt to bring it back has begun",
        ] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        assert!(!said.contains("IBV_WC"), "the adapter was first: {said}");
        from.dereg();
        to.dereg();
        rig.close();
    });
}

/// The outage begins without a link that is down, and ends with one.
//= failover.md: the last error names the outage, the ports, the attempts and the first failure
#[test]
fn the_last_error_names_the_state_of_the_port_at_the_end() {
    let devices = two_hosts(1);
    isolated(here!(), &env(&devices, &[("MPIB_FAILOVER_WAIT", "5")]), || {
        let rig = Rig::of(Ends::two_hosts(12, 1).connect(), MIB);
        let (from, to) = (rig.pair.send_buffer(vec![1; MIB]), rig.pair.recv_buffer(MIB));
        inject("r0", Fault::Silence(Direction::Both)).unwrap();
        let recv = rig.pair.irecv(&[(to.addr(), MIB, 0, to.mr)]);
        let (mut down, mut code) = (false, Success);
        until("the end of the connection", || {
            code = table(12).test(recv).0;
            if !down && has_logged("has no rail left") {
                ["r0", "s0"].iter().for_each(|link| softverbs::set_link(link, false).unwrap());
                down = true;
            }
            (!code.is_success()).then_some(())
        });
        let said = warnings().join("\n");
        for part in ["has worked for 5.", "0:1: the port cannot be used: ", "the next one waits for the port"]
        {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        from.dereg();
        to.dereg();
        rig.close();
    });
}

/// Bytes that the adapter with this name has sent.
pub(crate) fn sent(name: &str) -> u64 {
    softverbs::counters().iter().find(|device| device.name == name).unwrap().total.bytes
}

/// Two hosts of two rails each: r0 and r1 receive, s0 and s1 send.
pub(crate) fn between_hosts(test: &str, body: impl FnOnce(Rig)) {
    let devices = two_hosts(2);
    isolated(test, &env(&devices, &[]), || body(Rig::of(Ends::two_hosts(12, 2).connect(), 4 * MIB)));
}

/// The sender learns from the receiver when the receiver's port is back.
#[test]
fn a_rail_comes_back_whose_port_was_down_at_the_receiver_alone() {
    between_hosts(here!(), |mut rig| {
        exchange_all(&mut rig);
        softverbs::set_link("r1", false).unwrap();
        let refused = || has_logged("at the receiver: ");
        exchange_until(&mut rig, "the receiver refuses no attempt", refused);
        let during = sent("s1");
        exchange_all(&mut rig);
        assert_eq!(sent("s1"), during, "nothing goes to a port that is down");
        softverbs::set_link("r1", true).unwrap();
        exchange_until(&mut rig, "the rail does not come back", || sent("s1") > during + MIB as u64);
        rig.close();
    });
}

/// Which fault strikes at which work request, by number: a setting of the process that tests it.
const POINT: &str = "TEST_POINT";

/// Takes a port down, and again at each of its first work requests when it comes back: probes, then
/// data of a sender or CTS writes of a receiver. Each in its own process: ports remember failures.
fn dies_again(test: &str, device: &'static str, sender: &'static str, points: u64) {
    const FAULTS: [Fault; 2] = [Fault::LinkDown, Fault::LostAck(Then::Silent)];
    if !is_child(test) {
        for point in 0..points * FAULTS.len() as u64 {
            isolated(test, &env(&two_hosts(2), &[(POINT, point.to_string().as_str())]), || {});
        }
        return;
    }
    between_hosts(test, |mut rig| {
        let point: u64 = std::env::var(POINT).unwrap().parse().unwrap();
        let (fault, at) = (FAULTS[(point / points) as usize], point % points + 1);
        exchange_all(&mut rig);
        softverbs::set_link(device, false).unwrap();
        rig.exchange(&[3 * MIB + 1]);
        let struck = faults_struck(device).unwrap();
        inject_at(device, fault, at, Only::ALL).unwrap();
        softverbs::set_link(device, true).unwrap();
        let strikes = || faults_struck(device).unwrap() > struck;
        exchange_until(&mut rig, "the port is not used again", strikes);
        exchange_all(&mut rig);
        let before = sent(sender);
        exchange_until(&mut rig, "the rail does not come back", || {
            // Again and again: the fault is counted when its work request is posted, and takes effect
            // when the work request is executed.
            softverbs::heal(device).unwrap();
            sent(sender) > before + 2 * MIB as u64
        });
        rig.close();
    });
}

//= failover.md: fault: several rails, one after the other or together, also while an earlier fault is being repaired
#[test]
fn a_rail_dies_again_at_each_step_at_its_sender() {
    dies_again(here!(), "s1", "s1", 3);
}

#[test]
fn a_rail_dies_again_at_each_step_at_its_receiver() {
    dies_again(here!(), "r1", "s1", 2);
}

#[test]
fn the_rail_of_cts_writes_dies_again_at_each_step_at_its_receiver() {
    dies_again(here!(), "r0", "s0", 4);
}
