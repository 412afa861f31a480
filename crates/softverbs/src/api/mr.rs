//! Memory regions and their keys.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::Handle;
use crate::api::dmabuf::{self, Mapping};
use crate::api::pd::Pd;
use crate::config::call::Call;
use crate::limits::{MAX_MR, MAX_MR_SIZE};
use crate::log::fault;
use crate::process::{self, Process, calls};
use crate::shm::layout::{MRS, MrShared};
use crate::wire::access::{LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_WRITE};
use crate::wire::{bounce, landing, placement};

const ZERO_BASED: u32 = 1 << 5;
const ON_DEMAND: u32 = 1 << 6;
/// All flags up to `IBV_ACCESS_HUGETLB`, which must be known.
const KNOWN: u32 = (1 << 8) - 1;
/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that may be ignored, such as relaxed ordering.
const OPTIONAL: u32 = 0x3ff0_0000;

/// The allocator of keys. A key consists of the index of its entry (upper half) and a random number
/// that changes with each use.
pub(crate) struct Keys(Mutex<Free>);

struct Free {
    indices: Vec<u32>,
    next: u32,
    random: u64,
    /// Registrations made so far.
    made: u64,
}

impl Keys {
    /// Creates an allocator without keys. `seed` differs between processes, and so do their keys.
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(Free { indices: Vec::new(), next: 0, random: seed, made: 0 }))
    }

    /// Returns the number of keys in use.
    pub(crate) fn used(&self) -> usize {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.next as usize - free.indices.len()
    }

    /// Returns the number of keys ever allocated.
    pub(crate) fn made(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).made
    }

    fn alloc(&self) -> Result<(u32, u32), Errno> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match free.indices.pop() {
            Some(index) => index,
            None if free.next < MAX_MR => {
                free.next += 1;
                free.next - 1
            }
            None => {
                fault!("ibv_reg_mr: {MAX_MR} memory regions exist, which is the maximum");
                return Err(Errno(libc::ENOMEM));
            }
        };
        // xorshift: makes it unlikely that a stale or guessed key is valid. Zero is never a key.
        free.random ^= free.random << 13;
        free.random ^= free.random >> 7;
        free.random ^= free.random << 17;
        let variant = (free.random & 0xffff) as u32;
        free.made += 1;
        Ok((index, index << 16 | variant.max(1)))
    }

    fn free(&self, index: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).indices.push(index);
    }
}

/// `struct ibv_mr`
#[repr(C)]
pub(crate) struct Mr {
    ibv: UnsafeCell<sys::ibv_mr>,
    pd: Arc<Pd>,
    index: u32,
    /// The mapping of a DMA-BUF.
    _mapping: Option<Mapping>,
}

// SAFETY: repr(C) with the C struct first.
unsafe impl Handle for Mr {
    type C = sys::ibv_mr;
}
// SAFETY: the C struct is written before it is shared and only read after.
unsafe impl Sync for Mr {}
// SAFETY: no part of it is tied to a thread.
unsafe impl Send for Mr {}

/// Checks access flags by the rules of the kernel.
fn check_access(call: &str, access: u32) -> Result<(), Errno> {
    let why = if access & ON_DEMAND != 0 {
        fault!("{call}: on-demand paging is not supported");
        return Err(Errno(libc::EOPNOTSUPP));
    } else if access & !(KNOWN | OPTIONAL) != 0 {
        "unknown bits"
    } else if access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0 && access & LOCAL_WRITE == 0 {
        "remote write and remote atomic need local write"
    } else {
        return Ok(());
    };
    fault!("{call}: access {access:#x}: {why}");
    Err(Errno(libc::EINVAL))
}

/// Fails with EINVAL for an invalid range.
fn check_range(call: &str, addr: usize, len: usize, iova: u64) -> Result<(), Errno> {
    let wraps = addr.checked_add(len).is_none() || iova.checked_add(len as u64).is_none();
    if len > 0 && len as u64 <= MAX_MR_SIZE && !wraps {
        return Ok(());
    }
    fault!("{call}: {len} bytes at {addr:#x}, expected 1 to {MAX_MR_SIZE} bytes that do not wrap around");
    Err(Errno(libc::EINVAL))
}

/// Fails with EFAULT if part of the range is not mapped, as the kernel does when it pins pages.
fn check_mapped(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: takes an integer.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = addr / page * page;
    let end = addr + len;
    // SAFETY: MS_ASYNC has no effect except the error ENOMEM for an unmapped range.
    let rc = unsafe { libc::msync(std::ptr::without_provenance_mut(start), end - start, libc::MS_ASYNC) };
    if rc != 0 {
        fault!(
            "ibv_reg_mr: {addr:#x}..{end:#x} is not completely mapped in this process (device memory is not supported)"
        );
        return Err(Errno(libc::EFAULT));
    }
    Ok(())
}

/// Registers memory of this process.
///
/// # Safety
/// `pd` is alive.
unsafe fn register(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: u32,
) -> Result<*mut sys::ibv_mr, Errno> {
    let process = process::get()?;
    // SAFETY: alive, as the caller guarantees.
    let pd = unsafe { Pd::arc_from_c(pd) }?;
    pd.context.check()?;
    calls::begin(pd.context.device, Call::RegMr)?;
    check_access("ibv_reg_mr", access)?;
    check_range("ibv_reg_mr", addr.addr(), len, iova)?;
    check_mapped(addr.addr(), len)?;
    let iova = if access & ZERO_BASED != 0 { 0 } else { iova };
    make(process, pd, New { shown: addr, addr: addr.addr(), len, iova, access, mapping: None })
}

/// Registers a DMA-BUF.
///
/// # Safety
/// `pd` is alive.
unsafe fn register_dmabuf(
    pd: *mut sys::ibv_pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: u32,
) -> Result<*mut sys::ibv_mr, Errno> {
    const CALL: &str = "ibv_reg_dmabuf_mr";
    let process = process::get()?;
    // SAFETY: alive, as the caller guarantees.
    let pd = unsafe { Pd::arc_from_c(pd) }?;
    pd.context.check()?;
    // Neither is logged: programs probe the capabilities of a device in this way.
    if !pd.context.device.spec.dmabuf {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if fd == -1 {
        return Err(Errno(libc::EBADF));
    }
    calls::begin(pd.context.device, Call::RegDmabufMr)?;
    check_access(CALL, access)?;
    check_range(CALL, 0, len, iova)?;
    let mapping = dmabuf::map(fd, offset, len, iova)?;
    let shown = std::ptr::without_provenance_mut(offset as usize);
    let addr = mapping.addr();
    make(process, pd, New { shown, addr, len, iova, access, mapping: Some(mapping) })
}

/// The validated properties of a new memory region.
struct New {
    /// `ibv_mr.addr`
    shown: *mut c_void,
    /// Address in this process.
    addr: usize,
    len: usize,
    iova: u64,
    access: u32,
    mapping: Option<Mapping>,
}

fn make(process: &Process, pd: Arc<Pd>, new: New) -> Result<*mut sys::ibv_mr, Errno> {
    let (index, key) = process.keys.alloc()?;
    let backed = process.back(MRS, index, size_of::<MrShared>()).inspect(|()| {
        process.own.header().registrations.fetch_max(index + 1, AcqRel);
    });
    let shared = backed.and_then(|()| process.own.mr(index).ok_or(Errno(libc::EIO)));
    let shared = shared.inspect_err(|_| process.keys.free(index))?;
    shared.pd.store(pd.id, Relaxed);
    shared.access.store(new.access, Relaxed);
    shared.iova.store(new.iova, Relaxed);
    shared.len.store(new.len as u64, Relaxed);
    shared.addr.store(new.addr as u64, Relaxed);
    // Only the memory of a GPU is behind PCIe.
    let posted = if new.mapping.is_some() { pd.context.device.spec.posted_ns } else { 0 };
    shared.posted_ns.store(posted, Relaxed);
    shared.landing.store(0, Relaxed);
    shared.key.store(key, Release);
    pd.users.fetch_add(1, AcqRel);
    let context = pd.context.as_ptr();
    let ibv = sys::ibv_mr {
        context,
        pd: pd.as_c(),
        addr: new.shown,
        length: new.len,
        handle: index,
        lkey: key,
        rkey: key,
    };
    Ok(Mr::into_c(Arc::new(Mr { ibv: UnsafeCell::new(ibv), pd, index, _mapping: new.mapping })))
}

/// Waits until no work request that started earlier uses memory of the PD. Each holds the lock of
/// the responding QP, or of its send queue.
fn quiesce(process: &Process, pd: &Pd) {
    for qp in process.qps.all() {
        // An SRQ may be in another PD than its QPs.
        if qp.pd.id == pd.id || qp.srq.as_ref().is_some_and(|srq| srq.pd.id == pd.id) {
            qp.wait_idle(process);
        }
    }
    bounce::finish(&process.own);
}

/// Waits for the data of WRITEs that have completed. Later ones find no key.
fn land(process: &Process, mr: &Mr) {
    placement::land_mr(&process.own, mr.index);
    let device = process.own.header().devices.get(mr.pd.context.device.index);
    if let (Some(shared), Some(device)) = (process.own.mr(mr.index), device) {
        landing::finish(shared, device);
    }
}

/// `ibv_reg_mr(3)`
///
/// # Safety
/// `pd` is alive.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: the caller guarantees what the callee requires.
    border::pointer("ibv_reg_mr", || unsafe {
        register(pd, addr, len, addr.addr() as u64, access.cast_unsigned())
    })
}

/// `ibv_reg_mr_iova(3)`
///
/// # Safety
/// `pd` is alive.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: the caller guarantees what the callee requires.
    border::pointer("ibv_reg_mr_iova", || unsafe { register(pd, addr, len, iova, access.cast_unsigned()) })
}

/// `ibv_reg_mr_iova2`: the header's `ibv_reg_mr` calls it if there are optional access flags.
///
/// # Safety
/// `pd` is alive.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut sys::ibv_mr {
    // SAFETY: the caller guarantees what the callee requires.
    border::pointer("ibv_reg_mr_iova2", || unsafe { register(pd, addr, len, iova, access) })
}

/// `ibv_reg_dmabuf_mr(3)`: EOPNOTSUPP unless the device has `dmabuf=on`.
///
/// # Safety
/// `pd` is alive.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut sys::ibv_pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: the caller guarantees what the callee requires.
    border::pointer("ibv_reg_dmabuf_mr", || unsafe {
        register_dmabuf(pd, offset, len, iova, fd, access.cast_unsigned())
    })
}

/// `ibv_dereg_mr(3)`: after it returns, no work request accesses the memory.
///
/// # Safety
/// `mr` is alive and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    border::code("ibv_dereg_mr", || {
        let process = process::get()?;
        // SAFETY: alive, as the caller guarantees.
        let this = unsafe { Mr::from_c(mr) }?;
        calls::begin(this.pd.context.device, Call::DeregMr)?;
        if let Some(shared) = process.own.mr(this.index) {
            shared.key.store(0, Release);
        }
        quiesce(process, &this.pd);
        land(process, this);
        process.keys.free(this.index);
        this.pd.users.fetch_sub(1, AcqRel);
        // SAFETY: the caller does not use the pointer again.
        unsafe { Mr::release(mr) };
        Ok(())
    })
}
