//! The two ends as a group of an RMA table: connected, with one context.

use std::{
    ffi::c_int,
    os::fd::{AsFd, AsRawFd},
    ptr::null_mut,
};

use nccl_net_abi::{NCCL_NET_SIGNAL_OP_ADD, NCCL_PTR_CUDA, NCCL_PTR_HOST};
use nccl_net_host::{Call, Code, Error, HANDLE_BYTES, Handle, Place, Ptr, Rma};

use crate::failure::Failure;
use crate::perf::{
    area::Area,
    link::{Message, Role},
    session::{Patience, Session},
};

/// No place: a signal alone has no data.
pub(super) const NOWHERE: Place = (null_mut(), 0);
/// The only context.
const CONTEXT: c_int = 0;

/// A group, as this end knows it.
pub(in crate::perf) struct Group {
    rma: Rma,
    coll: Ptr,
    ctx: Ptr,
    /// The rank of the other end.
    peer: u32,
    dma_bufs: bool,
}

/// A request that is not done.
#[derive(Debug)]
pub(super) struct Request(Ptr);

impl Group {
    /// Listens, exchanges handles, connects, and makes a context, as NCCL does for its host RMA.
    pub(super) fn connect(rma: Rma, init: Ptr, session: &mut Session<'_>) -> Result<Self, Failure> {
        let (mut listen, mut handle) = (null_mut(), Handle::default());
        let own: *mut [u8; HANDLE_BYTES] = &raw mut handle.0;
        rma.listen(init, session.device, own.cast(), &raw mut listen).check(Call::Listen)?;
        session.link.send(&Message::Handle(handle.0.to_vec()))?;
        let patience = Patience::new(session.plan.timeout);
        let theirs = session.handle(&patience)?;
        let (rank, mut handles) = match session.role {
            Role::A => (0, [handle, theirs]),
            Role::B => (1, [theirs, handle]),
        };
        let mut places = handles.each_mut().map(|handle| (&raw mut handle.0).cast());
        let (mut coll, mut ctx) = (null_mut(), null_mut());
        rma.connect(init, &mut places, rank, listen, &raw mut coll).check(Call::Connect)?;
        rma.close_listen(listen).check(Call::CloseListen)?;
        rma.create_context(coll, 1, &raw mut ctx).check(Call::CreateContext)?;
        session.connected(&patience)?;
        Ok(Self { rma, coll, ctx, peer: 1 - rank as u32, dma_bufs: session.dma_bufs })
    }

    pub(super) fn close(self) -> Result<(), Failure> {
        self.rma.destroy_context(self.ctx).check(Call::DestroyContext)?;
        Ok(self.rma.close_coll(self.coll).check(Call::CloseColl)?)
    }

    /// Registers memory as this end's part of the next window, that of a GPU as a DMA-BUF if driver
    /// and device permit.
    pub(super) fn register(&self, area: &Area<'_>, flags: u64) -> Result<Ptr, Failure> {
        let (addr, len, mut mr) = (area.addr().cast(), area.len(), null_mut());
        let kind = if area.on_gpu() { NCCL_PTR_CUDA } else { NCCL_PTR_HOST };
        match area.dma_buf().filter(|_| self.dma_bufs) {
            Some(fd) => {
                let file = (0, fd.as_fd().as_raw_fd());
                let code = self.rma.reg_mr_dma_buf(self.coll, (addr, len), kind, file, flags, &raw mut mr);
                code.check(Call::RegMrSymDmaBuf)?;
            }
            None => self.rma.reg_mr(self.coll, addr, len, kind, flags, &raw mut mr).check(Call::RegMrSym)?,
        }
        Ok(mr)
    }

    pub(super) fn deregister(&self, mr: Ptr) -> Result<(), Failure> {
        Ok(self.rma.dereg_mr(self.coll, mr).check(Call::DeregMrSym)?)
    }

    /// Begins a put of `size` bytes, after which 1 is added to the word of the other end. NCCL's
    /// signals are strong ones: they come after all earlier puts.
    pub(super) fn put(&self, src: Place, size: usize, dst: Place, word: Place) -> Result<Request, Failure> {
        let (signal, mut request) = ((word, 1, NCCL_NET_SIGNAL_OP_ADD), null_mut());
        let code = self.rma.iput_signal(
            self.ctx,
            CONTEXT,
            src,
            size,
            dst,
            self.peer,
            signal,
            true,
            &raw mut request,
        );
        begun(Call::IputSignal, code, request)
    }

    /// Begins a get of `size` bytes of the other end.
    pub(super) fn get(&self, remote: Place, size: usize, local: Place) -> Result<Request, Failure> {
        let mut request = null_mut();
        let code = self.rma.iget(self.ctx, CONTEXT, remote, size, local, self.peer, &raw mut request);
        begun(Call::Iget, code, request)
    }

    /// Makes the data of all earlier gets into a window visible to the GPU. `None`: it is visible.
    pub(super) fn flush(&self, mr: Ptr) -> Result<Option<Request>, Failure> {
        let mut request = null_mut();
        self.rma.iflush(self.ctx, CONTEXT, mr, self.peer, &raw mut request).check(Call::Iflush)?;
        Ok((!request.is_null()).then_some(Request(request)))
    }

    /// Returns whether a request is done. It is used up then.
    pub(super) fn test(&self, request: &Request) -> Result<bool, Failure> {
        let mut done = 0;
        self.rma.test(self.coll, request.0, &raw mut done).check(Call::Test)?;
        Ok(done != 0)
    }

    /// Lets the plugin make progress, as NCCL's thread does between all other calls.
    pub(super) fn progress(&self) -> Result<(), Failure> {
        match self.rma.progress(self.ctx) {
            // A table need not have it.
            Code::NoFunction => Ok(()),
            code => Ok(code.check(Call::Progress)?),
        }
    }
}

/// NCCL ends a communicator whose table returns no request.
fn begun(call: Call, code: Code, request: Ptr) -> Result<Request, Failure> {
    code.check(call)?;
    if request.is_null() {
        return Err(Error::Null { call, what: "request" }.into());
    }
    Ok(Request(request))
}
