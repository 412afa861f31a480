//! The few calls of CUDA's driver library that two ranks need. It is opened at run time: the build
//! needs nothing of CUDA.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr::null_mut,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::failure::{Failure, Result};

/// `CUresult`, `CUdevice`
type Code = c_int;
type Device = c_int;
/// `CUdeviceptr`
pub(crate) type Address = u64;
/// `CUstream`, which is also `cudaStream_t`.
pub(crate) type Stream = *mut c_void;

/// The calls, by the newest names in the driver's header.
#[derive(Debug)]
pub(crate) struct Cuda {
    init: unsafe extern "C" fn(c_uint) -> Code,
    count: unsafe extern "C" fn(*mut c_int) -> Code,
    retain: unsafe extern "C" fn(*mut *mut c_void, Device) -> Code,
    set_current: unsafe extern "C" fn(*mut c_void) -> Code,
    alloc: unsafe extern "C" fn(*mut Address, usize) -> Code,
    free: unsafe extern "C" fn(Address) -> Code,
    to_device: unsafe extern "C" fn(Address, *const c_void, usize) -> Code,
    to_host: unsafe extern "C" fn(*mut c_void, Address, usize) -> Code,
    stream: unsafe extern "C" fn(*mut Stream, c_uint) -> Code,
    synchronize: unsafe extern "C" fn(Stream) -> Code,
    name: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
}

impl Cuda {
    /// Opens the driver's library, which stays loaded, and initialises it.
    pub(crate) fn load() -> Result<Self> {
        let missing = |e: libloading::Error| Failure::tool(reason(&e));
        // SAFETY: the driver's library, whose constructors every CUDA program runs.
        let library =
            unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }.map_err(missing)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the symbol is this function of cuda.h, whose field has its signature.
                *unsafe { library.get($name.as_bytes()) }.map_err(missing)?
            };
        }
        let cuda = Self {
            init: function!("cuInit"),
            count: function!("cuDeviceGetCount"),
            retain: function!("cuDevicePrimaryCtxRetain"),
            set_current: function!("cuCtxSetCurrent"),
            alloc: function!("cuMemAlloc_v2"),
            free: function!("cuMemFree_v2"),
            to_device: function!("cuMemcpyHtoD_v2"),
            to_host: function!("cuMemcpyDtoH_v2"),
            stream: function!("cuStreamCreate"),
            synchronize: function!("cuStreamSynchronize"),
            name: function!("cuGetErrorName"),
        };
        std::mem::forget(library);
        // SAFETY: the only flag there is.
        cuda.check("cuInit", unsafe { (cuda.init)(0) })?;
        Ok(cuda)
    }

    fn check(&self, call: &str, code: Code) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: a place for a pointer to a constant string.
        let known = unsafe { (self.name)(code, &raw mut name) } == 0 && !name.is_null();
        let name = if known {
            // SAFETY: a C string in the library, which stays.
            unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "an unknown error".into()
        };
        Err(Failure::tool(format!("{call} returned {code} ({name})")))
    }

    /// Returns the number of devices.
    pub(crate) fn devices(&self) -> Result<c_int> {
        let mut count = 0;
        // SAFETY: a place for a number.
        self.check("cuDeviceGetCount", unsafe { (self.count)(&raw mut count) })?;
        Ok(count)
    }

    /// Makes the first device's primary context, which NCCL's runtime uses, current on this thread.
    pub(crate) fn use_first(&self) -> Result<()> {
        let mut context = null_mut();
        // SAFETY: a place for a pointer; device 0 exists (`devices`).
        self.check("cuDevicePrimaryCtxRetain", unsafe { (self.retain)(&raw mut context, 0) })?;
        // SAFETY: the context, which is kept until the process ends.
        self.check("cuCtxSetCurrent", unsafe { (self.set_current)(context) })
    }

    /// Makes a stream that does not wait for others (`CU_STREAM_NON_BLOCKING`).
    pub(crate) fn stream(&self) -> Result<Stream> {
        let mut stream = null_mut();
        // SAFETY: a place for a pointer.
        self.check("cuStreamCreate", unsafe { (self.stream)(&raw mut stream, 1) })?;
        Ok(stream)
    }

    pub(crate) fn synchronize(&self, stream: Stream) -> Result<()> {
        // SAFETY: a stream of `stream`, which none destroys.
        self.check("cuStreamSynchronize", unsafe { (self.synchronize)(stream) })
    }

    /// Allocates device memory for this many values.
    pub(crate) fn memory(&self, values: usize) -> Result<Memory<'_>> {
        let mut address = 0;
        // SAFETY: a place for an address.
        let code = unsafe { (self.alloc)(&raw mut address, values * size_of::<f32>()) };
        self.check("cuMemAlloc", code)?;
        Ok(Memory { cuda: self, address, values })
    }
}

/// Device memory, freed when dropped.
#[derive(Debug)]
pub(crate) struct Memory<'a> {
    cuda: &'a Cuda,
    pub(crate) address: Address,
    values: usize,
}

impl Memory<'_> {
    pub(crate) fn write(&self, values: &[f32]) -> Result<()> {
        assert!(values.len() <= self.values, "more values than were allocated");
        let bytes = size_of_val(values);
        // SAFETY: so many bytes are there on both sides.
        let code = unsafe { (self.cuda.to_device)(self.address, values.as_ptr().cast(), bytes) };
        self.cuda.check("cuMemcpyHtoD", code)
    }

    pub(crate) fn read(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.values];
        let bytes = size_of_val(&values[..]);
        // SAFETY: so many bytes are there on both sides.
        let code = unsafe { (self.cuda.to_host)(values.as_mut_ptr().cast(), self.address, bytes) };
        self.cuda.check("cuMemcpyDtoH", code)?;
        Ok(values)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by this library, and freed once; all work on it was waited for. What it
        // returns changes nothing.
        let _ = unsafe { (self.cuda.free)(self.address) };
    }
}

/// Returns an error's text: libloading has dlerror's text in the source.
fn reason(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
