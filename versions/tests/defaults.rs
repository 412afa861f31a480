//! A plugin with only the required items behaves as NCCL expects from a plugin without the
//! features.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Mutex;

use crate::common::Net;
use crate::common::net::{DATA, STALE};
use nccl_net_versions::abi::{NCCL_PTR_HOST, ncclSuccess};
use nccl_net_versions::*;

/// The handles that were dropped, in order.
static DROPPED: Mutex<Vec<&str>> = Mutex::new(Vec::new());

/// A handle that records its drop.
struct Handle(&'static str);

impl Drop for Handle {
    fn drop(&mut self) {
        DROPPED.lock().expect("one test").push(self.0);
    }
}

/// A comm with the requests that it returns.
struct Comm {
    requests: RequestPool<()>,
    _handle: Handle,
}

fn comm(name: &'static str) -> Comm {
    Comm { requests: RequestPool::new(2, |_| ()), _handle: Handle(name) }
}

struct Bare;

impl Plugin for Bare {
    const NAME: &'static CStr = c"Bare";
}

impl NetPlugin for Bare {
    type Context = Handle;
    type Listen = Handle;
    type Send = Comm;
    type Recv = Comm;
    type Mr = Handle;
    type Request = Pooled<()>;

    fn init(_: &Init) -> Result<Handle, Failure> {
        Ok(Handle("context"))
    }
    fn devices() -> Result<usize, Failure> {
        Ok(1)
    }
    fn properties(_: usize) -> Result<Properties, Failure> {
        Ok(Properties::new(c"bare0"))
    }
    fn listen(_: &Handle, _: usize, _: &mut HandleBuf) -> Result<Handle, Failure> {
        Ok(Handle("listen"))
    }
    fn connect(_: &Handle, _: usize, _: &CommConfig, _: &mut HandleBuf) -> Result<Option<Comm>, Failure> {
        Ok(Some(comm("send")))
    }
    fn accept(_: &Handle) -> Result<Option<Comm>, Failure> {
        Ok(Some(comm("recv")))
    }
    fn reg_mr_send(_: &Comm, _: Buffer, _: MemKind, _: Option<DmaBuf>) -> Result<Handle, Failure> {
        Ok(Handle("mr"))
    }
    fn reg_mr_recv(_: &Comm, _: Buffer, _: MemKind, _: Option<DmaBuf>) -> Result<Handle, Failure> {
        Ok(Handle("mr"))
    }
    fn isend<'a>(
        comm: &'a Comm,
        _: Buffer,
        _: c_int,
        _: Option<&Handle>,
        _: ProfilerHandle,
    ) -> Result<Option<&'a Tagged<Pooled<()>>>, Failure> {
        Ok(comm.requests.acquire())
    }
    fn irecv<'a>(
        comm: &'a Comm,
        _: &[RecvBuffer<'_, Self>],
        _: bool,
    ) -> Result<Option<&'a Tagged<Pooled<()>>>, Failure> {
        Ok(comm.requests.acquire())
    }
    fn test(request: &Pooled<()>, _: &mut Sizes) -> Result<bool, Failure> {
        request.release();
        Ok(true)
    }
}

#[test]
fn the_slots_of_optional_calls_are_null() {
    macro_rules! check {
        ($($version:ident: $($slot:ident)+;)+) => {$(
            let table = nccl_net_versions::$version::table::<Bare>();
            $(assert!(table.$slot.is_none(), "{} {}", stringify!($version), stringify!($slot));)+
        )+};
    }
    check! {
        v6: regMrDmaBuf;
        v7: regMrDmaBuf;
        v8: regMrDmaBuf;
        v9: regMrDmaBuf makeVDevice;
        v10: regMrDmaBuf makeVDevice;
        v11: regMrDmaBuf makeVDevice setNetAttr;
        v12: regMrDmaBuf makeVDevice setNetAttr;
    }
    // NCCL calls finalize without checking for NULL.
    assert!(v11::table::<Bare>().finalize.is_some());
    assert!(v12::table::<Bare>().finalize.is_some());
}

#[test]
fn closes_drop_their_handles_and_a_flush_is_complete_at_once() {
    let dropped = || std::mem::take(&mut *DROPPED.lock().expect("one test"));
    for version in 6..=12 {
        let net = Net::of::<Bare>(version);
        let (mut ctx, mut handle) = (ptr::null_mut(), [0u8; 128]);
        let place = handle.as_mut_ptr().cast();
        // v6 to v10 share the context of the process; a further init succeeds.
        assert_eq!(net.init(&raw mut ctx, 0, None, None, None), ncclSuccess);
        let (mut listen, mut send, mut recv, mut mr) = (STALE, STALE, STALE, STALE);
        assert_eq!(net.listen(ctx, 0, place, &raw mut listen), ncclSuccess);
        assert_eq!(net.connect(ctx, 0, None, place, &raw mut send, ptr::null_mut()), ncclSuccess);
        assert_eq!(net.accept(listen, &raw mut recv, ptr::null_mut()), ncclSuccess);
        assert_eq!(net.reg_mr(send, DATA, 1, NCCL_PTR_HOST, &raw mut mr), ncclSuccess);

        let (mut data, mut size, mut request) = (DATA, 1, STALE);
        let flushed = net.iflush(recv, 1, &raw mut data, &raw mut size, ptr::null_mut(), &raw mut request);
        assert_eq!(flushed, ncclSuccess);
        assert!(request.is_null());

        // The pool of two: a third send must wait until one is complete.
        let nil = ptr::null_mut();
        let isend = || {
            let mut request = STALE;
            assert_eq!(net.isend(send, DATA, 1, 0, nil, nil, &raw mut request), ncclSuccess);
            request
        };
        let (first, second) = (isend(), isend());
        assert!(!first.is_null() && !second.is_null() && first != second);
        assert!(isend().is_null());
        let mut done = 0;
        assert_eq!(net.test(first, &raw mut done, ptr::null_mut()), ncclSuccess);
        assert_eq!((done, isend()), (1, first));

        assert_eq!(dropped(), [""; 0], "v{version}: nothing is closed yet");
        assert_eq!(net.dereg_mr(send, mr), ncclSuccess);
        assert_eq!(net.close_send(send), ncclSuccess);
        assert_eq!(net.close_recv(recv), ncclSuccess);
        assert_eq!(net.close_listen(listen), ncclSuccess);
        assert_eq!(dropped(), ["mr", "send", "recv", "listen"], "v{version}");
        assert_eq!(net.finalize(ctx), ncclSuccess);
        assert_eq!(dropped(), if version < 11 { &[][..] } else { &["context"] }, "v{version}");
    }
}
