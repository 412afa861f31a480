//! Sequences of calls that NCCL never makes: with handles that are closed, of another kind, or of
//! nobody.

use std::ptr::{null_mut, without_provenance_mut};

use arbitrary::Arbitrary;
use mpib_tests::code::{Code, Success};
use mpib_tests::pair::{self, HOST};
use mpib_tests::table::{Ptr, newest};

use crate::steps;
use crate::table::{context, init};

/// Most calls of one run.
const MAX_CALLS: usize = 64;
/// Most connections of one run: each takes about a millisecond.
const MAX_PAIRS: usize = 2;
/// Bytes of the buffer.
const LEN: usize = 8192;
/// Bytes of the listener's handle that may be changed: no address and no port, since a connector tries
/// them.
const HANDLE_HEAD: usize = 24;

/// The kind of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Arbitrary)]
enum Kind {
    Context,
    Listen,
    Send,
    Recv,
    Mr,
    Request,
}

/// A handle of a call.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum Which {
    /// One of the right kind that exists, if there is one.
    Right(u8),
    /// One of any kind that exists.
    Any(Kind, u8),
    /// One that was closed.
    Closed(u8),
    Null,
    Unaligned,
    /// Memory that is no handle.
    Foreign,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Call {
    Pair { device: i8 },
    Listen { context: Which, device: i8 },
    Connect { context: Which, device: i8, at: u8, byte: u8 },
    Accept(Which),
    Register { comm: Which, offset: u16, len: u16, kind: u8 },
    Deregister { comm: Which, mr: Which },
    Send { comm: Which, mr: Which, offset: u16, len: u16, tag: u8 },
    Receive { comm: Which, mr: Which, count: i8, offset: u16, len: u16, tag: u8 },
    Flush { comm: Which, mr: Which, offset: u16, len: u16 },
    Test(Which),
    CloseSend(Which),
    CloseReceive(Which),
    CloseListen(Which),
    Properties(i8),
    Finalize(Which),
}

/// A handle, and the comm that it belongs to, by which it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle {
    kind: Kind,
    at: Ptr,
    comm: Ptr,
}

/// Memory for all operations of a run, and memory that no call knows.
struct Memory {
    buffer: Vec<u8>,
    foreign: Vec<u64>,
}

struct World<'a> {
    context: Ptr,
    memory: &'a Memory,
    live: Vec<Handle>,
    closed: Vec<Ptr>,
    /// The handle of the last listener for NCCL to transport.
    listener: [u8; 128],
    pairs: usize,
}

/// Makes the calls that the bytes stand for. A call with a wrong handle is an error, one with the
/// right handle is not affected by the others, and everything can be closed at the end.
pub fn calls(data: &[u8]) {
    let Some(calls) = steps::<Call>(data, MAX_CALLS) else { return };
    // One context remains: otherwise each run opens the devices again.
    context();
    let memory = Memory { buffer: vec![7; LEN], foreign: vec![0; 64] };
    let context = init();
    let live = vec![Handle { kind: Kind::Context, at: context, comm: null_mut() }];
    let mut world =
        World { context, memory: &memory, live, closed: Vec::new(), listener: [0; 128], pairs: 0 };
    calls.into_iter().for_each(|call| world.make(call));
    world.close();
}

impl World<'_> {
    fn make(&mut self, call: Call) {
        let table = newest();
        match call {
            Call::Pair { device } => self.pair(device),
            Call::Listen { context, device } => {
                let (at, is_right) = self.handle(context, Kind::Context);
                let (code, comm) = table.listen(at, device.into(), &mut self.listener);
                self.made(Kind::Listen, comm, null_mut(), code, is_right);
            }
            Call::Connect { context, device, at, byte } => {
                let (context, is_right) = self.handle(context, Kind::Context);
                let mut handle = self.listener;
                let at = usize::from(at) % (HANDLE_HEAD + 8);
                // The last eight bytes are the connector's.
                let at = if at < HANDLE_HEAD { at } else { 120 + at - HANDLE_HEAD };
                if !matches!(at, 6 | 7) {
                    handle[at] ^= byte;
                }
                let (code, comm) = table.connect(context, device.into(), &mut handle);
                self.made(Kind::Send, comm, comm, code, is_right);
            }
            Call::Accept(listen) => {
                let (listen, is_right) = self.handle(listen, Kind::Listen);
                let (code, comm) = table.accept(listen);
                self.made(Kind::Recv, comm, comm, code, is_right);
            }
            Call::Register { comm, offset, len, kind } => {
                let (comm, is_right) = self.comm(comm);
                let (addr, len) = self.part(offset, len);
                let kind = if kind < 200 { HOST } else { kind.into() };
                let (code, mr) = table.reg_mr(comm, addr, len, kind);
                self.made(Kind::Mr, mr, comm, code, is_right);
            }
            Call::Deregister { comm, mr } => {
                let ((comm, comm_is_right), (mr, mr_is_right)) = (self.comm(comm), self.handle(mr, Kind::Mr));
                let code = table.dereg_mr(comm, mr);
                // NULL is no registration, which ends without an error.
                self.ended(mr, code, comm_is_right && (mr_is_right || mr.is_null()));
            }
            Call::Properties(device) => drop(table.properties(device.into())),
            Call::Finalize(which) => {
                // The right one is for the end. NULL is the context of an init that has made none.
                let (at, is_right) = self.handle(which, Kind::Context);
                if !is_right {
                    assert_eq!(table.finalize(at) == Success, at.is_null());
                }
            }
            Call::Send { .. } | Call::Receive { .. } | Call::Flush { .. } | Call::Test(_) => self.data(call),
            Call::CloseSend(which) => self.close_comm(which, Kind::Send, |comm| table.close_send(comm)),
            Call::CloseReceive(which) => self.close_comm(which, Kind::Recv, |comm| table.close_recv(comm)),
            Call::CloseListen(which) => self.close_comm(which, Kind::Listen, |comm| table.close_listen(comm)),
        }
    }

    /// Makes a call of the data path. Such a call may read the first word of its handles.
    fn data(&mut self, call: Call) {
        let table = newest();
        match call {
            Call::Send { comm, mr, offset, len, tag } => {
                let (comm, is_right) = self.handle(comm, Kind::Send);
                let ((mr, _), (addr, len)) = (self.handle(mr, Kind::Mr), self.part(offset, len));
                let (code, request) = table.isend(comm, addr, len, tag.into(), mr);
                self.made(Kind::Request, request, comm, code, is_right);
            }
            Call::Receive { comm, mr, count, offset, len, tag } => {
                let (comm, is_right) = self.handle(comm, Kind::Recv);
                let ((mr, _), (addr, len)) = (self.handle(mr, Kind::Mr), self.part(offset, len));
                let count = usize::from(count.unsigned_abs()) % 10;
                let (code, request) = table.irecv(comm, &vec![(addr, len, tag.into(), mr); count]);
                self.made(Kind::Request, request, comm, code, is_right);
            }
            Call::Flush { comm, mr, offset, len } => {
                let (comm, is_right) = self.handle(comm, Kind::Recv);
                let ((mr, _), (addr, len)) = (self.handle(mr, Kind::Mr), self.part(offset, len));
                let (code, request) = table.iflush(comm, &[(addr, len, mr)]);
                self.made(Kind::Request, request, comm, code, is_right);
            }
            Call::Test(request) => {
                let (request, is_right) = self.handle(request, Kind::Request);
                let (code, done, sizes) = table.test(request);
                assert!(code != Success || is_right, "a request of nobody is known");
                assert!(!done || sizes.iter().all(|size| (0..=LEN as i32).contains(size)), "{sizes:?}");
                if code == Success && done {
                    self.forget(request);
                }
            }
            _ => {}
        }
    }

    /// Connects a device to itself.
    fn pair(&mut self, device: i8) {
        if self.pairs == MAX_PAIRS {
            return;
        }
        self.pairs += 1;
        let device = i32::from(device.unsigned_abs() % 2);
        let pair = pair::connect(newest(), self.context, device);
        self.live.push(Handle { kind: Kind::Send, at: pair.send, comm: pair.send });
        self.live.push(Handle { kind: Kind::Recv, at: pair.recv, comm: pair.recv });
    }

    /// Returns a handle, and whether it is a live one of this kind.
    fn handle(&self, which: Which, kind: Kind) -> (Ptr, bool) {
        let nth = |kind: Kind, n: u8| {
            let mut all = self.live.iter().filter(move |handle| handle.kind == kind);
            let count = all.clone().count();
            all.nth(usize::from(n) % count.max(1)).map_or(null_mut(), |handle| handle.at)
        };
        let at = match which {
            Which::Right(n) => nth(kind, n),
            Which::Any(kind, n) => nth(kind, n),
            Which::Closed(n) => {
                let closed = self.closed.get(usize::from(n) % self.closed.len().max(1));
                closed.copied().unwrap_or_default()
            }
            Which::Null => null_mut(),
            Which::Unaligned => without_provenance_mut(self.memory.foreign.as_ptr().addr() + 3),
            Which::Foreign => self.memory.foreign.as_ptr().cast_mut().cast(),
        };
        (at, self.live.iter().any(|handle| handle.at == at && handle.kind == kind))
    }

    /// Returns a sending or a receiving comm, and whether it is one.
    fn comm(&self, which: Which) -> (Ptr, bool) {
        let kind = match which {
            Which::Right(n) if n % 2 == 0 => Kind::Send,
            _ => Kind::Recv,
        };
        let (at, is_right) = self.handle(which, kind);
        (at, is_right || self.live.iter().any(|handle| handle.at == at && handle.kind == Kind::Send))
    }

    /// Returns a part of the buffer, sometimes one that reaches beyond it.
    fn part(&self, offset: u16, len: u16) -> (usize, usize) {
        let offset = usize::from(offset) % LEN;
        let room = if len < 0xf000 { LEN - offset } else { LEN };
        (self.memory.buffer.as_ptr().addr() + offset, usize::from(len) % (room + 1))
    }

    /// Notes what a call has made.
    fn made(&mut self, kind: Kind, at: Ptr, comm: Ptr, code: Code, is_right: bool) {
        assert!(is_right || code != Success, "{kind:?} made by a wrong handle");
        assert!(code == Success || at.is_null(), "{kind:?} made by a call that failed");
        if !at.is_null() {
            let comm = if kind == Kind::Listen { at } else { comm };
            self.closed.retain(|closed| *closed != at);
            self.live.push(Handle { kind, at, comm });
        }
    }

    /// Notes the end of a handle, if it has ended.
    fn ended(&mut self, at: Ptr, code: Code, is_right: bool) {
        assert!(is_right || code != Success, "closed by a wrong handle");
        if code == Success {
            self.forget(at);
        }
    }

    fn forget(&mut self, at: Ptr) {
        let ends = |handle: &Handle| handle.at == at;
        self.closed.extend(self.live.iter().filter(|handle| ends(handle)).map(|handle| handle.at));
        self.live.retain(|handle| !ends(handle));
    }

    /// Closes a comm with what belongs to it.
    fn close_comm(&mut self, which: Which, kind: Kind, close: impl FnOnce(Ptr) -> Code) {
        let (at, is_right) = self.handle(which, kind);
        if is_right {
            let mine = |handle: &&Handle| handle.comm == at && handle.at != at;
            let mine: Vec<Handle> = self.live.iter().filter(mine).copied().collect();
            for Handle { kind, at: part, .. } in mine {
                if kind == Kind::Mr {
                    assert_eq!(newest().dereg_mr(at, part), Success, "deregMr");
                }
                self.forget(part);
            }
        }
        let code = close(at);
        assert_eq!(code == Success, is_right, "{kind:?} is closed with {code}");
        self.ended(at, code, is_right);
    }

    /// Closes everything.
    fn close(mut self) {
        let table = newest();
        for kind in [Kind::Send, Kind::Recv, Kind::Listen] {
            while self.live.iter().any(|handle| handle.kind == kind) {
                match kind {
                    Kind::Send => self.close_comm(Which::Right(0), kind, |comm| table.close_send(comm)),
                    Kind::Recv => self.close_comm(Which::Right(0), kind, |comm| table.close_recv(comm)),
                    _ => self.close_comm(Which::Right(0), kind, |comm| table.close_listen(comm)),
                }
            }
        }
        assert_eq!(table.finalize(self.context), Success, "finalize");
    }
}
