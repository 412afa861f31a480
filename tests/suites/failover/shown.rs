//! What people see of a rail that dies and comes back: the log and the statistics page.

use std::thread;

use mpib_tests::code::Success;
use mpib_tests::here;
use mpib_tests::log::{LOG, take_warnings};
use mpib_tests::pair::until;
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, newest_device};
use nccl_net_mpib_agent_iface::stats::{
    Awaited, Lack, PortState, Reason, STATS_REASONS, StatsPage, pages_of,
};

use crate::{MIB, on_rails};

/// Returns the page of this process.
fn page() -> StatsPage {
    pages_of(std::process::id()).unwrap().remove(0)
}

/// Returns whether each end has given up just the rails of this mask.
fn given_up(mask: u8) -> bool {
    let ends = page().connections();
    let bit = |(i, at): (usize, Option<u64>)| u8::from(at.is_some()) << i;
    let mask_of = |rails: Vec<Option<u64>>| rails.into_iter().enumerate().map(bit).sum::<u8>();
    assert_eq!(ends.len(), 2);
    ends.iter().all(|end| mask_of(end.rails.iter().map(|rail| rail.given_up_at).collect()) == mask)
}

/// Returns what the ends wait for.
fn waits() -> Vec<Option<Awaited>> {
    page().connections().iter().map(|end| end.wait.map(|wait| wait.what)).collect()
}

//= stats.md: a connection without a rail waits for one
#[test]
fn a_connection_without_a_rail_waits_for_one() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        rig.exchange(&[3 * MIB]);
        let outage = thread::spawn(|| {
            ["r0", "r1"].into_iter().for_each(|device| softverbs::set_link(device, false).unwrap());
            until("both ends to wait", || (waits() == [Some(Awaited::Rail); 2]).then_some(()));
            ["r0", "r1"].into_iter().for_each(|device| softverbs::set_link(device, true).unwrap());
        });
        while !outage.is_finished() {
            rig.exchange(&[MIB]);
        }
        outage.join().unwrap();
        until("the end of the waits", || {
            rig.exchange(&[MIB]);
            (waits() == [None; 2]).then_some(())
        });
        rig.close();
    });
}

/// Waits for a line of the log.
fn await_line(parts: &[&str]) {
    let has = |line: &str| parts.iter().all(|part| line.contains(part));
    until(&parts.join(" … "), || LOG.lock().unwrap().iter().any(|(_, line)| has(line)).then_some(()));
}

//= failover.md: one warning for each fault, and lines for the episodes and the return
//= stats.md: rails that are given up and episodes are shown
#[test]
fn a_fault_and_its_end_are_shown() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        rig.exchange(&[3 * MIB]);
        assert!(given_up(0));
        take_warnings();
        softverbs::set_link("r1", false).unwrap();
        rig.exchange(&[3 * MIB]);
        until("both ends to show it", || {
            rig.exchange(&[MIB]);
            given_up(0b10).then_some(())
        });
        // By its event, or by a write that has failed before the event was read.
        let by_sign = [Reason::Port, Reason::Completion, Reason::Peer].map(|r| Some(Lack::GivenUp(r)));
        let lacks: Vec<_> = page().connections().iter().map(|end| end.rails[1].lack).collect();
        assert!(lacks.iter().all(|lack| by_sign.contains(lack)), "{lacks:?}");
        await_line(&["r1:1", " down", "2 connections carry on over other rails"]);
        await_line(&["after the loss of r1:1: ", "bytes were sent again", "stalls of"]);
        until("both ends to count it", || (page().summary().episodes == 2).then_some(()));
        let downs = LOG.lock().unwrap().iter().filter(|(_, line)| line.contains("carry on over")).count();
        assert_eq!(downs, 1, "one line for both ends");
        let shown = page().read();
        assert!(shown.summary.stalled > 0);
        let port = shown.ports.iter().find(|port| port.name == "r1:1").unwrap();
        assert_eq!(port.state, Some(PortState::Down));
        assert!(port.cause.as_deref().is_some_and(|cause| cause.contains("r1:1")), "{port:?}");
        let by = |reason: Reason| port.episodes[usize::from(reason.code())];
        let by_sign = [Reason::Port, Reason::Completion, Reason::Peer].map(by).iter().sum::<u64>();
        assert_eq!((by_sign, port.episodes.iter().sum::<u64>(), port.stalls.iter().sum::<u64>()), (2, 2, 2));
        assert_eq!(port.replayed, shown.summary.replayed);
        let healthy = shown.ports.iter().find(|port| port.name == "r0:1").unwrap();
        assert_eq!((healthy.state, healthy.episodes), (Some(PortState::Healthy), [0; STATS_REASONS]));
        softverbs::set_link("r1", true).unwrap();
        until("the rail to be back", || {
            rig.exchange(&[MIB]);
            given_up(0).then_some(())
        });
        await_line(&["r1:1", " is back after "]);
        assert!(page().summary().returns > 0);
        until("the port to be healthy", || {
            let ports = page().read().ports;
            ports
                .iter()
                .all(|port| (port.state, &port.cause) == (Some(PortState::Healthy), &None))
                .then_some(())
        });
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
