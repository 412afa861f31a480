//! The devices and the contexts opened on them.

use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::api::event_queue::EventQueue;
use crate::api::events::Event;
use crate::config::gid::{self, Gid};
use crate::config::{self, Capability, DeviceSpec};
use crate::limits::{COMP_VECTORS, MAX_DEVICES};
use crate::log::fault;

/// A device. Lives as long as the process, so a pointer from a freed list stays good.
#[repr(C)]
pub(crate) struct Device {
    ibv: sys::ibv_device,
    /// How it is configured.
    pub(crate) spec: &'static DeviceSpec,
    /// Place in the list.
    pub(crate) index: usize,
    /// The port's GID table.
    pub(crate) gids: Vec<Gid>,
    /// Node and port GUID.
    pub(crate) guid: u64,
    /// The port's LID; 0 on Ethernet.
    pub(crate) lid: u16,
}

// SAFETY: nothing of it changes after it is made, and its C part holds no pointer that is followed.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

/// An open device. Its last public field is the `ibv_context` that C sees.
#[repr(C)]
pub(crate) struct Context {
    verbs: UnsafeCell<sys::verbs_context>,
    /// The device it is open on.
    pub(crate) device: &'static Device,
    /// PDs, CQs and channels made on it and not yet destroyed.
    pub(crate) children: AtomicUsize,
    /// Async events that the program has not fetched.
    pub(crate) events: EventQueue<Event>,
}

// SAFETY: the C struct is written before it is shared; what C may change of it (its mutex) we never
// touch.
unsafe impl Sync for Context {}
// SAFETY: no part of it is tied to a thread.
unsafe impl Send for Context {}

static OPEN: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());

/// The contexts that are open now, for events of a port.
pub(crate) fn open_contexts() -> Vec<Arc<Context>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
}

/// The devices in list order.
pub(crate) fn all() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        // Before anything is counted.
        crate::control::report::arrange();
        let specs = config::devices();
        if specs.len() > MAX_DEVICES {
            fault!("{} devices are configured, only the first {MAX_DEVICES} are used", specs.len());
        }
        specs.iter().take(MAX_DEVICES).enumerate().map(|(index, spec)| Device::new(index, spec)).collect()
    })
}

fn copy_str(to: &mut [std::ffi::c_char], from: &str) {
    // The last byte stays zero.
    let room = to.len() - 1;
    for (to, from) in to[..room].iter_mut().zip(from.bytes()) {
        *to = std::ffi::c_char::from_ne_bytes([from]);
    }
}

impl Device {
    fn new(index: usize, spec: &'static DeviceSpec) -> Self {
        // SAFETY: integers, arrays of integers and `Option` function pointers may all be zero.
        let mut ibv: sys::ibv_device = unsafe { MaybeUninit::zeroed().assume_init() };
        ibv.node_type = sys::ibv_node_type::IBV_NODE_CA;
        ibv.transport_type = sys::ibv_transport_type::IBV_TRANSPORT_IB;
        if spec.without.contains(&Capability::IbTransport) {
            ibv.node_type = sys::ibv_node_type::IBV_NODE_RNIC;
            ibv.transport_type = sys::ibv_transport_type::IBV_TRANSPORT_IWARP;
        }
        copy_str(&mut ibv.name, &spec.name);
        copy_str(&mut ibv.dev_name, &format!("uverbs{index}"));
        copy_str(&mut ibv.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{index}"));
        let nowhere = || format!("/sys/class/infiniband/{}", spec.name);
        copy_str(&mut ibv.ibdev_path, &spec.sysfs.clone().unwrap_or_else(nowhere));
        let guid = gid::guid(spec);
        let lid = gid::lid(spec);
        Self { ibv, spec, index, gids: gid::table(spec), guid, lid }
    }

    /// What C holds.
    pub(crate) fn as_ptr(&'static self) -> *mut sys::ibv_device {
        std::ptr::from_ref(&self.ibv).cast_mut()
    }

    /// From what C holds: found by address, so that a foreign pointer is refused, not followed.
    pub(crate) fn from_ptr(ptr: *mut sys::ibv_device) -> Result<&'static Self, Errno> {
        all().iter().find(|device| device.as_ptr() == ptr).ok_or(Errno(libc::EINVAL))
    }
}

impl Context {
    /// What C holds.
    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_context {
        let verbs = self.verbs.get();
        verbs.wrapping_byte_add(offset_of!(sys::verbs_context, context)).cast()
    }

    fn outer(ptr: *mut sys::ibv_context) -> Result<*const Self, Errno> {
        if ptr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let offset = offset_of!(Self, verbs) + offset_of!(sys::verbs_context, context);
        Ok(ptr.wrapping_byte_sub(offset).cast::<Self>())
    }

    /// From what C holds.
    ///
    /// # Safety
    /// `ptr` is null or came from [`ibv_open_device`] and is not closed during `'a`.
    pub(crate) unsafe fn from_ptr<'a>(ptr: *mut sys::ibv_context) -> Result<&'a Self, Errno> {
        let outer = Self::outer(ptr)?;
        // SAFETY: every context that we gave out is the field of a `Context` at that offset.
        Ok(unsafe { &*outer })
    }

    /// As [`Context::from_ptr`], counted, for objects made on it.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn arc_from_ptr(ptr: *mut sys::ibv_context) -> Result<Arc<Self>, Errno> {
        let outer = Self::outer(ptr)?;
        // SAFETY: made by `Arc::into_raw` in `open`, and C's count is still there.
        unsafe { Arc::increment_strong_count(outer) };
        // SAFETY: the count just added is ours.
        Ok(unsafe { Arc::from_raw(outer) })
    }

    fn open(device: &'static Device) -> Result<*mut sys::ibv_context, Errno> {
        // SAFETY: function pointers in `Option`, integers and raw pointers may all be zero.
        let mut verbs: sys::verbs_context = unsafe { MaybeUninit::zeroed().assume_init() };
        let events = EventQueue::new()?;
        verbs.sz = size_of::<sys::verbs_context>();
        verbs.context.device = device.as_ptr();
        verbs.context.cmd_fd = -1;
        verbs.context.async_fd = events.fd();
        verbs.context.num_comp_vectors = COMP_VECTORS;
        verbs.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
        verbs.context.ops.poll_cq = Some(crate::api::poll::poll_cq);
        verbs.context.ops.req_notify_cq = Some(crate::api::poll::req_notify_cq);
        verbs.context.ops.post_send = Some(crate::api::send::post_send);
        verbs.context.ops.post_recv = Some(crate::api::recv::post_recv);
        verbs.context.ops.post_srq_recv = Some(crate::api::srq::post_srq_recv);
        crate::api::query::fill_ops(&mut verbs);
        let verbs = UnsafeCell::new(verbs);
        let context = Arc::new(Self { verbs, device, children: AtomicUsize::new(0), events });
        let ptr = context.as_ptr();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|context| context.strong_count() > 0);
        open.push(Arc::downgrade(&context));
        // C's count, taken back by `ibv_close_device`.
        let _ = Arc::into_raw(context);
        Ok(ptr)
    }
}

/// `ibv_get_device_list(3)`: a NULL-terminated array, or NULL and `errno`.
///
/// # Safety
/// `num` is null or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num: *mut std::ffi::c_int) -> *mut *mut sys::ibv_device {
    border::pointer("ibv_get_device_list", || {
        crate::api::sysfs::listed();
        let devices = all();
        // SAFETY: calloc of a non-zero size; zeroed memory is an array of null pointers.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut sys::ibv_device>()) };
        let list = list.cast::<*mut sys::ibv_device>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        for (i, device) in devices.iter().enumerate() {
            // SAFETY: `i` is below the length just allocated.
            unsafe { list.add(i).write(device.as_ptr()) };
        }
        if !num.is_null() {
            let count = i32::try_from(devices.len()).unwrap_or(i32::MAX);
            // SAFETY: the caller passes null or a writable int.
            unsafe { num.write(count) };
        }
        Ok(list)
    })
}

/// `ibv_free_device_list(3)`; a null list is ignored.
///
/// # Safety
/// `list` is null or came from `ibv_get_device_list` and was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut sys::ibv_device) {
    // SAFETY: from calloc, as the caller guarantees; free ignores null.
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name(3)`
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut sys::ibv_device) -> *const std::ffi::c_char {
    border::pointer("ibv_get_device_name", || Ok(Device::from_ptr(device)?.ibv.name.as_ptr().cast_mut()))
}

/// `ibv_get_device_guid(3)`: big-endian; 0 for a pointer that is no device.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut sys::ibv_device) -> u64 {
    Device::from_ptr(device).map_or(0, |device| device.guid.to_be())
}

/// `ibv_get_device_index(3)`: -1 for a pointer that is no device.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut sys::ibv_device) -> std::ffi::c_int {
    Device::from_ptr(device).map_or(-1, |device| i32::try_from(device.index).unwrap_or(-1))
}

/// `ibv_open_device(3)`
#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut sys::ibv_device) -> *mut sys::ibv_context {
    border::pointer("ibv_open_device", || Context::open(Device::from_ptr(device)?))
}

/// `ibv_close_device(3)`: as the man page has it, objects that still exist are not released; as in
/// the kernel, the QPs among them end.
///
/// # Safety
/// `context` is open, and no other call uses it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut sys::ibv_context) -> std::ffi::c_int {
    border::code("ibv_close_device", || {
        // SAFETY: open, as the caller guarantees.
        let this = unsafe { Context::from_ptr(context) }?;
        let children = this.children.load(Ordering::Acquire);
        if children > 0 {
            fault!(
                "ibv_close_device({}): {children} PDs, CQs or channels still exist; destroy them first",
                this.device.spec.name
            );
            crate::api::qp::abandon(this);
        }
        // SAFETY: C's count, made by `open`; the caller gives up its pointer.
        drop(unsafe { Arc::from_raw(std::ptr::from_ref(this)) });
        Ok(())
    })
}
