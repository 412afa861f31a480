//! Devices and contexts.

use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::api::event_queue::EventQueue;
use crate::api::events::Event;
use crate::config::call::Call;
use crate::config::gid::{self, Gid};
use crate::config::profile::Profile;
use crate::config::{self, Capability, DeviceSpec, quirks};
use crate::limits::{COMP_VECTORS, MAX_DEVICES};
use crate::log::fault;
use crate::process::{calls, port};
use crate::shm::dir;

/// A port of a device; the first one stands for the device as well. It lives as long as the process:
/// pointers from a freed list stay valid.
#[repr(C)]
pub(crate) struct Device {
    ibv: sys::ibv_device,
    /// The configuration, within the limits of the profile.
    pub(crate) spec: DeviceSpec,
    /// What its provider does.
    pub(crate) profile: &'static Profile,
    /// Index in the list of all ports.
    pub(crate) index: usize,
    /// Index of its first port, which stands for the device.
    adapter: usize,
    /// The port's number.
    pub(crate) number: u8,
    /// The configured GID table.
    pub(crate) gids: Vec<Gid>,
    /// Node and port GUID.
    pub(crate) guid: u64,
    /// The port's LID; 0 on Ethernet.
    pub(crate) lid: u16,
}

// SAFETY: it never changes, and no pointer in its C struct is dereferenced.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

/// An open device. C uses the `ibv_context` inside `verbs`.
#[repr(C)]
pub(crate) struct Context {
    verbs: UnsafeCell<sys::verbs_context>,
    /// The device.
    pub(crate) device: &'static Device,
    /// `LinkSlot::life` of the device when it was opened.
    pub(crate) life: u32,
    /// Whether an event that the device has failed was delivered: CQs return nothing any more.
    dead: AtomicBool,
    /// Whether `DEVICE_FATAL` was delivered.
    removal_reported: AtomicBool,
    /// PDs, CQs and channels that are not destroyed.
    pub(crate) children: AtomicUsize,
    /// Asynchronous events that are not yet delivered.
    pub(crate) events: EventQueue<Event>,
}

// SAFETY: the C struct is written before it is shared. C may change its mutex, which Rust never
// accesses.
unsafe impl Sync for Context {}
// SAFETY: no part of it is tied to a thread.
unsafe impl Send for Context {}

static OPEN: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());

/// Returns the open contexts, for events of a port.
pub(crate) fn open_contexts() -> Vec<Arc<Context>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
}

/// Returns all ports of all devices in the order of the configuration.
pub(crate) fn all() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        // Before anything is counted.
        crate::process::report::arrange();
        let specs = config::devices();
        if specs.len() > MAX_DEVICES {
            fault!("{} ports are configured, only the first {MAX_DEVICES} are used", specs.len());
        }
        specs.iter().take(MAX_DEVICES).enumerate().map(|(index, spec)| Device::new(index, spec)).collect()
    })
}

/// Returns the devices of this process, with the limits and features that their providers leave them.
pub fn devices() -> Vec<DeviceSpec> {
    all().iter().map(|device| device.spec.clone()).collect()
}

/// Returns what the descriptions of devices ask for and their providers do not have.
pub fn missing() -> Vec<String> {
    let asked = config::devices().iter().zip(all());
    asked
        .filter(|(asked, device)| asked.dmabuf && !device.spec.dmabuf)
        .map(|(_, device)| format!("{} of {} registers no DMA-BUF", device.spec.name, device.profile.name))
        .collect()
}

fn copy_str(to: &mut [std::ffi::c_char], from: &str) {
    // The last byte stays zero.
    let room = to.len() - 1;
    for (to, from) in to[..room].iter_mut().zip(from.bytes()) {
        *to = std::ffi::c_char::from_ne_bytes([from]);
    }
}

/// Returns the directory that represents a device in sysfs. With counters it exists.
fn sysfs_path(spec: &DeviceSpec, guid: u64) -> String {
    let own = || dir::fabric_path().ok().map(|path| path.join(format!("sysfs-{}-{guid:x}", spec.name)));
    match (&spec.sysfs, spec.hw_counters.then(own).flatten()) {
        (Some(path), _) => path.clone(),
        (None, Some(own)) => own.to_string_lossy().into_owned(),
        (None, None) => format!("/sys/class/infiniband/{}", spec.name),
    }
}

impl Device {
    fn new(index: usize, described: &DeviceSpec) -> Self {
        let profile = quirks::of(described);
        let spec = profile.limit(described.clone());
        let number = spec.port();
        let adapter = index.saturating_sub(usize::from(number) - 1);
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
        let guid = gid::guid(&spec);
        copy_str(&mut ibv.ibdev_path, &sysfs_path(&spec, guid));
        let (gids, lid) = (gid::table(&spec), gid::lid(&spec));
        Self { ibv, profile, index, adapter, number, gids, guid, lid, spec }
    }

    /// Returns the device: its first port.
    pub(crate) fn adapter(&self) -> &'static Self {
        &all()[self.adapter]
    }

    /// Returns all ports of the device.
    pub(crate) fn ports(&self) -> &'static [Self] {
        let rest = &all()[self.adapter..];
        let count = rest.iter().take_while(|port| port.adapter == self.adapter).count();
        &rest[..count]
    }

    /// Returns a port of the device; EINVAL if there is no such port.
    pub(crate) fn port(&self, number: u32) -> Result<&'static Self, Errno> {
        let index = (number as usize).checked_sub(1).ok_or(Errno(libc::EINVAL))?;
        self.ports().get(index).ok_or(Errno(libc::EINVAL))
    }

    /// Returns the pointer for C.
    pub(crate) fn as_ptr(&'static self) -> *mut sys::ibv_device {
        std::ptr::from_ref(&self.ibv).cast_mut()
    }

    /// Returns `ibdev_path`: the directory that represents the device in sysfs.
    pub(crate) fn ibdev_path(&self) -> String {
        let bytes: Vec<u8> =
            self.ibv.ibdev_path.iter().map(|c| c.to_ne_bytes()[0]).take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the device for a pointer from C. The address is looked up: a wrong pointer is
    /// rejected, not dereferenced.
    pub(crate) fn from_ptr(ptr: *mut sys::ibv_device) -> Result<&'static Self, Errno> {
        let devices = all().iter().filter(|device| device.number == 1);
        devices.into_iter().find(|device| device.as_ptr() == ptr).ok_or(Errno(libc::EINVAL))
    }
}

impl Context {
    /// Returns the pointer for C.
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

    /// Returns the context for a pointer from C.
    ///
    /// # Safety
    /// `ptr` is null or came from [`ibv_open_device`] and is not closed during `'a`.
    pub(crate) unsafe fn from_ptr<'a>(ptr: *mut sys::ibv_context) -> Result<&'a Self, Errno> {
        let outer = Self::outer(ptr)?;
        // SAFETY: every context handed to C is the field of a `Context` at that offset.
        Ok(unsafe { &*outer })
    }

    /// Like [`Context::from_ptr`], with a new reference.
    ///
    /// # Safety
    /// As for [`Context::from_ptr`].
    pub(crate) unsafe fn arc_from_ptr(ptr: *mut sys::ibv_context) -> Result<Arc<Self>, Errno> {
        let outer = Self::outer(ptr)?;
        // SAFETY: `open` used `Arc::into_raw`, and C still holds its reference.
        unsafe { Arc::increment_strong_count(outer) };
        // SAFETY: consumes the reference that was just added.
        Ok(unsafe { Arc::from_raw(outer) })
    }

    /// Fails with EIO if the device was removed since the context was opened.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        match port::link(self.device).is_none_or(|(link, _)| link.life() == self.life) {
            true => Ok(()),
            false => Err(Errno(libc::EIO)),
        }
    }

    /// Marks the context if its device was removed.
    pub(crate) fn notice_failure(&self) {
        if self.check().is_err() {
            self.dead.store(true, Ordering::Release);
        }
    }

    /// Notes that `DEVICE_FATAL` is delivered. Returns whether it was not before.
    pub(crate) fn report_removal(&self) -> bool {
        !self.removal_reported.swap(true, Ordering::AcqRel)
    }

    /// Returns whether the program was informed that the device has failed.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    fn open(device: &'static Device) -> Result<*mut sys::ibv_context, Errno> {
        // SAFETY: function pointers in `Option`, integers and raw pointers may all be zero.
        let mut verbs: sys::verbs_context = unsafe { MaybeUninit::zeroed().assume_init() };
        let events = EventQueue::new()?;
        crate::control::faults::from_environment();
        // Without a fabric, the calls that need one fail.
        let life = port::link(device).map_or(0, |(link, _)| link.life());
        calls::begin(device, Call::OpenDevice)?;
        if port::is_removed(device) {
            fault!("ibv_open_device({}): the device is removed (an injected fault)", device.spec.name);
            return Err(Errno(libc::ENODEV));
        }
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
        let context = Arc::new(Self {
            verbs,
            device,
            life,
            dead: AtomicBool::new(false),
            removal_reported: AtomicBool::new(false),
            children: AtomicUsize::new(0),
            events,
        });
        let ptr = context.as_ptr();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|context| context.strong_count() > 0);
        open.push(Arc::downgrade(&context));
        // The reference of C, dropped by `ibv_close_device`.
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
        crate::api::sysfs::mark_listed();
        let devices: Vec<_> =
            all().iter().filter(|device| device.number == 1 && !port::is_removed(device)).collect();
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

/// `ibv_get_device_guid(3)`: big-endian; 0 for an invalid pointer.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut sys::ibv_device) -> u64 {
    Device::from_ptr(device).map_or(0, |device| device.guid.to_be())
}

/// `ibv_get_device_index(3)`: -1 for an invalid pointer.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut sys::ibv_device) -> std::ffi::c_int {
    Device::from_ptr(device).map_or(-1, |device| i32::try_from(device.index).unwrap_or(-1))
}

/// `ibv_open_device(3)`
#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut sys::ibv_device) -> *mut sys::ibv_context {
    border::pointer("ibv_open_device", || Context::open(Device::from_ptr(device)?))
}

/// `ibv_close_device(3)`: as in the man page, remaining objects are not released; as in the kernel,
/// remaining QPs stop working.
///
/// # Safety
/// `context` is open, and no other call uses it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut sys::ibv_context) -> std::ffi::c_int {
    border::code("ibv_close_device", || {
        // SAFETY: open, as the caller guarantees.
        let this = unsafe { Context::from_ptr(context) }?;
        calls::begin(this.device, Call::CloseDevice)?;
        let children = this.children.load(Ordering::Acquire);
        if children > 0 {
            fault!(
                "ibv_close_device({}): {children} PDs, CQs or channels still exist; destroy them first",
                this.device.spec.name
            );
            crate::api::qp::disconnect_all(this);
        }
        // SAFETY: the reference of C from `open`; the caller does not use the pointer again.
        drop(unsafe { Arc::from_raw(std::ptr::from_ref(this)) });
        Ok(())
    })
}
