//! Send queues of the minimum depth, over software devices with a latency that keeps them full.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mpib_proto::{Hello, Role, RoutePolicy, SLOTS};
use nccl_net_mpib_agent_iface::environment::NO_AGENT;
use nccl_net_versions::{Buffer, MemKind, ProfilerHandle, RecvBuffer, Sizes, Tagged};

use super::{Listening, PendingConnects};
use crate::config::Config;
use crate::connect::endpoint::{CqNeeds, Depths, MIN_DEPTH, RouteCq, completion_queues};
use crate::connect::local_rails::{add_others, prepare};
use crate::device::Device;
use crate::plugin::Plugin;
use crate::process::Process;
use crate::transport::{RecvComm, Request, SendComm, Settings};

/// Limit of a failing test.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn until<T>(mut f: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = f() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "nothing within {LIMIT:?}");
        std::thread::yield_now();
    }
}

/// The defaults, without an agent of this host.
fn config() -> Config {
    Config { agent_socket: Some(NO_AGENT.into()), ..Config::default() }
}

/// The two ports of the first two devices, opened once.
pub(crate) fn ports() -> Vec<&'static Device> {
    let mut devices = softverbs::default_devices();
    devices.iter_mut().for_each(|d| d.latency_ns = 20_000_000);
    softverbs::configure(devices).unwrap();
    let devices = &Process::global().devices;
    // For the lifetime of the process.
    std::mem::forget(devices.open(&config()).unwrap());
    devices.all()
}

/// A connection with send queues of these depths at the sender and at the receiver.
fn pair(sender: u32, receiver: u32) -> (SendComm, RecvComm) {
    join(sender, receiver, ports()[0], &config())
}

/// As [`pair`], over SOUT with two queue pairs and SUP with three.
fn two_rails(sender: u32, receiver: u32) -> (SendComm, RecvComm) {
    static FUSED: OnceLock<Device> = OnceLock::new();
    let fused = FUSED.get_or_init(|| {
        let [sout, sup, ..] = ports()[..] else { panic!("two devices") };
        let rails = [&sout.rails[0], &sup.rails[0]].map(Arc::clone);
        Device { name: c"fused", rails: rails.into(), is_sout_sup: true, ..sout.clone() }
    });
    let config = Config { sup_share: Some(512), sup_qp: 3, ..config() };
    join(sender, receiver, fused, &config)
}

fn join(sender: u32, receiver: u32, device: &'static Device, config: &Config) -> (SendComm, RecvComm) {
    let with = |depth| {
        let settings = Settings::new(Arc::clone(Process::global()), config.clone(), None, None);
        Arc::new(Settings { queue_depth: depth, ..settings })
    };
    connected((&with(sender), device), (&with(receiver), device))
}

/// Connects a sender's device with a receiver's.
fn connected(
    (sender, from): (&Arc<Settings>, &'static Device),
    (receiver, to): (&Arc<Settings>, &'static Device),
) -> (SendComm, RecvComm) {
    let mut handle = [0; 128];
    let listening = Listening::open(receiver, to, &mut handle).unwrap();
    let (pending, mut send, mut recv) = (PendingConnects::default(), None, None);
    until(|| {
        if send.is_none() {
            send = pending.connect(sender, from, &mut handle).unwrap();
        }
        if recv.is_none() {
            recv = listening.accept().unwrap();
        }
        (send.is_some() && recv.is_some()).then_some(())
    });
    (send.unwrap(), recv.unwrap())
}

/// Sends `groups` groups of `n`; returns how often a send and a receive had to wait.
fn run((send, recv): (SendComm, RecvComm), groups: usize, n: usize, len: usize) -> (usize, usize) {
    let total = groups * n * len;
    let from: Vec<u8> = (0..total).map(|i| (i / len) as u8 ^ (i % 251) as u8).collect();
    let to = vec![0xEEu8; total];
    let buffer = |bytes: &[u8]| Buffer { addr: bytes.as_ptr().expose_provenance(), len: bytes.len() };
    let (from_mr, to_mr) = (
        send.register(buffer(&from), MemKind::Host, None).unwrap(),
        recv.register(buffer(&to), MemKind::Host, None).unwrap(),
    );
    let part = |bytes: &[u8], i: usize| Buffer { addr: bytes.as_ptr().addr() + i * len, len };

    let (mut sends, mut recvs): (Vec<&Tagged<Request>>, Vec<&Tagged<Request>>) = (Vec::new(), Vec::new());
    let (mut sent, mut received, mut done) = (0, 0, 0);
    let (mut send_waits, mut recv_waits) = (0, 0);
    until(|| {
        if received < groups {
            let group: Vec<RecvBuffer<'_, Plugin>> = (0..n)
                .map(|i| RecvBuffer {
                    buffer: part(&to, received * n + i),
                    tag: i as i32,
                    mr: Some(&to_mr),
                    profiler: ProfilerHandle::default(),
                })
                .collect();
            match recv.receive::<_, false>(&group).unwrap() {
                Some(request) => {
                    recvs.push(request);
                    received += 1;
                }
                None => recv_waits += 1,
            }
        }
        if sent < groups * n {
            match send
                .send(part(&from, sent), (sent % n) as i32, Some(&from_mr), ProfilerHandle::NONE)
                .unwrap()
            {
                Some(request) => {
                    sends.push(request);
                    sent += 1;
                }
                // A missing CTS entry is not a full queue.
                None if sent / n + 2 < received => send_waits += 1,
                None => {}
            }
        }
        for requests in [&mut sends, &mut recvs] {
            requests.retain(|r| {
                let mut sizes = Sizes::IGNORED;
                let over = r.test(&mut sizes).unwrap();
                done += usize::from(over);
                !over
            });
        }
        (done == groups * n + groups).then_some(())
    });
    assert!(from == to);
    drop((from_mr, to_mr));
    send.close().unwrap();
    recv.close().unwrap();
    (send_waits, recv_waits)
}

#[test]
fn full_queues_make_calls_wait_and_lose_nothing() {
    // Single sends use one work request each: nine are in flight. A group of eight uses all nine.
    for n in [1, 8] {
        // On a busy machine a queue may drain before it is full: try again.
        until(|| (run(pair(MIN_DEPTH, u32::MAX), 20, n, 128).0 > 0).then_some(()));
        until(|| (run(pair(u32::MAX, MIN_DEPTH), 20, n, 128).1 > 0).then_some(()));
    }
}

/// The minimum depth for a group of eight, on each of five queue pairs: a group waits for its queue
/// pair although another one may have room.
//= protocol.md: full send queues make isend wait and lose nothing
#[test]
fn full_queues_of_several_queue_pairs_make_calls_wait_and_lose_nothing() {
    for n in [1, 8] {
        until(|| (run(two_rails(MIN_DEPTH, u32::MAX), 100, n, 256).0 > 0).then_some(()));
        until(|| (run(two_rails(u32::MAX, MIN_DEPTH), 100, n, 256).1 > 0).then_some(()));
    }
}

#[test]
fn a_queue_too_shallow_for_a_group_is_refused() {
    let config = config();
    let mut handle = [0; 128];
    let (send, recv) = pair(u32::MAX, u32::MAX);
    let device = ports()[0];
    let settings = Arc::new(Settings {
        queue_depth: MIN_DEPTH - 1,
        ..Settings::new(Arc::clone(Process::global()), config, None, None)
    });
    let listening = Listening::open(&settings, device, &mut handle).unwrap();
    let (pending, mut ours, mut theirs) = (PendingConnects::default(), None, None);
    until(|| {
        if ours.is_none() {
            ours = pending.connect(&settings, device, &mut handle).err();
        }
        if theirs.is_none() {
            theirs = listening.accept().err();
        }
        (ours.is_some() && theirs.is_some()).then_some(())
    });
    for e in [ours, theirs].into_iter().flatten() {
        assert!(e.to_string().contains("a connection needs 9") || e.to_string().contains("refuses"), "{e}");
    }
    send.close().unwrap();
    recv.close().unwrap();
}

/// CTS writes move to another rail if theirs fails.
//= protocol.md: queue pairs: every rail of a receiver has room for all CTS writes
#[test]
fn the_first_queue_pair_of_every_rail_has_room_for_all_cts_writes() {
    let settings = Settings::new(Arc::clone(Process::global()), config(), None, None);
    let needed = 2 * SLOTS as u32;
    for device in ports() {
        for (n, leads) in [(1, true), (1, false), (4, true), (16, false)] {
            let depths = Depths::new(Role::Acceptor, &settings, &device.rails[0], n, leads).unwrap();
            assert_eq!(depths.send(0), needed, "{n} queue pairs");
            assert!(depths.completions(n) >= needed + n - 1);
        }
    }
}

/// Each has its own devices, settings, threads and counts.
#[test]
fn two_processes_in_one_connect_and_share_nothing() {
    let names: Vec<_> = ports().iter().map(|d| d.rails[0].context().name().to_owned()).collect();
    let process = |settings: &[(&str, &str)]| {
        let var = |name: &str| settings.iter().find(|s| s.0 == name).map(|s| s.1.into());
        let (process, config) = (Process::new(), Arc::new(Config::read(var).unwrap()));
        let hold = process.devices.open(&config).unwrap();
        let events = process.events.start(&config, || process.devices.nics()).unwrap();
        assert!(process.set_latest(Arc::clone(&config), 12), "the first init of this process");
        (Arc::new(Settings::new(Arc::clone(&process), config, None, None)), hold, events, process)
    };
    let last = format!("={}", names[1]);
    let (a, _devices_of_a, _events_of_a, ours) =
        process(&[("MPIB_STATS", "0"), ("MPIB_HINT_POLL_US", "300")]);
    let (b, _devices_of_b, _events_of_b, theirs) = process(&[("NCCL_IB_HCA", &last)]);
    assert_eq!((ours.devices.count(), theirs.devices.count()), (names.len(), 1));
    let (from, to) = (ours.devices.get(1).unwrap(), theirs.devices.get(0).unwrap());
    assert!(!Arc::ptr_eq(&from.rails[0].context(), &to.rails[0].context()));

    run(connected((&a, from), (&b, to)), 20, 1, 4096);
    run(connected((&a, from), (&b, to)), 20, 8, 64);

    assert_eq!((ours.begun.total(), theirs.begun.total()), (2, 0), "connections begun");
    let interval = |process: &Process| process.latest().unwrap().hint_poll_us;
    assert_eq!((interval(&ours), interval(&theirs)), (300, 1000));
}

/// A port that is down would be queried at each connection.
//= protocol.md: second HELLO: the other ports are queried for it alone
#[test]
fn other_ports_are_queried_for_the_second_hello_alone() {
    let names: Vec<_> = ports().iter().map(|d| d.name.to_string_lossy().into_owned() + ":1").collect();
    let process = Process::new();
    let _hold = process.devices.open(&config()).unwrap();
    let [device, other, ..] = process.devices.all()[..] else { panic!("two devices") };
    let settings = Settings::new(Arc::clone(&process), config(), None, None);
    let listed = |hello: &Hello| hello.rails.iter().map(|rail| rail.name.clone()).collect::<Vec<_>>();

    device.rails.iter().chain(&other.rails).for_each(|nic| nic.forget());
    let (mut rails, first) = prepare(&settings, device, 7).unwrap();
    assert_eq!((listed(&first), first.others), (names[..1].to_vec(), true));
    assert!(device.rails[0].is_known() && !other.rails[0].is_known());

    let all = add_others(&settings, device, &mut rails, &first).unwrap();
    assert_eq!((listed(&all), all.others, all.rotation), (names[..2].to_vec(), false, 7));
    assert!(other.rails[0].is_known());
    assert_eq!(rails.iter().map(|rail| rail.nic.name()).collect::<Vec<_>>(), names[..2]);

    // The ranking of this policy needs all ports.
    let config = Config { route: RoutePolicy::PreferSubnet, ..config() };
    let settings = Settings::new(process, config, None, None);
    let (rails, first) = prepare(&settings, device, 0).unwrap();
    assert_eq!((listed(&first), first.others, rails.len()), (names[..2].to_vec(), false, 2));
}

#[test]
fn routes_on_one_context_share_a_cq_that_can_hold_all_completions() {
    let [a, b, ..] = ports()[..] else { panic!("two devices") };
    let contexts = [a, b].map(|device| device.rails[0].context());
    let [a, b] = contexts.each_ref();
    // For each route the first route with the same CQ.
    let owners = |routes: &[CqNeeds<'_>]| -> Vec<(usize, bool)> {
        let cqs: Vec<_> = completion_queues(routes).into_iter().map(Result::unwrap).collect();
        let first = |cq: &RouteCq| cqs.iter().position(|other| other.cq.id() == cq.cq.id()).unwrap();
        cqs.iter().map(|cq| (first(cq), cq.shared)).collect()
    };
    let needs = |context, completions| CqNeeds { context, completions, max_cqe: 100 };
    let routes = [needs(a, 50), needs(b, 60), needs(a, 50)];
    assert_eq!(owners(&routes), [(0, true), (1, false), (0, true)]);
    // One entry too many for one CQ.
    let routes = [needs(a, 50), needs(a, 51), needs(b, 10), needs(b, 20)];
    assert_eq!(owners(&routes), [(0, false), (1, false), (2, true), (2, true)]);
}
