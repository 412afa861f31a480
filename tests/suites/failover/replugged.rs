//! Adapters that are removed and plugged in again in the same process: their contexts are opened
//! again, all memory is registered there, and rails return to them.

use std::thread;
use std::time::Instant;

use mpib_tests::code::Success;
use mpib_tests::holdings::descriptors;
use mpib_tests::log::{LOG, take_warnings};
use mpib_tests::memory::Memfd;
use mpib_tests::pair::{Buffer, HOST, connect, pattern, until};
use mpib_tests::table::table;
use mpib_tests::vdevices::{Rig, newest_device};
use mpib_tests::{here, isolated};
use softverbs::{Call, Direction, Fault, Objects, fail, faults_struck, heal, inject, objects, open_contexts};

use crate::failback::{LIMIT, between_hosts, bytes, exchange_all, exchange_until, sent};
use crate::points::{Ends, env, two_hosts};
use crate::traffic::{Link, Traffic};
use crate::{MIB, on_rails};

fn remove(device: &str) {
    inject(device, Fault::DeviceFatal).unwrap();
}

fn plug_in(device: &str) {
    heal(device).unwrap();
}

/// Returns how many objects and contexts this process has.
fn held() -> (Option<Objects>, usize) {
    (objects(), open_contexts())
}

/// Waits until nothing of the dead contexts is left.
fn await_release(before: (Option<Objects>, usize)) {
    let start = Instant::now();
    while held() != before && start.elapsed() < LIMIT {
        thread::yield_now();
    }
    assert_eq!(held(), before);
}

/// Counts the lines of the log with this text.
fn lines(text: &str) -> usize {
    LOG.lock().unwrap().iter().filter(|(_, line)| line.contains(text)).count()
}

/// Waits until the log has this many lines with this text.
fn await_lines(text: &str, n: usize) {
    until("lines of the log", || (lines(text) >= n).then_some(()));
}

/// Removes the adapter of a rail under traffic until the rail carries nothing, and plugs it in until
/// the rail carries data again. `meanwhile` is called while the adapter is away.
fn replug(rig: &mut Rig, rails: usize, rail: usize, meanwhile: impl FnOnce(&mut Rig)) {
    let name = format!("r{rail}");
    let before = bytes(rails, rail);
    exchange_all(rig);
    assert!(bytes(rails, rail) > before, "{name} carries nothing at first");
    remove(&name);
    // The first exchange ends once the connection has given the rail up.
    rig.exchange(&[3 * MIB + 1]);
    let during = bytes(rails, rail);
    exchange_all(rig);
    assert_eq!(bytes(rails, rail), during, "{name} carries data while it is away");
    meanwhile(rig);
    plug_in(&name);
    exchange_until(rig, "the rail does not come back", || bytes(rails, rail) > during + MIB as u64);
    exchange_all(rig);
}

/// On `n` rails: the adapter of each rail is removed and plugged in, the first one twice. Nothing of
/// the dead contexts is left then.
fn each_adapter_comes_back(test: &str, n: usize, env: &[(&str, &str)], change: impl Fn(&mut Rig)) {
    on_rails(test, n, env, || {
        let (ctx, dev) = newest_device(n);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        change(&mut rig);
        exchange_all(&mut rig);
        let held = held();
        take_warnings();
        for rail in (0..n).chain([0]) {
            replug(&mut rig, n, rail, |_| {});
        }
        await_lines("is there again and was opened", n + 1);
        assert_eq!(lines("is there again and was opened"), n + 1, "one line for each return");
        await_release(held);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= failover.md: fault: an adapter that fails or is removed (`IBV_EVENT_DEVICE_FATAL`)
//= faults.md: 27: an adapter is removed and comes back: it is opened again, its rails return
//= failover.md: the rails of an adapter that was removed return
#[test]
fn a_rail_returns_to_an_adapter_that_is_plugged_in_again() {
    each_adapter_comes_back(here!(), 2, &[], |_| {});
}

#[test]
fn all_stripes_return_to_an_adapter_that_is_plugged_in_again() {
    let stripes = [("NCCL_IB_SPLIT_DATA_ON_QPS", "1"), ("NCCL_IB_QPS_PER_CONNECTION", "2")];
    each_adapter_comes_back(here!(), 2, &stripes, |_| {});
}

#[test]
fn a_rail_of_an_adapter_that_is_plugged_in_again_flushes() {
    each_adapter_comes_back(here!(), 2, &[("MPIB_FLUSH", "1")], |rig| rig.flushes = true);
}

#[test]
fn optional_receives_go_on_over_an_adapter_that_is_plugged_in_again() {
    each_adapter_comes_back(here!(), 2, &[], |rig| rig.optional = true);
}

/// Plugs adapters in when the log has one more line with this text.
fn plug_in_after(text: &'static str, devices: &'static [&str]) -> thread::JoinHandle<()> {
    let before = lines(text);
    thread::spawn(move || {
        await_lines(text, before + 1);
        devices.iter().for_each(|device| plug_in(device));
    })
}

const WAITS: &str = "waits up to 60 s for one to come back";

//= failover.md: a connection waits for its only adapter
#[test]
fn a_connection_waits_for_its_only_adapter() {
    on_rails(here!(), 1, &[], || {
        let (ctx, dev) = newest_device(1);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        exchange_all(&mut rig);
        let held = held();
        for _ in 0..2 {
            let helper = plug_in_after(WAITS, &["r0"]);
            remove("r0");
            exchange_all(&mut rig);
            helper.join().unwrap();
            exchange_all(&mut rig);
        }
        await_release(held);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Groups of many kinds, several of them in flight.
fn traffic() -> Traffic {
    Traffic::of(&[&[MIB / 2 + 1], &[1000], &[0], &[70_000, 5, 200_000, 0]], 6, 8)
}

/// Between two hosts of `n` rails each: the adapter is removed with transfers in flight and plugged in
/// while they go on, twice.
fn under_load(test: &str, n: usize, device: &'static str, traffic: impl Fn() -> Traffic) {
    let devices = two_hosts(n);
    isolated(test, &env(&devices, &[]), || {
        let mut link = Link::new(Ends::two_hosts(12, n).connect(), &traffic());
        let own = device.replace('r', "s");
        link.run(|| {});
        for round in 1..=2 {
            let mut calls = 0;
            link.run(|| {
                calls += 1;
                if calls == 20 {
                    remove(device);
                }
                if calls == 200 {
                    plug_in(device);
                }
            });
            plug_in(device);
            let before = sent(&own);
            let start = Instant::now();
            while sent(&own) < before + MIB as u64 {
                link.run(|| {});
                assert!(start.elapsed() < LIMIT, "{device} does not come back in round {round}");
            }
        }
        link.close();
    });
}

#[test]
fn the_receivers_adapter_is_plugged_in_under_load() {
    under_load(here!(), 2, "r1", traffic);
}

#[test]
fn the_senders_adapter_is_plugged_in_under_load() {
    under_load(here!(), 2, "s1", traffic);
}

#[test]
fn the_receivers_only_adapter_is_plugged_in_under_load() {
    under_load(here!(), 1, "r0", traffic);
}

#[test]
fn the_senders_only_adapter_is_plugged_in_under_load() {
    under_load(here!(), 1, "s0", traffic);
}

/// Receives that were offered with the keys of the adapter's last life.
//= protocol.md: CTS entries get the new keys of an adapter that was opened again
#[test]
fn receives_from_before_get_the_new_keys() {
    between_hosts(here!(), |mut rig| {
        for device in ["r0", "r1", "s0"] {
            exchange_all(&mut rig);
            let own = device.replace('r', "s");
            let back = match device {
                "s0" => format!("{own}:1 is back after"),
                _ => format!("the route from {own}:1 to "),
            };
            take_warnings();
            let to: Vec<_> = (0..4).map(|_| rig.pair.recv_buffer(2 * MIB)).collect();
            let from: Vec<_> = (0..4).map(|i| rig.pair.send_buffer(vec![i + 1; 2 * MIB])).collect();
            let receives: Vec<_> =
                to.iter().map(|to| rig.pair.irecv(&[(to.addr(), 2 * MIB, 0, to.mr)])).collect();
            remove(device);
            plug_in(device);
            // Housekeeping alone brings the rail back: NCCL makes no call.
            until("the rail of the sender", || {
                let log = LOG.lock().unwrap();
                let is_back = |line: &str| line.contains(&back) && line.contains(" after ");
                log.iter().any(|(_, line)| is_back(line)).then_some(())
            });
            let before = sent(&own);
            for from in &from {
                let send = rig.pair.isend(from.addr(), 2 * MIB, 0, from.mr);
                assert_eq!(rig.pair.wait(send)[0] as usize, 2 * MIB);
            }
            for (i, (to, receive)) in to.iter().zip(receives).enumerate() {
                assert_eq!(rig.pair.wait(receive)[0] as usize, 2 * MIB);
                assert!(to.bytes.iter().all(|byte| usize::from(*byte) == i + 1), "receive {i}");
            }
            assert!(sent(&own) > before + MIB as u64, "{device} carries nothing");
            to.into_iter().for_each(Buffer::dereg);
            from.into_iter().for_each(Buffer::dereg);
        }
        rig.close();
    });
}

/// The sender must not use the rail before it has the new keys.
//= protocol.md: UP comes after the CTS entries with new keys
#[test]
fn a_rail_stays_unused_while_the_new_keys_do_not_arrive() {
    let devices = two_hosts(2);
    let slow = [("NCCL_IB_TIMEOUT", "14"), ("NCCL_IB_RETRY_CNT", "3")];
    isolated(here!(), &env(&devices, &slow), || {
        let mut rig = Rig::of(Ends::two_hosts(12, 2).connect(), 4 * MIB);
        exchange_all(&mut rig);
        let (to, from) = (rig.pair.recv_buffer(2 * MIB), rig.pair.send_buffer(vec![7; 2 * MIB]));
        let receive = rig.pair.irecv(&[(to.addr(), 2 * MIB, 0, to.mr)]);
        remove("r1");
        await_lines("the route from s1:1 to 10.0.1.1 failed", 1);
        plug_in("r1");
        await_lines("r1 is there again and was opened", 1);
        // During the hold-down: the entry that is written again will not leave the receiver.
        inject("r0", Fault::Silence(Direction::Out)).unwrap();
        let returned = || lines("the route from s1:1 to 10.0.1.1 works again");
        until("the end of the last rail", || (returned() + lines(WAITS) > 0).then_some(()));
        assert_eq!(returned(), 0);
        plug_in("r0");
        let send = rig.pair.isend(from.addr(), 2 * MIB, 0, from.mr);
        assert_eq!((rig.pair.wait(send)[0], rig.pair.wait(receive)[0]), (2 * MIB as i32, 2 * MIB as i32));
        assert!(to.bytes.iter().all(|byte| *byte == 7));
        [to, from].into_iter().for_each(Buffer::dereg);
        exchange_all(&mut rig);
        rig.close();
    });
}

/// NCCL registers and deregisters while an adapter is away.
//= failover.md: memory that is registered while an adapter is away is registered on it later
#[test]
fn memory_that_is_registered_while_an_adapter_is_away_is_registered_on_it_later() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        let pair = connect(table(12), ctx, dev);
        let mut other = None;
        replug(&mut rig, 2, 1, |_| {
            pair.recv_buffer(MIB).dereg();
            other = Some(Rig::of(pair, 4 * MIB));
        });
        let mut other = other.unwrap();
        let before = bytes(2, 1);
        exchange_until(&mut other, "the rail does not come back", || bytes(2, 1) > before + MIB as u64);
        other.close();
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= faults.md: 27
#[test]
fn a_new_connection_uses_an_adapter_that_is_plugged_in_again() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        let mut during = None;
        replug(&mut rig, 2, 0, |_| during = Some(Rig::new(table(12), ctx, dev, 4 * MIB)));
        rig.close();
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        let before = bytes(2, 0);
        exchange_until(&mut rig, "the new connection does not use it", || bytes(2, 0) > before + MIB as u64);
        rig.close();
        let mut during = during.unwrap();
        exchange_all(&mut during);
        during.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// The file of a DMA-BUF is closed after its registration.
//= failover.md: DMA-BUFs are registered again
#[test]
fn dma_bufs_are_registered_on_an_adapter_that_is_plugged_in_again() {
    const AT: usize = 1 << 40;
    const LEN: usize = 4 * MIB;
    let devices = two_hosts(2).replace("/24", "/24,dmabuf=on");
    isolated(here!(), &env(&devices, &[]), || {
        let mut rig = Rig::of(Ends::two_hosts(12, 2).connect(), 4 * MIB);
        let (table, send, recv) = (rig.pair.table, rig.pair.send, rig.pair.recv);
        let files = descriptors();
        let (from, to) = (Memfd::new(LEN), Memfd::new(LEN));
        let data = pattern(LEN, 7);
        from.write(0, &data);
        let register = |comm, file: &Memfd, addr| {
            let file = file.again();
            let (rc, mr) = table.reg_mr_dma_buf(comm, (addr, LEN), HOST, (0, file.fd()));
            assert_eq!(rc, Success, "regMrDmaBuf");
            mr
        };
        let (from_mr, to_mr) = (register(send, &from, AT), register(recv, &to, 2 * AT));
        for device in ["r1", "s1"] {
            let before = lines("is there again and was opened");
            remove(device);
            rig.exchange(&[MIB]);
            plug_in(device);
            await_lines("is there again and was opened", before + 1);
            let before = sent("s1");
            exchange_until(&mut rig, "the rail does not come back", || sent("s1") > before + MIB as u64);
            to.write(0, &vec![0; LEN]);
            let before = sent("s1");
            let receive = rig.pair.irecv(&[(2 * AT, LEN, 0, to_mr)]);
            let send = rig.pair.isend(AT, LEN, 0, from_mr);
            assert_eq!((rig.pair.wait(send)[0], rig.pair.wait(receive)[0]), (LEN as i32, LEN as i32));
            assert!(to.read(0, LEN) == data, "{device}");
            assert!(sent("s1") > before + MIB as u64 / 2, "{device} carries nothing");
        }
        assert_eq!((table.dereg_mr(send, from_mr), table.dereg_mr(recv, to_mr)), (Success, Success));
        drop((from, to));
        assert_eq!(descriptors(), files);
        rig.close();
    });
}

//= failover.md: an adapter on which memory cannot be registered is tried again
#[test]
fn an_adapter_that_cannot_register_all_memory_is_tried_again() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        exchange_all(&mut rig);
        let before = held();
        replug(&mut rig, 2, 1, |_| fail("r1", Call::RegMr.fails(libc::ENOMEM)).unwrap());
        assert_eq!(lines("r1 is there again and cannot be used yet: "), 1);
        assert_eq!(lines("r1 is there again and was opened as r1"), 1);
        await_release(before);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// The move of the second port fails, at its first call and at its last one. Until both ports can move,
/// none does.
//= failover.md: the ports of an adapter return together
#[test]
fn both_ports_of_an_adapter_return_together() {
    let devices = "r0:addr=10.0.0.1/24;r1:addr=10.0.1.1/24;r1/2:addr=10.0.2.1/24";
    isolated(here!(), &env(devices, &[]), || {
        let (ctx, dev) = newest_device(3);
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        let ports = || ["r1", "r1/2"].map(sent);
        exchange_all(&mut rig);
        let mut held = held();
        // For each port a protection domain, and both buffers of the connection.
        for (round, (call, after)) in (1..).zip([(Call::AllocPd, 1), (Call::RegMr, 3)]) {
            let before = ports();
            exchange_all(&mut rig);
            assert!(ports().iter().zip(before).all(|(now, before)| *now > before), "{before:?}");
            remove("r1/2");
            rig.exchange(&[3 * MIB + 1]);
            let during = ports();
            exchange_all(&mut rig);
            assert_eq!(ports(), during, "nothing goes over an adapter that is away");
            let struck = faults_struck("r1").unwrap();
            fail("r1", call.fails(libc::EIO).after(after)).unwrap();
            plug_in("r1");
            let back = |now: u64, during: u64| now > during + MIB as u64;
            exchange_until(&mut rig, "a port does not come back", || {
                ports().iter().zip(during).all(|(now, during)| back(*now, during))
            });
            assert_eq!(faults_struck("r1"), Ok(struck + 1), "{call:?} after {after}");
            assert_eq!(lines("r1 is there again and cannot be used yet: "), round);
            assert_eq!(lines("r1 is there again and was opened as r1"), round);
        }
        // The rails of one adapter share completion queues until they are made one by one.
        held.0.as_mut().unwrap().cqs += 2;
        await_release(held);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

//= rail-life.md: a dead context closes with its last object
#[test]
fn a_connection_that_is_closed_while_an_adapter_is_away_leaves_nothing() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        // Each context keeps what its first connection makes for all of them.
        Rig::new(table(12), ctx, dev, 4 * MIB).close();
        let before = held();
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        exchange_all(&mut rig);
        remove("r1");
        exchange_all(&mut rig);
        rig.close();
        plug_in("r1");
        await_lines("r1:1 is back after", 1);
        Rig::new(table(12), ctx, dev, 4 * MIB).close();
        await_release(before);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Without a connection: the ports move to the new context all the same.
#[test]
fn an_adapter_without_connections_is_opened_again() {
    on_rails(here!(), 2, &[], || {
        let (ctx, dev) = newest_device(2);
        let contexts = open_contexts();
        for returns in 1..=2 {
            remove("r1");
            plug_in("r1");
            await_lines("IBV_EVENT_DEVICE_FATAL", returns);
            await_lines("r1:1 is back after", returns);
        }
        until("the release of the dead contexts", || (open_contexts() == contexts).then_some(()));
        let mut rig = Rig::new(table(12), ctx, dev, 4 * MIB);
        let before = bytes(2, 1);
        exchange_until(&mut rig, "a new connection does not use it", || bytes(2, 1) > before + MIB as u64);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
