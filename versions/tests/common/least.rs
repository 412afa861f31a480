//! A plugin that does as little as it can, for what must be fast and for the defaults of the trait.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};

use nccl_net_versions::*;

/// Does as little as a plugin can: a request from a pool, and a size.
#[derive(Debug)]
pub struct Least;

/// A comm with one request.
#[derive(Debug)]
pub struct Comm(pub Box<Tagged<AtomicUsize>>);

/// The comm of the connections that this plugin makes.
pub fn comm() -> Comm {
    Comm(Box::new(Tagged::new(AtomicUsize::new(0))))
}

impl NetPlugin for Least {
    const NAME: &'static CStr = c"Least";
    const VDEVICES: bool = false;
    const DMABUF: bool = false;
    type Context = ();
    type Listen = ();
    type Send = Comm;
    type Recv = Comm;
    type Mr = ();
    type Request = AtomicUsize;

    fn panicked(_: &'static str) {}
    fn init(_: &Init) -> Result<(), Failure> {
        Ok(())
    }
    fn finalize((): ()) -> Result<(), Failure> {
        Ok(())
    }
    fn devices() -> Result<usize, Failure> {
        Err(Failure::InvalidUsage)
    }
    fn properties(_: usize) -> Result<Properties, Failure> {
        Err(Failure::InvalidUsage)
    }
    fn make_vdevice(_: &VDevs) -> Result<usize, Failure> {
        Err(Failure::InvalidUsage)
    }
    fn set_net_attr((): &(), _: &NetAttr) -> Result<(), Failure> {
        Ok(())
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
    fn dereg_mr((): ()) -> Result<(), Failure> {
        Ok(())
    }
    #[inline(never)] // As a plugin's is, which does more than this.
    fn isend<'a>(
        comm: &'a Comm,
        buffer: Buffer,
        _: c_int,
        _: Option<&()>,
        _: ProfilerHandle,
    ) -> Result<Option<&'a Tagged<AtomicUsize>>, Failure> {
        comm.0.store(buffer.len, Ordering::Relaxed);
        Ok(Some(&comm.0))
    }
    fn irecv<'a>(
        comm: &'a Comm,
        _: &[RecvBuffer<'_, Self>],
        _: bool,
    ) -> Result<Option<&'a Tagged<AtomicUsize>>, Failure> {
        Ok(Some(&comm.0))
    }
    fn iflush<'a>(
        comm: &'a Comm,
        _: &[(Buffer, Option<&()>)],
    ) -> Result<Option<&'a Tagged<AtomicUsize>>, Failure> {
        Ok(Some(&comm.0))
    }
    #[inline(never)] // As above.
    fn test(request: &AtomicUsize, sizes: &mut Sizes) -> Result<bool, Failure> {
        sizes.tell(0, request.load(Ordering::Relaxed)).map(|()| true)
    }
    fn close_send(_: Comm) -> Result<(), Failure> {
        Ok(())
    }
    fn close_recv(_: Comm) -> Result<(), Failure> {
        Ok(())
    }
    fn close_listen((): ()) -> Result<(), Failure> {
        Ok(())
    }
}
