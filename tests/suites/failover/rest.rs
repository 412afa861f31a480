//! Connections that NCCL leaves alone: nothing is outstanding on them, so no thread of the plugin
//! wakes for them. What becomes due later wakes the thread again.

use std::fs;

use mpib_tests::code::Success;
use mpib_tests::pair::{Pair, connect, init, pattern, until};
use mpib_tests::table::{newest, table};
use mpib_tests::vdevices::{Rig, newest_device, rails};
use mpib_tests::{SPLIT_ALL, here, isolated};

use crate::MIB;

/// Connections of each test.
const MANY: usize = 24;

/// Returns the threads of the plugin that are awake, or that will wake without an event: by what the
/// kernel says of the system calls in which they wait.
fn awake() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let of_plugin = tasks.filter_map(|task| {
        let folder = task.ok()?.path();
        let name = fs::read_to_string(folder.join("comm")).ok()?;
        let call = fs::read_to_string(folder.join("syscall")).ok()?;
        (name.starts_with("mpib-") && !waits_for_an_event(&call)).then(|| name.trim().to_owned())
    });
    of_plugin.collect()
}

/// Returns whether a thread waits for descriptors without a limit. `call` has the number and the
/// arguments of its system call, or "running".
fn waits_for_an_event(call: &str) -> bool {
    let mut words = call.split_whitespace();
    let number = words.next().and_then(|word| word.parse().ok()).unwrap_or(-1);
    let args: Vec<u64> =
        words.filter_map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()).collect();
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => args[2] as i32 == -1,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => args[3] as i32 == -1,
        libc::SYS_ppoll => args[2] == 0,
        libc::SYS_epoll_pwait => args[3] as i32 == -1,
        _ => false,
    }
}

/// Returns how often the thread of the events has waited.
fn wakes() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let waits = tasks.filter_map(|task| {
        let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        (of("Name:")? == "mpib-events").then(|| of("voluntary_ctxt_switches:")?.parse::<u64>().ok())?
    });
    waits.sum()
}

fn await_rest() {
    until("the threads of the plugin to rest", || awake().is_empty().then_some(()));
}

//= scale.md: idle connections wake no thread
#[test]
fn idle_connections_wake_no_thread() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(2, 1)), SPLIT_ALL], || {
        let (ctx, dev) = newest_device(2);
        let mut rigs: Vec<_> = (0..MANY).map(|_| Rig::new(table(12), ctx, dev, MIB)).collect();
        rigs.iter_mut().for_each(|rig| rig.exchange(&[MIB]));
        assert!(!awake().is_empty(), "connections that NCCL has just used have their looks");
        await_rest();
        // A rail that dies and comes back, without any call of NCCL.
        let queue_pairs = || softverbs::objects().unwrap().qps;
        let all = queue_pairs();
        softverbs::set_link("r1", false).unwrap();
        until("the queue pairs of r1 to be destroyed", || (queue_pairs() == all / 2).then_some(()));
        softverbs::set_link("r1", true).unwrap();
        until("the rails to come back", || (queue_pairs() == all).then_some(()));
        await_rest();
        rigs.iter_mut().for_each(|rig| rig.exchange(&[MIB]));
        rigs.into_iter().for_each(Rig::close);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// NCCL may make no call until the data of an optional receive has arrived.
//= scale.md: idle connections wake no thread
#[test]
fn a_receive_that_is_outstanding_keeps_the_thread_awake() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(1, 1))], || {
        let table = newest();
        let ctx = init(table);
        let pairs: Vec<Pair> = (0..MANY).map(|_| connect(table, ctx, 0)).collect();
        await_rest();
        let (from, to) = (pairs[7].send_buffer(pattern(4096, 1)), pairs[7].recv_buffer(4096));
        let (rc, recv) = table.irecv_as(pairs[7].recv, &[(to.addr(), 4096, 0, to.mr)], 1);
        assert_eq!((rc, recv.is_null()), (Success, false));
        pairs[7].wait(recv);
        let before = wakes();
        until("looks at the receiver", || (wakes() >= before + 3).then_some(()));
        let send = pairs[7].isend(from.addr(), 4096, 0, from.mr);
        assert_eq!(pairs[7].wait(send)[0], 4096);
        await_rest();
        from.dereg();
        to.dereg();
        pairs.into_iter().for_each(Pair::close);
        assert_eq!(table.finalize(ctx), Success);
    });
}
