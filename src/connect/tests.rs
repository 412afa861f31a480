//! Send queues of the minimum depth, over software devices with a latency that keeps them full.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nccl_net_versions::{Buffer, MemKind, ProfilerHandle, RecvBuffer, Sizes, Tagged};

use super::{Listening, connect};
use crate::config::Config;
use crate::connect::queue_depths::MIN_DEPTH;
use crate::device::{self, Device};
use crate::plugin::Plugin;
use crate::transport::{RecvComm, Request, SendComm, Settings};

/// Limit of a failing test.
const LIMIT: Duration = Duration::from_secs(60);

fn until<T>(mut f: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = f() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "nothing within {LIMIT:?}");
        std::thread::yield_now();
    }
}

/// The two ports of the first two devices, opened once.
fn ports() -> Vec<&'static Device> {
    let mut devices = softverbs::default_devices();
    devices.iter_mut().for_each(|d| d.latency_ns = 20_000_000);
    softverbs::configure(devices).unwrap();
    // For the lifetime of the process.
    std::mem::forget(device::Hold::open(&Config::default()).unwrap());
    device::all()
}

/// A connection with send queues of these depths at the sender and at the receiver.
fn pair(sender: u32, receiver: u32) -> (SendComm, RecvComm) {
    join(sender, receiver, ports()[0], &Config::default())
}

/// As [`pair`], over SOUT with two queue pairs and SUP with three.
fn two_rails(sender: u32, receiver: u32) -> (SendComm, RecvComm) {
    static FUSED: OnceLock<Device> = OnceLock::new();
    let fused = FUSED.get_or_init(|| {
        let [sout, sup, ..] = ports()[..] else { panic!("two devices") };
        let rails = [&sout.rails[0], &sup.rails[0]].map(Arc::clone);
        Device { name: c"fused", rails: rails.into(), is_mpib: true, ..sout.clone() }
    });
    let config = Config { sup_share: Some(512), sup_qp: 3, ..Config::default() };
    join(sender, receiver, fused, &config)
}

fn join(sender: u32, receiver: u32, device: &'static Device, config: &Config) -> (SendComm, RecvComm) {
    let with = |depth| Arc::new(Settings { queue_depth: depth, ..Settings::new(config.clone(), None, None) });
    let mut handle = [0; 128];
    let listening = Listening::open(&with(receiver), device, &mut handle).unwrap();
    let settings = with(sender);
    let (mut send, mut recv) = (None, None);
    until(|| {
        if send.is_none() {
            send = connect(&settings, 0, device, &mut handle).unwrap();
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
                let mut sizes = Sizes::UNWANTED;
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
#[test]
fn full_queues_of_several_queue_pairs_make_calls_wait_and_lose_nothing() {
    for n in [1, 8] {
        until(|| (run(two_rails(MIN_DEPTH, u32::MAX), 100, n, 256).0 > 0).then_some(()));
        until(|| (run(two_rails(u32::MAX, MIN_DEPTH), 100, n, 256).1 > 0).then_some(()));
    }
}

#[test]
fn a_queue_too_shallow_for_a_group_is_refused() {
    let config = Config::default();
    let mut handle = [0; 128];
    let (send, recv) = pair(u32::MAX, u32::MAX);
    let device = ports()[0];
    let settings = Arc::new(Settings { queue_depth: MIN_DEPTH - 1, ..Settings::new(config, None, None) });
    let listening = Listening::open(&settings, device, &mut handle).unwrap();
    let (mut ours, mut theirs) = (None, None);
    until(|| {
        if ours.is_none() {
            ours = connect(&settings, 0, device, &mut handle).err();
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
