//! The parts of verbs that rdma-sys 0.3.0 lacks or gets wrong. Each item names its C counterpart.

use std::ffi::{c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::Deref;
use std::ptr::NonNull;
use std::{fmt, io};

use mpib_proto::{Ece, GidKind};
use nix::net::if_::if_nametoindex;
use rdma_sys as sys;

use super::event::{About, AsyncEvent, Element, element};
use super::library::Verbs;

/// `IBV_LINK_LAYER_INFINIBAND`, of an anonymous enum that bindgen drops.
pub(super) const LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_QPF_GRH_REQUIRED`, of an anonymous enum as well.
pub(super) const GRH_REQUIRED: u8 = 1;

impl Verbs {
    /// Calls `ibv_fork_init`. It is no error if the kernel copies registered pages at a fork by
    /// itself, which `ibv_is_fork_initialized` reports.
    pub(super) fn fork_init(&self) -> io::Result<()> {
        /// `IBV_FORK_UNNEEDED` of `enum ibv_fork_status`.
        const UNNEEDED: c_int = 2;
        // SAFETY: takes no argument, and may be called at any time.
        let rc = unsafe { (self.ibv_fork_init)() };
        if rc == 0 {
            return Ok(());
        }
        // SAFETY: takes no argument.
        let status = self.ibv_is_fork_initialized.map(|f| unsafe { f() });
        if status == Some(UNNEEDED) { Ok(()) } else { Err(io::Error::from_raw_os_error(rc)) }
    }
}

/// `verbs_get_ctx`. rdma-sys compares the marker with `u32::MAX`, so on 64-bit hosts it never finds
/// the extended operations. The header compares with `UINTPTR_MAX`.
///
/// # Safety
/// `context` points to a live `ibv_context`.
unsafe fn extended(context: *mut sys::ibv_context) -> Option<*mut sys::verbs_context> {
    // SAFETY: the caller passes a live context.
    let marker = unsafe { (*context).abi_compat };
    (marker as usize == usize::MAX).then(|| {
        // SAFETY: the marker says that the context is a field of a `verbs_context`.
        unsafe { context.byte_sub(offset_of!(sys::verbs_context, context)) }.cast()
    })
}

/// The attributes of a port.
pub(super) struct PortAttr {
    pub(super) attr: sys::ibv_port_attr,
    /// `active_speed_ex` if the library has it and the port is faster than `active_speed` can
    /// express (XDR); else 0.
    pub(super) speed_ex: u32,
}

/// Room for the struct of any library, as integers: newer libraries have fields behind those of
/// rdma-sys.
#[repr(C, align(8))]
struct PortRoom([u8; 128]);

/// Offset of `active_speed_ex`, which newer rdma-core has: the first field behind
/// `port_cap_flags2`.
const ACTIVE_SPEED_EX: usize = 52;
/// The struct with all fields that are read.
const PORT_ATTR: usize = ACTIVE_SPEED_EX + size_of::<u32>();

const _: () = assert!(offset_of!(sys::ibv_port_attr, port_cap_flags2) == ACTIVE_SPEED_EX - 4);
const _: () = assert!(size_of::<sys::ibv_port_attr>() <= size_of::<PortRoom>());

impl Verbs {
    /// `ibv_query_port` as the header defines it: every field is filled, or zero if the library is too
    /// old.
    ///
    /// # Safety
    /// `context` points to a live `ibv_context`.
    pub(super) unsafe fn query_port(
        &self,
        context: *mut sys::ibv_context,
        port: u8,
    ) -> Result<PortAttr, c_int> {
        let mut room = PortRoom([0; 128]);
        let room_ptr = (&raw mut room).cast::<sys::ibv_port_attr>();
        // SAFETY: live context.
        let op = unsafe { extended(context) }.and_then(|v| {
            // The header's `verbs_get_ctx_op`: the struct of an older library ends, at its front,
            // before newer entries.
            let needed = size_of::<sys::verbs_context>() - offset_of!(sys::verbs_context, query_port);
            // SAFETY: `extended` found it, and every version has the size field.
            let sz = unsafe { (*v).sz };
            // SAFETY: the size covers the entry.
            (sz >= needed).then(|| unsafe { (*v).query_port }).flatten()
        });
        let rc = match op {
            // SAFETY: the library's own entry, with a size that the buffer has. It clears fields that
            // it does not know.
            Some(f) => unsafe { f(context, port, room_ptr, PORT_ATTR.max(size_of::<sys::ibv_port_attr>())) },
            // SAFETY: the compat entry writes a prefix of the same struct.
            None => unsafe { (self.ibv_query_port)(context, port, room_ptr.cast()) },
        };
        if rc != 0 {
            return Err(rc);
        }
        let speed_ex = room.0[ACTIVE_SPEED_EX..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        // SAFETY: aligned, large enough, and every bit pattern of its integer fields is valid.
        Ok(PortAttr { attr: unsafe { room_ptr.read() }, speed_ex })
    }
}

/// An entry of a GID table.
#[derive(Debug, Clone, Copy)]
pub(super) struct GidEntry {
    pub(super) port: u32,
    pub(super) index: u32,
    pub(super) raw: [u8; 16],
    /// [`GidKind::Ib`] also for a RoCE GID of unknown version.
    pub(super) kind: GidKind,
    /// Index of the network interface; 0 if unknown.
    pub(super) interface: u32,
}

impl Verbs {
    /// Reads the used entries of all ports with one call. `None` if the library has no
    /// `ibv_query_gid_table`, or if the call fails, for example because there are more than `room`
    /// entries.
    ///
    /// # Safety
    /// `context` points to a live `ibv_context`.
    pub(super) unsafe fn gid_table(
        &self,
        context: *mut sys::ibv_context,
        room: usize,
    ) -> Option<Vec<GidEntry>> {
        let table = self._ibv_query_gid_table?;
        // The kernel's interface has 16 bits for the length of an answer.
        let room = room.min(usize::from(u16::MAX) / size_of::<sys::ibv_gid_entry>());
        let mut entries = Vec::<sys::ibv_gid_entry>::with_capacity(room);
        // SAFETY: live context, and room for that many entries of the given size.
        let n = unsafe { table(context, entries.as_mut_ptr(), room, 0, size_of::<sys::ibv_gid_entry>()) };
        let n = usize::try_from(n).ok().filter(|n| *n <= room)?;
        // SAFETY: the capacity is `room`, and the call wrote `n` entries.
        unsafe { entries.set_len(n) };
        Some(entries.into_iter().map(gid_entry).collect())
    }

    /// Reads one entry with one call. `None` if the entry is empty, or the library has no
    /// `ibv_query_gid_ex`.
    ///
    /// # Safety
    /// `context` points to a live `ibv_context`.
    pub(super) unsafe fn gid_at(
        &self,
        context: *mut sys::ibv_context,
        port: u8,
        index: u8,
    ) -> Option<GidEntry> {
        let query = self._ibv_query_gid_ex?;
        let mut entry = std::mem::MaybeUninit::<sys::ibv_gid_entry>::zeroed();
        let size = size_of::<sys::ibv_gid_entry>();
        // SAFETY: live context, and a writable entry of the given size.
        let rc = unsafe { query(context, port.into(), index.into(), entry.as_mut_ptr(), 0, size) };
        // SAFETY: zeroed, then written; integers only.
        (rc == 0).then(|| gid_entry(unsafe { entry.assume_init() }))
    }
}

fn gid_entry(entry: sys::ibv_gid_entry) -> GidEntry {
    let kind = GidKind::from_raw(entry.gid_type).unwrap_or(GidKind::Ib);
    // SAFETY: both views of the union are plain bytes.
    let raw = unsafe { entry.gid.raw };
    GidEntry { port: entry.port_num, index: entry.gid_index, raw, kind, interface: entry.ndev_ifindex }
}

impl Verbs {
    /// Reads one entry, which may be empty, for libraries without [`gid_table`](Self::gid_table):
    /// `ibv_query_gid`, and `gid_attrs` of the device in sysfs.
    ///
    /// # Safety
    /// `context` points to a live `ibv_context`.
    pub(super) unsafe fn query_gid(
        &self,
        context: *mut sys::ibv_context,
        ibdev_path: &str,
        port: u8,
        index: u8,
    ) -> io::Result<GidEntry> {
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: live context and a writable GID.
        let rc = unsafe { (self.ibv_query_gid)(context, port, index.into(), &raw mut gid) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both views of the union are plain bytes.
        let raw = unsafe { gid.raw };
        let attribute =
            |what| std::fs::read_to_string(format!("{ibdev_path}/ports/{port}/gid_attrs/{what}/{index}"));
        let kind = match attribute("types") {
            Ok(text) if text.trim() == "RoCE v2" => GidKind::RoceV2,
            Ok(text) if text.trim() == "IB/RoCE v1" => GidKind::RoceV1,
            _ => GidKind::Ib,
        };
        let interface =
            attribute("ndevs").ok().and_then(|name| if_nametoindex(name.trim()).ok()).unwrap_or(0);
        Ok(GidEntry { port: port.into(), index: index.into(), raw, kind, interface })
    }
}

/// `IBV_ACCESS_RELAXED_ORDERING`, one of the optional bits: providers that do not know it ignore
/// it.
const ACCESS_RELAXED_ORDERING: c_uint = 1 << 20;

impl Verbs {
    /// `ibv_reg_mr` as the header's macro defines it: optional bits need `ibv_reg_mr_iova2`.
    ///
    /// # Safety
    /// `pd` is live. The memory need not be valid: the kernel checks it.
    pub(super) unsafe fn reg_mr(
        &self,
        pd: *mut sys::ibv_pd,
        addr: usize,
        len: usize,
        access: c_uint,
        relaxed: bool,
    ) -> (&'static str, *mut sys::ibv_mr) {
        let data = std::ptr::without_provenance_mut::<c_void>(addr);
        match self.ibv_reg_mr_iova2 {
            Some(f) if relaxed => {
                // SAFETY: live PD.
                let mr = unsafe { f(pd, data, len, addr as u64, access | ACCESS_RELAXED_ORDERING) };
                ("ibv_reg_mr_iova2", mr)
            }
            // SAFETY: live PD.
            _ => ("ibv_reg_mr", unsafe { (self.ibv_reg_mr)(pd, data, len, access as c_int) }),
        }
    }
}

impl Verbs {
    /// Registers the bytes from `offset` of the file, which work requests address as `iova`. EOPNOTSUPP
    /// if the library is older.
    ///
    /// # Safety
    /// `pd` is live. The file and the range need not be valid: the kernel checks them.
    pub(super) unsafe fn reg_dmabuf_mr(
        &self,
        pd: *mut sys::ibv_pd,
        (fd, offset): (c_int, u64),
        (iova, len): (usize, usize),
        access: c_uint,
        relaxed: bool,
    ) -> io::Result<NonNull<sys::ibv_mr>> {
        let f = self.ibv_reg_dmabuf_mr.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        // Unlike ibv_reg_mr, this call accepts the optional bits.
        let access = if relaxed { access | ACCESS_RELAXED_ORDERING } else { access };
        // SAFETY: live PD.
        let mr = unsafe { f(pd, offset, len, iova as u64, fd, access as c_int) };
        NonNull::new(mr).ok_or_else(io::Error::last_os_error)
    }
}

impl Verbs {
    /// `ibv_query_ece`; EOPNOTSUPP if the library is older.
    ///
    /// # Safety
    /// `qp` is live.
    pub(super) unsafe fn query_ece(&self, qp: *mut sys::ibv_qp) -> (c_int, Ece) {
        let mut ece = Ece { vendor_id: 0, options: 0, comp_mask: 0 };
        let rc = match self.ibv_query_ece {
            // SAFETY: live QP, writable struct.
            Some(query) => unsafe { query(qp, &raw mut ece) },
            None => libc::EOPNOTSUPP,
        };
        (rc, ece)
    }

    /// `ibv_set_ece`; EOPNOTSUPP if the library is older.
    ///
    /// # Safety
    /// `qp` is live.
    pub(super) unsafe fn set_ece(&self, qp: *mut sys::ibv_qp, mut ece: Ece) -> c_int {
        match self.ibv_set_ece {
            // SAFETY: live QP, readable struct.
            Some(set) => unsafe { set(qp, &raw mut ece) },
            None => libc::EOPNOTSUPP,
        }
    }
}

/// `struct ibv_async_event` with the type as an integer. In rdma-sys the type is a Rust enum that
/// ends at 19, and newer libraries deliver 20.
#[repr(C)]
struct RawEvent {
    element: RawElement,
    event_type: c_int,
}

#[repr(C)]
union RawElement {
    qp: *mut sys::ibv_qp,
    other: *mut c_void,
    port: c_int,
}

const _: () = assert!(size_of::<RawEvent>() == size_of::<sys::ibv_async_event>());

/// An asynchronous event that is not acknowledged yet. Its queue cannot be destroyed before that, and
/// no other queue gets its number or its address.
pub(crate) struct PendingEvent<'a> {
    raw: RawEvent,
    event: AsyncEvent,
    verbs: &'static Verbs,
    context: PhantomData<&'a sys::ibv_context>,
}

impl Deref for PendingEvent<'_> {
    type Target = AsyncEvent;

    fn deref(&self) -> &AsyncEvent {
        &self.event
    }
}

impl fmt::Debug for PendingEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt(f)
    }
}

impl Drop for PendingEvent<'_> {
    fn drop(&mut self) {
        // SAFETY: an event of `next_event`, acknowledged once; its context is open.
        unsafe { (self.verbs.ibv_ack_async_event)((&raw mut self.raw).cast()) };
    }
}

impl Verbs {
    /// Takes one pending asynchronous event from a context whose `async_fd` does not block.
    ///
    /// # Safety
    /// `context` points to an `ibv_context` that is open for `'a`.
    pub(super) unsafe fn next_event<'a>(
        &'static self,
        context: *mut sys::ibv_context,
    ) -> io::Result<PendingEvent<'a>> {
        let mut raw = RawEvent { element: RawElement { other: std::ptr::null_mut() }, event_type: 0 };
        // SAFETY: live context; the struct has the C layout (asserted above).
        if unsafe { (self.ibv_get_async_event)(context, (&raw mut raw).cast()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let kind = raw.event_type;
        let about = match element(kind) {
            // SAFETY: an event of this kind has a queue pair, which lives until the event is
            // acknowledged.
            Element::Qp => About::Qp(unsafe { (*raw.element.qp).qp_num }),
            // SAFETY: any pointer may be read as one.
            Element::Cq => About::Cq(unsafe { raw.element.other }.addr()),
            // SAFETY: as above.
            Element::Srq => About::Srq(unsafe { raw.element.other }.addr()),
            // SAFETY: an event of this kind has a port number in these bytes; any bytes are a valid
            // integer.
            Element::Port => About::Port(u8::try_from(unsafe { raw.element.port }).unwrap_or(0)),
            Element::None => About::Device,
        };
        Ok(PendingEvent { raw, event: AsyncEvent { kind, about }, verbs: self, context: PhantomData })
    }
}

/// Makes `async_fd` non-blocking: [`Verbs::next_event`] then never waits.
///
/// # Safety
/// `context` points to a live `ibv_context`.
pub(super) unsafe fn async_fd_nonblocking(context: *mut sys::ibv_context) -> io::Result<()> {
    // SAFETY: live context.
    let fd = unsafe { (*context).async_fd };
    // SAFETY: plain calls on a descriptor that the context owns.
    let rc = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 { flags } else { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
