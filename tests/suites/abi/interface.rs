//! Callers that break the interface, through every table, before, between and after its inits. Each
//! such call is an error with a line in the log, and nothing else is affected.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::ptr::{self, null_mut};

use mpib_tests::code::{InvalidArgument, InvalidUsage, Success, SystemError};
use mpib_tests::log::{c_logger, take_warnings};
use mpib_tests::pair::{Pair, connect, init};
use mpib_tests::table::{Ptr, TABLES, Table};
use mpib_tests::{here, isolated};
use nccl_net_host::{Code, Raw};
use nccl_net_versions::abi::{NCCL_PTR_CUDA, NCCL_PTR_DMABUF, NCCL_PTR_HOST};

const NIL: Ptr = null_mut();

/// A pointer that is not NULL, to see whether it is overwritten.
const STALE: Ptr = ptr::without_provenance_mut(0x5115);

/// How the log ends for a handle that is wrong.
const WRONG: &str = "it was closed, or is a handle of another kind";

/// The parts of the line about a wrong handle.
fn is_not<'a>(call: &'a str, argument: &'a str) -> [&'a str; 3] {
    [call, argument, WRONG]
}

/// One version with a connection, a listener, a registration and a receive in flight.
struct Rig {
    table: &'static Table,
    net: Raw,
    ctx: Ptr,
    listen: Ptr,
    pair: Pair,
    bytes: Vec<u8>,
    mr: Ptr,
    request: Ptr,
    /// The calls with a wrong handle so far, and the argument: each is logged once.
    wrong_handles: RefCell<BTreeSet<[String; 2]>>,
}

impl Rig {
    fn new(table: &'static Table) -> Self {
        let (net, ctx) = (table.raw(), init(table));
        let (rc, listen) = table.listen(ctx, 0, &mut [0; 128]);
        assert_eq!(rc, Success);
        let pair = connect(table, ctx, 0);
        let bytes = vec![0; 4096];
        let (rc, mr) = table.reg_mr(pair.recv, bytes.as_ptr().addr(), bytes.len(), 1);
        assert_eq!(rc, Success);
        let request = pair.irecv(&[(bytes.as_ptr().addr(), 100, 3, mr)]);
        take_warnings();
        let wrong_handles = RefCell::default();
        Self { table, net, ctx, listen, pair, bytes, mr, request, wrong_handles }
    }

    /// Returns whether the version passes a context: v11 and later do.
    fn has_context(&self) -> bool {
        self.table.version() >= 11
    }

    fn data(&self) -> Ptr {
        self.bytes.as_ptr().cast_mut().cast()
    }

    /// `rc` is `code`, and one line of the log has all `parts`, the call's name first. The argument
    /// follows if its handle is wrong; then only the first call logs.
    fn refuses(&self, rc: Code, code: Code, parts: &[&str]) {
        let (version, lines) = (self.table.version(), take_warnings());
        assert_eq!(rc, code, "v{version} {parts:?}: {lines:?}");
        let repeats = |call: &str, argument: &str| {
            !self.wrong_handles.borrow_mut().insert([call, argument].map(str::to_owned))
        };
        if let [call, argument, WRONG] = parts
            && repeats(call, argument)
        {
            assert_eq!(lines, Vec::<String>::new(), "v{version} {parts:?}");
            return;
        }
        let [line] = &lines[..] else { panic!("v{version} {parts:?}: not one line but {lines:?}") };
        assert!(line.starts_with(&format!("NET/MPIB : {}: ", parts[0])), "v{version} {parts:?}: {line}");
        assert!(parts[1..].iter().all(|p| line.contains(p)), "v{version} {parts:?}: {line}");
    }

    fn refuses_argument(&self, rc: Code, parts: &[&str]) {
        self.refuses(rc, InvalidArgument, parts);
    }

    /// As [`Rig::refuses_argument`], and `out` is NULL afterwards.
    fn leaves_null(&self, parts: &[&str], call: impl FnOnce(*mut Ptr) -> Code) {
        let mut out = STALE;
        let rc = call(&raw mut out);
        self.refuses_argument(rc, parts);
        assert!(out.is_null(), "v{} {parts:?}: {out:?}", self.table.version());
    }

    /// Completes the receive in flight and a new message, then closes everything.
    fn still_works(self) {
        let from = self.pair.send_buffer(vec![7; 50]);
        let send = self.pair.isend(from.addr(), 50, 3, from.mr);
        assert_eq!((self.pair.wait(send)[0], self.pair.wait(self.request)[0]), (50, 50));
        assert!(self.bytes[..50].iter().all(|b| *b == 7) && self.bytes[50..].iter().all(|b| *b == 0));
        from.dereg();
        self.pair.message(100_000, 100_000, 1);
        assert_eq!(self.table.dereg_mr(self.pair.recv, self.mr), Success);
        self.pair.close();
        assert_eq!(self.table.close_listen(self.listen), Success);
        assert_eq!(self.table.finalize(self.ctx), Success);
        assert_eq!(take_warnings(), Vec::<String>::new());
    }
}

/// Runs a faulty caller on every version's table, with a connection that must still work.
fn misuse(test: &str, body: fn(&Rig)) {
    isolated(test, &mpib_tests::TWO_RAILS, || {
        for table in TABLES {
            let rig = Rig::new(table);
            body(&rig);
            rig.still_works();
        }
    });
}

/// NCCL describes its traffic before it sends, unless the table has no `setNetAttr`.
#[test]
fn the_tables_have_no_set_net_attr() {
    for table in TABLES {
        assert_eq!(table.raw().set_net_attr(NIL, null_mut()), Code::NoFunction, "v{}", table.version());
    }
}

#[test]
fn before_any_init_every_call_is_an_error() {
    isolated(here!(), &[], || {
        for table in TABLES {
            let (version, net) = (table.version(), table.raw());
            let (mut handle, mut out, mut n, mut size, mut tag) = ([0u8; 128], STALE, -1, 1, 0);
            let place: Ptr = handle.as_mut_ptr().cast();
            assert_eq!(net.devices(&raw mut n), InvalidUsage, "v{version}");
            assert_eq!(n, 0);
            assert_eq!(net.properties(0).0, InvalidUsage, "v{version}");
            let context = if version >= 11 { InvalidArgument } else { InvalidUsage };
            assert_eq!(net.listen(NIL, 0, place, &raw mut out), context, "v{version}");
            assert_eq!(
                net.connect(NIL, 0, null_mut(), place, &raw mut out, null_mut()),
                context,
                "v{version}"
            );
            let mut data = place;
            for rc in [
                net.accept(NIL, &raw mut out, null_mut()),
                net.reg_mr(NIL, place, 128, NCCL_PTR_HOST, &raw mut out),
                net.dereg_mr(NIL, NIL),
                net.isend(NIL, place, 128, 0, NIL, NIL, &raw mut out),
                net.irecv(
                    NIL,
                    1,
                    &raw mut data,
                    Some(&[1]),
                    &raw mut tag,
                    null_mut(),
                    null_mut(),
                    &raw mut out,
                ),
                net.iflush(NIL, 1, &raw mut data, &raw mut size, null_mut(), &raw mut out),
                net.test(NIL, &raw mut n, null_mut()),
                net.close_send(NIL),
                net.close_recv(NIL),
                net.close_listen(NIL),
            ] {
                assert_eq!(rc, InvalidArgument, "v{version}");
            }
            assert!(out.is_null());
            assert_eq!(table.finalize(NIL), Success, "v{version}: NCCL does so after an init that failed");
        }
        for table in TABLES {
            Rig::new(table).still_works();
        }
    });
}

#[test]
fn devices_that_do_not_exist_are_named() {
    misuse(here!(), |rig| {
        let (net, mut handle) = (rig.net, [0u8; 128]);
        let place: Ptr = handle.as_mut_ptr().cast();
        for dev in [-1, c_int::MIN, 1, 7, c_int::MAX] {
            let named = dev.to_string();
            rig.refuses_argument(net.properties(dev).0, &["getProperties", &named, "expected"]);
            rig.leaves_null(&["listen", &named, "expected"], |out| net.listen(rig.ctx, dev, place, out));
            rig.leaves_null(&["connect", &named, "expected"], |out| {
                net.connect(rig.ctx, dev, null_mut(), place, out, null_mut())
            });
        }
    });
}

#[test]
fn null_pointers_are_named() {
    misuse(here!(), |rig| {
        let (net, ctx, send, recv, mr) = (rig.net, rig.ctx, rig.pair.send, rig.pair.recv, rig.mr);
        let (mut handle, mut n, mut size, mut tag, mut data) = ([0u8; 128], -1, 100, 0, rig.data());
        let place: Ptr = handle.as_mut_ptr().cast();
        let (mut mrs, data, tags) = ([mr], &raw mut data, &raw mut tag);
        let mrs = mrs.as_mut_ptr();
        let null = |parts: [&str; 2], rc| rig.refuses_argument(rc, &[parts[0], parts[1], "is NULL"]);
        // Where results go.
        null(["devices", "ndev"], net.devices(null_mut()));
        null(["getProperties", "props"], net.get_properties(0, null_mut()));
        null(["listen", "listenComm"], net.listen(ctx, 0, place, null_mut()));
        null(["connect", "sendComm"], net.connect(ctx, 0, null_mut(), place, null_mut(), null_mut()));
        null(["accept", "recvComm"], net.accept(rig.listen, null_mut(), null_mut()));
        null(["regMr", "mhandle"], net.reg_mr(send, rig.data(), 10, NCCL_PTR_HOST, null_mut()));
        null(["isend", "request"], net.isend(send, rig.data(), 10, 0, mr, NIL, null_mut()));
        let sizes = Some(&[100][..]);
        null(["irecv", "request"], net.irecv(recv, 1, data, sizes, tags, mrs, null_mut(), null_mut()));
        null(["iflush", "request"], net.iflush(recv, 1, data, &raw mut size, mrs, null_mut()));
        null(["test", "done"], net.test(rig.request, null_mut(), null_mut()));
        // What is read.
        let out = |parts: [&str; 2], call: &dyn Fn(*mut Ptr) -> Code| {
            rig.leaves_null(&[parts[0], parts[1], "is NULL"], call);
        };
        out(["listen", "handle"], &|o| net.listen(ctx, 0, NIL, o));
        out(["connect", "handle"], &|o| net.connect(ctx, 0, null_mut(), NIL, o, null_mut()));
        out(["accept", "listenComm"], &|o| net.accept(NIL, o, null_mut()));
        out(["regMr", "comm"], &|o| net.reg_mr(NIL, rig.data(), 10, NCCL_PTR_HOST, o));
        out(["regMr", "data"], &|o| net.reg_mr(send, NIL, 10, NCCL_PTR_HOST, o));
        out(["isend", "sendComm"], &|o| net.isend(NIL, rig.data(), 10, 0, mr, NIL, o));
        out(["isend", "data"], &|o| net.isend(send, NIL, 10, 0, mr, NIL, o));
        out(["irecv", "recvComm"], &|o| net.irecv(NIL, 1, data, sizes, tags, mrs, null_mut(), o));
        out(["irecv", "data"], &|o| net.irecv(recv, 1, null_mut(), sizes, tags, mrs, null_mut(), o));
        out(["irecv", "sizes"], &|o| net.irecv(recv, 1, data, None, tags, mrs, null_mut(), o));
        out(["irecv", "tags"], &|o| net.irecv(recv, 1, data, sizes, null_mut(), mrs, null_mut(), o));
        let size = &raw mut size;
        out(["iflush", "recvComm"], &|o| net.iflush(NIL, 1, data, size, mrs, o));
        out(["iflush", "data"], &|o| net.iflush(recv, 1, null_mut(), size, mrs, o));
        out(["iflush", "sizes"], &|o| net.iflush(recv, 1, data, null_mut(), mrs, o));
        null(["deregMr", "comm"], net.dereg_mr(NIL, mr));
        assert_eq!((net.dereg_mr(recv, NIL), take_warnings()), (Success, vec![]), "NULL is no registration");
        null(["test", "request"], net.test(NIL, &raw mut n, null_mut()));
        assert_eq!(n, 0, "done is written in any case");
        null(["closeSend", "sendComm"], net.close_send(NIL));
        null(["closeRecv", "recvComm"], net.close_recv(NIL));
        null(["closeListen", "listenComm"], net.close_listen(NIL));
        if rig.has_context() {
            null(["init", "ctx"], net.init(null_mut(), 1, null_mut(), c_logger(), None));
            out(["listen", "ctx"], &|o| net.listen(NIL, 0, place, o));
            out(["connect", "ctx"], &|o| net.connect(NIL, 0, null_mut(), place, o, null_mut()));
        }
        // Without registrations a group is refused by the transport.
        let parts = ["irecv", "100 bytes", "without a registration"];
        rig.leaves_null(&parts, |o| net.irecv(recv, 1, data, sizes, tags, null_mut(), null_mut(), o));
    });
}

#[test]
fn handles_of_another_kind_are_refused_by_every_call() {
    misuse(here!(), |rig| {
        let (net, send, recv, mr) = (rig.net, rig.pair.send, rig.pair.recv, rig.mr);
        let stack = [0u64; 8];
        let heap = Box::new(u64::from_ne_bytes(*b"net send"));
        let mut kinds: Vec<(&str, Ptr)> = vec![
            ("listen", rig.listen),
            ("send", send),
            ("recv", recv),
            ("mr", mr),
            ("request", rig.request),
            ("none", ptr::from_ref(&stack).cast_mut().cast()),
            // An unaligned address is no handle.
            ("none", send.wrapping_byte_add(1)),
        ];
        if rig.has_context() {
            kinds.push(("ctx", rig.ctx));
        }
        let (mut handle, mut data, mut tag, mut size) = ([0u8; 128], rig.data(), 0, 10);
        let place: Ptr = handle.as_mut_ptr().cast();
        let (data, tag, size) = (&raw mut data, &raw mut tag, &raw mut size);
        for &(kind, h) in &kinds {
            let mut one = h;
            let (mrs, good) = (&raw mut one, (&raw const mr).cast_mut());
            let no = |call: &str, expected: &[&str], c: &dyn Fn(*mut Ptr) -> Code| {
                if !expected.contains(&kind) {
                    rig.leaves_null(&is_not(call, expected[0]), c);
                }
            };
            let sizes = Some(&[10][..]);
            no("accept", &["listenComm", "listen"], &|o| net.accept(h, o, null_mut()));
            no("regMr", &["comm", "send", "recv"], &|o| net.reg_mr(h, rig.data(), 10, NCCL_PTR_HOST, o));
            no("isend", &["sendComm", "send"], &|o| net.isend(h, rig.data(), 10, 0, mr, NIL, o));
            no("isend", &["mhandle", "mr"], &|o| net.isend(send, rig.data(), 10, 0, h, NIL, o));
            no("irecv", &["recvComm", "recv"], &|o| net.irecv(h, 1, data, sizes, tag, good, null_mut(), o));
            no("irecv", &["mhandle", "mr"], &|o| net.irecv(recv, 1, data, sizes, tag, mrs, null_mut(), o));
            no("iflush", &["recvComm", "recv"], &|o| net.iflush(h, 1, data, size, good, o));
            no("iflush", &["mhandle", "mr"], &|o| net.iflush(recv, 1, data, size, mrs, o));
            let mut done = -1;
            if kind != "request" {
                rig.refuses_argument(net.test(h, &raw mut done, null_mut()), &is_not("test", "request"));
                assert_eq!(done, 0);
            }
            if !["send", "recv"].contains(&kind) {
                rig.refuses_argument(net.dereg_mr(h, mr), &is_not("deregMr", "comm"));
            }
            if kind != "mr" {
                rig.refuses_argument(net.dereg_mr(recv, h), &is_not("deregMr", "mhandle"));
            }
            for (own, call, what, close) in [
                ("send", "closeSend", "sendComm", Raw::close_send as fn(&Raw, Ptr) -> Code),
                ("recv", "closeRecv", "recvComm", Raw::close_recv),
                ("listen", "closeListen", "listenComm", Raw::close_listen),
            ] {
                if own != kind {
                    rig.refuses_argument(close(&net, h), &is_not(call, what));
                }
            }
            if rig.has_context() && kind != "ctx" {
                rig.refuses_argument(net.finalize(h), &is_not("finalize", "ctx"));
                no("listen", &["ctx"], &|o| net.listen(h, 0, place, o));
                no("connect", &["ctx"], &|o| net.connect(h, 0, null_mut(), place, o, null_mut()));
            }
        }
        // A tag alone makes no handle: off the data path the address must be a live one.
        let forged: Ptr = (&raw const *heap).cast_mut().cast();
        rig.refuses_argument(net.close_send(forged), &is_not("closeSend", "sendComm"));
        rig.refuses_argument(net.dereg_mr(forged, mr), &is_not("deregMr", "comm"));
    });
}

#[test]
fn what_was_closed_is_refused() {
    misuse(here!(), |rig| {
        let (net, table) = (rig.net, rig.table);
        let second = connect(table, rig.ctx, 0);
        let (rc, mr) = table.reg_mr(second.send, rig.bytes.as_ptr().addr(), 10, NCCL_PTR_HOST);
        assert_eq!(rc, Success);
        assert_eq!(table.dereg_mr(second.send, mr), Success);
        rig.refuses_argument(net.dereg_mr(rig.pair.send, mr), &is_not("deregMr", "mhandle"));
        let [send, recv] = second.comms();
        second.close();
        rig.refuses_argument(net.close_send(send), &is_not("closeSend", "sendComm"));
        rig.refuses_argument(net.close_recv(recv), &is_not("closeRecv", "recvComm"));
        for comm in [send, recv] {
            rig.leaves_null(&is_not("regMr", "comm"), |o| net.reg_mr(comm, rig.data(), 10, NCCL_PTR_HOST, o));
            rig.refuses_argument(net.dereg_mr(comm, rig.mr), &is_not("deregMr", "comm"));
        }
        let (rc, listen) = table.listen(rig.ctx, 0, &mut [0; 128]);
        assert_eq!((rc, table.close_listen(listen)), (Success, Success));
        rig.refuses_argument(net.close_listen(listen), &is_not("closeListen", "listenComm"));
        rig.leaves_null(&is_not("accept", "listenComm"), |o| net.accept(listen, o, null_mut()));
        if rig.has_context() {
            let other = init(table);
            assert_eq!(table.finalize(other), Success);
            rig.refuses_argument(net.finalize(other), &is_not("finalize", "ctx"));
            let mut handle = [0u8; 128];
            let place: Ptr = handle.as_mut_ptr().cast();
            rig.leaves_null(&is_not("listen", "ctx"), |o| net.listen(other, 0, place, o));
            rig.leaves_null(&is_not("connect", "ctx"), |o| {
                net.connect(other, 0, null_mut(), place, o, null_mut())
            });
        }
    });
}

#[test]
fn counts_and_sizes_are_checked() {
    misuse(here!(), |rig| {
        let (net, send, recv, mr) = (rig.net, rig.pair.send, rig.pair.recv, rig.mr);
        let (mut data, mut tags, mut mrs, mut ints) = ([rig.data(); 16], [0; 16], [mr; 16], [10; 16]);
        let (data, tags, mrs, sizes) =
            (data.as_mut_ptr(), tags.as_mut_ptr(), mrs.as_mut_ptr(), ints.as_mut_ptr());
        for n in [0, 9, -1, c_int::MIN, c_int::MAX] {
            let said = format!("n is {n}, expected 1 to 8");
            rig.leaves_null(&["irecv", &said], |o| {
                net.irecv(recv, n, data, Some(&[10; 16]), tags, mrs, null_mut(), o)
            });
            rig.leaves_null(&["iflush", &said], |o| net.iflush(recv, n, data, sizes, mrs, o));
        }
        for size in [-1, c_int::MIN] {
            let mut bad = [10, size];
            let said = format!("size is {size}, expected 0 or more");
            rig.leaves_null(&["iflush", &said], |o| net.iflush(recv, 2, data, bad.as_mut_ptr(), mrs, o));
            if rig.table.version() <= 8 {
                let size = size as usize;
                rig.leaves_null(&["isend", &said], |o| net.isend(send, rig.data(), size, 0, mr, NIL, o));
                rig.leaves_null(&["irecv", &said], |o| {
                    net.irecv(recv, 2, data, Some(&[10, size]), tags, mrs, null_mut(), o)
                });
            }
            if rig.table.version() <= 7 {
                rig.leaves_null(&["regMr", &said], |o| {
                    net.reg_mr(send, rig.data(), size as usize, NCCL_PTR_HOST, o)
                });
            }
        }
        if rig.table.version() >= 9 {
            for size in [1 << 31, isize::MAX as usize, usize::MAX] {
                let said = format!("size is {size} bytes, expected at most 2147483647");
                rig.leaves_null(&["isend", &said], |o| net.isend(send, rig.data(), size, 0, mr, NIL, o));
                rig.leaves_null(&["irecv", &said], |o| {
                    net.irecv(recv, 1, data, Some(&[size]), tags, mrs, null_mut(), o)
                });
            }
        }
        // Sizes that the interface can express, but that exceed the registration.
        let said = "bytes at";
        rig.leaves_null(&["isend", "2147483647", said, "registration of 4096 bytes"], |o| {
            net.isend(send, rig.data(), c_int::MAX as usize, 0, mr, NIL, o)
        });
        rig.leaves_null(&["irecv", "2147483647", said, "registration of 4096 bytes"], |o| {
            net.irecv(recv, 2, data, Some(&[10, c_int::MAX as usize]), tags, mrs, null_mut(), o)
        });
    });
}

#[test]
fn memory_that_cannot_be_registered_is_named() {
    misuse(here!(), |rig| {
        let (net, at) = (rig.net, format!("{:#x}", rig.data().addr()));
        for comm in rig.pair.comms() {
            rig.leaves_null(&["regMr", "0 bytes", &at, "expected"], |o| {
                net.reg_mr(comm, rig.data(), 0, NCCL_PTR_HOST, o)
            });
            rig.leaves_null(&["regMr", "0 bytes", "at 0x0", "expected"], |o| {
                net.reg_mr(comm, NIL, 0, NCCL_PTR_HOST, o)
            });
            for kind in [0, 3, 5, -1, c_int::MIN, c_int::MAX] {
                let said = format!("type is {kind}, expected NCCL_PTR_HOST (1)");
                rig.leaves_null(&["regMr", &said], |o| net.reg_mr(comm, rig.data(), 10, kind, o));
            }
            for (kind, name, why) in [
                (NCCL_PTR_CUDA, "Cuda", "modprobe nvidia-peermem"),
                (NCCL_PTR_DMABUF, "DmaBuf", "expected regMrDmaBuf"),
            ] {
                let mut out = STALE;
                let rc = net.reg_mr(comm, rig.data(), 10, kind, &raw mut out);
                rig.refuses(rc, InvalidUsage, &["regMr", name, &at, why]);
                assert!(out.is_null());
            }
            // An address where nothing is mapped, like freed memory.
            let (nowhere, mut out) = (ptr::without_provenance_mut(4096), STALE);
            let rc = net.reg_mr(comm, nowhere, 4096, NCCL_PTR_HOST, &raw mut out);
            rig.refuses(rc, SystemError, &["regMr", "4096 bytes at 0x1000", "EFAULT", "was it freed?"]);
            assert!(out.is_null());
            // Memory that ends behind the end of all memory. v6 and v7 have no such size.
            if rig.table.version() >= 8 {
                for (at, size) in [
                    (rig.data(), usize::MAX),
                    (rig.data(), isize::MAX as usize),
                    (ptr::dangling_mut(), usize::MAX),
                ] {
                    let mut out = STALE;
                    let rc = net.reg_mr(comm, at, size, NCCL_PTR_HOST, &raw mut out);
                    assert_ne!(rc, Success);
                    rig.refuses(rc, rc, &["regMr", &size.to_string()]);
                    assert!(out.is_null());
                }
            }
        }
        assert!(net.has_reg_mr_dma_buf());
    });
}
