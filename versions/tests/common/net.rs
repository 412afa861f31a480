//! The tables of an implementation, called by `nccl_net_host`.

use std::ffi::c_int;
use std::ops::Deref;
use std::ptr;

use nccl_net_host::{Code, Raw, Table};
use nccl_net_versions::NetPlugin;
use nccl_net_versions::abi::{ncclDebugLogger_t, ncclProfilerCallback_t, v7, v10, v11};

pub use nccl_net_host::Ptr;

/// Returns an implementation's table of a version.
pub fn table<P: NetPlugin>(version: u32) -> Table {
    macro_rules! table {
        ($module:ident) => {
            // SAFETY: the adapters do what the headers ask of a plugin.
            unsafe { Table::from_static(const { &nccl_net_versions::$module::table::<P>() }) }
        };
    }
    match version {
        6 => table!(v6),
        7 => table!(v7),
        8 => table!(v8),
        9 => table!(v9),
        10 => table!(v10),
        11 => table!(v11),
        12 => table!(v12),
        other => panic!("no version {other}"),
    }
}

/// One version's table.
#[derive(Debug, Clone, Copy)]
pub struct Net(Raw);

impl Deref for Net {
    type Target = Raw;

    fn deref(&self) -> &Raw {
        &self.0
    }
}

impl Net {
    pub fn of<P: NetPlugin>(version: u32) -> Self {
        // SAFETY: the tests pass valid arguments, or arguments that the adapters promise to refuse.
        Self(unsafe { table::<P>(version).raw() })
    }

    /// `class` is the traffic class of the settings; `None` passes NULL for the settings.
    pub fn init(
        &self,
        ctx: *mut Ptr,
        comm_id: u64,
        class: Option<c_int>,
        log: ncclDebugLogger_t,
        prof: ncclProfilerCallback_t,
    ) -> Code {
        let mut config = class.map(|class| v11::CommConfig { trafficClass: class });
        let config = config.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        self.0.init(ctx, comm_id, config, log, prof)
    }

    /// `class` is that of [`Net::init`], for v10.
    pub fn connect(
        &self,
        ctx: Ptr,
        dev: c_int,
        class: Option<c_int>,
        handle: Ptr,
        comm: *mut Ptr,
        device: *mut *mut v7::DeviceHandle,
    ) -> Code {
        let mut config = class.map(|class| v10::CommConfig { trafficClass: class });
        let config = config.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        self.0.connect(ctx, dev, config, handle, comm, device)
    }

    /// Calls `finalize`. Versions before v11 have none and succeed.
    pub fn finalize(&self, ctx: Ptr) -> Code {
        if self.table().version() < 11 { Code::Success } else { self.0.finalize(ctx) }
    }
}

/// A pointer that is not NULL, to see whether it is overwritten.
pub const STALE: Ptr = ptr::without_provenance_mut(0x5115);

/// An address that is never dereferenced.
pub const DATA: Ptr = ptr::without_provenance_mut(4096);
