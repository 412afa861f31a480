//! Outages that are longer, or come more often, than the plugin's own waits.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use mpib_tests::log::{LOG, assert_warned, take_warnings, warnings};
use mpib_tests::pair::until;
use mpib_tests::vdevices::Rig;
use mpib_tests::{NO_PINGS, SPLIT_ALL, here, isolated};
use softverbs::{Call, CompletionStatus, Direction, Fault, Only, faults_struck, heal, inject_at};

use crate::MIB;
use crate::failback::{exchange_all, exchange_until, sent};
use crate::points::{Ends, env, two_hosts};
use crate::refusals::transfer;

/// `IBV_WC_RETRY_EXC_ERR`
const RETRY_EXC: u32 = 12;

fn logged(text: &str) -> usize {
    LOG.lock().unwrap().iter().filter(|(_, line)| line.contains(text)).count()
}

/// The adapters would try for longer than the blinks last, as real ones do.
//= failover.md: fault: the only rail of a connection: of a device of one port, or SOUT of a vanilla connection between islands
//= failover.md: a link that blinks costs a connection of one rail the time of the blink
#[test]
fn ten_blinks_of_its_only_link_cost_a_connection_no_rail() {
    let devices = two_hosts(1);
    let env = [("SOFTVERBS_DEVICES", devices.as_str()), SPLIT_ALL, ("MPIB_FAILOVER_WAIT", "3")];
    isolated(here!(), &env, || {
        let mut rig = Rig::of(Ends::two_hosts(12, 1).connect(), 4 * MIB);
        let messages = AtomicU64::new(0);
        thread::scope(|scope| {
            let blinks = scope.spawn(|| {
                for link in ["s0", "r0"].into_iter().cycle().take(10) {
                    softverbs::set_link(link, false).unwrap();
                    thread::sleep(Duration::from_millis(100));
                    softverbs::set_link(link, true).unwrap();
                    let before = messages.load(Ordering::Relaxed);
                    until("traffic after a blink", || {
                        (messages.load(Ordering::Relaxed) > before + 1).then_some(())
                    });
                }
            });
            while !blinks.is_finished() {
                rig.exchange(&[MIB]);
                messages.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(logged("has no rail left"), 0, "its queue pairs outlive the blinks");
        rig.close();
    });
}

/// The attempts that the receiver refuses would be 0.5, 1, 2, 4 and 8 s after the failure if each one
/// doubled the wait.
//= failover.md: with no rail left, one that comes back within MPIB_FAILOVER_WAIT is used
#[test]
fn the_only_rail_is_used_as_soon_as_the_port_of_the_receiver_is_back() {
    let devices = two_hosts(1);
    isolated(here!(), &env(&devices, &[("MPIB_FAILOVER_WAIT", "7")]), || {
        let mut rig = Rig::of(Ends::two_hosts(12, 1).connect(), 4 * MIB);
        exchange_all(&mut rig);
        let outage = thread::spawn(|| {
            softverbs::set_link("r0", false).unwrap();
            until("the rail to be given up", || (logged("has no rail left") > 0).then_some(()));
            thread::sleep(Duration::from_millis(4300));
            softverbs::set_link("r0", true).unwrap();
        });
        while !outage.is_finished() {
            rig.exchange(&[MIB]);
        }
        outage.join().unwrap();
        exchange_all(&mut rig);
        assert!(logged("at the receiver: ") > 0, "the receiver refuses attempts");
        rig.close();
    });
}

/// A debugger, a batch system that suspends jobs, or a machine that is moved stop a process. What may
/// have come back meanwhile was not tried.
//= failover.md: time in which the process does not run is no part of MPIB_FAILOVER_WAIT
#[test]
fn an_outage_does_not_last_while_the_process_is_stopped() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[("MPIB_FAILOVER_WAIT", "10")]), || {
        let mut rig = Rig::of(Ends::two_hosts(12, 2).connect(), 4 * MIB);
        exchange_all(&mut rig);
        let outage = thread::spawn(|| {
            let links = |up| ["s0", "s1"].iter().for_each(|link| softverbs::set_link(link, up).unwrap());
            links(false);
            until("the outage", || (logged("has no rail left") > 0).then_some(()));
            let stop = format!("kill -STOP {0}; sleep 12; kill -CONT {0}", std::process::id());
            assert!(Command::new("sh").args(["-c", &stop]).status().unwrap().success());
            links(true);
        });
        while !outage.is_finished() {
            rig.exchange(&[MIB]);
        }
        outage.join().unwrap();
        exchange_all(&mut rig);
        rig.close();
    });
}

/// Its attempt fails, and the next one brings the rail back as it was.
//= rail-life.md: one lost packet takes no property from a rail
#[test]
fn a_rail_that_could_flush_does_not_return_without() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[("MPIB_FLUSH", "1")]), || {
        let mut rig = Rig::of(Ends::two_hosts(12, 2).connect(), 4 * MIB);
        rig.flushes = true;
        exchange_all(&mut rig);
        softverbs::set_link("r1", false).unwrap();
        rig.exchange(&[3 * MIB + 1]);
        let (struck, during) = (faults_struck("r1").unwrap(), sent("s1"));
        // Behind the empty write and the full one.
        inject_at("r1", Fault::Silence(Direction::Both), 3, Only::ALL).unwrap();
        softverbs::set_link("r1", true).unwrap();
        exchange_until(&mut rig, "the port is not used again", || faults_struck("r1").unwrap() > struck);
        let verdict = || {
            logged("of r1:1 stay dead") + logged("stay dead: the probe failed") + logged("so it cannot flush")
                > 0
        };
        exchange_until(&mut rig, "the read does not fail", verdict);
        heal("r1").unwrap();
        exchange_until(&mut rig, "the rail does not come back", || sent("s1") > during + MIB as u64);
        exchange_all(&mut rig);
        assert_eq!(logged("so it cannot flush"), 0, "{:#?}", warnings());
        rig.close();
    });
}

//= rail-life.md: a read of a port to itself that gets no answer is repeated once
#[test]
fn a_lost_read_at_connect_does_not_cost_the_flushes() {
    let devices = two_hosts(1);
    isolated(here!(), &env(&devices, &[("MPIB_FLUSH", "1")]), || {
        let ends = Ends::two_hosts(12, 1);
        // Behind the empty write and the full one.
        let no_answer = Fault::Status(CompletionStatus::from(RETRY_EXC));
        inject_at("r0", no_answer, 3, Only::ALL).unwrap();
        let mut rig = Rig::of(ends.connect(), 4 * MIB);
        assert_eq!(faults_struck("r0").unwrap(), 1);
        assert_eq!(logged("so it cannot flush"), 0, "{:#?}", warnings());
        rig.flushes = true;
        exchange_all(&mut rig);
        rig.close();
    });
}

/// The receiver refuses attempts for both, one after the other.
//= protocol.md: RETURN names each rail that the receiver has refused
#[test]
fn a_receiver_reports_the_return_of_each_rail_that_it_has_refused() {
    let devices = two_hosts(3);
    isolated(here!(), &env(&devices, &[]), || {
        let mut rig = Rig::of(Ends::two_hosts(12, 3).connect(), 4 * MIB);
        exchange_all(&mut rig);
        ["r1", "r2"].iter().for_each(|link| softverbs::set_link(link, false).unwrap());
        let refused = |rails: &str| logged(&format!("rails {rails} of")) > 3;
        exchange_until(&mut rig, "the receiver refuses no attempts", || refused("0b10") && refused("0b100"));
        ["r1", "r2"].iter().for_each(|link| softverbs::set_link(link, true).unwrap());
        let during = [sent("s1"), sent("s2")];
        exchange_until(&mut rig, "the rails do not come back", || {
            [sent("s1"), sent("s2")].iter().zip(during).all(|(now, before)| *now > before + MIB as u64)
        });
        let returned: String = {
            let log = LOG.lock().unwrap();
            let lines = log.iter().filter(|(_, line)| line.contains("can be tried again"));
            lines.map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("; ")
        };
        let both = returned.contains("0b110") || returned.contains("0b10 ") && returned.contains("0b100 ");
        assert!(both, "{returned}");
        rig.close();
    });
}

/// Late packets could still write memory that NCCL uses again.
fn cannot_destroy(test: &str, device: &str) {
    let devices = two_hosts(2);
    isolated(test, &env(&devices, &[NO_PINGS]), || {
        let pair = Ends::two_hosts(12, 2).connect();
        pair.message(5000, 5000, 1);
        take_warnings();
        softverbs::fail(device, Call::DestroyQp.fails(libc::ETIMEDOUT)).unwrap();
        softverbs::set_link(device, false).unwrap();
        let codes = transfer(&pair, usize::MAX);
        assert!(codes.iter().all(|code| !code.is_success()), "{codes:?}");
        assert_warned(&["ibv_destroy_qp", device, "which may still receive"]);
        pair.close();
    });
}

//= failover.md: fault: a queue pair of a failed rail that the adapter does not destroy (`ibv_destroy_qp` fails)
//= failover.md: a queue pair that cannot be destroyed ends its connection
#[test]
fn a_queue_pair_of_the_receiver_that_cannot_be_destroyed_ends_its_connection() {
    cannot_destroy(here!(), "r1");
}

//= failover.md: a queue pair that cannot be destroyed ends its connection
#[test]
fn a_queue_pair_of_the_sender_that_cannot_be_destroyed_ends_its_connection() {
    cannot_destroy(here!(), "s1");
}
