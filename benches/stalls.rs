//! What the death of a rail costs a process of many connections whose adapters take long for each
//! verb: the longest call of NCCL's thread, the longest stall of a connection that carries data, and
//! the time that it takes to close connections that were aborted.
//!
//! `cargo bench -p nccl-net-mpib --bench stalls`, with CONNECTIONS (1000), BUSY (16: those that carry
//! data) and VERB_TIME (5ms for each queue pair that is made, changed or destroyed) in the environment.

use std::time::{Duration, Instant};

use mpib_tests::code::Success;
use mpib_tests::pair::{Buffer, Pair, connect_between, init};
use mpib_tests::set;
use mpib_tests::table::{Ptr, Table, newest};
use mpib_tests::vdevices;

/// Bytes of a message, split over both rails.
const LEN: usize = 64 << 10;
/// How long data moves before the link goes down, and until it goes up again.
const PHASE: Duration = Duration::from_secs(3);
/// Connections that are closed together as NCCL does after an abort.
const ABORTED: usize = 64;

/// One connection that carries a message after the other.
struct Stream {
    pair: Pair,
    from: Buffer,
    to: Buffer,
    send: Ptr,
    recv: Ptr,
    last: Instant,
    longest: Duration,
}

/// The longest call of each function.
#[derive(Default)]
struct Calls {
    longest: [Duration; 3],
}

impl Calls {
    fn timed<T>(&mut self, which: usize, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.longest[which] = self.longest[which].max(start.elapsed());
        result
    }
}

impl Stream {
    fn new(pair: Pair) -> Self {
        let (from, to) = (pair.send_buffer(vec![7; LEN]), pair.recv_buffer(LEN));
        let (send, recv) = (Ptr::default(), Ptr::default());
        Self { pair, from, to, send, recv, last: Instant::now(), longest: Duration::ZERO }
    }

    /// One step: posts what is not posted, and tests.
    fn step(&mut self, calls: &mut Calls) {
        let table = self.pair.table;
        if self.recv.is_null() {
            let buffers = [(self.to.addr(), LEN, 0, self.to.mr)];
            let (rc, request) = calls.timed(0, || table.irecv(self.pair.recv, &buffers));
            assert_eq!(rc, Success, "irecv");
            self.recv = request;
        }
        if self.send.is_null() {
            let (from, mr) = (self.from.addr(), self.from.mr);
            let (rc, request) = calls.timed(1, || table.isend(self.pair.send, from, LEN, 0, mr));
            assert_eq!(rc, Success, "isend");
            self.send = request;
        }
        for request in [&mut self.send, &mut self.recv] {
            if request.is_null() {
                continue;
            }
            let (rc, done, _) = calls.timed(2, || table.test(*request));
            assert_eq!(rc, Success, "test");
            if done {
                *request = Ptr::default();
            }
        }
        if self.recv.is_null() {
            self.longest = self.longest.max(self.last.elapsed());
            self.last = Instant::now();
        }
    }
}

fn number(name: &str, by_default: usize) -> usize {
    std::env::var(name).map_or(by_default, |n| n.parse().expect("a number"))
}

fn run(streams: &mut [Stream], what: &str) {
    let mut calls = Calls::default();
    let start = Instant::now();
    streams.iter_mut().for_each(|stream| (stream.last, stream.longest) = (start, Duration::ZERO));
    while start.elapsed() < PHASE {
        streams.iter_mut().for_each(|stream| stream.step(&mut calls));
    }
    let mut longest: Vec<_> =
        streams.iter().map(|stream| stream.longest.max(stream.last.elapsed())).collect();
    longest.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let [irecv, isend, test] = calls.longest.map(ms);
    println!(
        "{what:<24} longest calls: irecv {irecv:.2} ms, isend {isend:.2} ms, test {test:.2} ms; \
         longest stall of a connection: {:.1} ms in the middle, {:.1} ms at most",
        ms(longest[longest.len() / 2]),
        ms(longest[longest.len() - 1]),
    );
}

fn connections(table: &'static Table, n: usize) -> Vec<Pair> {
    let fuse = |devices: [i32; 2]| vdevices::newest().fuse(&devices);
    let ctx = init(table);
    let (receiver, sender) = (fuse([0, 1]), fuse([2, 3]));
    (0..n).map(|_| connect_between(table, ctx, sender, receiver)).collect()
}

fn main() {
    let (n, busy) = (number("CONNECTIONS", 1000), number("BUSY", 16));
    let time = std::env::var("VERB_TIME").unwrap_or_else(|_| "5ms".into());
    let verbs = format!("verb_time=create_qp:{time}+modify_qp:{time}+destroy_qp:{time}");
    let device = |name: &str, rail: u8, host: u8| format!("{name}{rail}:addr=10.0.{rail}.{host}/24,{verbs}");
    let devices = [device("r", 0, 1), device("r", 1, 1), device("s", 0, 2), device("s", 1, 2)].join(";");
    let fabric = format!("bench-stalls-{}", std::process::id());
    for (name, value) in [
        ("SOFTVERBS_FABRIC", fabric.as_str()),
        ("SOFTVERBS_DEVICES", &devices),
        ("NCCL_NET_FORCE_MERGE", "by the bench"),
        ("MPIB_SPLIT_MIN", "0"),
    ] {
        set(name, Some(value));
    }
    let start = Instant::now();
    let mut idle = connections(newest(), n);
    println!(
        "{n} connections made in {:.1} s, {time} for each verb of a queue pair",
        start.elapsed().as_secs_f64()
    );
    let mut streams: Vec<_> = idle.drain(..busy.min(n)).map(Stream::new).collect();
    run(&mut streams, "all rails work");
    softverbs::set_link("s0", false).unwrap();
    run(&mut streams, "the link of s0 goes down");
    softverbs::set_link("s0", true).unwrap();
    run(&mut streams, "s0 is back");
    let aborted = idle.split_off(idle.len().saturating_sub(ABORTED));
    aborted.iter().for_each(|pair| assert_eq!(pair.table.close_send(pair.send), Success));
    let start = Instant::now();
    aborted.iter().for_each(|pair| assert_eq!(pair.table.close_recv(pair.recv), Success));
    println!("closeRecv of {} connections: {:.0} ms", aborted.len(), start.elapsed().as_secs_f64() * 1e3);
    // The process ends with the others open.
    std::process::exit(0);
}
