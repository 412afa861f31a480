//! A plugin that provides little more than the required items, for speed and for the trait's
//! defaults.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};

use nccl_net_versions::*;

/// A plugin whose calls do as little as possible.
#[derive(Debug)]
pub struct Least;

/// A comm with one request, which all its calls return.
#[derive(Debug)]
pub struct Comm(pub Slab<AtomicUsize, [Tagged<AtomicUsize>; 1]>);

/// Creates a comm.
pub fn comm() -> Comm {
    Comm(Slab::array(|_| AtomicUsize::new(0)))
}

impl Plugin for Least {
    const NAME: &'static CStr = c"Least";
}

impl NetPlugin for Least {
    type Context = ();
    type Listen = ();
    type Send = Comm;
    type Recv = Comm;
    type Mr = ();
    type Request = AtomicUsize;

    fn init(_: &Init) -> Result<(), Failure> {
        Ok(())
    }
    fn devices() -> Result<usize, Failure> {
        Err(Failure::InvalidUsage)
    }
    fn properties(_: usize) -> Result<Properties, Failure> {
        panic!("requested by the test")
    }
    fn listen((): &(), _: usize, _: &mut HandleBuf) -> Result<(), Failure> {
        Ok(())
    }
    fn connect((): &(), _: usize, _: &CommConfig, _: &mut HandleBuf) -> Result<Option<Comm>, Failure> {
        Ok(Some(comm()))
    }
    fn accept((): &()) -> Result<Option<Comm>, Failure> {
        Ok(Some(comm()))
    }
    fn reg_mr_send(_: &Comm, _: Buffer, _: MemKind, _: Option<DmaBuf>) -> Result<(), Failure> {
        Ok(())
    }
    fn reg_mr_recv(_: &Comm, _: Buffer, _: MemKind, _: Option<DmaBuf>) -> Result<(), Failure> {
        Ok(())
    }
    #[inline(never)] // Like that of a real plugin, which is larger.
    fn isend<'a>(
        comm: &'a Comm,
        buffer: Buffer,
        _: c_int,
        _: Option<&()>,
        _: ProfilerHandle,
    ) -> Result<Option<&'a Tagged<AtomicUsize>>, Failure> {
        comm.0[0].store(buffer.len, Ordering::Relaxed);
        Ok(Some(&comm.0[0]))
    }
    fn irecv<'a>(
        comm: &'a Comm,
        _: &[RecvBuffer<'_, Self>],
        _: bool,
    ) -> Result<Option<&'a Tagged<AtomicUsize>>, Failure> {
        Ok(Some(&comm.0[0]))
    }
    fn iflush<'a>(
        comm: &'a Comm,
        _: &[(Buffer, Option<&()>)],
    ) -> Result<Option<&'a Tagged<AtomicUsize>>, Failure> {
        Ok(Some(&comm.0[0]))
    }
    #[inline(never)] // Like that of a real plugin, which is larger.
    fn test(request: &AtomicUsize, sizes: &mut Sizes) -> Result<bool, Failure> {
        sizes.set(0, request.load(Ordering::Relaxed)).map(|()| true)
    }
}
