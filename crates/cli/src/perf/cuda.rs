//! Memory of a GPU for messages, through the driver's own library: without it this program runs on
//! any host.
//!
//! Messages are filled and checked in host memory, and copied to and from the GPU outside of the
//! measured time.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    os::fd::{FromRawFd, OwnedFd},
    ptr::{null, null_mut},
};

use libloading::os::unix::{Library, Symbol};

use crate::failure::{Failure, Kind};

/// The driver's library.
const LIBRARY: &str = "libcuda.so.1";
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`: copies are complete when their calls return.
const SYNC_MEMOPS: c_uint = 6;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`
const DMA_BUF_FD: c_uint = 1;
/// Allocations of whole large pages begin at one, as a DMA-BUF must.
const LARGE_PAGE: usize = 2 << 20;

type Code = c_int;
type DevicePtr = c_ulonglong;

/// The driver's functions, with the primary context of one GPU.
struct Driver {
    init: Symbol<unsafe extern "C" fn(c_uint) -> Code>,
    device: Symbol<unsafe extern "C" fn(*mut c_int, c_int) -> Code>,
    retain: Symbol<unsafe extern "C" fn(*mut *mut c_void, c_int) -> Code>,
    set_current: Symbol<unsafe extern "C" fn(*mut c_void) -> Code>,
    alloc: Symbol<unsafe extern "C" fn(*mut DevicePtr, usize) -> Code>,
    free: Symbol<unsafe extern "C" fn(DevicePtr) -> Code>,
    set_attribute: Symbol<unsafe extern "C" fn(*const c_void, c_uint, DevicePtr) -> Code>,
    to_device: Symbol<unsafe extern "C" fn(DevicePtr, *const c_void, usize) -> Code>,
    to_host: Symbol<unsafe extern "C" fn(*mut c_void, DevicePtr, usize) -> Code>,
    /// Since CUDA 11.7.
    handle: Option<Symbol<unsafe extern "C" fn(*mut c_int, DevicePtr, usize, c_uint, c_ulonglong) -> Code>>,
    error_name: Symbol<unsafe extern "C" fn(Code, *mut *const c_char) -> Code>,
    /// The functions are those of this file.
    _library: Library,
}

/// A GPU.
pub(super) struct Gpu {
    driver: Driver,
}

fn failed(what: &str) -> Failure {
    Failure::new(Kind::Usage, format!("--memory cuda: {what}"))
}

/// Returns why this host cannot use GPUs at all; `None` if it may.
pub(crate) fn missing() -> Option<String> {
    Driver::load().err().map(|e| format!("no {LIBRARY}: {e}"))
}

impl Gpu {
    /// Loads the driver's library and makes the GPU's primary context this thread's.
    pub(super) fn open(number: i32) -> Result<Self, Failure> {
        let driver = Driver::load().map_err(|e| {
            let what = format!(
                "cannot use {LIBRARY}: {e}. NVIDIA's driver has it; is there a GPU, and does the container have the \
                 driver (--gpus all)?"
            );
            failed(&what)
        })?;
        let gpu = Self { driver };
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: the signatures are those of cuda.h; the pointers are valid.
        unsafe {
            gpu.check("cuInit", (gpu.driver.init)(0))?;
            gpu.check(&format!("cuDeviceGet of GPU {number}"), (gpu.driver.device)(&raw mut device, number))?;
            gpu.check("cuDevicePrimaryCtxRetain", (gpu.driver.retain)(&raw mut context, device))?;
            gpu.check("cuCtxSetCurrent", (gpu.driver.set_current)(context))?;
        }
        Ok(gpu)
    }

    fn check(&self, call: &str, code: Code) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let mut name = null();
        // SAFETY: on success the name is a string that lasts as long as the library.
        let name = unsafe {
            match (self.driver.error_name)(code, &raw mut name) {
                0 if !name.is_null() => CStr::from_ptr(name).to_string_lossy(),
                _ => "unknown".into(),
            }
        };
        Err(failed(&format!("{call} returned {code} ({name})")))
    }

    /// Allocates memory.
    pub(super) fn allocate(&self, len: usize) -> Result<Memory<'_>, Failure> {
        let len = len.next_multiple_of(LARGE_PAGE);
        let mut at = 0;
        // SAFETY: the pointer is valid.
        self.check(&format!("cuMemAlloc of {len} bytes"), unsafe { (self.driver.alloc)(&raw mut at, len) })?;
        let memory = Memory { gpu: self, at, len };
        let on: c_uint = 1;
        // SAFETY: the attribute is a number; the memory was just allocated.
        let code = unsafe { (self.driver.set_attribute)((&raw const on).cast(), SYNC_MEMOPS, at) };
        self.check("cuPointerSetAttribute", code)?;
        Ok(memory)
    }
}

impl Driver {
    fn load() -> Result<Self, libloading::Error> {
        // SAFETY: the driver's library may be loaded into any process; the types are those of cuda.h.
        unsafe {
            let library = Library::new(LIBRARY)?;
            Ok(Self {
                init: library.get("cuInit")?,
                device: library.get("cuDeviceGet")?,
                retain: library.get("cuDevicePrimaryCtxRetain")?,
                set_current: library.get("cuCtxSetCurrent")?,
                alloc: library.get("cuMemAlloc_v2")?,
                free: library.get("cuMemFree_v2")?,
                set_attribute: library.get("cuPointerSetAttribute")?,
                to_device: library.get("cuMemcpyHtoD_v2")?,
                to_host: library.get("cuMemcpyDtoH_v2")?,
                handle: library.get("cuMemGetHandleForAddressRange").ok(),
                error_name: library.get("cuGetErrorName")?,
                _library: library,
            })
        }
    }
}

/// Memory of a GPU. Dropping it frees it.
pub(super) struct Memory<'a> {
    gpu: &'a Gpu,
    at: DevicePtr,
    len: usize,
}

impl Memory<'_> {
    /// Returns the address, which is not one of this process's memory.
    pub(super) fn addr(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.at as usize)
    }

    /// Copies bytes to the memory.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        assert!(offset + bytes.len() <= self.len, "{offset} + {} of {}", bytes.len(), self.len);
        let to = self.at + offset as u64;
        // SAFETY: the range is within the allocation.
        let code = unsafe { (self.gpu.driver.to_device)(to, bytes.as_ptr().cast(), bytes.len()) };
        self.gpu.check("cuMemcpyHtoD", code)
    }

    /// Copies bytes from the memory.
    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        assert!(offset + bytes.len() <= self.len, "{offset} + {} of {}", bytes.len(), self.len);
        let from = self.at + offset as u64;
        // SAFETY: the range is within the allocation.
        let code = unsafe { (self.gpu.driver.to_host)(bytes.as_mut_ptr().cast(), from, bytes.len()) };
        self.gpu.check("cuMemcpyDtoH", code)
    }

    /// Returns a DMA-BUF of the whole memory, if the driver makes one.
    pub(super) fn dma_buf(&self) -> Option<OwnedFd> {
        let handle = self.gpu.driver.handle.as_ref()?;
        let mut fd = -1;
        // SAFETY: the pointer is valid; the memory begins and ends at a page.
        let code = unsafe { handle(&raw mut fd, self.at, self.len, DMA_BUF_FD, 0) };
        // SAFETY: a new descriptor, which nobody else has.
        (code == 0 && fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: `allocate` made it. It is deregistered, or no plugin has got it.
        unsafe { (self.gpu.driver.free)(self.at) };
    }
}
