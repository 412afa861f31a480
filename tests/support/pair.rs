//! A connection from this process to itself, and transfers over it.

use std::time::{Duration, Instant};

use crate::code::{Code, Success};
use crate::table::{Ptr, Table};

/// Long enough for a busy machine, and longer than the plugin's own limits of 60 s, after which the
/// death of a peer is known at the latest. Only a failing test waits for it.
pub const LIMIT: Duration = Duration::from_secs(100);

pub const HOST: i32 = 1;

/// How long a wait polls before it sleeps between polls.
const BUSY: Duration = Duration::from_millis(5);

/// A loop that polls. Most waits are short, so it polls at first; in a longer one the processor
/// belongs to the other threads and processes of the tests.
#[derive(Debug)]
pub struct Polling {
    since: Instant,
}

impl Polling {
    pub fn start() -> Self {
        Self { since: Instant::now() }
    }

    /// Something has happened: the next wait begins.
    pub fn progress(&mut self) {
        self.since = Instant::now();
    }

    /// Nothing has happened. Returns how long that has lasted.
    pub fn pause(&self) -> Duration {
        let waited = self.since.elapsed();
        if waited < BUSY {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
        waited
    }
}

/// Calls `f` until it returns something: for one event. `f` does no work in steps, since [`until`] soon
/// sleeps between calls.
#[track_caller]
pub fn until<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let polling = Polling::start();
    loop {
        if let Some(value) = f() {
            return value;
        }
        assert!(polling.pause() < LIMIT, "{what}: nothing within {LIMIT:?}");
    }
}

/// Both ends of one connection.
pub struct Pair {
    pub table: &'static Table,
    pub send: Ptr,
    pub recv: Ptr,
}

// SAFETY: handles may be used from any thread; the tests keep to NCCL's rules.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

/// `init` that must succeed.
pub fn init(table: &Table) -> Ptr {
    let (rc, ctx) = table.init();
    assert_eq!(rc, Success, "init of v{}", table.version());
    ctx
}

/// Calls connect with `handle` and accept of `listen` until both are done; the two comms.
pub fn connect_both(table: &Table, ctx: Ptr, dev: i32, handle: &mut [u8; 128], listen: Ptr) -> (Ptr, Ptr) {
    try_connect_both(table, ctx, dev, handle, listen).expect("connect and accept")
}

/// As [`connect_both`]; the codes of both if an end fails, as it may if the handshake's time is short.
pub fn try_connect_both(
    table: &Table,
    ctx: Ptr,
    dev: i32,
    handle: &mut [u8; 128],
    listen: Ptr,
) -> Result<(Ptr, Ptr), [Code; 2]> {
    let (mut send, mut recv) = (Ptr::default(), Ptr::default());
    let codes = until("connect and accept, or an error", || {
        let mut codes = [Success; 2];
        if send.is_null() {
            (codes[0], send) = table.connect(ctx, dev, handle);
        }
        if recv.is_null() {
            (codes[1], recv) = table.accept(listen);
        }
        (codes != [Success; 2] || !send.is_null() && !recv.is_null()).then_some(codes)
    });
    if codes == [Success; 2] {
        return Ok((send, recv));
    }
    if !send.is_null() {
        assert_eq!(table.close_send(send), Success, "closeSend");
    }
    if !recv.is_null() {
        assert_eq!(table.close_recv(recv), Success, "closeRecv");
    }
    Err(codes)
}

/// Asserts that no write of this process found its peer's receive queue empty.
#[track_caller]
pub fn assert_no_rnr() {
    let rnr: u64 = softverbs::counters().iter().map(|d| d.total.rnr).sum();
    assert_eq!(rnr, 0, "a write found no receive");
}

/// Connects `dev` to itself.
pub fn connect(table: &'static Table, ctx: Ptr, dev: i32) -> Pair {
    try_connect(table, ctx, dev).expect("connect and accept")
}

/// Connects the device `sender` to the device `receiver`.
pub fn connect_between(table: &'static Table, ctx: Ptr, sender: i32, receiver: i32) -> Pair {
    try_connect_between(table, ctx, sender, receiver).expect("connect and accept")
}

/// As [`connect`]; the codes of connect and accept if one fails, as it may if the handshake's time is
/// short.
pub fn try_connect(table: &'static Table, ctx: Ptr, dev: i32) -> Result<Pair, [Code; 2]> {
    try_connect_between(table, ctx, dev, dev)
}

fn try_connect_between(
    table: &'static Table,
    ctx: Ptr,
    sender: i32,
    receiver: i32,
) -> Result<Pair, [Code; 2]> {
    let mut handle = [0; 128];
    let (rc, listen) = table.listen(ctx, receiver, &mut handle);
    assert_eq!(rc, Success, "listen");
    let comms = try_connect_both(table, ctx, sender, &mut handle, listen);
    assert_eq!(table.close_listen(listen), Success);
    comms.map(|(send, recv)| Pair { table, send, recv })
}

/// Calls connect and accept until both have failed; their codes.
pub fn both_fail(table: &Table, ctx: Ptr, handle: &mut [u8; 128], listen: Ptr) -> [Code; 2] {
    let mut codes = [Success; 2];
    until("connect and accept to fail", || {
        if codes[0] == Success {
            let (rc, comm) = table.connect(ctx, 0, handle);
            assert!(comm.is_null(), "connected");
            codes[0] = rc;
        }
        if codes[1] == Success {
            let (rc, comm) = table.accept(listen);
            assert!(comm.is_null(), "accepted");
            codes[1] = rc;
        }
        (!codes.contains(&Success)).then_some(codes)
    })
}

/// Tests a request that must fail until it does; its code.
pub fn failure(table: &Table, request: Ptr) -> Code {
    until("a failure", || {
        let (rc, done, _) = table.test(request);
        assert!(!done, "a request that must fail is done");
        (!rc.is_success()).then_some(rc)
    })
}

/// A registered buffer on one comm.
pub struct Buffer {
    table: &'static Table,
    comm: Ptr,
    pub bytes: Vec<u8>,
    pub mr: Ptr,
}

impl Buffer {
    pub fn new(table: &'static Table, comm: Ptr, bytes: Vec<u8>) -> Self {
        let (rc, mr) = table.reg_mr(comm, bytes.as_ptr().addr(), bytes.len(), HOST);
        assert_eq!(rc, Success, "regMr");
        assert!(!mr.is_null());
        Self { table, comm, bytes, mr }
    }

    pub fn addr(&self) -> usize {
        self.bytes.as_ptr().addr()
    }

    /// Replaces the first bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
    }

    /// Before its comm is closed.
    pub fn dereg(self) {
        assert_eq!(self.table.dereg_mr(self.comm, self.mr), Success, "deregMr");
    }
}

/// Bytes that differ by place and message.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len];
    // Eight at a time: tests are built without optimisation, and this makes most of their bytes.
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

impl Pair {
    pub fn new(table: &'static Table) -> Self {
        let ctx = init(table);
        connect(table, ctx, 0)
    }

    pub fn send_buffer(&self, bytes: Vec<u8>) -> Buffer {
        Buffer::new(self.table, self.send, bytes)
    }

    pub fn recv_buffer(&self, len: usize) -> Buffer {
        Buffer::new(self.table, self.recv, vec![0xEE; len])
    }

    /// One receive group that must be taken.
    pub fn irecv(&self, buffers: &[(usize, usize, i32, Ptr)]) -> Ptr {
        let (rc, request) = self.table.irecv(self.recv, buffers);
        assert_eq!(rc, Success, "irecv");
        assert!(!request.is_null(), "irecv took nothing");
        request
    }

    /// A send, tried until it is taken. `request`s in `progress` are not tested meanwhile.
    pub fn isend(&self, addr: usize, len: usize, tag: i32, mr: Ptr) -> Ptr {
        until("isend", || {
            let (rc, request) = self.table.isend(self.send, addr, len, tag, mr);
            assert_eq!(rc, Success, "isend");
            (!request.is_null()).then_some(request)
        })
    }

    /// The code of a send that is refused, tried until its receive has come.
    pub fn refused(&self, addr: usize, len: usize, tag: i32, mr: Ptr) -> Code {
        until("isend", || {
            let (rc, request) = self.table.isend(self.send, addr, len, tag, mr);
            assert!(request.is_null(), "{len} bytes at {addr:#x} were taken");
            (rc != Success).then_some(rc)
        })
    }

    /// Tests until done.
    pub fn wait(&self, request: Ptr) -> [i32; 8] {
        until("test", || {
            let (rc, done, sizes) = self.table.test(request);
            assert_eq!(rc, Success, "test");
            done.then_some(sizes)
        })
    }

    /// One message of `len` bytes into a buffer with `room`, checked byte by byte.
    pub fn message(&self, len: usize, room: usize, seed: u64) {
        let data = pattern(len, seed);
        let from = self.send_buffer(if len == 0 { vec![0] } else { data.clone() });
        let to = self.recv_buffer(room.max(1) + 64);
        let recv = self.irecv(&[(to.addr(), room, 7, to.mr)]);
        let send = self.isend(from.addr(), len, 7, from.mr);
        assert_eq!(self.wait(send)[0], len as i32, "size at the sender");
        assert_eq!(self.wait(recv)[0], len as i32, "size at the receiver");
        assert!(to.bytes[..len] == data[..], "{len} bytes differ");
        assert!(to.bytes[len..].iter().all(|b| *b == 0xEE), "bytes behind a message of {len} were written");
        from.dereg();
        to.dereg();
    }

    /// The sending and the receiving comm.
    pub fn comms(&self) -> [Ptr; 2] {
        [self.send, self.recv]
    }

    pub fn close(self) {
        assert_eq!(self.table.close_send(self.send), Success, "closeSend");
        assert_eq!(self.table.close_recv(self.recv), Success, "closeRecv");
    }
}
