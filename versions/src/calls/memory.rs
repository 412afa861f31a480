//! regMr, regMrDmaBuf, deregMr.

use core::ffi::{c_int, c_void};

use nccl_net_abi as abi;

use super::connection::{Receiver, Sender};
use super::{Length, Out, buffer};
use crate::guard::Outcome;
use crate::handle::{self, HandleType};
use crate::tagged::Kind;
use crate::{Buffer, DmaBuf, MemKind, NetPlugin, Refusal};

/// A registration, as C holds it.
#[repr(transparent)]
pub(super) struct Registration<P: NetPlugin>(pub(super) P::Mr);

impl<P: NetPlugin> HandleType for Registration<P> {
    const KIND: Kind = Kind::Mr;
    type Front = ();
}

/// Checks a kind of memory.
pub(super) fn mem_kind(mem: c_int) -> Result<MemKind, Refusal> {
    match mem {
        abi::NCCL_PTR_HOST => Ok(MemKind::Host),
        abi::NCCL_PTR_CUDA => Ok(MemKind::Cuda),
        abi::NCCL_PTR_DMABUF => Ok(MemKind::DmaBuf),
        other => Err(Refusal::MemKind(other)),
    }
}

/// Checks a DMA-BUF.
pub(super) fn dma_buf(offset: u64, fd: c_int) -> Result<DmaBuf, Refusal> {
    if fd < 0 { Err(Refusal::Negative { what: "fd", value: fd }) } else { Ok(DmaBuf { offset, fd }) }
}

pub(crate) unsafe fn reg_mr<P: NetPlugin, S: Length>(
    comm: *mut c_void,
    data: *mut c_void,
    size: S,
    mem: c_int,
    mhandle: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let mhandle = unsafe { Out::null("mhandle", mhandle) }?;
    let buffer = buffer(data, size.bytes()?)?;
    // SAFETY: the comm is not closed meanwhile.
    unsafe { register::<P>(comm, buffer, mem, None, &mhandle) }
}

pub(crate) unsafe fn reg_mr_dma_buf<P: NetPlugin>(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    mem: c_int,
    offset: u64,
    fd: c_int,
    mhandle: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let mhandle = unsafe { Out::null("mhandle", mhandle) }?;
    let buffer = buffer(data, size)?;
    // SAFETY: the comm is not closed meanwhile.
    unsafe { register::<P>(comm, buffer, mem, Some(dma_buf(offset, fd)?), &mhandle) }
}

/// # Safety
/// No other thread closes the comm.
unsafe fn register<P: NetPlugin>(
    comm: *mut c_void,
    buffer: Buffer,
    mem: c_int,
    dmabuf: Option<DmaBuf>,
    mhandle: &Out<*mut c_void>,
) -> Outcome {
    let mem = mem_kind(mem)?;
    let mr = match comm_kind::<P>(comm)? {
        CommKind::Send => {
            // SAFETY: not closed meanwhile, as the caller promises.
            let comm = unsafe { handle::borrow::<P, Sender<P>>("comm", comm) }?;
            P::reg_mr_send(&comm.0, buffer, mem, dmabuf)?
        }
        CommKind::Recv => {
            // SAFETY: not closed meanwhile, as the caller promises.
            let comm = unsafe { handle::borrow::<P, Receiver<P>>("comm", comm) }?;
            P::reg_mr_recv(&comm.0, buffer, mem, dmabuf)?
        }
    };
    mhandle.put(handle::into_raw::<P, _>(Registration::<P>(mr)));
    Ok(())
}

/// The kind of a comm.
enum CommKind {
    Send,
    Recv,
}

fn comm_kind<P: NetPlugin>(comm: *mut c_void) -> Result<CommKind, Refusal> {
    if comm.is_null() {
        return Err(Refusal::Null("comm"));
    }
    match handle::kind::<P>(comm) {
        Some(Kind::Send) => Ok(CommKind::Send),
        Some(Kind::Recv) => Ok(CommKind::Recv),
        _ => Err(Refusal::WrongHandle { what: "comm", expected: "sendComm or recvComm" }),
    }
}

/// Accepts any comm: a global registration serves all comms of a device. NULL is no registration
/// and no error: NCCL frees buffers whose registration has failed by the same code as others.
pub(crate) unsafe fn dereg_mr<P: NetPlugin>(comm: *mut c_void, mhandle: *mut c_void) -> Outcome {
    comm_kind::<P>(comm)?;
    if mhandle.is_null() {
        return Ok(());
    }
    // SAFETY: no other call uses the registration.
    P::dereg_mr(unsafe { handle::from_raw::<P, Registration<P>>("mhandle", mhandle) }?.0)?;
    Ok(())
}
