//! The functions of the CUDA driver that a rank uses for its own buffers and its stream.

use std::{
    ffi::{c_int, c_uint, c_void},
    path::Path,
    ptr::null_mut,
};

use crate::{Result, library::Library};

/// `CUstream`.
pub(crate) type Stream = *mut c_void;

const NON_BLOCKING: c_uint = 1;
const NOT_READY: c_int = 600;

/// The driver.
#[derive(Debug)]
pub(crate) struct Cuda {
    alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
    copy_async: unsafe extern "C" fn(u64, u64, usize, Stream) -> c_int,
    fill_async: unsafe extern "C" fn(u64, u8, usize, Stream) -> c_int,
    stream_create: unsafe extern "C" fn(*mut Stream, c_uint) -> c_int,
    stream_query: unsafe extern "C" fn(Stream) -> c_int,
    stream_synchronize: unsafe extern "C" fn(Stream) -> c_int,
}

fn check(call: &str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(format!("{call} returned {code}").into()) }
}

impl Cuda {
    /// Opens the driver and makes a device current on this thread.
    pub(crate) fn open(device: u32) -> Result<Self> {
        let library = Library::open(Path::new("libcuda.so.1"))?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the function of cuda.h, whose signature the place has.
                unsafe { library.function($name)? }
            };
        }
        let init: unsafe extern "C" fn(c_uint) -> c_int = function!(c"cuInit");
        let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int =
            function!(c"cuDevicePrimaryCtxRetain");
        let set_current: unsafe extern "C" fn(*mut c_void) -> c_int = function!(c"cuCtxSetCurrent");
        let mut context = null_mut();
        // SAFETY: no flags; a place for a context; the context of the call before.
        unsafe {
            check("cuInit", init(0))?;
            check("cuDevicePrimaryCtxRetain", retain(&raw mut context, device.cast_signed()))?;
            check("cuCtxSetCurrent", set_current(context))?;
        }
        Ok(Self {
            alloc: function!(c"cuMemAlloc_v2"),
            free: function!(c"cuMemFree_v2"),
            to_device: function!(c"cuMemcpyHtoD_v2"),
            to_host: function!(c"cuMemcpyDtoH_v2"),
            copy_async: function!(c"cuMemcpyDtoDAsync_v2"),
            fill_async: function!(c"cuMemsetD8Async"),
            stream_create: function!(c"cuStreamCreate"),
            stream_query: function!(c"cuStreamQuery"),
            stream_synchronize: function!(c"cuStreamSynchronize"),
        })
    }

    /// Creates a stream, which stays until the process ends.
    pub(crate) fn stream(&self) -> Result<Stream> {
        let mut stream = null_mut();
        // SAFETY: a place for a stream.
        check("cuStreamCreate", unsafe { (self.stream_create)(&raw mut stream, NON_BLOCKING) })?;
        Ok(stream)
    }

    /// Returns whether a stream is done.
    pub(crate) fn is_done(&self, stream: Stream) -> Result<bool> {
        // SAFETY: a stream of `stream`.
        match unsafe { (self.stream_query)(stream) } {
            NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Allocates device memory.
    pub(crate) fn buffer(&self, len: usize) -> Result<Buffer<'_>> {
        let mut address = 0;
        // SAFETY: a place for an address.
        check("cuMemAlloc", unsafe { (self.alloc)(&raw mut address, len.max(1)) })?;
        Ok(Buffer { cuda: self, address, len, own: true })
    }

    /// Returns memory that NCCL has allocated, and that stays, as a buffer.
    pub(crate) fn buffer_at(&self, pointer: *mut c_void, len: usize) -> Buffer<'_> {
        Buffer { cuda: self, address: pointer.expose_provenance() as u64, len, own: false }
    }
}

impl Cuda {
    /// Adds a copy between buffers to a stream: `len` bytes of `from` to an offset of `to`.
    ///
    /// # Safety
    ///
    /// The buffers must stay until the stream is done.
    pub(crate) unsafe fn copy(
        &self,
        (to, offset): (&Buffer<'_>, usize),
        from: &Buffer<'_>,
        len: usize,
        stream: Stream,
    ) -> Result<()> {
        assert!(offset + len <= to.len && len <= from.len, "more bytes than a buffer has");
        let to = to.address + offset as u64;
        // SAFETY: both sides have this many bytes and stay (caller).
        check("cuMemcpyDtoDAsync", unsafe { (self.copy_async)(to, from.address, len, stream) })
    }

    /// Adds a fill to a stream: `len` bytes from an offset of a buffer on.
    ///
    /// # Safety
    ///
    /// The buffer must stay until the stream is done.
    pub(crate) unsafe fn fill(
        &self,
        (to, offset): (&Buffer<'_>, usize),
        value: u8,
        len: usize,
        stream: Stream,
    ) -> Result<()> {
        assert!(offset + len <= to.len, "more bytes than the buffer has");
        let to = to.address + offset as u64;
        // SAFETY: the buffer has this many bytes and stays (caller).
        check("cuMemsetD8Async", unsafe { (self.fill_async)(to, value, len, stream) })
    }
}

/// Device memory.
#[derive(Debug)]
pub(crate) struct Buffer<'a> {
    cuda: &'a Cuda,
    address: u64,
    len: usize,
    /// Whether it is freed here.
    own: bool,
}

impl Buffer<'_> {
    pub(crate) fn pointer(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes to the buffer's beginning.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= self.len, "more bytes than the buffer has");
        // SAFETY: both sides have this many bytes.
        let code = unsafe { (self.cuda.to_device)(self.address, bytes.as_ptr().cast(), bytes.len()) };
        check("cuMemcpyHtoD", code)?;
        // The copy may return before the last bytes are on the GPU, and other streams do not wait for
        // them.
        // SAFETY: the default stream.
        check("cuStreamSynchronize", unsafe { (self.cuda.stream_synchronize)(null_mut()) })
    }

    /// Reads the buffer's first bytes.
    pub(crate) fn read(&self, len: usize) -> Result<Vec<u8>> {
        assert!(len <= self.len, "more bytes than the buffer has");
        let mut bytes = vec![0; len];
        // SAFETY: both sides have this many bytes.
        let code = unsafe { (self.cuda.to_host)(bytes.as_mut_ptr().cast(), self.address, len) };
        check("cuMemcpyDtoH", code)?;
        Ok(bytes)
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if !self.own {
            return;
        }
        // SAFETY: allocated by `buffer`, freed once, after the stream was done. The process ends
        // soon, so the result changes nothing.
        let _ = unsafe { (self.cuda.free)(self.address) };
    }
}
