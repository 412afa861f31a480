//! Devices: opening them, and their attributes.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdma_sys as sys;

use crate::error::{Error, Result};
use crate::fork_guard;
use crate::sync::Mutex;

use super::event::About;
use super::library::Verbs;
use super::port::{Gid, Port};
use super::shim::PendingEvent;
use super::{is_removal, log_failure, make, mlx5dv, shim, zero};

/// An open device.
#[derive(Debug)]
pub struct Context {
    verbs: &'static Verbs,
    raw: NonNull<sys::ibv_context>,
    name: String,
    sysfs: String,
    /// `node_guid`, in network byte order; 0 if the device has none.
    guid: u64,
    transport: sys::ibv_transport_type::Type,
    /// Events so far that may have changed a port or a table. Locked while an event is read: until
    /// it is counted, nobody may take the table for unchanged.
    changes: Mutex<u64>,
}

// SAFETY: libibverbs locks inside; calls on one context may come from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The limits of a device, as `ibv_query_device` reports them.
#[derive(Debug, Clone, Copy)]
pub struct DeviceLimits {
    /// `sys_image_guid`, or `node_guid` if that is 0; in host byte order.
    pub(crate) guid: u64,
    /// Ports, numbered from 1.
    pub(crate) ports: u8,
    /// Most QPs.
    pub max_qp: u32,
    /// Most work requests in one queue of a QP.
    pub(crate) max_qp_wr: u32,
    /// Most CQs.
    pub max_cq: u32,
    /// Most entries in a CQ.
    pub(crate) max_cqe: u32,
    /// Most SRQs; 0 if the device has none.
    pub max_srq: u32,
    /// Most receives in an SRQ.
    pub(crate) max_srq_wr: u32,
    /// `enum ibv_transport_type`
    transport: sys::ibv_transport_type::Type,
}

impl DeviceLimits {
    /// Returns why no port of the device can be used. A usable device speaks the InfiniBand
    /// transport, over InfiniBand or RoCE: it has reliable connections (RC) with RDMA writes.
    pub(crate) fn unfit(&self) -> Option<String> {
        use sys::ibv_transport_type as transport;
        let speaks = match self.transport {
            transport::IBV_TRANSPORT_IB => return None,
            transport::IBV_TRANSPORT_IWARP => "iWARP".to_owned(),
            transport::IBV_TRANSPORT_USNIC | transport::IBV_TRANSPORT_USNIC_UDP => {
                "usNIC's protocol".to_owned()
            }
            transport::IBV_TRANSPORT_UNSPECIFIED => "a protocol of its maker's own, as EFA does".to_owned(),
            other => format!("a protocol unknown here (transport_type {other})"),
        };
        // docs/internals/adapters.md has the commands.
        let switch = match self.transport {
            transport::IBV_TRANSPORT_IWARP => {
                ": irdma's E810 changes to RoCE by devlink (enable_roce), erdma by compat_mode=Y; siw has iWARP alone"
            }
            _ => "",
        };
        Some(format!("its adapter speaks {speaks}, and neither InfiniBand nor RoCE{switch}"))
    }
}

/// Initialises libibverbs's fork support (`ibv_fork_init`), which keeps registered memory and the
/// queues shared with adapters out of forked children. Without it, on kernels that do not copy such
/// pages at a fork, the parent's next write goes to a page that no adapter reads. The call has an
/// effect only before the first registration; later calls return the result of the first.
pub(crate) fn survive_forks() -> Result<()> {
    Verbs::get()?.fork_init().map_err(|source| Error::verbs("ibv_fork_init", source, ""))
}

/// Returns whether registrations can request relaxed ordering, which the adapter may ignore. `None` if
/// there is no libibverbs.
pub(crate) fn can_relax_ordering() -> Option<bool> {
    Verbs::get().ok().map(|verbs| verbs.ibv_reg_mr_iova2.is_some())
}

/// Opens every device and returns each name, with the error of a device that does not open.
///
/// # Errors
/// There is no list of devices.
pub(crate) fn open_all() -> Result<Vec<(String, Result<Arc<Context>>)>> {
    let list = DeviceList::new()?;
    Ok(list.devices().map(|listed| (listed.name.clone(), Context::open(&listed).map(Arc::new))).collect())
}

/// The devices that the library lists now.
struct DeviceList {
    verbs: &'static Verbs,
    /// `None` if there are none.
    first: Option<NonNull<*mut sys::ibv_device>>,
    count: usize,
}

/// A device in the list, which lives meanwhile.
struct Listed<'a> {
    list: &'a DeviceList,
    device: *mut sys::ibv_device,
    name: String,
    /// See [`Context::guid`].
    guid: u64,
}

impl DeviceList {
    fn new() -> Result<Self> {
        let verbs = Verbs::get()?;
        let mut count = 0;
        // SAFETY: a writable count.
        let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        // Without devices the list may be NULL, and ibv_free_device_list(NULL) crashes.
        let Some(first) = NonNull::new(list) else {
            let source = io::Error::last_os_error();
            return match source.raw_os_error() {
                Some(0 | libc::ENOSYS | libc::ENOENT) => Ok(Self { verbs, first: None, count: 0 }),
                _ => Err(Error::verbs("ibv_get_device_list", source, "")),
            };
        };
        Ok(Self { verbs, first: Some(first), count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = Listed<'_>> {
        self.first.into_iter().flat_map(move |first| {
            (0..self.count).map(move |i| {
                // SAFETY: the list has `count` entries.
                let device = unsafe { *first.as_ptr().add(i) };
                // SAFETY: an entry of a live list, whose name is an array in the struct that the
                // library NUL-terminates.
                let name = unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy().into_owned();
                // SAFETY: as above.
                let guid = unsafe { (self.verbs.ibv_get_device_guid)(device) };
                Listed { list: self, device, name, guid }
            })
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if let Some(first) = self.first {
            // SAFETY: the list from `new`. Open contexts outlive it (man ibv_get_device_list).
            unsafe { (self.verbs.ibv_free_device_list)(first.as_ptr()) };
        }
    }
}

impl Context {
    /// Calls `ibv_open_device`.
    fn open(listed: &Listed<'_>) -> Result<Self> {
        let Listed { list: &DeviceList { verbs, .. }, device, ref name, guid } = *listed;
        // SAFETY: an entry of a live list, whose path is an array in the struct that the library
        // NUL-terminates.
        let sysfs = unsafe { CStr::from_ptr((*device).ibdev_path.as_ptr()) }.to_string_lossy().into_owned();
        let guard = fork_guard::no_fork();
        // SAFETY: as above.
        let raw = make("ibv_open_device", || name.clone(), || unsafe { (verbs.ibv_open_device)(device) })?;
        close_in_children(raw, true);
        drop(guard);
        // SAFETY: as above.
        let transport = unsafe { (*device).transport_type };
        let context = Self { verbs, raw, name: name.clone(), sysfs, guid, transport, changes: Mutex::new(0) };
        // SAFETY: just opened.
        if let Err(source) = unsafe { shim::async_fd_nonblocking(raw.as_ptr()) } {
            return Err(Error::io(format!("fcntl(O_NONBLOCK) on the events of {}", context.name), source));
        }
        Ok(context)
    }

    /// Opens the device again: the one with the same node GUID, or if there is none, the one with
    /// the same name. Devices that `is_taken` are others. `None` if the device is not there.
    pub(crate) fn open_again(&self, is_taken: impl Fn(&str) -> bool) -> Result<Option<Arc<Self>>> {
        let list = DeviceList::new()?;
        let free: Vec<_> = list.devices().filter(|listed| !is_taken(&listed.name)).collect();
        let same_guid = free.iter().find(|listed| self.guid != 0 && listed.guid == self.guid);
        let found = same_guid.or_else(|| free.iter().find(|listed| listed.name == self.name));
        found.map(|listed| Self::open(listed).map(Arc::new)).transpose()
    }

    /// Returns whether the context is dead: the device was removed, or has failed as a whole. Calls
    /// fail then, also when the device is there again.
    pub(crate) fn is_dead(&self, port: u8) -> bool {
        matches!(self.port(port), Err(Error::Verbs { source, .. }) if is_removal(&source))
    }

    /// Returns the node GUID, in host byte order.
    pub(crate) fn node_guid(&self) -> u64 {
        u64::from_be(self.guid)
    }

    /// Returns the device's name, as `ibv_devinfo` shows it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the canonical sysfs path of the PCI device; `None` for software devices.
    pub(crate) fn pci_path(&self) -> Option<String> {
        let path = std::fs::canonicalize(format!("{}/device", self.sysfs)).ok()?;
        path.to_str().map(str::to_owned)
    }

    /// Returns the sysfs folder of the hardware counters of a port.
    pub(crate) fn hw_counters(&self, port: u8) -> PathBuf {
        format!("{}/ports/{port}/hw_counters", self.sysfs).into()
    }

    /// Returns the sysfs path of the adapter's Data Direct interface, if it has one.
    pub(crate) fn data_direct(&self) -> Option<String> {
        // SAFETY: open for as long as `self` lives.
        unsafe { mlx5dv::data_direct(self.raw.as_ptr(), &self.sysfs) }
    }

    /// Calls `ibv_query_device`.
    pub(crate) fn limits(&self) -> Result<DeviceLimits> {
        let mut attr = std::mem::MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: open context, writable struct.
        let rc = unsafe { (self.verbs.ibv_query_device)(self.raw.as_ptr(), attr.as_mut_ptr()) };
        zero("ibv_query_device", rc, || self.name.clone())?;
        // SAFETY: zeroed, then written; integers only.
        let attr = unsafe { attr.assume_init() };
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let guid = if attr.sys_image_guid != 0 { attr.sys_image_guid } else { attr.node_guid };
        Ok(DeviceLimits {
            guid: u64::from_be(guid),
            ports: attr.phys_port_cnt,
            max_qp: count(attr.max_qp),
            max_qp_wr: count(attr.max_qp_wr),
            max_cq: count(attr.max_cq),
            max_cqe: count(attr.max_cqe),
            max_srq: count(attr.max_srq),
            // bnxt_re refuses as many as it reports (`bnxt_re_create_srq`, drivers/infiniband/hw).
            max_srq_wr: count(attr.max_srq_wr).saturating_sub(1),
            transport: self.transport,
        })
    }

    /// Calls `ibv_query_port`.
    pub(crate) fn port(&self, number: u8) -> Result<Port> {
        // SAFETY: open context.
        let attr = unsafe { self.verbs.query_port(self.raw.as_ptr(), number) };
        let fault = |source| Error::verbs("ibv_query_port", source, format!("{} port {number}", self.name));
        let shim::PortAttr { attr, speed_ex } = attr.map_err(|rc| {
            fault(if rc < 0 { io::Error::last_os_error() } else { io::Error::from_raw_os_error(rc) })
        })?;
        Port::of(number, &attr, speed_ex)
    }

    /// Returns the used entries of a port's GID table, in order. Every connection needs it, so it
    /// takes one call where the library has `ibv_query_gid_table`: tables have hundreds of entries,
    /// and most are empty.
    ///
    /// # Errors
    /// No entry can be read.
    pub(crate) fn gids(&self, port: &Port) -> Result<Vec<Gid>> {
        // The call covers all ports. Devices have one or two, with tables of one length.
        let room = 2 * port.gids as usize;
        // SAFETY: open context.
        let all = unsafe { self.verbs.gid_table(self.raw.as_ptr(), room) };
        let all = all.map_or_else(|| self.gids_one_by_one(port), Ok)?;
        let ours = all.into_iter().filter(|entry| entry.port == u32::from(port.number));
        Ok(ours.filter_map(Gid::of).collect())
    }

    fn gids_one_by_one(&self, port: &Port) -> Result<Vec<shim::GidEntry>> {
        // An address handle has one byte for the index.
        let indices = (0..=u8::MAX).take(port.gids as usize);
        // SAFETY: open context.
        let entry = |i| unsafe { self.verbs.query_gid(self.raw.as_ptr(), &self.sysfs, port.number, i) };
        let (read, failed): (Vec<_>, Vec<_>) = indices.map(entry).partition(io::Result::is_ok);
        // Some libraries fail for an empty entry.
        match failed.into_iter().find_map(io::Result::err).filter(|_| read.is_empty()) {
            Some(e) => Err(Error::verbs("ibv_query_gid", e, format!("{} port {}", self.name, port.number))),
            None => Ok(read.into_iter().flatten().collect()),
        }
    }

    /// Returns an entry of the GID table of a port; `None` if it is empty, or if the library reads
    /// tables only.
    pub(crate) fn gid_at(&self, port: u8, index: u8) -> Option<Gid> {
        // SAFETY: open context.
        unsafe { self.verbs.gid_at(self.raw.as_ptr(), port, index) }.and_then(Gid::of)
    }

    /// Returns a number that changes with each event that may have changed a port or a table.
    /// `None` while an event waits to be read.
    pub(crate) fn changes(&self) -> Option<u64> {
        let changes = self.changes.lock();
        let mut fd = [PollFd::new(self.async_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fd, PollTimeout::ZERO), Ok(0)).then_some(*changes)
    }

    /// Calls `ibv_query_pkey`. The result is in host byte order; its top bit marks a full member.
    pub(crate) fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        let mut key = 0;
        // SAFETY: open context, writable integer.
        let rc = unsafe { (self.verbs.ibv_query_pkey)(self.raw.as_ptr(), port, index.into(), &raw mut key) };
        zero("ibv_query_pkey", rc, || format!("{} port {port} index {index}", self.name))?;
        Ok(u16::from_be(key))
    }

    /// Returns the next asynchronous event; `None` if there is none now. Never waits. The event is
    /// acknowledged when it is dropped.
    ///
    /// # Errors
    /// No more events will come.
    pub(crate) fn next_event(&self) -> io::Result<Option<PendingEvent<'_>>> {
        let mut changes = self.changes.lock();
        // SAFETY: open context whose descriptor does not block.
        match unsafe { self.verbs.next_event(self.raw.as_ptr()) } {
            Ok(event) => {
                if matches!(event.about, About::Port(_) | About::Device) {
                    *changes += 1;
                }
                Ok(Some(event))
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Returns the descriptor that is readable while events are pending.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open until the context is closed, which drops `self`.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    /// Returns an id that is unique while the context is open.
    pub(crate) fn id(&self) -> usize {
        self.raw.addr().get()
    }

    pub(super) fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }
}

/// Makes forked children close the device's descriptors, or ends that. While a child holds them, the
/// kernel keeps the queue pairs of a dead parent, which acknowledge what peers write.
fn close_in_children(context: NonNull<sys::ibv_context>, close: bool) {
    // SAFETY: an open device.
    let fds = unsafe { [(*context.as_ptr()).cmd_fd, (*context.as_ptr()).async_fd] };
    fds.into_iter().for_each(|fd| fork_guard::close_in_children(fd, close));
}

impl Drop for Context {
    fn drop(&mut self) {
        let _guard = fork_guard::no_fork();
        close_in_children(self.raw, false);
        // SAFETY: no other owner is left; every child holds an `Arc` to the context.
        log_failure("ibv_close_device", &self.name, unsafe {
            (self.verbs.ibv_close_device)(self.raw.as_ptr())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_gives_what_entry_by_entry_gives() {
        crate::connect::tests::ports();
        let devices = open_all().unwrap();
        let context = devices.into_iter().find_map(|(_, context)| context.ok()).unwrap();
        let port = context.port(1).unwrap();
        let place = |entry: &shim::GidEntry| (entry.index, entry.raw);
        // SAFETY: open context.
        let all = unsafe { context.verbs.gid_table(context.as_ptr(), 1 << 16) }.unwrap();
        let each = context.gids_one_by_one(&port).unwrap();
        let used: Vec<_> = each.iter().filter(|entry| entry.raw != [0; 16]).collect();
        assert_eq!(
            all.iter().map(place).collect::<Vec<_>>(),
            used.into_iter().map(place).collect::<Vec<_>>()
        );
        // SAFETY: as above.
        let short = unsafe { context.verbs.gid_table(context.as_ptr(), all.len() - 1) };
        assert!(short.is_none(), "more than there is room for");
    }
}
