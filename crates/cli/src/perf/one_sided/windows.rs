//! The windows of one size: what is put or got, where it arrives, and the word of the signals.

use std::sync::atomic::{AtomicU64, Ordering};

use nccl_net_abi::NCCL_NET_MR_FLAG_FORCE_SO;
use nccl_net_host::{Place, Ptr};

use super::group::{Group, NOWHERE, Request};
use crate::failure::Failure;
use crate::perf::{area::Area, cuda::Gpu, plan::Operation, region::Layout, session::Session};

/// This end's part of a window.
struct Window<'a> {
    area: Area<'a>,
    mr: Ptr,
}

impl<'a> Window<'a> {
    fn new(group: &Group, layout: Layout, gpu: Option<&'a Gpu>, flags: u64) -> Result<Self, Failure> {
        let area = Area::new(layout, gpu)?;
        let mr = group.register(&area, flags)?;
        Ok(Self { area, mr })
    }

    fn close(self, group: &Group) -> Result<(), Failure> {
        group.deregister(self.mr)?;
        self.area.free();
        Ok(())
    }
}

/// The windows of both ends, as this end has registered them.
pub(in crate::perf) struct Windows<'a> {
    pub(super) group: &'a Group,
    pub(super) operation: Operation,
    /// Whether this end begins puts or gets, and whether signals arrive here.
    pub(super) begins: bool,
    pub(super) awaits: bool,
    /// What this end puts, or what the other one gets. Without data that way it is small.
    out: Window<'a>,
    /// What arrives here, likewise.
    into: Window<'a>,
    /// The word to which signals of the other end add. Always of the host: a thread polls it.
    word: Window<'a>,
    /// Signals that have been awaited.
    pub(super) seen: u64,
    /// Whether data leaves from here, and whether it arrives here.
    leaves: bool,
    arrives: bool,
}

impl<'a> Windows<'a> {
    /// Registers the windows. Both ends do so at the same time.
    pub(in crate::perf) fn new(
        group: &'a Group,
        session: &Session<'_>,
        layout: Layout,
    ) -> Result<Self, Failure> {
        let (begins, serves) = session.directions();
        let operation = session.plan.operation;
        let (leaves, arrives) = match operation {
            Operation::Get => (serves, begins),
            _ => (begins, serves),
        };
        let unused = Layout { size: 0, slots: 1 };
        let part = |used: bool| Window::new(group, if used { layout } else { unused }, session.gpu, 0);
        Ok(Self {
            group,
            operation,
            begins,
            awaits: serves && operation != Operation::Get,
            out: part(leaves)?,
            into: part(arrives)?,
            word: Window::new(group, Layout { size: 8, slots: 1 }, None, NCCL_NET_MR_FLAG_FORCE_SO)?,
            seen: 0,
            leaves,
            arrives,
        })
    }

    pub(in crate::perf) fn close(self) -> Result<(), Failure> {
        self.word.close(self.group)?;
        self.into.close(self.group)?;
        self.out.close(self.group)
    }

    /// Returns what leaves from here, and what arrives.
    pub(in crate::perf) fn areas(&mut self) -> (Option<&mut Area<'a>>, Option<&mut Area<'a>>) {
        let Self { out, into, leaves, arrives, .. } = self;
        (leaves.then_some(&mut out.area), arrives.then_some(&mut into.area))
    }

    /// Begins the put, the signal or the get of a slot.
    pub(super) fn begin(&self, slot: usize, size: usize) -> Result<Request, Failure> {
        let word: Place = (self.word.mr, 0);
        // The other end's area has the layout of the one that is used here.
        let used = if self.leaves { &self.out.area } else { &self.into.area };
        let offset = used.region.slot_offset(slot) as u64;
        match self.operation {
            Operation::Get => self.group.get((self.out.mr, offset), size, (self.into.mr, offset)),
            // NCCL names no place for data of no bytes.
            _ if size == 0 => self.group.put(NOWHERE, 0, NOWHERE, word),
            _ => self.group.put((self.out.mr, offset), size, (self.into.mr, offset), word),
        }
    }

    /// Begins to make what this end has got visible to its GPU. `None`: it is visible.
    pub(super) fn flush(&self) -> Result<Option<Request>, Failure> {
        match self.into.area.on_gpu() {
            true => self.group.flush(self.into.mr),
            false => Ok(None),
        }
    }

    /// Returns how many signals of the other end have arrived.
    pub(super) fn signals(&self) -> u64 {
        // SAFETY: an aligned word of the area, which nothing borrows; adapters and the plugin add to
        // it as a whole.
        let word = unsafe { AtomicU64::from_ptr(self.word.area.addr().cast()) };
        // What came before the signal is visible after it.
        word.load(Ordering::Acquire)
    }
}
