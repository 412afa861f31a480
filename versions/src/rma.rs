//! The trait for one-sided traffic, and the values of its calls.

use core::ffi::c_int;

use crate::{Buffer, DmaBuf, Failure, HandleBuf, MemKind, NetPlugin, Tagged};

/// The RMA tables of a network plugin, in the shape of v16 and with Rust types.
///
/// NCCL 2.30.7 and later use one table for `ncclPutSignal` and its like and for GIN by its proxy.
/// They look for it in the library of the network plugin, and ask it for devices of the same names.
/// Those and their properties are [`NetPlugin`]'s.
///
/// A group is what the header calls `collComm`: the ranks of a communicator that reach each other's
/// windows. All ranks call [`join`](Self::join), [`register`](Self::register) and
/// [`create_contexts`](Self::create_contexts) in the same order. A window is the same memory to the
/// group as that which its other ranks registered at their turn: a rank names a place in another
/// rank's memory by its own window.
///
/// The adapters check pointers and handles. An implementation must itself check ranks, contexts,
/// offsets and sizes. It must accept [`register`](Self::register) and
/// [`deregister`](Self::deregister) beside all calls of the data path on one group, and every call on
/// different groups.
///
/// NCCL 2.30.7 to 2.32 do not report an error of `ncclPutSignal`'s calls to the program: a plugin
/// that fails a request leaves the program waiting.
pub trait RmaPlugin: NetPlugin {
    /// The result of `init`. NCCL does not finalize all of them.
    type RmaContext: Send + Sync;
    /// A listening end.
    type RmaListen: Send + Sync;
    /// A group of ranks (`collComm`).
    type Group: Send + Sync;
    /// The contexts of one `createContext` (`rmaCtx`).
    type Contexts: Send + Sync;
    /// A window (`mhandle`).
    type Window: Send + Sync;
    /// A put or a get in flight. It lives in a [`Slab::of_rma`](crate::Slab::of_rma) of its group.
    type RmaRequest: Send + Sync;

    /// `init`, once for each use of the table by a communicator.
    fn init_rma(args: &RmaInit) -> Result<Self::RmaContext, Failure>;
    /// `finalize`. Drops the context by default.
    fn finalize_rma(ctx: Self::RmaContext) -> Result<(), Failure> {
        drop(ctx);
        Ok(())
    }
    /// `listen`: creates a listening end and writes the handle that all ranks get. The handle is all
    /// zeros on entry.
    fn listen_rma(
        ctx: &Self::RmaContext,
        dev: usize,
        handle: &mut HandleBuf,
    ) -> Result<Self::RmaListen, Failure>;
    /// `closeListen`, after [`join`](Self::join). Drops the listening end by default.
    fn close_listen_rma(listen: Self::RmaListen) -> Result<(), Failure> {
        drop(listen);
        Ok(())
    }
    /// `connect`: makes the group of the ranks with these handles. May block. The context that C
    /// passes is not among the arguments: host RMA passes that of the network table.
    fn join(listen: &Self::RmaListen, handles: &[&HandleBuf], rank: usize) -> Result<Self::Group, Failure>;
    /// `getRmaProperties` (v16).
    fn group_properties(group: &Self::Group) -> Result<RmaProperties, Failure>;
    /// `closeColl`, after everything of the group has ended. Drops the group by default.
    fn close_group(group: Self::Group) -> Result<(), Failure> {
        drop(group);
        Ok(())
    }
    /// `createContext`.
    fn create_contexts(group: &Self::Group, config: &RmaConfig) -> Result<Self::Contexts, Failure>;
    /// `destroyContext`. Drops the contexts by default.
    fn destroy_contexts(contexts: Self::Contexts) -> Result<(), Failure> {
        drop(contexts);
        Ok(())
    }

    /// `regMrSym` and `regMrSymDmaBuf`: registers this rank's memory of the next window.
    fn register(
        group: &Self::Group,
        buffer: Buffer,
        kind: MemKind,
        dmabuf: Option<DmaBuf>,
        flags: WindowFlags,
    ) -> Result<Self::Window, Failure>;
    /// `deregMrSym`.
    fn deregister(group: &Self::Group, window: Self::Window) -> Result<(), Failure>;

    /// `iput` and `iputSignal`. The request completes when the source may be used again and the data
    /// is at the peer.
    fn put<'a>(
        contexts: &'a Self::Contexts,
        put: &Put<'_, Self::Window>,
    ) -> Result<&'a Tagged<Self::RmaRequest>, Failure>;
    /// `iget`.
    fn get<'a>(
        contexts: &'a Self::Contexts,
        get: &Get<'_, Self::Window>,
    ) -> Result<&'a Tagged<Self::RmaRequest>, Failure>;
    /// `iflush`: makes the data of completed gets visible to the GPU. `None`, the default, means that
    /// it already is.
    fn flush<'a>(
        _: &'a Self::Contexts,
        _context: usize,
        _: &Self::Window,
        _rank: usize,
    ) -> Result<Option<&'a Tagged<Self::RmaRequest>>, Failure> {
        Ok(None)
    }
    /// `test`: returns `true` once the request is complete, which is free from then on. Must make
    /// progress: NCCL waits for some requests by this call alone.
    fn test_rma(group: &Self::Group, request: &Self::RmaRequest) -> Result<bool, Failure>;
    /// `rmaProgress`, which NCCL's thread calls all the time.
    fn progress(contexts: &Self::Contexts) -> Result<(), Failure>;
    /// `queryLastError`.
    fn has_error(contexts: &Self::Contexts) -> Result<bool, Failure>;
}

/// Arguments of `init` of an RMA table.
#[derive(Debug, Clone, Copy)]
pub struct RmaInit {
    /// Version of the table that NCCL selected, 13 to 16.
    pub version: u32,
    /// `commId`
    pub comm_id: u64,
}

/// `ncclRmaProperties`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RmaProperties {
    /// A visible signal of any context proves that the puts of all contexts are visible.
    pub flushes_all_puts_on_any_signal: bool,
}

/// `ncclRmaConfig`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmaConfig {
    /// Number of contexts.
    pub contexts: usize,
    /// Traffic class; `None` if NCCL left it undefined.
    pub traffic_class: Option<c_int>,
    /// Only every so-manieth rank is a target (v14 and later; 1 before).
    pub rank_stride: usize,
}

/// `mrFlags` of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowFlags {
    /// `NCCL_NET_MR_FLAG_FORCE_SO`: writes to it must not pass earlier ones.
    pub strong_order: bool,
    /// `NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET`: NCCL never sets its words, only signals change them.
    pub never_reset: bool,
}

/// A place in a window.
#[derive(Debug)]
pub struct Place<'a, W> {
    /// The window.
    pub window: &'a W,
    /// Offset in bytes.
    pub offset: usize,
}

// Not derived: a copy of the reference needs no copy of the window.
impl<W> Clone for Place<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Place<'_, W> {}

/// A put, a signal, or both.
#[derive(Debug)]
pub struct Put<'a, W> {
    /// The context, from 0.
    pub context: usize,
    /// The target.
    pub rank: usize,
    /// Size of the data in bytes; 0 without data.
    pub size: usize,
    /// From where, in this rank's memory, to where in the target's. Without data, NCCL names no
    /// window.
    pub data: Option<(Place<'a, W>, Place<'a, W>)>,
    /// The signal.
    pub signal: Option<Signal<'a, W>>,
    /// More puts follow at once (`ncclRmaOptFlagsAggregateRequests`, v15).
    pub more: bool,
}

/// A number that is added to a word of the target's memory once the put is visible there.
#[derive(Debug)]
pub struct Signal<'a, W> {
    /// The word of 8 bytes.
    pub place: Place<'a, W>,
    /// The number.
    pub value: u64,
    /// All earlier puts of the context to the same rank must be visible, too. Always before v14.
    pub strong: bool,
}

/// A get.
#[derive(Debug)]
pub struct Get<'a, W> {
    /// The context, from 0.
    pub context: usize,
    /// The rank that has the data.
    pub rank: usize,
    /// Size of the data in bytes.
    pub size: usize,
    /// Where the data is, in the memory of `rank`.
    pub remote: Place<'a, W>,
    /// Where it goes, in this rank's memory.
    pub local: Place<'a, W>,
    /// More gets follow at once (v15).
    pub more: bool,
}
