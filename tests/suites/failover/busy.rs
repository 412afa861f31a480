//! Healthy rails of processes that were stopped, that poll rarely, or that have much to send over a
//! slow port: none of them is given up.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use mpib_tests::code::Success;
use mpib_tests::log::warnings;
use mpib_tests::pair::{connect, pattern};
use mpib_tests::peer::{Peer, answer, commands};
use mpib_tests::process::Role;
use mpib_tests::table::{Ptr, table};
use mpib_tests::vdevices::{Rig, carried, newest_device, speeds};
use mpib_tests::{BY_SPEED, SPLIT_ALL, here, isolated, isolated_with};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::MIB;

/// How long the process stands still: longer than a rail may complete nothing if its port's counters
/// show losses.
const STOPPED: Duration = Duration::from_millis(300);
/// How often it does.
const STOPS: u64 = 20;
/// Messages in flight: r1 always has a part of one.
const DEPTH: usize = 4;
const MESSAGE: usize = 128 << 10;

/// Binds this thread to the first processor that the process may use.
fn bind() {
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let first = (0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap()).unwrap();
    let mut one = CpuSet::new();
    one.set(first).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}

/// The second process: moves data between its own rails until a line comes, by a thread that shares
/// its processor with others, which come first. Answers what it has warned of.
fn moves_data() {
    let (ctx, dev) = newest_device(2);
    let pair = connect(table(12), ctx, dev);
    let (from, to) = (pair.send_buffer(pattern(MESSAGE, 1)), pair.recv_buffer(MESSAGE));
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = commands().next();
            end.store(true, Ordering::Relaxed);
        });
        // This thread alone: those of the plugin are there.
        bind();
        // SAFETY: changes the priority of this thread.
        assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) }, 0);
        let mut flights: VecDeque<[Ptr; 2]> = VecDeque::new();
        loop {
            if !end.load(Ordering::Relaxed) && flights.len() < DEPTH {
                let recv = pair.irecv(&[(to.addr(), MESSAGE, 1, to.mr)]);
                flights.push_back([recv, pair.isend(from.addr(), MESSAGE, 1, from.mr)]);
                continue;
            }
            let Some(flight) = flights.pop_front() else { break };
            for request in flight {
                pair.wait(request);
            }
        }
    });
    answer(&warnings().join("; "));
    from.dereg();
    to.dereg();
    pair.close();
    assert_eq!(table(12).finalize(ctx), Success);
}

/// Busy loops on the processor of [`bind`], until this is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn start() -> Self {
        let end = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let end = Arc::clone(&end);
            thread::spawn(move || {
                bind();
                while !end.load(Ordering::Relaxed) {}
            });
        }
        Self(end)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sets a counter of an adapter, as another process of the host makes it rise that loses packets.
fn lose(folder: &Path, count: u64) {
    let (counter, new) = (folder.join("roce_adp_retrans"), folder.join("new"));
    std::fs::write(&new, format!("{count}\n")).unwrap();
    std::fs::rename(new, counter).unwrap();
}

/// When it goes on, the thread that polls waits for its processor, and the watchdog does not.
//= rail-life.md: watched time
#[test]
fn a_process_that_was_stopped_gives_no_rail_up() {
    isolated_with(here!(), &[], moves_data, || {
        let adapter = tempfile::tempdir().unwrap();
        let counters = adapter.path().join("ports/1/hw_counters");
        std::fs::create_dir_all(&counters).unwrap();
        lose(&counters, 0);
        // 6.5 ms for a part.
        let slow = format!("rate=10MB,sysfs={}", adapter.path().display());
        let devices = format!("r0:addr=10.0.0.1/24;r1:addr=10.0.1.1/24,{slow}");
        let speeds = speeds(&[100_000; 2]);
        let devices = ("SOFTVERBS_DEVICES", devices.as_str());
        let env = [devices, BY_SPEED, SPLIT_ALL, ("MPIB_RAIL_SPEED", speeds.as_str())];
        let mut peer = Peer::start_as(Role::Second, &env);
        for count in 1..=STOPS {
            thread::sleep(STOPPED);
            peer.process().stop();
            let _busy = Busy::start();
            lose(&counters, count);
            thread::sleep(STOPPED);
            peer.process().go_on();
            thread::sleep(STOPPED / 10);
        }
        assert_eq!(peer.ask("end"), "");
        peer.finish();
    });
}

/// NCCL tests other requests meanwhile, whose rail is another one.
//= rail-life.md: watched time
#[test]
fn a_completion_that_nobody_has_polled_costs_no_rail() {
    let speeds = speeds(&[100_000, 1000]);
    let devices = mpib_tests::vdevices::rails(2, 1);
    let env = [("SOFTVERBS_DEVICES", devices.as_str()), BY_SPEED, ("MPIB_RAIL_SPEED", speeds.as_str())];
    isolated(here!(), &env, || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, MIB);
        let pair = &rig.pair;
        let (from, to) = (pair.send_buffer(pattern(4 * MIB, 3)), pair.recv_buffer(4 * MIB));
        let before = carried(2)[1].bytes;
        let large = pair.irecv(&[(to.addr(), 4 * MIB, 1, to.mr)]);
        let held = pair.isend(from.addr(), 4 * MIB, 1, from.mr);
        pair.wait(large);
        let with_it = carried(2)[1].bytes;
        assert!(with_it > before, "no part of it goes on r1");
        for _ in 0..60 {
            rig.exchange(&[1]);
            // The slots of a connection are used in turn. All of them take longer than a stall.
            thread::sleep(Duration::from_millis(12));
        }
        assert_eq!(carried(2)[1].bytes, with_it, "the others go on r0");
        rig.pair.wait(held);
        assert_eq!(warnings(), [""; 0]);
        from.dereg();
        to.dereg();
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// Its usual completion takes a twentieth of the time of the last one, in which the other rail is
/// done and waits.
//= rail-life.md: when a rail has stalled
#[test]
fn a_slow_rail_that_has_much_to_carry_gets_the_time_for_it() {
    let devices = "r0:addr=10.0.0.1/24;r1:addr=10.0.1.1/24,rate=20MB";
    let speeds = speeds(&[100_000; 2]);
    let env = [("SOFTVERBS_DEVICES", devices), BY_SPEED, ("MPIB_RAIL_SPEED", speeds.as_str())];
    isolated(here!(), &env, || {
        let (ctx, dev) = newest_device(2);
        let mut rig = Rig::new(table(12), ctx, dev, 40 * MIB);
        (0..10).for_each(|_| rig.exchange(&[MIB / 2; 4]));
        rig.exchange(&[40 * MIB]);
        assert_eq!(warnings(), [""; 0]);
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
