//! listen, connect, accept, closeSend, closeRecv, closeListen.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;

use super::{ContextOf, Out, index};
use crate::guard::Outcome;
use crate::handle::{self, HandleType};
use crate::tagged::Kind;
use crate::{HandleBuf, NetPlugin, Refusal};

/// A listening comm, as C holds it.
#[repr(transparent)]
struct Listener<P: NetPlugin>(P::Listen);
/// A sending comm, as C holds it.
#[repr(transparent)]
pub(crate) struct Sender<P: NetPlugin>(pub(super) P::Send);
/// A receiving comm, as C holds it.
#[repr(transparent)]
pub(super) struct Receiver<P: NetPlugin>(pub(super) P::Recv);

impl<P: NetPlugin> HandleType for Listener<P> {
    const KIND: Kind = Kind::Listen;
    type Front = ();
}
impl<P: NetPlugin> HandleType for Sender<P> {
    const KIND: Kind = Kind::Send;
    type Front = ();
}
impl<P: NetPlugin> HandleType for Receiver<P> {
    const KIND: Kind = Kind::Recv;
    type Front = ();
}

/// # Safety
/// `handle` is NULL, or points to the bytes of a handle that no other thread uses during `'a`.
pub(super) unsafe fn handle_buf<'a>(handle: *mut c_void) -> Result<&'a mut HandleBuf, Refusal> {
    let handle = NonNull::new(handle).ok_or(Refusal::Null("handle"))?;
    // SAFETY: not NULL, and valid as the caller promises. Bytes need no alignment.
    Ok(unsafe { handle.cast::<HandleBuf>().as_mut() })
}

pub(crate) unsafe fn listen<P: NetPlugin>(
    ctx: ContextOf,
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let listen_comm = unsafe { Out::null("listenComm", listen_comm) }?;
    // SAFETY: NULL, or NCCL's buffer for the handle.
    let handle = unsafe { handle_buf(handle) }?;
    // The peer receives the whole buffer, so no byte of NCCL's memory may remain in it.
    handle.fill(0);
    // SAFETY: the context is not finalized meanwhile.
    let (context, _) = unsafe { ctx.find::<P>() }?;
    let listener = P::listen(context, index("dev", dev)?, handle)?;
    listen_comm.put(handle::into_raw::<P, _>(Listener::<P>(listener)));
    Ok(())
}

pub(crate) unsafe fn connect<P: NetPlugin>(
    ctx: ContextOf,
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let send_comm = unsafe { Out::null("sendComm", send_comm) }?;
    // SAFETY: NULL, or NCCL's buffer for the handle.
    let handle = unsafe { handle_buf(handle) }?;
    // SAFETY: the context is not finalized meanwhile.
    let (context, config) = unsafe { ctx.find::<P>() }?;
    if let Some(sender) = P::connect(context, index("dev", dev)?, &config, handle)? {
        send_comm.put(handle::into_raw::<P, _>(Sender::<P>(sender)));
    }
    Ok(())
}

pub(crate) unsafe fn accept<P: NetPlugin>(listen_comm: *mut c_void, recv_comm: *mut *mut c_void) -> Outcome {
    // SAFETY: NULL or writable.
    let recv_comm = unsafe { Out::null("recvComm", recv_comm) }?;
    // SAFETY: the listener is not closed meanwhile.
    let listener = unsafe { handle::borrow::<P, Listener<P>>("listenComm", listen_comm) }?;
    if let Some(receiver) = P::accept(&listener.0)? {
        recv_comm.put(handle::into_raw::<P, _>(Receiver::<P>(receiver)));
    }
    Ok(())
}

/// Closes the handle even if the implementation fails.
pub(crate) unsafe fn close_send<P: NetPlugin>(comm: *mut c_void) -> Outcome {
    // SAFETY: no other call uses the comm.
    P::close_send(unsafe { handle::from_raw::<P, Sender<P>>("sendComm", comm) }?.0)?;
    Ok(())
}

/// Like [`close_send`].
pub(crate) unsafe fn close_recv<P: NetPlugin>(comm: *mut c_void) -> Outcome {
    // SAFETY: no other call uses the comm.
    P::close_recv(unsafe { handle::from_raw::<P, Receiver<P>>("recvComm", comm) }?.0)?;
    Ok(())
}

/// Like [`close_send`].
pub(crate) unsafe fn close_listen<P: NetPlugin>(comm: *mut c_void) -> Outcome {
    // SAFETY: no other call uses the listener.
    P::close_listen(unsafe { handle::from_raw::<P, Listener<P>>("listenComm", comm) }?.0)?;
    Ok(())
}
