//! The measured split: rails carry what they can, and not what their ports report.

use std::time::{Duration, Instant};

use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{Buffer, Pair, connect, init};
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, carried, newest_device, speeds};
use mpib_tests::{here, isolated};
use nccl_net_mpib::simulation::set_port_scale as scale;
use nccl_net_mpib_agent_iface::stats::pages_of;

const MIB: usize = 1 << 20;
/// Limit of a failing test.
const LIMIT: Duration = Duration::from_secs(60);

/// Rails with these rates in MB/s. They are far below what the processor copies.
fn rates(of: &[u32]) -> String {
    let rail = |(i, rate): (usize, &u32)| format!("r{i}:addr=10.0.{i}.1/24,rate={rate}MB");
    of.iter().enumerate().map(rail).collect::<Vec<_>>().join(";")
}

/// A connection over all rails of these rates, whose ports report the same speed.
fn on_rails(test: &str, of: &[u32], env: &[(&str, &str)], body: impl FnOnce(&mut Rig)) {
    let (devices, alike) = (rates(of), speeds(&vec![100_000; of.len()]));
    let rails = [("SOFTVERBS_DEVICES", devices.as_str()), ("MPIB_RAIL_SPEED", alike.as_str())];
    isolated(test, &[&rails, env].concat(), || {
        let (ctx, dev) = newest_device(of.len());
        let mut rig = Rig::new(table(12), ctx, dev, 8 * MIB);
        body(&mut rig);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Sends messages of `len` bytes. Returns the part of each rail in percent.
fn parts(rig: &mut Rig, rails: usize, len: usize, messages: usize) -> Vec<f64> {
    let before = carried(rails);
    (0..messages).for_each(|_| rig.exchange(&[len]));
    let bytes: Vec<u64> =
        carried(rails).iter().zip(before).map(|(now, then)| now.bytes - then.bytes).collect();
    let sum: u64 = bytes.iter().sum();
    bytes.iter().map(|bytes| 100.0 * *bytes as f64 / sum as f64).collect()
}

/// Sends messages until each rail carries its part of one in percent, within a tenth of it.
fn until_parts(rig: &mut Rig, expected: &[f64]) {
    let begun = Instant::now();
    loop {
        let found = parts(rig, expected.len(), 2 * MIB, 1);
        if found
            .iter()
            .zip(expected)
            .all(|(found, expected)| (found - expected).abs() <= (expected / 10.0).max(0.1))
        {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{found:?} and not {expected:?}");
    }
}

//= measured-split.md: rails carry in proportion to their measured goodput
#[test]
fn rails_carry_what_they_can_and_not_what_their_ports_report() {
    on_rails(here!(), &[80, 20], &[], |rig| {
        let first = parts(rig, 2, MIB, 1);
        assert!((first[0] - 50.0).abs() < 0.1, "the first message goes as the ports report: {first:?}");
        until_parts(rig, &[80.0, 20.0]);
        // What has been learnt counts for new connections.
        let (ctx, dev) = newest_device(2);
        let mut other = Rig::new(table(12), ctx, dev, MIB);
        let first = parts(&mut other, 2, MIB, 1);
        assert!((70.0..90.0).contains(&first[0]), "{first:?}");
        other.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= measured-split.md: rails carry in proportion to their measured goodput
#[test]
fn three_rails_carry_what_they_can() {
    on_rails(here!(), &[60, 40, 20], &[], |rig| until_parts(rig, &[50.0, 33.3, 16.7]));
}

//= configuration.md: MPIB_SPLIT
#[test]
fn with_speed_the_ports_decide() {
    on_rails(here!(), &[80, 20], &[("MPIB_SPLIT", "speed")], |rig| {
        let found = parts(rig, 2, MIB, 10);
        assert!((found[0] - 50.0).abs() < 0.1, "{found:?}");
    });
}

//= split.md: shares follow a rate that changes
#[test]
fn shares_follow_a_rate_that_changes() {
    on_rails(here!(), &[40, 40], &[], |rig| {
        for (rate, expected) in [(10, [80.0, 20.0]), (40, [50.0, 50.0]), (80, [33.3, 66.7])] {
            // The event of a new speed is no help: MPIB_RAIL_SPEED stands for what ports report.
            softverbs::set_rate("r1", rate * 1_000_000).unwrap();
            until_parts(rig, &expected);
        }
    });
}

/// A rail that is hardly used is measured now and then.
//= split.md: a rail that recovers is seen
#[test]
fn a_rail_that_recovers_is_seen() {
    // The watchdog would give such a slow rail up.
    on_rails(here!(), &[40, 40], &[("MPIB_STALL_MS", "0")], |rig| {
        softverbs::set_rate("r1", 500_000).unwrap();
        let begun = Instant::now();
        while parts(rig, 2, MIB, 1)[1] > 3.0 {
            assert!(begun.elapsed() < LIMIT);
        }
        softverbs::set_rate("r1", 40_000_000).unwrap();
        until_parts(rig, &[50.0, 50.0]);
    });
}

//= measured-split.md: equal rails keep half each
#[test]
fn equal_rails_carry_half_each() {
    // The processor's time for a part is short beside the part's time on the rail.
    on_rails(here!(), &[20, 20], &[], |rig| {
        let found = parts(rig, 2, MIB, 100);
        assert!((48.0..=52.0).contains(&found[0]), "{found:?}");
    });
}

/// Drains r0, gives it back, and lowers its share.
fn drain_and_give_back(rig: &mut Rig) {
    assert!(!scale("r7:1", 0), "there is no such port");
    for (of_r0, expected) in [(0, [0.0, 100.0]), (1024, [50.0, 50.0]), (512, [33.3, 66.7])] {
        assert!(scale("r0:1", of_r0));
        until_parts(rig, &expected);
        if of_r0 == 0 {
            let before = carried(2)[0].signals;
            for lens in [&[MIB][..], &[100], &[5000], &[70_000, 1, 3000]] {
                rig.exchange(lens);
            }
            assert_eq!(carried(2)[0].signals, before, "a drained rail carries data");
        }
    }
    assert_eq!(take_warnings(), [""; 0]);
}

//= measured-split.md: a drained port gets no new parts
//= measured-split.md: a scale lowers the share of a port
#[test]
fn a_drained_port_carries_nothing_until_it_is_given_back() {
    on_rails(here!(), &[40, 40], &[], drain_and_give_back);
}

//= measured-split.md: a drained port gets no new parts
//= measured-split.md: a scale lowers the share of a port
#[test]
fn a_port_is_drained_also_if_speeds_decide() {
    on_rails(here!(), &[40, 40], &[("MPIB_SPLIT", "speed")], drain_and_give_back);
}

//= measured-split.md: a drained port gets no new parts
#[test]
fn a_new_connection_avoids_a_drained_port() {
    on_rails(here!(), &[40, 40], &[], |_| {
        assert!(scale("r0:1", 0));
        let (ctx, dev) = newest_device(2);
        let mut other = Rig::new(table(12), ctx, dev, MIB);
        let before = carried(2)[0].signals;
        other.exchange(&[MIB]);
        other.exchange(&[100]);
        assert_eq!(carried(2)[0].signals, before, "a drained rail carries data");
        other.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= measured-split.md: if all ports are drained, one warning and no drain
#[test]
fn connections_use_drained_ports_if_there_is_no_other() {
    on_rails(here!(), &[40, 40], &[], |rig| {
        assert!(scale("r0:1", 0) && scale("r1:1", 0));
        until_parts(rig, &[50.0, 50.0]);
        let (ctx, dev) = newest_device(2);
        let mut other = Rig::new(table(12), ctx, dev, MIB);
        other.exchange(&[MIB]);
        let warnings = take_warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("r0:1, r1:1 carries data although it is drained"), "{warnings:?}");
        // A rail that is given back is the only one.
        assert!(scale("r1:1", 1024));
        until_parts(rig, &[0.0, 100.0]);
        other.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// A rail that fails carries nothing. When it returns it is another one.
//= measured-split.md: a rail that returns is measured again
#[test]
fn a_rail_that_returns_is_measured_again() {
    on_rails(here!(), &[40, 10], &[], |rig| {
        until_parts(rig, &[80.0, 20.0]);
        softverbs::set_link("r1", false).unwrap();
        rig.exchange(&[4 * MIB]);
        assert_eq!(parts(rig, 2, MIB, 2)[1], 0.0);
        softverbs::set_link("r1", true).unwrap();
        let begun = Instant::now();
        // The first message goes as the ports report.
        while let [_, second] = parts(rig, 2, MIB, 1)[..]
            && second < 45.0
        {
            assert!(second < 1.0 && begun.elapsed() < LIMIT, "{second}");
        }
        until_parts(rig, &[80.0, 20.0]);
    });
}

/// The two rails of the MPIB profile, without an agent.
fn without_an_agent(test: &str, env: &[(&str, &str)], body: impl FnOnce(&mut Rig)) {
    let (devices, alike) = (rates(&[20, 80]), speeds(&[100_000; 2]));
    let rails = [
        ("MPIB_HCA_SOUT", "r0"),
        ("MPIB_HCA_SUP", "r1"),
        ("SOFTVERBS_DEVICES", devices.as_str()),
        ("MPIB_RAIL_SPEED", alike.as_str()),
    ];
    isolated(test, &[&rails, env].concat(), || {
        let ctx = init(table(12));
        let mut rig = Rig::new(table(12), ctx, 0, 8 * MIB);
        body(&mut rig);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= measured-split.md: SOUT and SUP in advanced mode without a hint
#[test]
fn advanced_mode_measures_until_the_first_hint() {
    without_an_agent(here!(), &[("MPIB_MODE", "1")], |rig| until_parts(rig, &[20.0, 80.0]));
}

//= configuration.md: MPIB_SPLIT
#[test]
fn advanced_mode_uses_sout_alone_with_share_until_the_first_hint() {
    without_an_agent(here!(), &[("MPIB_MODE", "1"), ("MPIB_SPLIT", "share")], |rig| {
        assert_eq!(parts(rig, 2, MIB, 10), [100.0, 0.0]);
    });
}

//= measured-split.md: fixed shares and islands are not measured
#[test]
fn a_fixed_share_stays() {
    without_an_agent(here!(), &[("MPIB_SUP_SHARE", "512")], |rig| {
        let found = parts(rig, 2, MIB, 20);
        assert!((found[0] - 50.0).abs() < 0.1, "{found:?}");
    });
}

//= measured-split.md: a drained port gets no new parts
#[test]
fn a_port_is_drained_also_with_a_fixed_share() {
    without_an_agent(here!(), &[("MPIB_SUP_SHARE", "512")], |rig| {
        for (of_sup, share) in [(0, 0.0), (1024, 50.0)] {
            assert!(scale("r1:1", of_sup));
            until_parts(rig, &[100.0 - share, share]);
            assert!((parts(rig, 2, MIB, 3)[1] - share).abs() < 0.1);
        }
    });
}

//= measured-split.md: fixed shares and islands are not measured
#[test]
fn an_island_stays_on_its_rail() {
    without_an_agent(here!(), &[], |rig| assert_eq!(parts(rig, 2, MIB, 10)[0], 0.0));
}

//= configuration.md: MPIB_SPLIT
#[test]
fn share_without_a_share_is_refused() {
    isolated(here!(), &[("MPIB_SPLIT", "share")], || {
        assert_ne!(table(12).init().0, Success);
        let warnings = take_warnings();
        assert!(
            warnings.iter().any(|w| w.contains("MPIB_SPLIT") && w.contains("MPIB_SUP_SHARE")),
            "{warnings:?}"
        );
    });
}

/// What the statistics of this process show of a port.
fn shown_goodput(port: &str) -> Option<u64> {
    let pages = pages_of(std::process::id()).unwrap();
    pages[0].read().ports.into_iter().find(|shown| shown.name == port)?.goodput
}

/// Each of them measures an eighth.
//= stats.md: the goodput of a port is that of all connections of the process together
#[test]
fn eight_connections_show_what_their_port_carries() {
    const CONNECTIONS: usize = 8;
    let env = [("SOFTVERBS_DEVICES", &*rates(&[80, 80])), ("MPIB_RAIL_SPEED", "r0:100,r1:100")];
    isolated(here!(), &env, || {
        let (ctx, dev) = newest_device(2);
        let pairs: Vec<_> = (0..CONNECTIONS).map(|_| connect(table(12), ctx, dev)).collect();
        let buffers: Vec<_> =
            pairs.iter().map(|pair| (pair.send_buffer(vec![1; MIB]), pair.recv_buffer(MIB))).collect();
        let begun = Instant::now();
        loop {
            let start = |(pair, (from, to)): (&Pair, &(Buffer, Buffer))| {
                let receive = pair.irecv(&[(to.addr(), MIB, 1, to.mr)]);
                [pair.isend(from.addr(), MIB, 1, from.mr), receive]
            };
            let requests: Vec<_> = pairs.iter().zip(&buffers).map(start).collect();
            for (pair, both) in pairs.iter().zip(requests) {
                for request in both {
                    pair.wait(request);
                }
            }
            let shown = ["r0:1", "r1:1"].map(|port| shown_goodput(port).unwrap_or(0) / 1_000_000);
            if shown.iter().all(|rate| (50..=100).contains(rate)) {
                break;
            }
            assert!(begun.elapsed() < LIMIT, "{shown:?} MB/s and not 80");
        }
        for (from, to) in buffers {
            from.dereg();
            to.dereg();
        }
        pairs.into_iter().for_each(Pair::close);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
