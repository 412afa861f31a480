//! One-sided transfers: puts, signals, and the communicator of kernels.

use std::ffi::{c_int, c_uint, c_void};

use softcuda::{DataType, rank::NO_ONE_SIDED};

use super::{Comm, Pointer, RawComm, Window};
use crate::{Result, cuda::Stream, library::Library};

/// `ncclWaitSignalDesc_t`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct WaitSignal {
    operations: c_int,
    peer: c_int,
    signal: c_int,
    context: c_int,
}

/// `ncclPutSignal`
type PutSignal = unsafe extern "C" fn(
    Pointer,
    usize,
    c_int,
    c_int,
    Window,
    usize,
    c_int,
    c_int,
    c_uint,
    RawComm,
    Stream,
) -> c_int;

/// The functions, from 2.29 on; those of kernels from 2.28 on.
#[derive(Debug)]
pub(super) struct OneSided {
    put_signal: Option<PutSignal>,
    signal: Option<unsafe extern "C" fn(c_int, c_int, c_int, c_uint, RawComm, Stream) -> c_int>,
    wait_signal: Option<unsafe extern "C" fn(c_int, *mut WaitSignal, RawComm, Stream) -> c_int>,
    device_create: Option<unsafe extern "C" fn(RawComm, *const c_void, *mut c_void) -> c_int>,
    device_destroy: Option<unsafe extern "C" fn(RawComm, *const c_void) -> c_int>,
}

impl OneSided {
    pub(super) fn of(library: &Library) -> Self {
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the function of nccl.h, whose signature the field has.
                unsafe { library.function($name) }.ok()
            };
        }
        Self {
            put_signal: function!(c"ncclPutSignal"),
            signal: function!(c"ncclSignal"),
            wait_signal: function!(c"ncclWaitSignal"),
            device_create: function!(c"ncclDevCommCreate"),
            device_destroy: function!(c"ncclDevCommDestroy"),
        }
    }
}

/// The arguments of a put.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Put {
    pub(crate) source: Pointer,
    /// Elements.
    pub(crate) count: usize,
    pub(crate) element: DataType,
    pub(crate) peer: u32,
    pub(crate) window: Window,
    /// Bytes from the beginning of the peer's window.
    pub(crate) offset: usize,
}

// The only signal and the only context that NCCL accepts, and no flags.
const SIGNAL: c_int = 0;
const CONTEXT: c_int = 0;
const FLAGS: c_uint = 0;

impl Comm<'_> {
    /// Adds a put with a signal to a stream.
    ///
    /// # Safety
    ///
    /// The source must be a part of a window and have the elements, and the peer's window must have
    /// room for them. Both must stay until the stream is done.
    pub(crate) unsafe fn put(&self, put: Put, stream: Stream) -> Result<()> {
        let function = self.nccl.one_sided.put_signal.ok_or(NO_ONE_SIDED)?;
        let Put { source, count, element, peer, window, offset } = put;
        let (element, peer) = (element as c_int, peer.cast_signed());
        // SAFETY: a source and a window of the right size (caller), and this communicator.
        let code = unsafe {
            function(source, count, element, peer, window, offset, SIGNAL, CONTEXT, FLAGS, self.raw, stream)
        };
        self.nccl.check("ncclPutSignal", code)
    }

    /// Adds a signal without data to a stream.
    pub(crate) fn signal(&self, peer: u32, stream: Stream) -> Result<()> {
        let function = self.nccl.one_sided.signal.ok_or(NO_ONE_SIDED)?;
        // SAFETY: this communicator and a stream of its device.
        let code = unsafe { function(peer.cast_signed(), SIGNAL, CONTEXT, FLAGS, self.raw, stream) };
        self.nccl.check("ncclSignal", code)
    }

    /// Lets a stream wait for signals: for each peer, how many more.
    pub(crate) fn wait_signals(&self, signals: &[(u32, u32)], stream: Stream) -> Result<()> {
        let function = self.nccl.one_sided.wait_signal.ok_or(NO_ONE_SIDED)?;
        let wait = |&(peer, count): &(u32, u32)| WaitSignal {
            operations: count.cast_signed(),
            peer: peer.cast_signed(),
            signal: SIGNAL,
            context: CONTEXT,
        };
        let mut waits: Vec<_> = signals.iter().map(wait).collect();
        // SAFETY: an array of this length, which is read during the call.
        let code = unsafe { function(waits.len() as c_int, waits.as_mut_ptr(), self.raw, stream) };
        self.nccl.check("ncclWaitSignal", code)
    }

    /// Makes calls as one group.
    pub(crate) fn group(&self, calls: impl FnOnce() -> Result<()>) -> Result<()> {
        // SAFETY: no arguments; the group is closed even if a call in it fails.
        self.nccl.check("ncclGroupStart", unsafe { (self.nccl.group_start)() })?;
        let called = calls();
        // SAFETY: as above.
        let code = unsafe { (self.nccl.group_end)() };
        called?;
        self.nccl.check("ncclGroupEnd", code)
    }

    /// Creates the communicator of kernels, together with all ranks.
    ///
    /// # Safety
    ///
    /// `requirements` must be an `ncclDevCommRequirements` of the release, and `communicator` a place
    /// for its `ncclDevComm`.
    pub(crate) unsafe fn create_device(&self, requirements: &[u64], communicator: &mut [u64]) -> Result<()> {
        let create = self.nccl.one_sided.device_create.ok_or(NO_ONE_SIDED)?;
        // SAFETY: structures of the release (caller).
        let code =
            unsafe { create(self.raw, requirements.as_ptr().cast(), communicator.as_mut_ptr().cast()) };
        self.nccl.check("ncclDevCommCreate", code)
    }

    /// Ends a communicator of kernels.
    ///
    /// # Safety
    ///
    /// It must be one of [`Self::create_device`] that was not used here before.
    pub(crate) unsafe fn destroy_device(&self, communicator: &[u64]) -> Result<()> {
        let destroy = self.nccl.one_sided.device_destroy.ok_or(NO_ONE_SIDED)?;
        // SAFETY: a communicator of kernels (caller).
        let code = unsafe { destroy(self.raw, communicator.as_ptr().cast()) };
        self.nccl.check("ncclDevCommDestroy", code)
    }
}
