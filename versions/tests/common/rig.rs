//! One version's table of a separate fake, and calls that many tests need.

use std::ptr;
use std::sync::atomic::AtomicPtr;

use nccl_net_versions::abi::{self, ncclSuccess};

use super::fake::{Fake, Record, lock, record};
use super::net::{DATA, Net, Ptr, STALE};

/// One version's table of a separate fake.
#[derive(Debug, Clone, Copy)]
pub struct Rig<const ID: u32> {
    pub version: u32,
    pub net: Net,
    pub record: &'static Record,
}

impl<const ID: u32> Rig<ID> {
    pub fn new(version: u32) -> Self {
        Self { version, net: Net::of::<Fake<ID>>(version), record: record(ID) }
    }

    /// Runs a test, then finalizes the remaining contexts of [`Rig::init`]: miri reports leaks.
    pub fn run(self, test: impl FnOnce(Self)) {
        test(self);
        for ctx in std::mem::take(&mut *lock(&self.record.contexts)) {
            let _ = self.net.finalize(ctx.into_inner());
        }
    }

    /// Returns a context, or NULL before v11.
    pub fn init(&self) -> Ptr {
        let mut ctx = ptr::null_mut();
        assert_eq!(self.net.init(&raw mut ctx, 7, None, None, None), ncclSuccess);
        lock(&self.record.contexts).push(AtomicPtr::new(ctx));
        ctx
    }

    pub fn listen(&self, ctx: Ptr) -> Ptr {
        let (mut handle, mut comm) = ([0u8; 128], STALE);
        assert_eq!(self.net.listen(ctx, 0, handle.as_mut_ptr().cast(), &raw mut comm), ncclSuccess);
        comm
    }

    pub fn send(&self, ctx: Ptr) -> Ptr {
        let (mut handle, mut comm) = ([0u8; 128], STALE);
        let rc = self.net.connect(ctx, 0, None, handle.as_mut_ptr().cast(), &raw mut comm, ptr::null_mut());
        assert_eq!(rc, ncclSuccess);
        comm
    }

    pub fn recv(&self, ctx: Ptr) -> Ptr {
        let listener = self.listen(ctx);
        let mut comm = STALE;
        assert_eq!(self.net.accept(listener, &raw mut comm, ptr::null_mut()), ncclSuccess);
        assert_eq!(self.net.close_listen(listener), ncclSuccess);
        comm
    }

    pub fn mr(&self, comm: Ptr) -> Ptr {
        let mut mhandle = STALE;
        let rc = self.net.reg_mr(comm, DATA, 64, abi::NCCL_PTR_HOST, &raw mut mhandle);
        assert_eq!(rc, ncclSuccess);
        mhandle
    }
}
