//! Connections that begin without a rail, which joins them once it works.

use std::thread;
use std::time::Duration;

use mpib_tests::code::Success;
use mpib_tests::log::{assert_warned, has_logged, take_warnings};
use mpib_tests::pair::{connect, init, until};
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, newest_device, rails};
use mpib_tests::{SHORT, SPLIT_ALL, has_srq, here, is_child, isolated};
use nccl_net_mpib_agent_iface::stats::{Connection, Lack, pages_of};
use softverbs::{Call, Direction, Fault, fail, faults_struck, inject};

use crate::failback::{bytes, exchange_all, exchange_until, sent};
use crate::points::{Ends, env, two_hosts};
use crate::{MIB, on_rails};

/// Why each end of the connection lacks a rail, as the statistics page has it; empty if it does not.
fn missing(rail: usize) -> Vec<String> {
    let page = pages_of(std::process::id()).unwrap().remove(0);
    let why = |end: Connection| end.rails[rail].missing.clone().unwrap_or_default();
    page.connections().into_iter().map(why).collect()
}

/// The same as reasons.
fn lack(rail: usize) -> Vec<Option<Lack>> {
    let page = pages_of(std::process::id()).unwrap().remove(0);
    page.connections().into_iter().map(|end| end.rails[rail].lack).collect()
}

/// Exchanges messages until the adapter with this name has sent more than it could without data.
fn joins(rig: &mut Rig, name: &str) {
    let before = sent(name);
    exchange_until(rig, &format!("{name} does not join"), || sent(name) > before + MIB as u64);
    exchange_all(rig);
}

//= faults.md: 90: a port is down when a connection is made: its rail joins when the port is up
//= failover.md: a rail whose port is down at connect joins the connection when it is up
//= stats.md: the reason is shown why a connection lacks a rail
#[test]
fn a_rail_that_is_down_at_connect_joins_when_it_is_up() {
    on_rails(here!(), 2, &[], || {
        for (dead, rail) in [("r1", 1), ("r0", 0)] {
            let (ctx, dev) = newest_device(2);
            softverbs::set_link(dead, false).unwrap();
            let before = bytes(2, rail);
            let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
            assert_warned(&[dead, "the port is not active", "alone until"]);
            take_warnings();
            exchange_all(&mut rig);
            assert_eq!(bytes(2, rail), before, "{dead} carries data while it is down");
            assert!(
                missing(rail).iter().all(|why| why.contains("the port is not active")),
                "{:?}",
                missing(rail)
            );
            assert_eq!(lack(rail), [Some(Lack::Connect); 2]);
            softverbs::set_link(dead, true).unwrap();
            joins(&mut rig, dead);
            assert_eq!(missing(rail), [""; 2]);
            assert_eq!(lack(rail), [None; 2]);
            rig.close();
            assert_eq!(table(12).finalize(ctx), Success);
        }
    });
}

//= failover.md: fault: a port is not active, at either end; a probe fails; a port goes down meanwhile
//= failover.md: a rail whose port is down at connect joins the connection when it is up
#[test]
fn a_rail_joins_whose_port_was_down_at_one_end() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[("MPIB_FLUSH", "1")]), || {
        let ends = Ends::two_hosts(12, 2);
        for dead in ["r1", "s1", "r0", "s0"] {
            softverbs::set_link(dead, false).unwrap();
            let mut rig = Rig::of(ends.connect(), 4 * MIB);
            rig.flushes = true;
            exchange_all(&mut rig);
            softverbs::set_link(dead, true).unwrap();
            joins(&mut rig, &format!("s{}", &dead[1..]));
            rig.close();
        }
    });
}

/// The port is active, and packets are lost.
//= failover.md: fault: a port is not active, at either end; a probe fails; a port goes down meanwhile
//= failover.md: a rail whose probe fails at connect joins the connection when it works
#[test]
fn a_rail_joins_whose_probe_failed() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[]), || {
        let ends = Ends::two_hosts(12, 2);
        inject("r1", Fault::Silence(Direction::Both)).unwrap();
        let mut rig = Rig::of(ends.connect(), 4 * MIB);
        exchange_all(&mut rig);
        softverbs::heal("r1").unwrap();
        joins(&mut rig, "s1");
        rig.close();
    });
}

/// What makes a rail at the receiver, r1, and at the sender, s1.
const MAKE: [(&str, Call); 7] = [
    ("r1", Call::CreateSrq),
    ("r1", Call::CreateCq),
    ("r1", Call::CreateQp),
    ("r1", Call::RegMr),
    ("s1", Call::CreateCq),
    ("s1", Call::CreateQp),
    ("s1", Call::RegMr),
];

//= faults.md: 94: an adapter cannot make a queue pair, a queue or a registration: its rail joins later
//= failover.md: fault: a call of verbs that makes a rail fails, at either end
//= failover.md: a rail that could not be made at connect joins the connection when it can be
#[test]
fn a_rail_joins_that_could_not_be_made() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[]), || {
        let ends = Ends::two_hosts(12, 2);
        for (device, call) in MAKE {
            if call == Call::CreateSrq && !has_srq() {
                continue;
            }
            let struck = faults_struck(device).unwrap();
            fail(device, call.fails(libc::ENOMEM).times(u32::MAX)).unwrap();
            let pair = ends.connect();
            assert!(faults_struck(device).unwrap() > struck, "{device}: {call:?}");
            let works = || fail(device, call.fails(0).times(0)).unwrap();
            // NCCL's memory is registered on all adapters.
            if call == Call::RegMr {
                works();
            }
            let mut rig = Rig::of(pair, 4 * MIB);
            exchange_all(&mut rig);
            works();
            joins(&mut rig, "s1");
            rig.close();
        }
    });
}

//= faults.md: 91: SOUT or SUP is down at init: jobs start, and its rail joins when it is up
//= mpib.md: a job begins while SOUT or SUP is down
#[test]
fn sout_or_sup_may_be_down_at_init() {
    for down in ["soft0", "soft1"] {
        let fault = format!("{down}:link=down");
        for mode in ["0", "1"] {
            let settings = [
                ("MPIB_HCA_SOUT", "soft0"),
                ("MPIB_HCA_SUP", "soft1"),
                ("MPIB_MODE", mode),
                ("SOFTVERBS_FAULTS", fault.as_str()),
            ];
            isolated(here!(), &[&SHORT[..], &settings].concat(), || {
                let down = std::env::var("SOFTVERBS_FAULTS").unwrap();
                let down = down.strip_suffix(":link=down").unwrap();
                let ctx = init(table(12));
                assert_warned(&[down, "the port is not active", "once it is active"]);
                let mut rig = Rig::of(connect(table(12), ctx, 0), 4 * MIB);
                exchange_all(&mut rig);
                softverbs::set_link(down, true).unwrap();
                // In vanilla mode SOUT carries data only while SUP does not work.
                if down == "soft1" || std::env::var("MPIB_MODE").unwrap() == "1" {
                    joins(&mut rig, down);
                }
                rig.close();
            });
            if is_child(here!()) {
                return;
            }
        }
    }
}

/// Takes links down for half a second, some time after the call.
fn blink(links: Vec<String>, after: Duration) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        thread::sleep(after);
        links.iter().for_each(|link| softverbs::set_link(link, false).unwrap());
        thread::sleep(Duration::from_millis(500));
        links.iter().for_each(|link| softverbs::set_link(link, true).unwrap());
    })
}

/// The links that blink, and when: settings of the process that tests it. Each blink is in its own
/// process, since ports remember failures.
const LINKS: &str = "TEST_LINKS";
const AFTER: &str = "TEST_AFTER";

//= faults.md: 92: all links blink while a connection is made: it waits for one
//= failover.md: links that blink while a connection is made cost time and nothing else
#[test]
fn links_that_blink_during_connect_cost_nothing() {
    for (n, links) in [(1, "r0"), (2, "r1"), (2, "r0 r1")] {
        for after in ["0", "5", "10"] {
            let devices = rails(n, 1);
            let settings =
                [("SOFTVERBS_DEVICES", devices.as_str()), SPLIT_ALL, (LINKS, links), (AFTER, after)];
            isolated(here!(), &[&SHORT[..], &settings].concat(), || {
                let [links, after] = [LINKS, AFTER].map(|name| std::env::var(name).unwrap());
                let names: Vec<String> = links.split(' ').map(str::to_owned).collect();
                let rails = softverbs::counters().len();
                let (ctx, dev) = newest_device(rails);
                let blinking = blink(names, Duration::from_millis(after.parse().unwrap()));
                let pair = connect(table(12), ctx, dev);
                blinking.join().unwrap();
                let mut rig = Rig::of(pair, 4 * MIB);
                (0..rails).for_each(|rail| joins(&mut rig, &format!("r{rail}")));
                rig.close();
                assert_eq!(table(12).finalize(ctx), Success);
            });
            if is_child(here!()) {
                return;
            }
        }
    }
}

/// No rail works when the connection begins.
//= failover.md: fault: no rail works, and a port is not active or has lost its link, or nothing answers on a pair of ports that the routing tables join
//= failover.md: links that blink while a connection is made cost time and nothing else
#[test]
fn a_connection_is_made_once_a_rail_works() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        ["r0", "r1"].iter().for_each(|link| softverbs::set_link(link, false).unwrap());
        let helper = thread::spawn(|| {
            until("a wait", || has_logged("the connection waits up to").then_some(()));
            softverbs::set_link("r1", true).unwrap();
        });
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        helper.join().unwrap();
        exchange_all(&mut rig);
        softverbs::set_link("r0", true).unwrap();
        joins(&mut rig, "r0");
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
