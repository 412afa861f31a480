//! The two ends of a connection.

use std::{
    cell::Cell,
    ffi::{c_int, c_void},
    marker::PhantomData,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{NonNull, null_mut, without_provenance_mut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use nccl_net_abi::{NCCL_NET_OPTIONAL_RECV_COMPLETION, NCCL_PTR_HOST};

use crate::{
    Buffer, Call, Code, Error, Mr, Raw, Recv, Request, Settings, Sizes,
    error::{Result, check},
    memory::{MAX_GROUP, Owner},
    raw::Ptr,
};

/// Marks the sending end.
#[derive(Debug)]
pub enum Sender {}
/// Marks the receiving end.
#[derive(Debug)]
pub enum Receiver {}

/// The end of a connection that sends.
pub type SendComm = Comm<Sender>;
/// The end of a connection that receives.
pub type RecvComm = Comm<Receiver>;

/// One end of a connection.
///
/// Its registrations and requests are used with this comm only; another comm returns
/// [`Error::Misuse`]. Dropping a comm does not close it.
#[derive(Debug)]
pub struct Comm<End> {
    raw: Raw,
    ptr: NonNull<c_void>,
    /// Different for every comm of the process: addresses are used again.
    id: u64,
    /// Requests after which the plugin may still access registered memory.
    in_flight: Cell<usize>,
    operation: Ptr,
    _open: Arc<()>,
    _end: PhantomData<End>,
}

// SAFETY: NCCL itself makes comms on one thread and uses them on another.
unsafe impl<End> Send for Comm<End> {}

impl<End> Comm<End> {
    pub(crate) fn new(raw: Raw, comm: Ptr, settings: &Settings, open: &Arc<()>) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Some(Self {
            raw,
            ptr: NonNull::new(comm)?,
            id: NEXT.fetch_add(1, Relaxed),
            in_flight: Cell::new(0),
            operation: settings.operation,
            _open: Arc::clone(open),
            _end: PhantomData,
        })
    }

    /// Returns the pointer that `connect` or `accept` gave. For calls of [`Raw`].
    pub const fn as_ptr(&self) -> Ptr {
        self.ptr.as_ptr()
    }

    /// Registers host memory of the caller.
    ///
    /// # Safety
    /// The memory stays mapped until [`dereg_mr`](Self::dereg_mr) succeeded or the process ends.
    /// While a request that uses a part of it is in flight, the plugin and its devices read it, and
    /// write to it if this comm receives: the caller does not access this part meanwhile. After an
    /// optional receive this lasts until the data is there.
    pub unsafe fn reg_mr(&self, addr: *mut u8, len: usize) -> Result<Mr> {
        self.register_as(addr, len, NCCL_PTR_HOST, Owner::Caller)
    }

    /// Registers memory of any kind (`NCCL_PTR_*`) at an address of any kind.
    ///
    /// # Safety
    /// As for [`Comm::reg_mr`], with the kind's idea of memory.
    pub unsafe fn reg_mr_as(&self, addr: *mut u8, len: usize, kind: c_int) -> Result<Mr> {
        self.register_as(addr, len, kind, Owner::Caller)
    }

    fn register_as(&self, addr: *mut u8, len: usize, kind: c_int, owner: Owner) -> Result<Mr> {
        let widest = if self.raw.table().version() < 8 { c_int::MAX as usize } else { usize::MAX };
        self.fits(Call::RegMr, len, widest)?;
        let mut mr = null_mut();
        let code = self.raw.reg_mr(self.ptr.as_ptr(), addr.cast(), len, kind, &raw mut mr);
        check(Call::RegMr, code)?;
        self.mr(Call::RegMr, mr, addr, len, owner)
    }

    /// Registers memory behind a DMA-BUF, at `offset` in the file.
    ///
    /// # Safety
    /// As for [`Comm::reg_mr`]. The descriptor may be closed after the call.
    pub unsafe fn reg_dma_buf(
        &self,
        addr: *mut u8,
        len: usize,
        kind: c_int,
        offset: u64,
        fd: BorrowedFd<'_>,
    ) -> Result<Mr> {
        let (comm, fd, mut mr) = (self.ptr.as_ptr(), fd.as_raw_fd(), null_mut());
        let code = self.raw.reg_mr_dma_buf(comm, addr.cast(), len, kind, offset, fd, &raw mut mr);
        if code == Code::NoFunction {
            return Err(Error::Unsupported("the table has no regMrDmaBuf (NULL)".into()));
        }
        check(Call::RegMrDmaBuf, code)?;
        self.mr(Call::RegMrDmaBuf, mr, addr, len, Owner::Caller)
    }

    fn mr(&self, call: Call, mr: Ptr, addr: *mut u8, len: usize, owner: Owner) -> Result<Mr> {
        let ptr = NonNull::new(mr).ok_or(Error::Null { call, what: "mhandle" })?;
        Ok(Mr { ptr, comm: self.id, addr, len, owner })
    }

    /// Calls `deregMr`. No request may use the registration any more.
    pub fn dereg_mr(&self, mr: Mr) -> Result<()> {
        self.owns(mr.comm)?;
        check(Call::DeregMr, self.raw.dereg_mr(self.ptr.as_ptr(), mr.ptr.as_ptr()))
    }

    /// Registers bytes, which the registration owns until [`release`](Self::release).
    pub fn register(&self, bytes: Vec<u8>) -> Result<Buffer> {
        let bytes = NonNull::from(Box::leak(bytes.into_boxed_slice()));
        let mr = self.register_as(bytes.as_ptr().cast(), bytes.len(), NCCL_PTR_HOST, Owner::Buffer);
        match mr {
            Ok(mr) => Ok(Buffer { mr, bytes }),
            Err(error) => {
                // SAFETY: leaked above; the plugin refused the memory and has no claim to it.
                drop(unsafe { Box::from_raw(bytes.as_ptr()) });
                Err(error)
            }
        }
    }

    /// Deregisters a buffer and returns its bytes. While requests of this comm are in flight, or if
    /// the plugin fails, the memory is lost (leaked), since the plugin may still access it.
    pub fn release(&self, buffer: Buffer) -> Result<Vec<u8>> {
        if self.in_flight.get() > 0 {
            return Err(Error::Misuse("a buffer is released while requests of its comm are in flight"));
        }
        let Buffer { mr, bytes } = buffer;
        self.dereg_mr(mr)?;
        // SAFETY: `register` leaked the box. No request is in flight, and the registration is over.
        Ok(unsafe { Box::from_raw(bytes.as_ptr()) }.into_vec())
    }

    /// Calls `test`: whether a request is done. If it is, `sizes` has the sizes of its messages.
    #[inline]
    pub fn test(&self, request: &mut Request, sizes: &mut Sizes) -> Result<bool> {
        self.owns(request.comm)?;
        if request.done {
            return Err(Error::Misuse("test of a request that is done"));
        }
        let mut done = 0;
        let code = self.raw.test(request.ptr.as_ptr(), &raw mut done, sizes.as_mut_ptr());
        check(Call::Test, code)?;
        if done != 0 {
            request.done = true;
            self.in_flight.set(self.in_flight.get() - 1);
        }
        Ok(done != 0)
    }

    /// Makes a handle of a request that a call gave; `None` for NULL.
    #[inline]
    fn request(&self, request: Ptr, receives: usize) -> Option<Request> {
        let ptr = NonNull::new(request)?;
        self.in_flight.set(self.in_flight.get() + 1);
        Some(Request { ptr, comm: self.id, receives, done: false })
    }

    #[inline]
    fn owns(&self, comm: u64) -> Result<()> {
        if comm == self.id {
            return Ok(());
        }
        Err(Error::Misuse("a registration or request is used with a comm that it does not belong to"))
    }

    /// Returns the address of a part of a registration, as C takes it.
    #[inline]
    fn part(&self, mr: &Mr, offset: usize, len: usize) -> Result<Ptr> {
        self.owns(mr.comm)?;
        match offset.checked_add(len) {
            Some(end) if end <= mr.len => Ok(mr.addr.wrapping_add(offset).cast()),
            _ => Err(Error::Misuse("a message is not within its registration")),
        }
    }

    #[inline]
    fn fits(&self, call: Call, len: usize, widest: usize) -> Result<()> {
        if len <= widest {
            return Ok(());
        }
        let (name, version) = (call.name(), self.raw.table().version());
        Err(Error::Unsupported(format!(
            "{len} bytes do not fit the {name} of v{version}; use smaller messages"
        )))
    }

    /// Returns the largest size that `isend` and `irecv` of this version can pass.
    #[inline]
    fn widest(&self) -> usize {
        if self.raw.table().version() < 9 { c_int::MAX as usize } else { usize::MAX }
    }
}

impl SendComm {
    /// Calls `isend` with `len` bytes at `offset` in the registration. `None`: not now; call again.
    #[inline]
    pub fn isend(&self, mr: &Mr, offset: usize, len: usize, tag: c_int) -> Result<Option<Request>> {
        let data = self.part(mr, offset, len)?;
        self.fits(Call::Isend, len, self.widest())?;
        let (comm, mr, mut request) = (self.ptr.as_ptr(), mr.ptr.as_ptr(), null_mut());
        let code = self.raw.isend(comm, data, len, tag, mr, self.operation, &raw mut request);
        check(Call::Isend, code)?;
        Ok(self.request(request, 1))
    }

    /// Calls `closeSend`.
    pub fn close(self) -> Result<()> {
        check(Call::CloseSend, self.raw.close_send(self.ptr.as_ptr()))
    }
}

/// The members of a group of receives, as C takes them.
struct Group {
    data: [Ptr; MAX_GROUP],
    sizes: [usize; MAX_GROUP],
    tags: [c_int; MAX_GROUP],
    mrs: [Ptr; MAX_GROUP],
}

impl RecvComm {
    fn group(&self, call: Call, recvs: &[Recv<'_>], widest: usize) -> Result<Group> {
        let mut group = Group {
            data: [null_mut(); MAX_GROUP],
            sizes: [0; MAX_GROUP],
            tags: [0; MAX_GROUP],
            mrs: [null_mut(); MAX_GROUP],
        };
        if recvs.len() > MAX_GROUP {
            return Err(Error::Misuse("a group of more receives than MAX_GROUP"));
        }
        for (at, recv) in recvs.iter().enumerate() {
            group.data[at] = self.part(recv.mr, recv.offset, recv.len)?;
            self.fits(call, recv.len, widest)?;
            group.sizes[at] = recv.len;
            group.tags[at] = recv.tag;
            group.mrs[at] = recv.mr.ptr.as_ptr();
        }
        Ok(group)
    }

    /// Calls `irecv` with at most [`MAX_GROUP`] receives. `None`: not now; call again.
    #[inline]
    pub fn irecv(&self, recvs: &[Recv<'_>]) -> Result<Option<Request>> {
        self.post(recvs, 0)
    }

    /// Calls `irecv` with the hint of v9 and later that its completion is optional, as NCCL does
    /// for single receives of its protocols LL and LL128, whose data itself shows that it is there.
    /// The request may be done before, with another size. Older tables get no hint.
    ///
    /// The memory must be registered with [`reg_mr`](Self::reg_mr): this crate cannot know when it
    /// may free a [`Buffer`].
    pub fn irecv_optional(&self, recvs: &[Recv<'_>]) -> Result<Option<Request>> {
        if recvs.iter().any(|recv| recv.mr.owner == Owner::Buffer) {
            return Err(Error::Misuse("an optional receive into a Buffer; use memory of reg_mr"));
        }
        let hint = if self.raw.table().version() < 9 { 0 } else { NCCL_NET_OPTIONAL_RECV_COMPLETION };
        self.post(recvs, hint)
    }

    fn post(&self, recvs: &[Recv<'_>], hint: usize) -> Result<Option<Request>> {
        let mut group = self.group(Call::Irecv, recvs, self.widest())?;
        let mut operations = [self.operation; MAX_GROUP];
        let mut request = without_provenance_mut(hint);
        let code = self.raw.irecv(
            self.ptr.as_ptr(),
            recvs.len() as c_int,
            group.data.as_mut_ptr(),
            Some(&group.sizes[..recvs.len()]),
            group.tags.as_mut_ptr(),
            group.mrs.as_mut_ptr(),
            operations.as_mut_ptr(),
            &raw mut request,
        );
        check(Call::Irecv, code)?;
        if hint != 0 && request.addr() == hint {
            return Err(Error::HintLeft);
        }
        Ok(self.request(request, recvs.len()))
    }

    /// Calls `iflush`, which makes what finished receives brought visible to a GPU. Each `len` is
    /// the size that arrived. `None`: there is nothing to wait for.
    pub fn iflush(&self, recvs: &[Recv<'_>]) -> Result<Option<Request>> {
        let mut group = self.group(Call::Iflush, recvs, c_int::MAX as usize)?;
        let mut sizes = group.sizes.map(|size| size as c_int);
        let mut request = null_mut();
        let code = self.raw.iflush(
            self.ptr.as_ptr(),
            recvs.len() as c_int,
            group.data.as_mut_ptr(),
            sizes.as_mut_ptr(),
            group.mrs.as_mut_ptr(),
            &raw mut request,
        );
        check(Call::Iflush, code)?;
        Ok(self.request(request, recvs.len()))
    }

    /// Calls `irecvConsumed` after a receive is done, if the table has it.
    #[inline]
    pub fn irecv_consumed(&self, request: &Request) -> Result<()> {
        self.owns(request.comm)?;
        let (comm, n) = (self.ptr.as_ptr(), request.receives as c_int);
        match self.raw.irecv_consumed(comm, n, request.ptr.as_ptr()) {
            Code::NoFunction => Ok(()),
            code => check(Call::IrecvConsumed, code),
        }
    }

    /// Calls `closeRecv`.
    pub fn close(self) -> Result<()> {
        check(Call::CloseRecv, self.raw.close_recv(self.ptr.as_ptr()))
    }
}
